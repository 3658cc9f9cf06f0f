"""Full-text search in SQL: a row of terms per visible message, written by the first search that needs it.

A turn does not pay for a search that may never come. Messages of live runs are not indexed: a discarded run must leave
no words behind, and SQLite's index keeps the words of a deleted row until it merges the segment that contains them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from diarist.databases.base import Connection, Row
from diarist.storage.codec import MessageRow, decode_message
from diarist.storage.records import Hit, Page, Run
from diarist.storage.search_cursors import POSITIONS_PER_SECOND, Place, encode_place, first_position, hash63, moves
from diarist.storage.sql.threads import COUNTING
from diarist.storage.words import make_hit, message_terms

BATCH = 200
"""Number of messages that one transaction indexes; other writers wait."""
NEWEST = 500
"""Number of newest rows that PostgreSQL reads before it uses its index of terms."""
_MESSAGE = ", ".join(f"m.{name}" for name in MessageRow._fields)

# --- writing -----------------------------------------------------------------------------------------------

_COLUMNS = "diarist_search (thread_id, seq, position, owner, tie, terms)"
_NEXT = (
    f"INSERT INTO {_COLUMNS} VALUES (:thread_id, :seq, (SELECT coalesce(max(position) + 1, :base) FROM diarist_search"
    f" WHERE position >= :base AND position < :base + {POSITIONS_PER_SECOND}{{owner}}), :owner, :tie, :terms)"
)
_ADD_IN_SQLITE = _NEXT.replace("{owner}", "")  # the position is the row id in the index
_ADD_IN_POSTGRESQL = _NEXT.replace(
    "{owner}", " AND owner = :owner"
)  # so writers of two resources never wait for each other
_ADD_THERE = f"INSERT INTO {_COLUMNS} VALUES (:thread_id, :seq, :position, :owner, :tie, :terms)"
_TO_INDEX = (
    "INSERT INTO diarist_search_index (rowid, terms) SELECT position, terms FROM diarist_search"
    " WHERE thread_id = :thread AND seq BETWEEN :first AND :last ORDER BY position"
)


async def find_unindexed_threads(connection: Connection, resource_id: str, thread_id: str | None) -> list[str]:
    """Return the ids of the resource's threads that have messages to index; with ``thread_id``, at most this one."""
    of_thread = "" if thread_id is None else " AND t.id = :thread"
    found = await connection.fetch(
        f"SELECT t.id FROM diarist_threads t WHERE t.resource_id = :resource{of_thread} AND t.last_seq > t.indexed_seq"
        " AND EXISTS (SELECT 1 FROM diarist_messages m JOIN diarist_runs r ON r.id = m.run_id"
        f" WHERE m.thread_id = t.id AND m.seq > t.indexed_seq AND r.{COUNTING})",
        resource=resource_id,
        thread=thread_id,
    )
    return [row[0] for row in found]


async def index_thread(connection: Connection, thread_id: str) -> None:
    """Index the next messages of a thread. Messages without a time get the time at which their run ended."""
    thread = await connection.first(
        "SELECT resource_id, indexed_seq FROM diarist_threads WHERE id = :thread {for update}", thread=thread_id
    )
    if thread is None:
        return
    resource_id, seq = thread
    found = await connection.fetch(
        f"SELECT coalesce(r.ended_at, r.created_at), {_MESSAGE} FROM diarist_messages m"
        f" JOIN diarist_runs r ON r.id = m.run_id WHERE m.thread_id = :thread AND m.seq > :seq AND r.{COUNTING}"
        f" ORDER BY m.seq LIMIT {BATCH}",
        thread=thread_id,
        seq=seq,
    )
    if found:
        rows = [(ended_at, MessageRow(*columns)) for ended_at, *columns in found]
        await _add(connection, [_values(thread_id, resource_id, row, ended_at) for ended_at, row in rows])
        await connection.execute(
            "UPDATE diarist_threads SET indexed_seq = :seq WHERE id = :thread", thread=thread_id, seq=rows[-1][1].seq
        )


async def reindex_message(connection: Connection, run: Run, row: MessageRow) -> None:
    """Update the index for a message that ``run`` has rewritten.

    The position changes only if the time of the message is now in another second.

    Does nothing if the message is not indexed yet.
    """
    found = await connection.first(
        "SELECT s.seq, s.position, s.terms FROM diarist_messages m"
        " JOIN diarist_search s ON s.thread_id = m.thread_id AND s.seq = m.seq"
        " WHERE m.thread_id = :thread AND m.id = :id",
        thread=run.thread_id,
        id=row.id,
    )
    if found is None:
        return
    seq, position, terms = found
    row = row._replace(seq=seq)
    remove = "DELETE FROM diarist_search WHERE thread_id = :thread AND seq = :seq"
    if moves(position, row.created_at):
        await connection.execute(remove, thread=run.thread_id, seq=seq)
        await _add(connection, [_values(run.thread_id, run.resource_id, row, None)])
        return
    values = _values(run.thread_id, run.resource_id, row, None)
    known: set[str] = set(terms.split(" ") if connection.dialect == "sqlite" else terms)
    if known != values["terms"]:
        await connection.execute(remove, thread=run.thread_id, seq=seq)
        await _add(connection, [{**values, "position": position}], there=True)


async def purge_index(connection: Connection) -> None:
    """Rewrite SQLite's index, which keeps the words of a deleted row until it merges the segment that contains them.

    PostgreSQL removes dead rows by itself (autovacuum).
    """
    if connection.dialect == "sqlite":
        await connection.execute("INSERT INTO diarist_search_index (diarist_search_index) VALUES ('optimize')")


