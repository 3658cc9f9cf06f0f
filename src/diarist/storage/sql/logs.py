"""Observation logs in SQL: the head of each key as one value, and the last value of each generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import BigInteger, Connection, Text, and_, bindparam, case, delete, exists, insert, select, update
from sqlalchemy.exc import IntegrityError

from diarist.exceptions import ConflictError
from diarist.storage.codec import decode_log, encode_log, from_json, own_log, to_json
from diarist.storage.records import ObservationLog, RowRef
from diarist.storage.sql.kept import Kept
from diarist.storage.sql.schema import log_history, logs, messages, new_stamp

_key = bindparam("log", type_=Text())
_is_known = (logs.c.stamp == bindparam("known", type_=BigInteger)) & (
    logs.c.version == bindparam("known_version", type_=BigInteger)
)
_body = case((_is_known, None), else_=logs.c.body).label("unknown_body")
_GET = select(logs.c.stamp, _body).where(logs.c.key == _key, logs.c.version > bindparam("after"))
_STORED = (
    select(messages.c.id)
    .where(
        messages.c.thread_id == bindparam("thread", type_=Text()),
        messages.c.seq == bindparam("place"),
        messages.c.id == bindparam("message"),
    )
    .with_for_update(read=True, key_share=True)  # it stays until this transaction has ended
)
_HEAD = select(logs.c.version, logs.c.generation).where(logs.c.key == _key).with_for_update()
_NONE = -1
"""The stamp of no log."""
_INSERT = insert(logs)
_UPDATE = (
    update(logs)
    .where(logs.c.key == _key)
    .values(
        version=bindparam("next"),
        generation=bindparam("new_generation"),
        body=bindparam("new_body"),
        stamp=bindparam("new_stamp"),
    )
)
_KEEP = insert(log_history).from_select(
    ["key", "generation", "body"],
    select(logs.c.key, logs.c.generation, logs.c.body).where(
        logs.c.key == _key,
        ~exists().where(log_history.c.key == logs.c.key, log_history.c.generation == logs.c.generation),
    ),
)
_HISTORY = select(log_history.c.body).where(log_history.c.key == _key).order_by(log_history.c.generation)
_PAST = and_(log_history.c.key == _key, log_history.c.generation == bindparam("past"))
_GENERATION = select(log_history.c.body).where(_PAST).with_for_update()
_REWRITE_HISTORY = update(log_history).where(_PAST).values(body=bindparam("new_body"))
_DELETE = delete(logs).where(logs.c.key == _key)
_DELETE_HISTORY = delete(log_history).where(log_history.c.key == _key)


KnownLog = tuple[int, ObservationLog]
"""A log as it is under a stamp. Logs are long, and most readers find one as it was."""


def get_log(connection: Connection, kept: Kept[KnownLog], key: str, after: int) -> ObservationLog | None:
    """``kept``: those that were read already."""
    known = kept.get(key)
    stamp, version = (_NONE, 0) if known is None else (known[0], known[1].version)
    values = {"log": key, "after": after, "known": stamp, "known_version": version}
    found = connection.execute(_GET, values).first()
    if found is None:
        if after == 0:  # it is gone
            kept.drop(key)
        return None
    if known is None or found.unknown_body is not None:
        known = found.stamp, decode_log(found.unknown_body, key)
        kept.put(key, known, len(found.unknown_body))
    return own_log(known[1])


def save_log(
    connection: Connection, kept: Kept[KnownLog], log: ObservationLog, expected_version: int, rows: Sequence[RowRef]
) -> ObservationLog:
    _require_rows(connection, rows)  # first: whoever removes a thread removes its messages before its log, too
    saved = replace(log, version=expected_version + 1)
    head = connection.execute(_HEAD, {"log": log.key}).first()
    stored, generation = head if head is not None else (0, saved.generation)
    if stored != expected_version:
        raise _conflict(log.key, stored, expected_version)
    if saved.generation > generation:
        connection.execute(_KEEP, {"log": log.key})
    body, stamp = _rounded(connection, encode_log(saved)), new_stamp()
    _write(connection, saved, body, stamp, is_new=head is None)
    # Whoever reads it next is mostly this process. Should it not be saved after all, nothing has this stamp.
    kept.put(saved.key, (stamp, replace(saved, overrides=from_json(to_json(saved.overrides)))), len(body))
    return saved


def _rounded(connection: Connection, body: str) -> str:
    """With spaces behind it, half as many as it has bytes at most, a sixth on average. A log mostly grows at its end:
    where it keeps its length, SQLite writes only those of its pages that differ, in place of all of them, twice."""
    if connection.dialect.name != "sqlite":
        return body
    size = len(body.encode())
    return body + " " * (-size % (1 << max(0, size.bit_length() - 2)))


def _require_rows(connection: Connection, rows: Sequence[RowRef]) -> None:
    for row in rows:
        if connection.scalar(_STORED, {"thread": row.thread_id, "place": row.seq, "message": row.id}) is None:
            raise ConflictError(f"message {row.id!r} of thread {row.thread_id!r} is gone")


def _write(connection: Connection, saved: ObservationLog, body: str, stamp: int, *, is_new: bool) -> None:
    if not is_new:
        head = {"log": saved.key, "next": saved.version}
        values = {"new_generation": saved.generation, "new_body": body, "new_stamp": stamp}
        connection.execute(_UPDATE, {**head, **values})
        return
    head = {"key": saved.key, "version": saved.version}
    try:
        connection.execute(_INSERT, {**head, "generation": saved.generation, "body": body, "stamp": stamp})
    except IntegrityError as error:
        raise _conflict(saved.key, 1, 0) from error


def list_generations(connection: Connection, key: str) -> list[ObservationLog]:
    return [decode_log(body, key) for body in connection.scalars(_HISTORY, {"log": key})]


def rewrite_generation(connection: Connection, log: ObservationLog, expected: ObservationLog) -> bool:
    past = {"log": log.key, "past": log.generation}
    stored = connection.scalar(_GENERATION, past)
    if stored is None or decode_log(stored, log.key) != expected:
        return False
    return connection.execute(_REWRITE_HISTORY, {**past, "new_body": encode_log(log)}).rowcount > 0


def delete_generations(connection: Connection, key: str) -> int:
    return connection.execute(_DELETE_HISTORY, {"log": key}).rowcount


def delete_log(connection: Connection, key: str) -> bool:
    # The head first: who saves locks it before a generation goes into the history.
    deleted = connection.execute(_DELETE, {"log": key}).rowcount > 0
    delete_generations(connection, key)
    return deleted


def _conflict(key: str, stored: int, expected: int) -> ConflictError:
    return ConflictError(f"log {key!r} has version {stored}, not {expected}")
