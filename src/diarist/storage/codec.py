"""How the values of a storage are written down: the same in every back end, so that all keep the same."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any, NamedTuple, cast

import orjson

from diarist.exceptions import ConflictError, InputError, StorageError
from diarist.messages import MAX_NESTING, Json, Message, Role, SentBlock, part_from_dict, part_to_dict
from diarist.storage.records import (
    MessageSource,
    ObservationLog,
    Page,
    Resource,
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
"""How keys of what is of a resource begin."""
END = 2**63 - 1
"""Above every ``seq``; as a limit, none."""


def to_json(value: Json) -> str:
    """JSON text; values that JSON does not know become strings. Raises InputError.

    Lone surrogates and integers of more than 64 bits, which orjson refuses, survive too: the standard library
    writes them, and a leading space says that only the standard library reads them without loss.
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
    """Text that is equal for equal JSON values: 1, 1.0 and true differ, the order of keys does not matter."""
    return json.dumps(from_json(to_json(value)), sort_keys=True)


def checked(value: str, what: str) -> str:
    """``value`` if it can be a key or a plain column in every back end. Raises InputError."""
    if not isinstance(cast(object, value), str):
        raise InputError(f"{what} must be a text, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{what} is not valid Unicode: {value!r}") from error
    if "\0" in value:
        raise InputError(f"{what} contains a NUL character: {value!r}")
    return value


def refuse_empty(**ids: str | None) -> None:
    """Raises InputError that names the argument whose id is an empty text; None is none."""
    for name, value in ids.items():
        if value == "":
            raise InputError(f"{name} is empty: pass the id of a {name}, or leave {name}= out")


def check_names(**ids: str | None) -> None:
    """As ``refuse_empty``, and for an id that is no text, too."""
    for name, value in ids.items():
        if value is not None and not isinstance(cast(object, value), str):
            raise InputError(f"{name} must be the id of a {name.replace('_', ' ')}, a text, not {value!r}")
    refuse_empty(**ids)


def checked_metadata(metadata: Mapping[str, Json] | None) -> dict[str, Json]:
    """Metadata as a dictionary of its own, empty for None. Raises InputError that names what is not JSON in it."""
    value = cast(object, {} if metadata is None else metadata)
    if not isinstance(value, Mapping):
        raise InputError(f"metadata must be a dictionary, such as {{'kind': 'travel'}}, not {value!r}")
    found = cast(Mapping[object, Json], value)
    for key, item in found.items():
        if not isinstance(key, str):
            raise InputError(f"a key of metadata must be a text, not {key!r}")
        if wrong := _not_json(item):
            raise InputError(
                f"metadata[{key!r}] is not JSON ({wrong}); use texts, finite numbers, booleans, None, lists and"
                " dictionaries"
            )
    return dict(cast(Mapping[str, Json], found))


def check_metadata_of(messages: Sequence[Message]) -> None:
    """Raises InputError that names the message and what is not JSON in its metadata."""
    for place, message in enumerate(messages):
        try:
            checked_metadata(message.metadata)
        except InputError as error:
            raise InputError(f"message {place}: {error}") from error


def _not_json(value: Json, room: int = MAX_NESTING) -> str | None:
    """What would not come back as it is, in words; None if all does. A tuple comes back as a list."""
    if value is None or isinstance(value, str | int):
        return None
    if isinstance(value, float):
        return None if isfinite(value) else f"{value} is no finite number"
    if not isinstance(value, dict | list | tuple):
        return f"{type(value).__name__} is no type of JSON"
    if room == 0:
        return f"it is nested more than {MAX_NESTING} deep"
    found = cast("dict[object, Json] | Sequence[Json]", value)
    if isinstance(found, dict):
        if odd := [key for key in found if not isinstance(key, str)]:
            return f"the key {odd[0]!r} is no text"
        found = list(found.values())
    return next((wrong for item in found if (wrong := _not_json(item, room - 1))), None)


def to_micros(moment: datetime | None, what: str) -> int | None:
    """Microseconds since 1970, UTC."""
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise InputError(f"{what} needs a time zone: {moment!r}")
    micros = (moment - _EPOCH) // _MICROSECOND
    if not _FIRST <= micros <= _LAST:
        raise InputError(f"{what} lies outside the years 1 to 9999 of UTC: {moment!r}")
    return micros


def from_micros(micros: int | None) -> datetime | None:
    return None if micros is None else at_micros(micros)


