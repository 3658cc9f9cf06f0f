"""The export format: JSON lines, each an object with a ``type``.

================  ==================================================================================================
``diarist``       The first line: ``version`` of the format.
``thread``        Begins a thread: ``id``, ``resource_id``, ``title``, ``metadata``, ``created_at``.
``working``       The thread's own working memory, if it has one: ``text``.
``message``       A message of the thread, as ``Message.to_dict`` writes it; its place is its number in the thread.
``forgotten``     A deleted or changed message, without its text: ``id``, ``role``, ``seq``, the number of the message
                  before it, and ``rank`` among those of one number.
``generation``    The thread's diary at the end of an earlier generation, oldest first.
``log``           The thread's diary.
``resource``      Data of a resource across its threads: ``working_memory``, ``metadata``, and, if it has a diary,
                  ``generations`` and ``log``. Follows its threads.
``end``           The last line: the numbers of ``threads``, ``messages`` and ``resources``.
================  ==================================================================================================

Messages are numbered 1, 2, 3, … in each thread, without gaps for removed ones. Runs, rows of live runs and events are
not exported.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast

import orjson

from diarist.checks import checked_metadata, refuse_empty, refuse_own_resource
from diarist.exceptions import ConfigError, InputError
from diarist.memory.memory_note import without_diary
from diarist.memory.observational.overrides import check_overrides
from diarist.message_check import flaw
from diarist.messages import Json, Message
from diarist.storage.codec import from_json, to_json
from diarist.storage.records import Forgotten, ObservationLog, Thread, log_from_json, log_to_json, own_resource

VERSION = 2

Lines = Iterable[str] | AsyncIterable[str]
"""Lines of a file, such as an open text file."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The thread's diary at the end of an earlier generation."""

    log: ObservationLog


