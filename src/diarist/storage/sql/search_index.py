"""What a search looks into: a row per message with its terms, written in the message's own transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Select,
    Text,
    and_,
    bindparam,
    delete,
    func,
    insert,
    select,
    text,
    tuple_,
)

from diarist.database import now
from diarist.storage.codec import MessageRow, decode_message
from diarist.storage.places import POSITIONS_PER_SECOND, first_position, hash63, moves
from diarist.storage.records import Run
from diarist.storage.sql.schema import messages, runs, search, threads
from diarist.storage.words import message_terms

BATCH = 1000

_base = bindparam("base", type_=BigInteger)
_next = select(func.coalesce(func.max(search.c.position) + 1, _base)).where(
    search.c.position >= _base, search.c.position < _base + POSITIONS_PER_SECOND
)
_of_owner = search.c.owner == bindparam("whose", type_=BigInteger)
_ADD = insert(search).values(position=_next.scalar_subquery())
_ADD_FOR_OWNER = insert(search).values(position=_next.where(_of_owner).scalar_subquery())
_ADD_THERE = insert(search)
_TO_INDEX = text(
    "INSERT INTO diarist_search_index (rowid, terms) SELECT position, terms FROM diarist_search"
    " WHERE thread_id = :thread AND seq BETWEEN :first AND :last ORDER BY position"
)
_here = (search.c.thread_id == bindparam("thread", type_=Text())) & (search.c.seq == bindparam("place"))
_REMOVE = delete(search).where(_here)
_NOW = select(now())
_INDEXED = (
    select(messages.c.seq, search.c.position, search.c.terms)
    .select_from(
        messages.outerjoin(search, and_(search.c.thread_id == messages.c.thread_id, search.c.seq == messages.c.seq))
    )
    .where(messages.c.thread_id == bindparam("thread", type_=Text()), messages.c.id == bindparam("message"))
)
_message = [messages.c[name] for name in MessageRow._fields]
_STORED: Select[*tuple[Any, ...]] = (
    select(threads.c.resource_id, runs.c.created_at.label("stored_at"), messages.c.thread_id, *_message)
    .select_from(
        messages.join(runs, runs.c.id == messages.c.run_id).join(threads, threads.c.id == messages.c.thread_id)
    )
    .where(
        tuple_(messages.c.thread_id, messages.c.seq)
        > tuple_(bindparam("thread", type_=Text()), bindparam("place", type_=BigInteger))
    )
    .order_by(messages.c.thread_id, messages.c.seq)
    .limit(BATCH)
)


def index_messages(
    connection: Connection, run: Run, rows: Sequence[MessageRow], terms: Sequence[Collection[str]]
) -> None:
    """Make stored rows findable by their terms."""
    stored_at = connection.scalar(_NOW) if any(row.created_at is None for row in rows) else None
    values = [
        _values(run.thread_id, run.resource_id, row, stored_at, found) for row, found in zip(rows, terms, strict=True)
    ]
    _add(connection, values)


def reindex_message(connection: Connection, run: Run, row: MessageRow, terms: Collection[str]) -> None:
    """Follow a rewritten row. It keeps its position unless it is said in another second than it was."""
    seq, position, stored = connection.execute(_INDEXED, {"thread": run.thread_id, "message": row.id}).one()
    moved = position is None or moves(position, row.created_at)
    if not moved and stored == {*terms, *marks(run.thread_id, run.resource_id)}:
        return
    connection.execute(_REMOVE, {"thread": run.thread_id, "place": seq})
    if moved:
        index_messages(connection, run, [row._replace(seq=seq)], [terms])
    else:
        values = _values(run.thread_id, run.resource_id, row._replace(seq=seq), 0, terms)
        _add(connection, [{**values, "position": position}], there=True)


def index_all(connection: Connection) -> None:
    """Make all messages findable that are there; one without a time goes by when its run began."""
    thread_id, seq = "", 0
    while batch := connection.execute(_STORED, {"thread": thread_id, "place": seq}).all():
        values: list[dict[str, Any]] = []
        for resource_id, stored_at, thread_id, *columns in batch:
            row = MessageRow(*columns)
            seq = row.seq
            found = message_terms(decode_message(row, thread_id=thread_id, resource_id=resource_id))
            values.append(_values(thread_id, resource_id, row, stored_at, found))
        _add(connection, values)


def _add(connection: Connection, values: Sequence[dict[str, Any]], *, there: bool = False) -> None:
    """Insert rows that follow each other in their threads, at their next position or ``there``, where they say."""
    if connection.dialect.name != "sqlite":
        named = values if there else [{**row, "whose": row["owner"]} for row in values]
        connection.execute(_ADD_THERE if there else _ADD_FOR_OWNER, named)
        return
    connection.execute(_ADD_THERE if there else _ADD, values)
    # At once, not by a trigger: FTS5 would write to the file what it has gathered for each run of that, which takes
    # five times as long.
    for thread_id, group in groupby(values, key=itemgetter("thread_id")):
        numbers = [row["seq"] for row in group]
        connection.execute(_TO_INDEX, {"thread": thread_id, "first": numbers[0], "last": numbers[-1]})


def _values(
    thread_id: str, resource_id: str, row: MessageRow, stored_at: int | None, terms: Collection[str]
) -> dict[str, Any]:
    said = row.created_at if row.created_at is not None else stored_at or 0
    return {
        "thread_id": thread_id,
        "seq": row.seq,
        "owner": hash63(resource_id),
        "base": first_position(said),
        "tie": hash63(thread_id),
        "terms": {*terms, *marks(thread_id, resource_id)},
    }


def marks(thread_id: str, resource_id: str) -> tuple[str, str]:
    return thread_mark(thread_id), resource_mark(resource_id)


def thread_mark(thread_id: str) -> str:
    return f"@t{hash63(thread_id):x}"


def resource_mark(resource_id: str) -> str:
    """Lets the index skip what other resources said; whose a message is, its thread's row decides."""
    return f"@r{hash63(resource_id):x}"
