"""Encoding of a storage's records, shared by all back ends so that they store the same values."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, cast

import orjson

from diarist.checks import LARGEST, checked, refuse_empty
from diarist.exceptions import ConflictError, InputError, NotFoundError, RunLostError, StorageError
from diarist.messages import Json, Message, Role, SentBlock, part_from_dict, part_to_dict
from diarist.storage.records import (
    MessageSource,
    NewEvent,
    ObservationLog,
    Page,
    Resource,
    Run,
    RunState,
    Thread,
    WorkingMemory,
    WorkingMemoryUpdate,
    log_from_json,
    log_to_json,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST, _LAST = [(moment.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND for moment in (datetime.min, datetime.max)]
OF_RESOURCE = "resource:"
"""Key prefix of working memories and logs of resources."""


def to_json(value: Json) -> str:
    """Return JSON text; values that JSON does not support become strings. Raises InputError.

    orjson rejects lone surrogates and integers over 64 bits, so the standard library writes values that contain them.
    A leading space marks text that only the standard library can read without loss.
    """
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        pass
    try:
        return " " + json.dumps(value, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"a value cannot be stored as JSON: {error}") from error


def from_json(text: str) -> Json:
    return json.loads(text) if text.startswith(" ") else orjson.loads(text)


def canonical(value: Json) -> str:
    """Return text that is equal for equal JSON values: 1, 1.0 and true differ, the order of keys does not matter."""
    return json.dumps(from_json(to_json(value)), sort_keys=True)


def to_micros(moment: datetime | None, what: str) -> int | None:
    """Return the time as microseconds since 1970, UTC. Raises InputError."""
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise InputError(f"{what} needs a time zone: {moment!r}")
    micros = (moment - _EPOCH) // _MICROSECOND
    if not _FIRST <= micros <= _LAST:
        raise InputError(f"{what} lies outside the years 1 to 9999 of UTC: {moment!r}")
    return micros


def at_micros(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def ttl_micros(ttl: float) -> int:
    """Convert seconds to microseconds. Raises InputError for an invalid duration."""
    if not abs(ttl) <= 1e10:
        raise InputError(f"ttl must be a number of seconds, not {ttl}")
    return int(ttl * 1_000_000)


# --- messages ----------------------------------------------------------------------------------------------


class MessageRow(NamedTuple):
    """A message in stored form, without its thread; JSON columns are text."""

    seq: int
    id: str
    run_id: str
    role: str
    source: MessageSource
    created_at: int | None
    parts: str
    metadata: str
    part_tokens: str | None
    sent: str | None


def encode_message(message: Message, *, run_id: str, source: MessageSource) -> MessageRow:
    """Return the stored form of a message, without its ``seq``. Raises InputError if it cannot be stored."""
    return MessageRow(
        seq=0,
        id=checked(message.id, "a message id"),
        run_id=run_id,
        role=message.role,
        source=source,
        created_at=to_micros(message.created_at, f"created_at of message {message.id!r}"),
        parts=to_json([part_to_dict(part) for part in message.parts]),
        metadata=to_json(message.metadata),
        part_tokens=None if message.part_tokens is None else to_json(list(message.part_tokens)),
        sent=encode_sent(message.sent),
    )


def encode_sent(sent: SentBlock | None) -> str | None:
    return None if sent is None else to_json(sent.to_dict())


def decode_message(row: MessageRow, *, thread_id: str, resource_id: str) -> Message:
    return Message(
        id=row.id,
        role=cast(Role, row.role),
        parts=[part_from_dict(part) for part in from_json(row.parts)],
        created_at=None if row.created_at is None else at_micros(row.created_at),
        thread_id=thread_id,
        resource_id=resource_id,
        run_id=row.run_id,
        metadata={} if row.metadata == "{}" else from_json(row.metadata),  # skip parsing: most messages have none
        seq=row.seq,
        part_tokens=None if row.part_tokens is None else tuple(from_json(row.part_tokens)),
        sent=None if row.sent is None else SentBlock(**from_json(row.sent)),
    )


def taken_ids(thread_id: str, rows: Sequence[MessageRow]) -> ConflictError:
    """Return the error for messages with an id that is not new to the thread, or that occurs twice."""
    ids = [row.id for row in rows]
    return ConflictError(f"thread {thread_id!r} already has a message with the same id, or an id occurs twice: {ids}")


def unchangeable(run: Run, message_id: str) -> NotFoundError:
    """Return the error for a message that ``rewrite_messages`` may not change."""
    return NotFoundError(
        f"run {run.id!r} cannot change message {message_id!r}: it can replace visible messages and messages of its "
        "own, and remove messages of its own"
    )


# --- threads -----------------------------------------------------------------------------------------------


class ThreadRow(NamedTuple):
    """A thread in stored form."""

    id: str
    resource_id: str
    title: str
    metadata: str
    created_at: int
    updated_at: int


def check_thread(thread: Thread) -> None:
    """Raise InputError if the thread cannot be stored."""
    refuse_empty(thread=checked(thread.id, "a thread id"), resource=checked(thread.resource_id, "a resource id"))
    checked(thread.title, f"the title of thread {thread.id!r}")


def encode_thread(thread: Thread) -> dict[str, Any]:
    """Return the columns of a new thread; times that are not given are None. Raises InputError."""
    check_thread(thread)
    return {
        "id": thread.id,
        "resource_id": thread.resource_id,
        "title": thread.title,
        "metadata": to_json(merge_metadata({}, thread.metadata)),
        "created_at": to_micros(thread.created_at, f"created_at of thread {thread.id!r}"),
        "updated_at": to_micros(thread.updated_at, f"updated_at of thread {thread.id!r}"),
    }


def decode_thread(row: ThreadRow) -> Thread:
    return Thread(
        id=row.id,
        resource_id=row.resource_id,
        title=row.title,
        metadata=from_json(row.metadata),
        created_at=at_micros(row.created_at),
        updated_at=at_micros(row.updated_at),
    )


def merge_metadata(old: Mapping[str, Json], changes: Mapping[str, Json]) -> dict[str, Json]:
    """Return ``old`` updated with ``changes``; a None value in ``changes`` removes its key."""
    removed = {key for key, value in changes.items() if value is None}
    return {key: value for key, value in {**old, **changes}.items() if key not in removed}


def changed_thread(
    row: ThreadRow, title: str | None, metadata: Mapping[str, Json] | None, expected_title: str | None
) -> ThreadRow:
    """Return the row with a new title and merged metadata. Raises ConflictError if its title is not as expected."""
    if expected_title is not None and row.title != expected_title:
        raise ConflictError(f"thread {row.id!r} has the title {row.title!r}, not {expected_title!r}")
    # Encode as JSON first: a value that becomes null removes its key as well.
    changes = from_json(to_json(dict(metadata or {})))
    return row._replace(
        title=row.title if title is None else title,
        metadata=to_json(merge_metadata(from_json(row.metadata), changes)),
    )


def page_of_threads(rows: Sequence[ThreadRow], limit: int, *, newest_first: bool) -> Page[Thread]:
    """Return a page of ``rows``, which has one row more than ``limit`` if another page follows."""
    page = rows[:limit]
    order = "newest" if newest_first else "oldest"
    cursor = encode_cursor(page[-1].created_at, page[-1].id, order) if len(rows) > limit else None
    return Page(items=[decode_thread(row) for row in page], cursor=cursor)


def after_thread(cursor: str, *, newest_first: bool) -> tuple[int, str]:
    """Return (created_at, id) of the last thread on the previous page. Raises InputError."""
    created_at, thread_id, order = decode_cursor(cursor, "list_threads", int, str, str)
    if order != ("newest" if newest_first else "oldest"):
        raise InputError(f"the cursor {cursor!r} is of a page in the other order: pass the same newest_first=")
    return created_at, thread_id


def page_of_resources(ids: Sequence[str], limit: int) -> Page[str]:
    """Return a page of ``ids``, which has one id more than ``limit`` if another page follows."""
    page = list(ids[:limit])
    return Page(items=page, cursor=encode_cursor(page[-1]) if len(ids) > limit else None)


def after_resource(cursor: str | None) -> str | None:
    """Return the id of the last resource on the previous page. Raises InputError."""
    return None if cursor is None else decode_cursor(cursor, "list_resources", str)[0]


def encode_cursor(*values: int | str) -> str:
    return urlsafe_b64encode(orjson.dumps(values)).decode().rstrip("=")


def decode_cursor(cursor: str, method: str, *kinds: type[int | str]) -> list[Any]:
    """Return the values of a cursor of ``method``. Raises InputError."""
    try:
        values: list[Any] = orjson.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        valid = [type(value) for value in values] == list(kinds)
        if not valid or any(abs(value) > LARGEST for value in values if isinstance(value, int)):
            raise ValueError("not its values")
    except (ValueError, TypeError) as error:
        raise InputError(f"not a cursor of {method}: {cursor!r}") from error
    return values


# --- runs --------------------------------------------------------------------------------------------------


def require_state(run: Run, stored: Run | None, state: RunState) -> None:
    """Raise RunLostError unless the stored run is in ``state`` and has the token of ``run``."""
    if stored is None or (stored.thread_id, stored.token, stored.state) != (run.thread_id, run.token, state):
        raise lost_run(run, stored)


def lost_run(run: Run, stored: Run | None) -> RunLostError:
    """Return the error for a run that may not write. ``stored`` is the stored run with the same id. It may belong to
    another thread, if the run's own thread was deleted."""
    if stored is None or stored.thread_id != run.thread_id:
        return RunLostError(f"run {run.id!r} is gone: its thread {run.thread_id!r} was deleted")
    if stored.token != run.token:
        return RunLostError(f"run {run.id!r} has the token {run.token}, which differs from the stored token")
    return RunLostError(f"run {run.id!r} has ended as {stored.state}: it may no longer write")


