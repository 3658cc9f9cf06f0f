"""Full-text search in SQL: a row of terms per visible message, written by the first search that needs it.

A turn does not pay for a search that may never come. Messages of live runs are not indexed: a discarded run must leave
no words behind, and SQLite's index keeps the words of a deleted row until it merges the segment that contains them.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Literal

from diarist.checks import LARGEST
from diarist.databases.base import Connection, Row
from diarist.storage.codec import MessageRow, decode_cursor, decode_message, encode_cursor
from diarist.storage.records import Hit, Page
from diarist.storage.sql.threads import COUNTING
from diarist.storage.words import excerpt_of, message_terms, message_texts

BATCH = 200
"""Number of messages that one transaction indexes; other writers wait."""

TRIES = 10
"""How often a search indexes new messages first. Then it does without them: others write all the time."""
NEWEST = 500
"""Number of newest rows that PostgreSQL reads before it uses its index of terms."""
_MESSAGE = ", ".join(f"m.{name}" for name in MessageRow._fields)
_POSITIONS_PER_SECOND = 1 << 24
"""Maximum number of messages in the same second. Positions in the year 9999 stay below 2**63."""
_YEAR_ONE = 62_135_596_800
"""Seconds from the earliest ``datetime`` to 1970."""

# --- writing -----------------------------------------------------------------------------------------------

# In SQLite the position is the row id in the index. In PostgreSQL each resource has positions of its own, so that
# writers of two resources never wait for each other.
_ADD = (
    "INSERT INTO diarist_search (thread_id, seq, position, owner, tie, terms) VALUES (:thread_id, :seq,"
    " (SELECT coalesce(max(position) + 1, :base) FROM diarist_search"
    f" WHERE position >= :base AND position < :base + {_POSITIONS_PER_SECOND}{{of owner}}), :owner, :tie, :terms)"
)
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
    if not found:
        return
    marks = {_mark("thread", thread_id), _mark("resource", resource_id)}
    rows: list[dict[str, Any]] = []
    for ended_at, *columns in found:
        row = MessageRow(*columns)
        terms = message_terms(decode_message(row, thread_id=thread_id, resource_id=resource_id))
        second = (ended_at if row.created_at is None else row.created_at) // 1_000_000
        rows.append(
            {
                "thread_id": thread_id,
                "seq": row.seq,
                "owner": _hash63(resource_id),
                "base": (second + _YEAR_ONE) * _POSITIONS_PER_SECOND,
                "tie": _hash63(thread_id),
                "terms": sorted(terms | marks),
            }
        )
    first, last = rows[0]["seq"], rows[-1]["seq"]
    if connection.dialect == "postgresql":
        await connection.execute_many(_ADD.replace("{of owner}", " AND owner = :owner"), rows)
    else:
        rows = [{**row, "terms": " ".join(row["terms"])} for row in rows]
        await connection.execute_many(_ADD.replace("{of owner}", ""), rows)
        # Not by a trigger: FTS5 would flush its pending data at each trigger run, which takes five times as long.
        await connection.execute(_TO_INDEX, thread=thread_id, first=first, last=last)
    await connection.execute(
        "UPDATE diarist_threads SET indexed_seq = :seq WHERE id = :thread", thread=thread_id, seq=last
    )


async def unindex(connection: Connection, thread_id: str, after: int) -> None:
    """Let the next search index the messages after ``after`` again. The thread must be locked."""
    await connection.execute(
        "DELETE FROM diarist_search WHERE thread_id = :thread AND seq > :after", thread=thread_id, after=after
    )
    await connection.execute(
        "UPDATE diarist_threads SET indexed_seq = :after WHERE id = :thread AND indexed_seq > :after",
        thread=thread_id,
        after=after,
    )


async def purge_index(connection: Connection) -> None:
    """Rewrite SQLite's index, which keeps the words of a deleted row until it merges the segment that contains them.

    PostgreSQL removes dead rows by itself (autovacuum).
    """
    if connection.dialect == "sqlite":
        await connection.execute("INSERT INTO diarist_search_index (diarist_search_index) VALUES ('optimize')")


def _hash63(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1


def _mark(kind: Literal["thread", "resource"], id: str) -> str:
    """Return a search term for a thread or resource, so that the index can skip other messages.

    The mark is not unique: the thread's row decides which resource a message belongs to.
    """
    return f"@{kind[0]}{_hash63(id):x}"


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
    connection: Connection,
    terms: Sequence[str],
    resource_id: str,
    thread_id: str | None,
    limit: int,
    cursor: str | None,
    complete: bool,
) -> Page[Hit] | None:
    """Return a page of hits; with ``complete``, None if there are messages to index first."""
    # The sort key of a message: its position, then a number derived from its thread.
    position, tie = (LARGEST, 0) if cursor is None else decode_cursor(cursor, "search_messages", int, int)
    if complete and await find_unindexed_threads(connection, resource_id, thread_id):
        return None
    marked = [_mark("resource", resource_id) if thread_id is None else _mark("thread", thread_id), *terms]
    values: dict[str, Any] = {
        "resource": resource_id,
        "thread": thread_id,
        "owner": _hash63(resource_id),
        "position": position,
        "tie": tie,
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
        hits.append(Hit(message=message, excerpt=excerpt_of(message_texts(message), terms)))
    if len(found) <= limit:
        return Page(items=hits, cursor=None)
    position, tie, *_ = found[limit - 1]
    return Page(items=hits, cursor=encode_cursor(position, tie))
