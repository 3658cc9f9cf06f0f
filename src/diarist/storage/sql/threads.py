"""Threads in SQL."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from diarist.checks import check_whole, checked
from diarist.databases.base import Connection
from diarist.exceptions import ConflictError, NotFoundError
from diarist.messages import Json
from diarist.storage.codec import (
    ThreadRow,
    after_thread,
    canonical,
    changed_thread,
    decode_thread,
    encode_thread,
    from_json,
    page_of_threads,
    to_json,
)
from diarist.storage.records import COUNTS, Page, Thread
from diarist.storage.sql.events import delete_event_log
from diarist.storage.sql.logs import delete_log
from diarist.storage.sql.resources import delete_working_memory

COUNTING = f"state IN {COUNTS}"

_SELECT = f"SELECT {', '.join(f't.{name}' for name in ThreadRow._fields)} FROM diarist_threads t"
_VISIBLE = f"{_SELECT} LEFT JOIN diarist_runs r ON r.id = t.created_by WHERE (t.created_by IS NULL OR r.{COUNTING})"
_ALL = f"{_SELECT} WHERE t.id IS NOT NULL"
_GET = f"{_VISIBLE} AND t.id = :thread"
_INSERT = (
    "INSERT INTO diarist_threads"
    " (id, resource_id, title, metadata, created_at, updated_at, last_seq, created_by, stamp)"
    " VALUES (:id, :resource_id, :title, :metadata, coalesce(:created_at, {now}), coalesce(:updated_at, {now}),"
    " 0, :created_by, :stamp)"
)


async def lock_thread(connection: Connection, thread_id: str) -> str | None:
    """Lock the thread and its runs against changes by other transactions. Returns the thread's resource, or None.

    Transactions that read a thread's data to change it lock the thread's row first, so few other locks are needed. The
    order of locks is: thread, messages, runs, logs, events.
    """
    return await connection.value(
        "SELECT resource_id FROM diarist_threads WHERE id = :thread {for update}", thread=thread_id
    )


async def stamp_thread(connection: Connection, thread_id: str) -> None:
    """Give the thread a new stamp, so that readers drop cached rows. The thread must be locked."""
    await connection.execute(
        "UPDATE diarist_threads SET stamp = :stamp WHERE id = :thread", thread=thread_id, stamp=secrets.randbits(62)
    )


async def create_thread(connection: Connection, thread: Thread) -> Thread:
    try:
        await insert_thread(connection, thread)
    except connection.violations as error:
        raise ConflictError(f"thread {thread.id!r} exists already") from error
    return decode_thread(await _existing(connection, thread.id))


async def insert_thread(connection: Connection, thread: Thread, *, created_by: str | None = None) -> None:
    values = encode_thread(thread)
    await connection.execute(_INSERT, **values, created_by=created_by, stamp=secrets.randbits(62))
    await _index_metadata(connection, thread.id, values["metadata"])


async def get_thread(connection: Connection, thread_id: str, *, hidden: bool = False) -> Thread | None:
    row = await connection.first(f"{_ALL} AND t.id = :thread" if hidden else _GET, thread=thread_id)
    return None if row is None else decode_thread(ThreadRow(*row))


async def update_thread(
    connection: Connection,
    thread_id: str,
    *,
    title: str | None = None,
    metadata: Mapping[str, Json] | None = None,
    expected_title: str | None = None,
) -> Thread:
    checked("" if title is None else title, f"the title of thread {thread_id!r}")
    await lock_thread(connection, thread_id)
    row = changed_thread(await _existing(connection, thread_id), title, metadata, expected_title)
    if metadata:
        await connection.execute("DELETE FROM diarist_thread_metadata WHERE thread_id = :thread", thread=thread_id)
        await _index_metadata(connection, thread_id, row.metadata)
    await connection.execute(
        "UPDATE diarist_threads SET title = :title, metadata = :metadata, updated_at = {now} WHERE id = :thread",
        thread=thread_id,
        title=row.title,
        metadata=row.metadata,
    )
    return decode_thread(await _existing(connection, thread_id))


async def list_threads(
    connection: Connection,
    *,
    resource_id: str | None = None,
    metadata: Mapping[str, Json] | None = None,
    limit: int = 100,
    cursor: str | None = None,
    newest_first: bool = True,
    hidden: bool = False,
) -> Page[Thread]:
    limit = check_whole("limit", limit, least=1)
    order, beyond = ("DESC", "<") if newest_first else ("ASC", ">")
    query, values = _ALL if hidden else _VISIBLE, dict[str, Any](most=limit + 1)
    if resource_id is not None:
        query += " AND t.resource_id = :resource"
        values["resource"] = resource_id
    for number, (key, value) in enumerate((metadata or {}).items()):
        query += (
            " AND EXISTS (SELECT 1 FROM diarist_thread_metadata m WHERE m.thread_id = t.id"
            f" AND m.key = :key_{number} AND m.value = :value_{number})"
        )
        values |= {f"key_{number}": to_json(key), f"value_{number}": canonical(value)}
    if cursor is not None:
        values["created"], values["last"] = after_thread(cursor, newest_first=newest_first)
        query += f" AND (t.created_at {beyond} :created OR (t.created_at = :created AND t.id {beyond} :last))"
    query += f" ORDER BY t.created_at {order}, t.id {order} LIMIT :most"
    rows = [ThreadRow(*row) for row in await connection.fetch(query, **values)]
    return page_of_threads(rows, limit, newest_first=newest_first)


async def delete_thread(connection: Connection, thread_id: str) -> bool:
    # In SQLite a query must come first: if another program has rewritten the file, a DELETE that reaches the search
    # index through its references fails with "no such table".
    await lock_thread(connection, thread_id)
    deleted = await connection.execute("DELETE FROM diarist_threads WHERE id = :thread", thread=thread_id)
    await connection.execute("DELETE FROM diarist_runs WHERE thread_id = :thread", thread=thread_id)
    await forget_records(connection, thread_id)
    return deleted > 0


async def forget_records(connection: Connection, thread_id: str) -> None:
    """Delete the working memory, observation log and events of a deleted thread."""
    key = f"thread:{thread_id}"
    await delete_working_memory(connection, key)
    await delete_log(connection, key)
    await delete_event_log(connection, key)


async def _existing(connection: Connection, thread_id: str) -> ThreadRow:
    row = await connection.first(_GET, thread=thread_id)
    if row is None:
        raise NotFoundError(f"there is no thread {thread_id!r}")
    return ThreadRow(*row)


async def _index_metadata(connection: Connection, thread_id: str, metadata: str) -> None:
    """Store the canonical text of each value for ``list_threads``. (JSON paths differ by database, and keys may contain
    any character.)"""
    stored: dict[str, Json] = from_json(metadata)
    if stored:
        await connection.execute_many(
            "INSERT INTO diarist_thread_metadata (thread_id, key, value) VALUES (:thread, :key, :value)",
            [{"thread": thread_id, "key": to_json(key), "value": canonical(value)} for key, value in stored.items()],
        )