def at_micros(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def ttl_micros(ttl: float) -> int:
    """Seconds as microseconds. Raises InputError for what is no length of time."""
    if not abs(ttl) <= 1e10:
        raise InputError(f"ttl must be a number of seconds, not {ttl}")
    return int(ttl * 1_000_000)


def check_limit(limit: int | None, *, least: int = 0) -> int:
    """``limit``, or END for None. Raises InputError for anything but a whole number from ``least`` on."""
    return END if limit is None else check_whole("limit", limit, least=least)


def check_place(**places: int | None) -> None:
    """Raises InputError that names the argument which is neither None nor a ``seq``, there or not."""
    for name, value in places.items():
        if value is not None:
            check_whole(name, value, least=-END)


def check_whole(name: str, value: int, *, least: int) -> int:
    """``value``. Raises InputError for anything but a whole number from ``least`` on that databases can hold."""
    if type(value) is not int or value < least:
        raise InputError(f"{name} must be a whole number from {least} on, not {value!r}")
    if value >= END:
        raise InputError(f"{name} must be below {END:,}, not {value}")
    return value


def check_ids(name: str, ids: Collection[str]) -> None:
    """Raises InputError that names the argument for anything but several texts; one text is not."""
    given = cast(Any, ids)
    if not isinstance(given, Collection) or isinstance(given, str | bytes | Mapping):
        raise InputError(f"{name} must be a list of ids, such as ['msg_1'], not {given!r}")
    for one in cast(Collection[Any], given):
        if not isinstance(one, str):
            raise InputError(f"an id in {name} must be a text, not {one!r}")


# --- messages ----------------------------------------------------------------------------------------------


class MessageRow(NamedTuple):
    """A message as it is kept; JSON columns are text. The thread is known from where the row lies."""

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


def encode_message(message: Message, *, run_id: str, source: MessageSource, seq: int = 0) -> MessageRow:
    """Raises InputError for what cannot be stored."""
    return MessageRow(
        seq=seq,
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
    return sent and to_json({"text": sent.text, "tokens": sent.tokens, "made_from": sent.made_from})


def decode_sent(sent: str | None) -> SentBlock | None:
    return None if sent is None else SentBlock(**from_json(sent))


def decode_message(row: MessageRow, *, thread_id: str, resource_id: str) -> Message:
    return Message(
        id=row.id,
        role=cast(Role, row.role),
        parts=[part_from_dict(part) for part in from_json(row.parts)],
        created_at=from_micros(row.created_at),
        thread_id=thread_id,
        resource_id=resource_id,
        run_id=row.run_id,
        metadata={} if row.metadata == "{}" else from_json(row.metadata),  # nearly always
        seq=row.seq,
        part_tokens=None if row.part_tokens is None else tuple(from_json(row.part_tokens)),
        sent=decode_sent(row.sent),
    )


# --- threads -----------------------------------------------------------------------------------------------


class ThreadRow(NamedTuple):
    """A thread as it is kept."""

    id: str
    resource_id: str
    title: str
    metadata: str
    created_at: int
    updated_at: int


def check_thread(thread: Thread) -> None:
    """Raises InputError for what cannot be stored."""
    refuse_empty(thread=checked(thread.id, "a thread id"), resource=checked(thread.resource_id, "a resource id"))
    checked(thread.title, f"the title of thread {thread.id!r}")


def check_title(thread: Thread, expected: str | None) -> None:
    """Raises ConflictError where another title is expected."""
    if expected is not None and thread.title != expected:
        raise ConflictError(f"thread {thread.id!r} has the title {thread.title!r}, not {expected!r}")


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
    """``old`` with the keys of ``changes``; a None value in ``changes`` removes its key."""
    removed = {key for key, value in changes.items() if value is None}
    return {key: value for key, value in {**old, **changes}.items() if key not in removed}


def encode_cursor(row: ThreadRow) -> str:
    return urlsafe_b64encode(orjson.dumps([row.created_at, row.id])).decode().rstrip("=")


def decode_cursor(cursor: str) -> tuple[int, str]:
    """The (created_at, id) of the last thread of a page. Raises InputError."""
    try:
        created_at, thread_id = orjson.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        return int(created_at), str(thread_id)
    except (ValueError, TypeError) as error:
        raise InputError(f"not a cursor of list_threads: {cursor!r}") from error


def encode_resource_cursor(resource_id: str) -> str:
    return urlsafe_b64encode(orjson.dumps([resource_id])).decode().rstrip("=")


def decode_resource_cursor(cursor: str | None) -> str | None:
    """The id of the last resource of a page. Raises InputError."""
    if cursor is None:
        return None
    try:
        (resource_id,) = orjson.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, TypeError) as error:
        raise InputError(f"not a cursor of list_resources: {cursor!r}") from error
    return str(resource_id)


def page_of_resources(ids: Sequence[str], limit: int) -> Page[str]:
    """A page of the ids that were found, one more than ``limit`` where there are more."""
    page = list(ids[:limit])
    return Page(items=page, cursor=encode_resource_cursor(page[-1]) if len(ids) > limit else None)


# --- observation logs --------------------------------------------------------------------------------------


def encode_log(log: ObservationLog) -> str:
    """Raises InputError for what cannot be stored."""
    from pydantic_core import PydanticSerializationError

    try:
        return log_to_json(log).decode()
    except PydanticSerializationError as error:
        raise InputError(f"the log {log.key!r} cannot be stored: {error}") from error


def decode_log(text: str, key: str) -> ObservationLog:
    """Raises StorageError for what cannot be read; it does not quote it."""
    from pydantic_core import ValidationError

    try:
        return log_from_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "all of it"
        raise StorageError(
            f"the log {key!r} is damaged, or was written by a newer diarist: {place}: {first['msg']}"
        ) from error


def own_log(log: ObservationLog) -> ObservationLog:
    """``log`` for a reader, who may change what it can be changed in."""
    return replace(log, overrides=deepcopy(log.overrides))


# --- resources ---------------------------------------------------------------------------------------------


def encode_resource(resource: Resource) -> str:
    """All but id and version, which have columns of their own."""
    return to_json({"metadata": resource.metadata})


def decode_resource(resource_id: str, version: int, body: str) -> Resource:
    return Resource(id=resource_id, version=version, **from_json(body))


# --- working memory ----------------------------------------------------------------------------------------


def encode_working_memory(memory: WorkingMemory) -> str:
    """All but key and version, which have columns of their own."""
    updates = [asdict(item) for item in memory.updates]
    return to_json({"text": memory.text, "updates": updates})


def decode_working_memory(key: str, version: int, body: str) -> WorkingMemory:
    stored = from_json(body)
    updates = tuple(WorkingMemoryUpdate(**item) for item in stored["updates"])
    return WorkingMemory(key=key, version=version, text=stored["text"], updates=updates)
