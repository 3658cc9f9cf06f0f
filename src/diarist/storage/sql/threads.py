"""Threads in SQL."""

from __future__ import annotations

from collections.abc import Mapping
from operator import gt, lt

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    and_,
    asc,
    bindparam,
    delete,
    desc,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from diarist.database import now
from diarist.exceptions import ConflictError, NotFoundError
from diarist.in_place import require_short
from diarist.messages import Json
from diarist.storage.codec import (
    ThreadRow,
    canonical,
    check_title,
    decode_cursor,
    decode_thread,
    encode_cursor,
    from_json,
    merge_metadata,
    to_json,
    to_micros,
)
from diarist.storage.records import Page, Thread
from diarist.storage.sql import schema
from diarist.storage.sql.events import delete_event_log
from diarist.storage.sql.logs import delete_log
from diarist.storage.sql.schema import new_stamp, runs, thread_metadata, threads
from diarist.storage.sql.working_memory import delete_working_memory

COUNTS = ("committed", "interrupted")
"""The states of a run in which its rows count for others."""

_columns = [threads.c[name] for name in ThreadRow._fields]
_visible = or_(threads.c.created_by.is_(None), runs.c.state.in_(COUNTS))
_SELECT: Select[*tuple[object, ...]] = (
    select(*_columns).select_from(threads.outerjoin(runs, runs.c.id == threads.c.created_by)).where(_visible)
)
_GET = _SELECT.where(threads.c.id == bindparam("thread"))
_INSERT = insert(threads).values(
    created_at=func.coalesce(bindparam("created", type_=BigInteger), now()),
    updated_at=func.coalesce(bindparam("updated", type_=BigInteger), now()),
)
_UPDATE = (
    update(threads)
    .where(threads.c.id == bindparam("thread"))
    .values(title=bindparam("new_title"), metadata=bindparam("new_metadata"), updated_at=now())
)
_LOCK = select(threads.c.resource_id).where(threads.c.id == bindparam("thread")).with_for_update()
_STAMP = update(threads).where(threads.c.id == bindparam("thread")).values(stamp=bindparam("new_stamp"))
_DELETE = delete(threads).where(threads.c.id == bindparam("thread"))
_DELETE_RUNS = delete(runs).where(runs.c.thread_id == bindparam("thread"))
_DELETE_METADATA = delete(thread_metadata).where(thread_metadata.c.thread_id == bindparam("thread"))


def lock_thread(connection: Connection, thread_id: str) -> str | None:
    """Keep others from changing the thread and from beginning, ending or filling runs of it; returns its resource,
    if it is there.

    Whatever reads something of a thread to change it locks the thread's row first, so that databases with several
    writers need hardly another lock. Where there are more, their order is: thread, messages, runs, logs, events.
    """
    return connection.scalar(_LOCK, {"thread": thread_id})


def stamp_thread(connection: Connection, thread_id: str) -> None:
    """Tell readers that rows of the thread have changed which they may know. It must be locked."""
    connection.execute(_STAMP, {"thread": thread_id, "new_stamp": new_stamp()})


def create_thread(connection: Connection, thread: Thread) -> Thread:
    try:
        insert_thread(connection, thread)
    except IntegrityError as error:
        raise ConflictError(f"thread {thread.id!r} exists already") from error
    return _existing(connection, thread.id)


def insert_thread(connection: Connection, thread: Thread, *, created_by: str | None = None) -> None:
    values = {
        "id": thread.id,
        "resource_id": thread.resource_id,
        "title": thread.title,
        "metadata": to_json(merge_metadata({}, thread.metadata)),
        "created": to_micros(thread.created_at, f"created_at of thread {thread.id!r}"),
        "updated": to_micros(thread.updated_at, f"updated_at of thread {thread.id!r}"),
        "last_seq": 0,
        "created_by": created_by,
        "stamp": new_stamp(),
    }
    connection.execute(_INSERT, values)
    _index_metadata(connection, thread.id, merge_metadata({}, thread.metadata))


def get_thread(connection: Connection, thread_id: str) -> Thread | None:
    row = connection.execute(_GET, {"thread": thread_id}).first()
    return None if row is None else decode_thread(ThreadRow(*row))


def update_thread(
    connection: Connection,
    thread_id: str,
    title: str | None,
    metadata: Mapping[str, Json] | None,
    expected_title: str | None,
) -> Thread:
    lock_thread(connection, thread_id)
    thread = _existing(connection, thread_id)
    check_title(thread, expected_title)
    if title is not None:
        thread.title = title
    if metadata:
        # Through JSON first: a value that becomes null there removes its key as well.
        thread.metadata = merge_metadata(thread.metadata, from_json(to_json(dict(metadata))))
        connection.execute(_DELETE_METADATA, {"thread": thread_id})
        _index_metadata(connection, thread_id, thread.metadata)
    values = {"new_title": thread.title, "new_metadata": to_json(thread.metadata)}
    connection.execute(_UPDATE, {"thread": thread_id, **values})
    return _existing(connection, thread_id)


def list_threads(
    connection: Connection,
    resource_id: str | None,
    metadata: Mapping[str, Json] | None,
    limit: int,
    cursor: str | None,
    newest_first: bool,
) -> Page[Thread]:
    order, beyond = (desc, lt) if newest_first else (asc, gt)
    query = _SELECT.order_by(order(threads.c.created_at), order(threads.c.id)).limit(limit + 1)
    if resource_id is not None:
        query = query.where(threads.c.resource_id == resource_id)
    for key, value in (metadata or {}).items():
        query = query.where(_has_metadata(key, canonical(value)))
    if cursor is not None:
        created_at, thread_id = decode_cursor(cursor)
        same_time = and_(threads.c.created_at == created_at, beyond(threads.c.id, thread_id))
        query = query.where(or_(beyond(threads.c.created_at, created_at), same_time))
    rows = [ThreadRow(*row) for row in connection.execute(query)]
    more = len(rows) > limit
    page = rows[:limit]
    return Page(items=[decode_thread(row) for row in page], cursor=encode_cursor(page[-1]) if more else None)


def delete_thread(connection: Connection, thread_id: str) -> bool:
    deleted = connection.execute(_DELETE, {"thread": thread_id}).rowcount > 0  # and its messages
    connection.execute(_DELETE_RUNS, {"thread": thread_id})
    forget_records(connection, thread_id)
    return deleted


def forget_records(connection: Connection, thread_id: str) -> None:
    """Remove the working memory, the observation log and the events of a thread that is gone."""
    delete_working_memory(connection, f"thread:{thread_id}")
    delete_log(connection, f"thread:{thread_id}")
    delete_event_log(connection, f"thread:{thread_id}")


def _existing(connection: Connection, thread_id: str) -> Thread:
    thread = get_thread(connection, thread_id)
    if thread is None:
        raise NotFoundError(f"there is no thread {thread_id!r}")
    return thread


def _index_metadata(connection: Connection, thread_id: str, metadata: Mapping[str, Json]) -> None:
    require_short(connection, rows=len(metadata))
    stored: dict[str, Json] = from_json(to_json(metadata))
    if rows := [
        {"thread_id": thread_id, "key": to_json(key), "value": canonical(value)} for key, value in stored.items()
    ]:
        connection.execute(insert(thread_metadata), rows)


def _has_metadata(key: str, value: str) -> ColumnElement[bool]:
    index = schema.thread_metadata
    return exists().where(index.c.thread_id == threads.c.id, index.c.key == to_json(key), index.c.value == value)
