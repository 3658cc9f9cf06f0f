"""Branches in SQL: superseded messages are moved to a table of their own, and back."""

from __future__ import annotations

from collections.abc import Mapping

from diarist.databases.base import Connection
from diarist.exceptions import NotFoundError
from diarist.storage.codec import MessageRow, decode_message
from diarist.storage.records import Superseded, path_to
from diarist.storage.sql.search import unindex
from diarist.storage.sql.threads import stamp_thread

_COLUMNS = ", ".join(MessageRow._fields)
_PARENTS = "SELECT seq, parent FROM diarist_superseded WHERE thread_id = :thread"
_SUPERSEDE = (
    f"INSERT INTO diarist_superseded (thread_id, parent, {_COLUMNS}) SELECT thread_id, coalesce((SELECT max(p.seq)"
    f" FROM diarist_messages p WHERE p.thread_id = m.thread_id AND p.seq < m.seq), 0), {_COLUMNS}"
    " FROM diarist_messages m WHERE m.thread_id = :thread AND m.seq > :fork"
)
_ACTIVATE = (
    f"INSERT INTO diarist_messages (thread_id, {_COLUMNS}) SELECT thread_id, {_COLUMNS}"
    " FROM diarist_superseded WHERE thread_id = :thread AND seq = :seq"
)


async def end_of_branch(connection: Connection, thread_id: str) -> int:
    """Return the ``seq`` of the last active message; 0 if there is none."""
    found = await connection.value("SELECT max(seq) FROM diarist_messages WHERE thread_id = :thread", thread=thread_id)
    return found or 0


async def move_branch(connection: Connection, thread_id: str, end: int) -> list[str]:
    """Make a message the last one of the active branch; return the ids of the messages that became superseded. The
    thread must be locked. Raises NotFoundError."""
    parents = {seq: parent for seq, parent in await connection.fetch(_PARENTS, thread=thread_id)}
    fork, path = path_to(parents, end)
    place = "thread_id = :thread AND seq = :seq"
    active = await connection.value(f"SELECT 1 FROM diarist_messages WHERE {place}", thread=thread_id, seq=end)
    if not path and end and not active:
        raise NotFoundError(f"thread {thread_id!r} has no message with the number {end}")
    behind = "thread_id = :thread AND seq > :fork"
    gone = await connection.fetch(
        f"SELECT id FROM diarist_messages WHERE {behind} ORDER BY seq", thread=thread_id, fork=fork
    )
    if not gone and not path:
        return []
    await stamp_thread(connection, thread_id)
    await connection.execute(_SUPERSEDE, thread=thread_id, fork=fork)
    await connection.execute(f"DELETE FROM diarist_messages WHERE {behind}", thread=thread_id, fork=fork)
    rows = [{"thread": thread_id, "seq": seq} for seq in path]
    if rows:
        await connection.execute_many(_ACTIVATE, rows)
        await connection.execute_many(f"DELETE FROM diarist_superseded WHERE {place}", rows)
    await unindex(connection, thread_id, fork)
    return [row[0] for row in gone]


async def list_superseded(connection: Connection, thread_id: str) -> list[Superseded]:
    resource_id = await connection.value("SELECT resource_id FROM diarist_threads WHERE id = :thread", thread=thread_id)
    rows = await connection.fetch(
        f"SELECT parent, {_COLUMNS} FROM diarist_superseded WHERE thread_id = :thread ORDER BY seq", thread=thread_id
    )
    return [
        Superseded(
            message=decode_message(MessageRow(*columns), thread_id=thread_id, resource_id=resource_id), parent=parent
        )
        for parent, *columns in rows
    ]


async def rewrite_superseded(connection: Connection, thread_id: str, blocks: Mapping[str, str | None]) -> int:
    """Replace the encoded ``SentBlock`` of superseded messages, by message id. Returns the number of messages."""
    found = await connection.fetch(
        "SELECT id FROM diarist_superseded WHERE thread_id = :thread AND id {any ids}",
        thread=thread_id,
        ids=list(blocks),
    )
    if found:
        await connection.execute_many(
            "UPDATE diarist_superseded SET sent = :sent WHERE thread_id = :thread AND id = :id",
            [{"thread": thread_id, "id": id, "sent": blocks[id]} for (id,) in found],
        )
    return len(found)


async def delete_superseded(connection: Connection, thread_id: str, ids: list[str]) -> int:
    """Delete superseded messages, and join the branches that continue them, or active messages with these ids, to the
    message before. Call it before the active messages are deleted. The thread must be locked."""
    named = "thread_id = :thread AND id {any ids}"
    found = list(
        await connection.fetch(f"SELECT seq, parent FROM diarist_superseded WHERE {named}", thread=thread_id, ids=ids)
    )
    count = len(found)
    found += await connection.fetch(
        "SELECT seq, coalesce((SELECT max(p.seq) FROM diarist_messages p WHERE p.thread_id = m.thread_id"
        f" AND p.seq < m.seq), 0) FROM diarist_messages m WHERE {named}",
        thread=thread_id,
        ids=ids,
    )
    await connection.execute_many(  # the last ones first, since the one before may be deleted as well
        "UPDATE diarist_superseded SET parent = :parent WHERE thread_id = :thread AND parent = :seq",
        [
            {"thread": thread_id, "seq": seq, "parent": parent}
            for seq, parent in sorted([(row[0], row[1]) for row in found], reverse=True)
        ],
    )
    await connection.execute(f"DELETE FROM diarist_superseded WHERE {named}", thread=thread_id, ids=ids)
    return count