def require_resource(thread: Thread, resource_id: str) -> None:
    """Raise InputError if the stored thread belongs to another resource."""
    if resource_id != thread.resource_id:
        raise InputError(f"thread {thread.id!r} belongs to resource {resource_id!r}, not {thread.resource_id!r}")


# --- events ------------------------------------------------------------------------------------------------


EncodedEvent = tuple[str, str, str, int]
"""Key, type and data (JSON) of an event, and the number of events of its key to keep."""


def encode_event(event: NewEvent, keep: int) -> EncodedEvent:
    """Return the stored form of an event. Raises InputError if it cannot be stored."""
    key, type = checked(event.key, "the key of an event"), checked(event.type, "the type of an event")
    return key, type, to_json(event.data), keep


# --- observation logs --------------------------------------------------------------------------------------


def encode_log(log: ObservationLog) -> str:
    """Return the stored form of a log. Raises InputError if it cannot be stored."""
    from pydantic_core import PydanticSerializationError

    try:
        return log_to_json(log).decode()
    except PydanticSerializationError as error:
        raise InputError(f"the log {log.key!r} cannot be stored: {error}") from error


def decode_log(text: str, key: str) -> ObservationLog:
    """Parse a stored log. Raises StorageError if it is invalid; the message does not quote the text."""
    from pydantic_core import ValidationError

    try:
        return log_from_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "all of it"
        raise StorageError(
            f"the log {key!r} is damaged, or was written by a newer diarist: {place}: {first['msg']}"
        ) from None  # it quotes the value


# --- resources ---------------------------------------------------------------------------------------------


def encode_resource(resource: Resource) -> str:
    """Return a resource as JSON, without id and version, which have columns of their own. Raises InputError."""
    checked(resource.id, "a resource id")
    return to_json({"metadata": resource.metadata})


def decode_resource(resource_id: str, version: int, body: str) -> Resource:
    return Resource(id=resource_id, version=version, **from_json(body))


# --- working memory ----------------------------------------------------------------------------------------


def encode_working_memory(memory: WorkingMemory) -> str:
    """Return a working memory as JSON, without key and version, which have columns of their own. Raises InputError."""
    checked(memory.key, "the key of a working memory")
    updates = [asdict(item) for item in memory.updates]
    return to_json({"text": memory.text, "updates": updates})


def decode_working_memory(key: str, version: int, body: str) -> WorkingMemory:
    stored = from_json(body)
    updates = tuple(WorkingMemoryUpdate(**item) for item in stored["updates"])
    return WorkingMemory(key=key, version=version, text=stored["text"], updates=updates)