@dataclass(frozen=True, slots=True)
class Working:
    """The thread's working memory."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeResource:
    """Data of a resource. ``logs``: the earlier generations of its diary, and the current one."""

    id: str
    metadata: dict[str, Json] = field(default_factory=dict[str, Json])
    working_memory: str = ""
    logs: tuple[ObservationLog, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.metadata or self.working_memory or self.logs)


@dataclass(slots=True, kw_only=True)
class Moved:
    """Counts of an export or import.

    Attributes:
        threads, messages, resources: Numbers of exported or new ones.
        skipped: Ids of threads that existed already and were not changed.
    """

    threads: int = 0
    messages: int = 0
    resources: int = 0
    skipped: list[str] = field(default_factory=list[str])


Item = Thread | Working | Message | Forgotten | Generation | ObservationLog | WholeResource
"""The content of a line between the first and the last."""


def first_line() -> str:
    return _line({"type": "diarist", "version": VERSION})


def last_line(moved: Moved) -> str:
    counts = {"threads": moved.threads, "messages": moved.messages, "resources": moved.resources}
    return _line({"type": "end", **counts})


def to_line(item: Item) -> str:
    """Return one line with its line end. Raises InputError for values that JSON cannot express."""
    match item:
        case Thread():
            value = _thread(item)
        case Working():
            value = {"type": "working", "text": item.text}
        case Message():
            value = {"type": "message", **_message(item)}
        case Forgotten():
            value = {"type": "forgotten", **item._asdict()}
        case Generation():
            value = {"type": "generation", **_log(item.log)}
        case ObservationLog():
            value = {"type": "log", **_log(item)}
        case WholeResource():
            value = _resource(item)
    return _line(value)


async def items_of(lines: Lines) -> AsyncIterator[Item]:
    """Parse the lines, one item at a time.

    Raises InputError if this is not an export, has a newer version, is damaged or cut off.
    """
    number, ended = 0, False
    seen = Moved()
    async for line in _each(lines):
        number += 1
        if not line.strip():
            continue
        value = _parsed(line, number)
        if ended:
            raise InputError(f"line {number}: more lines follow the last one")
        if number == 1:
            _check_first(value)
        elif value.get("type") == "end":
            _check_end(value, seen, number)
            ended = True
        else:
            item = _item(value, number)
            seen.threads += isinstance(item, Thread)
            seen.messages += isinstance(item, Message)
            seen.resources += isinstance(item, WholeResource)
            yield item
    if not ended:
        raise InputError(f"the file is cut off after line {number}: it has no line of the type 'end'; export it again")


async def _each(lines: Lines) -> AsyncIterator[str]:
    given = cast(object, lines)
    if isinstance(given, AsyncIterable):
        async for line in cast(AsyncIterable[object], given):
            yield _text(line)
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
        for line in cast(Iterable[object], given):
            yield _text(line)
    else:
        raise InputError(
            f"lines must be the lines of a file, not {type(given).__name__}: pass an open file, as "
            "open(path, encoding='utf-8'), or text.splitlines()"
        )


def _text(line: object) -> str:
    if not isinstance(line, str):
        raise InputError(f"a line must be a text, not {type(line).__name__}: open the file with encoding='utf-8'")
    return line


def _parsed(line: str, number: int) -> dict[str, Any]:
    try:
        value: Json = from_json(line.rstrip("\r\n"))
    except ValueError as error:
        raise InputError(f"line {number}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"line {number}: not an object")
    return cast("dict[str, Any]", value)


def _check_first(value: Mapping[str, Json]) -> None:
    version = value.get("version")
    if value.get("type") != "diarist" or not isinstance(version, int):
        raise InputError(
            f"line 1: not an export of diarist, which starts with {{'type': 'diarist', 'version': {VERSION}}}"
        )
    if version > VERSION:
        raise InputError(f"the file has version {version}, and this diarist reads version {VERSION}: upgrade diarist")


def _check_end(value: Mapping[str, Json], seen: Moved, number: int) -> None:
    for name in ("threads", "messages", "resources"):
        if value.get(name) != getattr(seen, name):
            raise InputError(f"line {number}: the file says {value.get(name)} {name} and has {getattr(seen, name)}")


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
                return Working(**value)
            case "message":
                return _message_of(value)
            case "forgotten":
                _check(value, id=str, role=str, seq=int, rank=int)
                if value["role"] not in ("user", "assistant", "tool"):
                    raise InputError(f"an unknown role {value['role']!r}")
                return Forgotten(**value)
            case "generation":
                return Generation(_read_log(value))
            case "log":
                return _read_log(value)
            case "resource":
                _check(value, id=str, metadata=dict, working_memory=str)
                refuse_empty(resource=value["id"])
                checked_metadata(value["metadata"])
                return _read_resource(value)
            case _:
                raise InputError(f"an unknown type {kind!r}")
    except (InputError, ConfigError, TypeError, ValueError, KeyError) as error:
        raise InputError(f"line {number}: not a {kind}: {error}") from error


def _check(value: Mapping[str, Any], **kinds: type) -> None:
    """Raise InputError if a field is missing or of another type."""
    for name, kind in kinds.items():
        if not isinstance(value.get(name), kind):
            raise InputError(f"{name} must be a {kind.__name__}, not {value.get(name)!r}")


# --- content of lines ----------------------------------------------------------------------------------------


def _thread(thread: Thread) -> dict[str, Json]:
    return {
        "type": "thread",
        "id": thread.id,
        "resource_id": thread.resource_id,
        "title": thread.title,
        "metadata": thread.metadata,
        "created_at": None if thread.created_at is None else thread.created_at.isoformat(),
    }


def _message_of(value: dict[str, Any]) -> Message:
    message = Message.from_dict({**value, "part_tokens": None})  # counted again, since a file may have any numbers
    if wrong := flaw(message):
        raise InputError(wrong)
    checked_metadata(message.metadata)
    if message.role == "system":  # it would give the model instructions in the name of the operator
        raise InputError("a thread has no messages of the role 'system'")
    if message.sent is not None:
        message.sent.tokens = max(message.sent.tokens, 0)
    return message


def _message(message: Message) -> dict[str, Json]:
    sent = message.sent and without_diary(message.sent)
    return replace(message, thread_id=None, resource_id=None, run_id=None, seq=None, sent=sent).to_dict()


def _log(log: ObservationLog) -> dict[str, Json]:
    value = orjson.loads(log_to_json(log))
    del value["version"], value["born"]
    return value


def _read_log(value: Mapping[str, Json]) -> ObservationLog:
    log = log_from_json(orjson.dumps(value))
    check_overrides(log.overrides)
    return log


def _resource(whole: WholeResource) -> dict[str, Json]:
    value: dict[str, Json] = {
        "type": "resource",
        "id": whole.id,
        "working_memory": whole.working_memory,
        "metadata": whole.metadata,
    }
    if whole.logs:
        value |= {"generations": [_log(log) for log in whole.logs[:-1]], "log": _log(whole.logs[-1])}
    return value


def _read_resource(value: Mapping[str, Any]) -> WholeResource:
    logs = [*value.get("generations", ()), *([value["log"]] if "log" in value else ())]
    return WholeResource(
        id=value["id"],
        metadata=value["metadata"],
        working_memory=value["working_memory"],
        logs=tuple(_read_log(log) for log in logs),
    )


def _line(value: Json) -> str:
    return f"{to_json(value)}\n"