async def _add(connection: Connection, values: Sequence[dict[str, Any]], *, there: bool = False) -> None:
    """Insert rows of one thread, in order, at the next free positions; with ``there``, at those in ``values``."""
    if connection.dialect == "postgresql":
        rows = [{**row, "terms": sorted(row["terms"])} for row in values]
        await connection.execute_many(_ADD_THERE if there else _ADD_IN_POSTGRESQL, rows)
        return
    rows = [{**row, "terms": " ".join(sorted(row["terms"]))} for row in values]
    await connection.execute_many(_ADD_THERE if there else _ADD_IN_SQLITE, rows)
    # Not by a trigger: FTS5 would flush its pending data at each trigger run, which takes five times as long.
    first, last = values[0], values[-1]
    await connection.execute(_TO_INDEX, thread=first["thread_id"], first=first["seq"], last=last["seq"])


def _values(thread_id: str, resource_id: str, row: MessageRow, undated: int | None) -> dict[str, Any]:
    """Return the index row of a message. ``undated`` is the time for a message without one."""
    said = row.created_at if row.created_at is not None else undated or 0
    terms = message_terms(decode_message(row, thread_id=thread_id, resource_id=resource_id))
    return {
        "thread_id": thread_id,
        "seq": row.seq,
        "owner": hash63(resource_id),
        "base": first_position(said),
        "tie": hash63(thread_id),
        "terms": {*terms, _mark("thread", thread_id), _mark("resource", resource_id)},
    }


def _mark(kind: Literal["thread", "resource"], id: str) -> str:
    """Return a search term for a thread or resource, so that the index can skip other messages.

    The mark is not unique: the thread's row decides which resource a message belongs to.
    """
    return f"@{kind[0]}{hash63(id):x}"


# --- searching ---------------------------------------------------------------------------------------------

# Selects messages of the resource. The table of terms contains only visible messages.
_VISIBLE = (
    f"SELECT s.position, s.tie, s.thread_id, {_MESSAGE} FROM {{rows}} s"
    " JOIN diarist_messages m ON m.thread_id = s.thread_id AND m.seq = s.seq"
    " JOIN diarist_threads t ON t.id = s.thread_id WHERE t.resource_id = :resource"
)
# SQLite's index returns rows in order of position, so the query reads few rows. Positions are unique there.
_IN_INDEX = (
    f"SELECT s.position, s.tie, s.thread_id, {_MESSAGE} FROM diarist_search_index i, diarist_search s,"
    " diarist_messages m, diarist_threads t WHERE diarist_search_index MATCH :wanted AND i.rowid < :position"
    " AND s.position = i.rowid AND m.thread_id = s.thread_id AND m.seq = s.seq AND t.id = s.thread_id"
    " AND t.resource_id = :resource"
)
# PostgreSQL's index of terms is unordered, so common words would be slow. The newest rows mostly contain such words, so
# they are searched first, without that index.
_BEFORE = "(position < :position OR (position = :position AND tie < :tie))"
_AMONG_NEWEST = (
    _VISIBLE.replace(
        "{rows}",
        f"(SELECT * FROM diarist_search WHERE owner = :owner AND {_BEFORE}{{of thread}}"
        f" ORDER BY position DESC, tie DESC LIMIT {NEWEST})",
    )
    + " AND s.terms @> :wanted ORDER BY s.position DESC, s.tie DESC LIMIT :most"
)
# The subquery keeps the planner, which has no statistics of rare words, from reading all rows in order.
_BY_TERMS = (
    "WITH found AS MATERIALIZED (SELECT thread_id, seq, position, tie FROM diarist_search"
    f" WHERE terms @> :wanted AND {_BEFORE}{{of thread}}) "
    + _VISIBLE.replace("{rows}", "found")
    + " ORDER BY s.position DESC, s.tie DESC LIMIT :most"
)


async def search_messages(
    connection: Connection, terms: Sequence[str], resource_id: str, thread_id: str | None, limit: int, after: Place
) -> Page[Hit]:
    """Return the page that begins after ``after``."""
    marked = [_mark("resource", resource_id) if thread_id is None else _mark("thread", thread_id), *terms]
    values: dict[str, Any] = {
        "resource": resource_id,
        "thread": thread_id,
        "owner": hash63(resource_id),
        "position": after.position,
        "tie": after.tie,
        "most": limit + 1,
    }
    found: Sequence[Row] = []
    if connection.dialect == "sqlite":
        of_thread = "" if thread_id is None else " AND s.thread_id = :thread"
        values["wanted"] = " AND ".join(f'"{term}"' for term in marked)
        found = await connection.fetch(f"{_IN_INDEX}{of_thread} ORDER BY i.rowid DESC LIMIT :most", **values)
    else:
        of_thread = "" if thread_id is None else " AND thread_id = :thread"
        values["wanted"] = marked
        if limit < NEWEST:
            found = await connection.fetch(_AMONG_NEWEST.replace("{of thread}", of_thread), **values)
        if len(found) <= limit:
            found = await connection.fetch(_BY_TERMS.replace("{of thread}", of_thread), **values)
    hits: list[Hit] = []
    for _, _, thread, *columns in found[:limit]:
        message = decode_message(MessageRow(*columns), thread_id=thread, resource_id=resource_id)
        hits.append(make_hit(message, terms))
    if len(found) <= limit:
        return Page(items=hits, cursor=None)
    position, tie, *_ = found[limit - 1]
    return Page(items=hits, cursor=encode_place(Place(position, tie)))
