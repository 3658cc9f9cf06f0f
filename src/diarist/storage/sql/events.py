"""Event logs in SQL."""

from __future__ import annotations

from sqlalchemy import Connection, Text, bindparam, delete, func, insert, select, update

from diarist.database import now
from diarist.in_place import is_hurried, require_short
from diarist.storage.codec import at_micros, from_json
from diarist.storage.records import Event
from diarist.storage.sql.schema import event_logs, events

_key = bindparam("log", type_=Text())
_COUNT = (
    update(event_logs)
    .where(event_logs.c.key == _key)
    .values(last_seq=event_logs.c.last_seq + 1)
    .returning(event_logs.c.last_seq)
)
_FIRST = insert(event_logs)
_INSERT = insert(events).values(created_at=now()).returning(events.c.created_at)
_OLDEST = select(func.min(events.c.seq)).where(events.c.key == _key)
_TRIM = delete(events).where(events.c.key == _key, events.c.seq <= bindparam("last"))
_LIST = (
    select(events.c.seq, events.c.type, events.c.data, events.c.created_at)
    .where(events.c.key == _key, events.c.seq > bindparam("after"))
    .order_by(events.c.seq)
    .limit(bindparam("most"))
)
_REWRITE = (
    update(events).where(events.c.key == _key, events.c.seq == bindparam("place")).values(data=bindparam("new_data"))
)
_DELETE = delete(events).where(events.c.key == _key)
_DELETE_LOG = delete(event_logs).where(event_logs.c.key == _key)


def append_event(connection: Connection, key: str, type: str, data: str, keep: int) -> Event:
    seq = connection.scalar(_COUNT, {"log": key})
    if seq is None:
        seq = 1
        connection.execute(_FIRST, {"key": key, "last_seq": seq})
    created_at = connection.scalar(_INSERT, {"key": key, "seq": seq, "type": type, "data": data})
    if seq > keep:
        if is_hurried(connection):
            require_short(connection, rows=seq - keep - (connection.scalar(_OLDEST, {"log": key}) or 0))
        connection.execute(_TRIM, {"log": key, "last": seq - keep})
    return Event(key=key, seq=seq, type=type, data=from_json(data), created_at=at_micros(created_at or 0))


def list_events(connection: Connection, key: str, after: int, limit: int) -> list[Event]:
    return [
        Event(key=key, seq=seq, type=type, data=from_json(data), created_at=at_micros(created_at))
        for seq, type, data, created_at in connection.execute(_LIST, {"log": key, "after": after, "most": limit})
    ]


def rewrite_event(connection: Connection, key: str, seq: int, data: str) -> bool:
    return connection.execute(_REWRITE, {"log": key, "place": seq, "new_data": data}).rowcount > 0


def delete_events(connection: Connection, key: str) -> int:
    return connection.execute(_DELETE, {"log": key}).rowcount


def delete_event_log(connection: Connection, key: str) -> None:
    """Remove the events of a key, and the count of them."""
    connection.execute(_DELETE_LOG, {"log": key})
