"""The export format: JSON lines, each an object with a ``type``.

================  ==================================================================================================
``diarist``       The first line: ``version`` of the format.
``thread``        Begins a thread: ``id``, ``resource_id``, ``title``, ``metadata``, ``created_at``.
``working``       The thread's own working memory, if it has one: ``text``.
``message``       A message of the thread, as ``Message.to_dict`` writes it; its place is its number in the thread.
``forgotten``     A deleted or changed message, without its text: ``id``, ``role``; ``seq``, the number of the message
                  before it; and ``rank``, its place among those with the same ``seq``.
``generation``    The thread's diary at the end of an earlier generation, oldest first.
``log``           The thread's diary.
``resource``      Data of a resource across its threads: ``working_memory``, ``metadata``, and, if it has a diary,
                  ``generations`` and ``log``. Follows its threads.
``end``           The last line: the numbers of ``threads``, ``messages`` and ``resources``; and ``left_out``, the
                  number of superseded messages, if there are any.
================  ==================================================================================================

Messages are numbered 1, 2, 3, … in each thread, without gaps for removed ones. Superseded messages, runs, rows of live
runs and events are not exported.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast

import orjson

from diarist.checks import checked_metadata, refuse_empty, refuse_own_resource
from diarist.exceptions import ConfigError, InputError
from diarist.message_check import flaw
from diarist.messages import Json, Message
from diarist.storage.codec import from_json, to_json
from diarist.storage.records import Forgotten, ObservationLog, Thread, log_from_json, log_to_json, own_resource

VERSION = 2

Lines = Iterable[str] | AsyncIterable[str]
"""Lines of a file, such as an open text file."""


@dataclass(frozen=True, slots=True)
class DiaryLogs:
    """The thread's diary: its earlier generations, oldest first, and the current one. Each has a line of its own."""

    logs: tuple[ObservationLog, ...]


@dataclass(frozen=True, slots=True)
class WorkingText:
    """The thread's working memory."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeResource:
    """Data of a resource. ``logs``: the earlier generations of its diary, and the current one."""

    id: str
    metadata: dict[str, Json] = field(default_factory=dict[str, Json])
    working_memory: str = ""
    logs: tuple[ObservationLog, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Superseded messages of a thread, which an export does not contain. Only their number, for the last line."""

    messages: int


ThreadItem = WorkingText | Message | Forgotten | DiaryLogs
"""An item that belongs to the thread before it."""
Item = Thread | ThreadItem | WholeResource
"""The content of lines between the first and the last."""

_COUNTED: dict[type, str] = {Thread: "threads", Message: "messages", WholeResource: "resources"}
"""Items that the last line counts."""


@dataclass(slots=True, kw_only=True)
class Moved:
    """Counts of an export or import.

    Attributes:
        threads, messages, resources: How many were exported, or newly imported.
        skipped: Ids of threads that existed already and were not changed.
    """

    threads: int = 0
    messages: int = 0
    resources: int = 0
    skipped: list[str] = field(default_factory=list[str])


async def lines_of(items: AsyncIterable[Item | LeftOut]) -> AsyncIterator[str]:
    """Yield a file line by line, with line ends. Raises InputError for values that JSON cannot express."""
    counts, left_out = dict.fromkeys(_COUNTED.values(), 0), 0
    yield f"{to_json({'type': 'diarist', 'version': VERSION})}\n"
    async for item in items:
        if isinstance(item, LeftOut):
            left_out += item.messages
            continue
        if type(item) in _COUNTED:
            counts[_COUNTED[type(item)]] += 1
        for value in _values_of(item):
            yield f"{to_json(value)}\n"
    more = {"left_out": left_out} if left_out else {}
    yield f"{to_json({'type': 'end', **counts, **more})}\n"


def _values_of(item: Item) -> Iterator[dict[str, Json]]:
    match item:
        case Thread():
            yield {
                "type": "thread",
                "id": item.id,
                "resource_id": item.resource_id,
                "title": item.title,
                "metadata": item.metadata,
                "created_at": None if item.created_at is None else item.created_at.isoformat(),
            }
        case WorkingText():
            yield {"type": "working", "text": item.text}
        case Message():
            message = replace(item, thread_id=None, resource_id=None, run_id=None, seq=None)
            yield {"type": "message", **message.to_dict()}
        case Forgotten():
            yield {"type": "forgotten", **item._asdict()}
        case DiaryLogs():
            for number, log in enumerate(item.logs, 1):
                yield {"type": "log" if number == len(item.logs) else "generation", **_log(log)}
        case WholeResource():
            logs = [_log(log) for log in item.logs]
            yield {
                "type": "resource",
                "id": item.id,
                "working_memory": item.working_memory,
                "metadata": item.metadata,
                **({"generations": logs[:-1], "log": logs[-1]} if logs else {}),
            }


