"""What a search looks into: a row with its terms per message that counts, written when its run ends.

Not before: SQLite's index keeps the words of a removed row until it merges the piece they are in, and a run that is
discarded must leave no word.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    exists,
    func,
    insert,
    select,
    text,
    tuple_,
)

from diarist.database import now
from diarist.in_place import SHORT_ROWS, is_hurried, require_short
from diarist.storage.codec import MessageRow, decode_message
from diarist.storage.places import POSITIONS_PER_SECOND, first_position, hash63, moves
from diarist.storage.records import Run
from diarist.storage.sql.schema import LIVE, messages, runs, search, threads
from diarist.storage.sql.threads import COUNTS
from diarist.storage.words import message_terms

BATCH = 1000
_OF_A_TERM = 7
"""So many characters of English have one term."""

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
_REMOVE_LIVE = delete(search).where(
    exists().where(
        messages.c.thread_id == search.c.thread_id,
        messages.c.seq == search.c.seq,
        runs.c.id == messages.c.run_id,
        LIVE,
    )
)
_INDEXED = (
    select(search.c.seq, search.c.position, search.c.terms)
    .join_from(messages, search, and_(search.c.thread_id == messages.c.thread_id, search.c.seq == messages.c.seq))
    .where(messages.c.thread_id == bindparam("thread", type_=Text()), messages.c.id == bindparam("message"))
)
_message = [messages.c[name] for name in MessageRow._fields]
_OF_RUN: Select[*tuple[Any, ...]] = (
    select(*_message)
    .where(messages.c.run_id == bindparam("run", type_=Text()), messages.c.seq > bindparam("place", type_=BigInteger))
    .order_by(messages.c.seq)
    .limit(bindparam("most", type_=BigInteger))
)
_STORED: Select[*tuple[Any, ...]] = (
    select(threads.c.resource_id, runs.c.created_at.label("stored_at"), messages.c.thread_id, *_message)
    .select_from(
        messages.join(runs, runs.c.id == messages.c.run_id).join(threads, threads.c.id == messages.c.thread_id)
    )
    .where(
        runs.c.state.in_(COUNTS),
        tuple_(messages.c.thread_id, messages.c.seq)
        > tuple_(bindparam("thread", type_=Text()), bindparam("place", type_=BigInteger)),
    )
    .order_by(messages.c.thread_id, messages.c.seq)
    .limit(BATCH)
)


def index_run(connection: Connection, run: Run) -> None:
    """Make the rows of a run findable that has just ended and counts; one without a time goes by this moment."""
    seq, more = 0, True
    most = SHORT_ROWS + 1 if is_hurried(connection) else BATCH
    while more:
        place = {"run": run.id, "place": seq, "most": most}
        rows = [MessageRow(*found) for found in connection.execute(_OF_RUN, place)]
        more = len(rows) == most
        if rows:
            require_short(connection, rows=len(rows), texts=[row.parts for row in rows])
            seq = rows[-1].seq
            _add(connection, _dated(connection, run, rows))


def reindex_message(connection: Connection, run: Run, row: MessageRow) -> None:
    """Follow a row that ``run`` has rewritten. It keeps its position unless it is said in another second than it was.

    Rows of the run itself, which is live, are not findable yet.
    """
    found = connection.execute(_INDEXED, {"thread": run.thread_id, "message": row.id}).first()
    if found is None:
        return
    require_short(connection, characters=_OF_A_TERM * len(found.terms))
    row = row._replace(seq=found.seq)
    if moves(found.position, row.created_at):
        connection.execute(_REMOVE, {"thread": run.thread_id, "place": row.seq})
        _add(connection, _dated(connection, run, [row]))
        return
    values = _values(run.thread_id, run.resource_id, row, 0)
    if found.terms != values["terms"]:
        connection.execute(_REMOVE, {"thread": run.thread_id, "place": row.seq})
        _add(connection, [{**values, "position": found.position}], there=True)


def index_all(connection: Connection) -> None:
    """Make all messages findable that count; one without a time goes by when its run began."""
    thread_id, seq = "", 0
    while batch := connection.execute(_STORED, {"thread": thread_id, "place": seq}).all():
        values: list[dict[str, Any]] = []
        for resource_id, stored_at, thread_id, *columns in batch:
            row = MessageRow(*columns)
            seq = row.seq
            values.append(_values(thread_id, resource_id, row, stored_at))
        _add(connection, values)


def leave_out_live(connection: Connection) -> None:
    """Remove what was made findable of runs that have not ended."""
    connection.execute(_REMOVE_LIVE)
    purge_index(connection)


def purge_index(connection: Connection) -> None:
    """Write SQLite's index of words anew: it keeps those of a removed row until it merges the piece they are in.

    PostgreSQL removes what is dead by itself (autovacuum).
    """
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("INSERT INTO diarist_search_index (diarist_search_index) VALUES ('optimize')")


def _dated(connection: Connection, run: Run, rows: Sequence[MessageRow]) -> list[dict[str, Any]]:
    """The index's rows for stored ones of the run's thread; what has no time is of now."""
    moment = connection.scalar(_NOW) if any(row.created_at is None for row in rows) else None
    return [_values(run.thread_id, run.resource_id, row, moment) for row in rows]


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


def _values(thread_id: str, resource_id: str, row: MessageRow, undated: int | None) -> dict[str, Any]:
    """``undated``: the time of a row that has none."""
    said = row.created_at if row.created_at is not None else undated or 0
    terms = message_terms(decode_message(row, thread_id=thread_id, resource_id=resource_id))
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
