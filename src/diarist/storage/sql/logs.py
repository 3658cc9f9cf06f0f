"""Observation logs in SQL: one row for the current log of each key, and one for the last value of each generation."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from sys import getsizeof

from diarist.byte_cache import ByteCache
from diarist.databases.base import Connection
from diarist.exceptions import ConflictError
from diarist.storage.codec import decode_log, encode_log
from diarist.storage.records import ObservationLog, RowRef

_NONE = -1
"""A stamp that no log has."""
_GET = """
SELECT stamp, CASE WHEN stamp = :stamp AND version = :version THEN NULL ELSE body END
FROM diarist_logs WHERE key = :key AND version > :after
"""
_KEEP = """
INSERT INTO diarist_log_history (key, generation, body)
SELECT key, generation, body FROM diarist_logs WHERE key = :key ON CONFLICT DO NOTHING
"""


KnownLog = tuple[int, ObservationLog]
"""A cached log with its stamp, since logs are long and mostly unchanged between two reads. It takes about as many bytes
as its text."""


async def get_log(
    connection: Connection, kept: ByteCache[str, KnownLog], key: str, after: int
) -> ObservationLog | None:
    """Return the log if its version is above ``after``. ``kept`` caches logs that were read before."""
    known = kept.get(key)
    stamp, version = (_NONE, 0) if known is None else (known[0], known[1].version)
    found = await connection.first(_GET, key=key, after=after, stamp=stamp, version=version)
    if found is None:
        if after == 0:  # the log was deleted
            kept.drop(key)
        return None
    stamp, body = found
    if known is None or body is not None:
        known = stamp, decode_log(body, key)
        kept.put(key, known, getsizeof(body))
    return known[1]


async def require_version(connection: Connection, log: ObservationLog) -> None:
    """Raise ConflictError if the log was saved or deleted since it was read."""
    stored = await connection.value("SELECT version FROM diarist_logs WHERE key = :key {for update}", key=log.key)
    if (stored or 0) != log.version:
        raise _conflict(log.key, stored or 0, log.version)


async def save_log(
    connection: Connection,
    kept: ByteCache[str, KnownLog],
    log: ObservationLog,
    expected_version: int,
    rows: Sequence[RowRef],
) -> ObservationLog:
    # Check the messages first, as deleting a thread deletes its messages before its log.
    for row in rows:
        found = await connection.value(  # locks the row until this transaction ends
            "SELECT id FROM diarist_messages WHERE thread_id = :thread AND seq = :seq AND id = :id {for key share}",
            thread=row.thread_id,
            seq=row.seq,
            id=row.id,
        )
        if found is None:
            raise ConflictError(f"message {row.id!r} of thread {row.thread_id!r} is gone")
    saved = replace(log, version=expected_version + 1)
    head = await connection.first(
        "SELECT version, generation FROM diarist_logs WHERE key = :key {for update}", key=log.key
    )
    stored, generation = head if head is not None else (0, saved.generation)
    if stored != expected_version:
        raise _conflict(log.key, stored, expected_version)
    if saved.generation > generation:
        await connection.execute(_KEEP, key=log.key)
    body, stamp = _rounded(connection, encode_log(saved)), secrets.randbits(62)
    if head is None:
        statement = (
            "INSERT INTO diarist_logs (key, version, generation, body, stamp)"
            " VALUES (:key, :version, :generation, :body, :stamp) ON CONFLICT DO NOTHING"
        )
    else:
        statement = (
            "UPDATE diarist_logs SET version = :version, generation = :generation, body = :body, stamp = :stamp"
            " WHERE key = :key"
        )
    if not await connection.execute(
        statement, key=saved.key, version=saved.version, generation=saved.generation, body=body, stamp=stamp
    ):
        raise _conflict(log.key, 1, 0)
    # Cache it, since this process is usually the next reader. If the transaction fails, no stored log has this stamp.
    kept.put(saved.key, (stamp, saved), getsizeof(body))
    return saved


def _rounded(connection: Connection, body: str) -> str:
    """Pad the body with spaces, by a sixth on average and by half at most.

    A log mostly grows at its end. If its length stays the same, SQLite writes only the changed pages, instead of all
    pages twice.
    """
    if connection.dialect != "sqlite":
        return body
    size = len(body.encode())
    return body + " " * (-size % (1 << max(0, size.bit_length() - 2)))


async def list_generations(connection: Connection, key: str) -> list[ObservationLog]:
    rows = await connection.fetch("SELECT body FROM diarist_log_history WHERE key = :key ORDER BY generation", key=key)
    return [decode_log(row[0], key) for row in rows]


async def rewrite_generation(connection: Connection, log: ObservationLog, *, expected: ObservationLog) -> bool:
    past = "key = :key AND generation = :generation"
    stored = await connection.value(
        f"SELECT body FROM diarist_log_history WHERE {past} {{for update}}", key=log.key, generation=log.generation
    )
    if stored is None or decode_log(stored, log.key) != expected:
        return False
    statement = f"UPDATE diarist_log_history SET body = :body WHERE {past}"
    return await connection.execute(statement, key=log.key, generation=log.generation, body=encode_log(log)) > 0


async def delete_generations(connection: Connection, key: str) -> int:
    return await connection.execute("DELETE FROM diarist_log_history WHERE key = :key", key=key)


async def delete_log(connection: Connection, key: str) -> bool:
    # Delete the log before its history, since saving locks the log before it writes the history.
    deleted = await connection.execute("DELETE FROM diarist_logs WHERE key = :key", key=key)
    await delete_generations(connection, key)
    return deleted > 0


def _conflict(key: str, stored: int, expected: int) -> ConflictError:
    return ConflictError(f"log {key!r} has version {stored}, not {expected}")
