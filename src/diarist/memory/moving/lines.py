"""The file format: one JSON object a line, which says what it is under ``type``.

================  ==================================================================================================
``diarist``       The first line: ``version`` of the format.
``thread``        Begins a thread: ``id``, ``resource_id``, ``title``, ``metadata``, ``created_at``.
``working``       The working memory of that thread, where it has one of its own: ``text``.
``message``       A message of that thread, as ``Message.to_dict`` writes it; its place is its number in the thread.
``generation``    The diary of that thread at the end of an earlier generation, oldest first.
``log``           The diary of that thread.
``resource``      What is kept for a resource over its threads: ``working_memory``, ``metadata``, and, where it has a
                  diary of its own, ``generations`` and ``log``. Comes behind its threads.
``end``           The last line: how many ``threads``, ``messages`` and ``resources`` there are.
================  ==================================================================================================

Places of messages are 1, 2, 3, … in each thread, whatever was removed between them before. Not written are the
runs that messages were said in, what is live, and events.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast

import orjson

from diarist.exceptions import ConfigError, InputError
from diarist.memory.observational.overrides import check_overrides
from diarist.memory.observational.prompt.sent_block import without_diary
from diarist.message_check import flaw
from diarist.messages import Json, Message
from diarist.storage.codec import checked_metadata, from_json, refuse_empty, to_json
from diarist.storage.records import ObservationLog, Thread, log_from_json, log_to_json

VERSION = 1

Lines = Iterable[str] | AsyncIterable[str]
"""The lines of a file, such as an open file has them."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The diary of the thread at the end of an earlier generation."""

    log: ObservationLog


@dataclass(frozen=True, slots=True)
class Working:
    """The working memory of the thread."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeResource:
    """What is kept for a resource; ``logs`` are the earlier generations of its diary, and the present one."""

    id: str
    metadata: dict[str, Json] = field(default_factory=dict[str, Json])
    working_memory: str = ""
    logs: tuple[ObservationLog, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.metadata or self.working_memory or self.logs)


@dataclass(slots=True, kw_only=True)
class Moved:
    """What was exported or imported.

    Attributes:
        threads, messages, resources: How many.
        skipped: Ids of threads that were there already, and were left as they are.
    """

    threads: int = 0
    messages: int = 0
    resources: int = 0
    skipped: list[str] = field(default_factory=list[str])


Item = Thread | Working | Message | Generation | ObservationLog | WholeResource
"""What the lines between the first and the last say."""


def first_line() -> str:
    return _line({"type": "diarist", "version": VERSION})


def last_line(moved: Moved) -> str:
    counts = {"threads": moved.threads, "messages": moved.messages, "resources": moved.resources}
    return _line({"type": "end", **counts})


def to_line(item: Item) -> str:
    """One line with its end. Raises InputError for what JSON cannot say."""
    match item:
        case Thread():
            value = _thread(item)
        case Working():
            value = {"type": "working", "text": item.text}
        case Message():
            value = {"type": "message", **_message(item)}
        case Generation():
            value = {"type": "generation", **_log(item.log)}
        case ObservationLog():
            value = {"type": "log", **_log(item)}
        case WholeResource():
            value = _resource(item)
    return _line(value)


async def items_of(lines: Lines) -> AsyncIterator[Item]:
    """What the lines say, one at a time.

    Raises InputError: not such a file, of a newer version, damaged, or cut off.
    """
    number, ended = 0, False
    seen = Moved()
    async for line in _each(lines):
        number += 1
        if not line.strip():
            continue
        value = _parsed(line, number)
        if ended:
            raise InputError(f"line {number}: there is more behind the end")
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
        raise InputError("line 1: not an export of diarist, which begins with {'type': 'diarist', 'version': 1}")
    if version > VERSION:
        raise InputError(f"the file has version {version}, and this diarist knows version {VERSION}: upgrade diarist")


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
                checked_metadata(value["metadata"])
                created_at = datetime.fromisoformat(value.pop("created_at"))
                return Thread(**value, created_at=created_at)
            case "working":
                _check(value, text=str)
                return Working(**value)
            case "message":
                return _message_of(value)
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
    """Raises InputError where a field is missing, or of another type."""
    for name, kind in kinds.items():
        if not isinstance(value.get(name), kind):
            raise InputError(f"{name} is {value.get(name)!r}, and should be a {kind.__name__}")


# --- what a line holds ----------------------------------------------------------------------------------------


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
    message = Message.from_dict({**value, "part_tokens": None})  # they are counted anew: a file may say anything
    if wrong := flaw(message):
        raise InputError(wrong)
    checked_metadata(message.metadata)
    if message.role == "system":  # it would speak to the model with the voice of whoever runs the agent
        raise InputError("a thread keeps no messages of the role 'system'")
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