def _log(log: ObservationLog) -> dict[str, Json]:
    value = orjson.loads(log_to_json(log))
    del value["version"], value["born"]
    return value


async def items_of(lines: Lines) -> AsyncIterator[Item]:
    """Parse the lines, one item at a time.

    Raises InputError if this is not an export, has a newer version, is damaged or cut off.
    """
    number, ended = 0, False
    counts = dict.fromkeys(_COUNTED.values(), 0)
    async for line in _each(lines):
        number += 1
        if not isinstance(line, str):
            raise InputError(f"a line must be a text, not {type(line).__name__}: open the file with encoding='utf-8'")
        if not line.strip():
            continue
        try:
            value: Any = from_json(line.rstrip("\r\n"))
        except ValueError as error:
            raise InputError(f"line {number}: not JSON: {error}") from error
        if not isinstance(value, dict):
            raise InputError(f"line {number}: not an object")
        value = cast("dict[str, Any]", value)
        if ended:
            raise InputError(f"line {number}: no line may follow the line of the type 'end'")
        if number == 1:
            version = value.get("version")
            if value.get("type") != "diarist" or not isinstance(version, int):
                raise InputError(
                    f"line 1: not an export of diarist, which starts with {{'type': 'diarist', 'version': {VERSION}}}"
                )
            if version > VERSION:
                raise InputError(
                    f"the file has version {version}, and this diarist reads version {VERSION}: upgrade diarist"
                )
        elif value.get("type") == "end":
            for name, count in counts.items():
                if value.get(name) != count:
                    raise InputError(
                        f"line {number} counts {value.get(name)} {name}, but the file has {count}; export it again"
                    )
            ended = True
        else:
            item = _item(value, number)
            if type(item) in _COUNTED:
                counts[_COUNTED[type(item)]] += 1
            yield item
    if not ended:
        raise InputError(f"the file is cut off after line {number}: it has no line of the type 'end'; export it again")


async def _each(lines: Lines) -> AsyncIterator[object]:
    given = cast(object, lines)
    if isinstance(given, AsyncIterable):
        async for line in cast(AsyncIterable[object], given):
            yield line
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
        for line in cast(Iterable[object], given):
            yield line
    else:
        raise InputError(
            f"lines must be the lines of a file, not {type(given).__name__}: pass an open file, as "
            "open(path, encoding='utf-8'), or text.splitlines()"
        )


def _item(value: dict[str, Any], number: int) -> Item:
    kind = value.pop("type", None)
    try:
        match kind:
            case "thread":
                _check(value, id=str, resource_id=str, title=str, metadata=dict, created_at=str)
                refuse_empty(thread=value["id"], resource=value["resource_id"])
                if value["resource_id"] != own_resource(value["id"]):
                    refuse_own_resource(value["resource_id"])
                checked_metadata(value["metadata"])
                created_at = datetime.fromisoformat(value.pop("created_at"))
                return Thread(**value, created_at=created_at)
            case "working":
                _check(value, text=str)
                return WorkingText(**value)
            case "message":
                # Count the tokens again: the numbers in a file may be wrong.
                message = Message.from_dict({**value, "part_tokens": None})
                check_message(message)
                if message.role == "system":  # it could give the model instructions as if from the application
                    raise InputError("a thread has no messages of the role 'system'")
                if message.sent is not None:
                    message.sent.tokens = max(message.sent.tokens, 0)
                return message
            case "forgotten":
                _check(value, id=str, role=str, seq=int, rank=int)
                if value["role"] not in ("user", "assistant", "tool"):
                    raise InputError(f"an unknown role {value['role']!r}")
                return Forgotten(**value)
            case "generation" | "log":
                return DiaryLogs((_read_log(value),))
            case "resource":
                _check(value, id=str, metadata=dict, working_memory=str)
                refuse_empty(resource=value["id"])
                checked_metadata(value["metadata"])
                logs = [*value.get("generations", ()), *([value["log"]] if "log" in value else ())]
                return WholeResource(
                    id=value["id"],
                    metadata=value["metadata"],
                    working_memory=value["working_memory"],
                    logs=tuple(_read_log(log) for log in logs),
                )
            case _:
                raise InputError(f"an unknown type {kind!r}")
    except (InputError, ConfigError, TypeError, ValueError, KeyError) as error:
        raise InputError(f"line {number}: not a {kind}: {error}") from error


def _check(value: Mapping[str, Any], **kinds: type) -> None:
    """Raise InputError if a field is missing or of another type."""
    for name, kind in kinds.items():
        if not isinstance(value.get(name), kind):
            raise InputError(f"{name} must be a {kind.__name__}, not {value.get(name)!r}")


def check_message(message: Message) -> None:
    """Raise InputError for a message that storages reject."""
    if wrong := flaw(message):
        raise InputError(wrong)
    checked_metadata(message.metadata)


def _read_log(value: Mapping[str, Json]) -> ObservationLog:
    return log_from_json(orjson.dumps(value))
