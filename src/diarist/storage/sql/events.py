"""Event logs in SQL."""

from __future__ import annotations

from diarist.checks import check_limit, check_place
from diarist.databases.base import Connection
from diarist.storage.codec import at_micros, from_json
from diarist.storage.records import Event

_NUMBER = (
    "INSERT INTO diarist_event_logs (key, last_seq) VALUES (:key, 1)"
    " ON CONFLICT (key) DO UPDATE SET last_seq = diarist_event_logs.last_seq + 1 RETURNING last_seq"
)
# PostgreSQL does both in one round trip.
_NUMBER_AND_INSERT = f"""
WITH numbered AS ({_NUMBER})
INSERT INTO diarist_events (key, seq, type, data, created_at)
SELECT :key, last_seq, CAST(:type AS TEXT), CAST(:data AS TEXT), {{now}} FROM numbered RETURNING seq, created_at
"""


async def append_event(connection: Connection, key: str, type: str, data: str, keep: int) -> Event:
    if connection.dialect == "postgresql":
        made = await connection.first(_NUMBER_AND_INSERT, key=key, type=type, data=data)
        assert made is not None
        seq, created_at = made
    else:
        seq = await connection.value(_NUMBER, key=key)
        created_at = await connection.value(
            "INSERT INTO diarist_events (key, seq, type, data, created_at) VALUES (:key, :seq, :type, :data, {now})"
            " RETURNING created_at",
            key=key,
            seq=seq,
            type=type,
            data=data,
        )
    if seq > keep:
        await connection.execute(
            "DELETE FROM diarist_events WHERE key = :key AND seq <= :last", key=key, last=seq - keep
        )
    return Event(key=key, seq=seq, type=type, data=from_json(data), created_at=at_micros(created_at))


async def list_events(connection: Connection, key: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
    check_place(after=after)
    rows = await connection.fetch(
        "SELECT seq, type, data, created_at FROM diarist_events WHERE key = :key AND seq > :after"
        " ORDER BY seq LIMIT :most",
        key=key,
        after=after,
        most=check_limit(limit),
    )
    return [
        Event(key=key, seq=seq, type=type, data=from_json(data), created_at=at_micros(created_at))
        for seq, type, data, created_at in rows
    ]


async def delete_events(connection: Connection, key: str) -> int:
    return await connection.execute("DELETE FROM diarist_events WHERE key = :key", key=key)


async def delete_event_log(connection: Connection, key: str) -> None:
    """Delete the events and the counter of a key."""
    await connection.execute("DELETE FROM diarist_event_logs WHERE key = :key", key=key)
