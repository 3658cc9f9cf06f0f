"""Builds messages from the values of a file, for all formats: ids, times, roles, and calls with their results."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, tzinfo

import orjson

from diarist.exceptions import InputError
from diarist.integrations.conversations.loading import BrokenLine, as_object, parse
from diarist.messages import Json, Message, Part, ReasoningPart, Role, ToolPart, ToolState, parse_time

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
}
_TIME_KEYS = ("created_at", "timestamp", "createdAt")


class Builder:
    """Collects the messages of one conversation, joins calls with results, and counts notes.

    Args:
        zone: Time zone of time stamps without one.
        scope: Name of the format; makes message ids differ between formats.
        skip_broken: Leave out lines and messages that cannot be read.

    Attributes:
        messages: The messages so far; after ``finish`` without ``waiting``.
        waiting: After ``finish``, the messages at the end that wait for a tool's result.
        other_branches: Ids of the messages on branches that are left out.
        conversation_id: The conversation's own id in the file; empty if it has none.
        where: Place in the file that is being read, in words; empty before and after.
    """

    def __init__(self, *, zone: tzinfo, scope: str, skip_broken: bool = False) -> None:
        self.messages: list[Message] = []
        self.waiting: list[Message] = []
        self.other_branches: set[str] = set()
        self.conversation_id = ""
        self.where = ""
        self._skip_broken = skip_broken
        self._zone = zone
        self._scope = scope
        self._begun: dict[str, Message] = {}
        self._pending: dict[str, ToolPart] = {}
        self._calls = 0
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    @property
    def notes(self) -> list[str]:
        return [
            f"{text}: {count} (first: {self._first[text]})" if text in self._first else text
            for text, count in self._counts.items()
        ]

    def note(self, text: str) -> None:
        """Add a note. One about a place in the file is counted, and names the first place."""
        if self.where:
            self._first.setdefault(text, self.where)
        self._counts[text] += 1

    @contextmanager
    def reading(self, where: str) -> Generator[None]:
        """Read one line or message in the block. If it is broken, leave it out with a note, or raise BrokenLine.

        ``where``: its place in words; by default ``message 1``, for files of a single object.
        """
        self.where = where or "message 1"
        try:
            yield
        except InputError as error:
            if not self._skip_broken:
                raise BrokenLine(f"{self.where}: {error}") from error
            self.note("broken lines or messages, left out")
        finally:
            self.where = ""

    def add(
        self,
        role: Role,
        parts: Sequence[Part],
        *,
        key: str,
        created_at: datetime | None = None,
        metadata: dict[str, Json] | None = None,
    ) -> Message | None:
        """Append a message with an id derived from ``key``. Without parts, add only a note and return None."""
        if not parts:
            self.note("empty messages, left out")
            return None
        message = Message(id=self.message_id(key), role=role, parts=[], created_at=created_at, metadata=metadata or {})
        self._extend(message, parts)
        self.messages.append(message)
        return message

    def append(self, role: Role, parts: Sequence[Part], *, key: str, created_at: datetime | None = None) -> None:
        """Add parts to the message that was begun with ``key``, or begin it as ``add`` does."""
        if key in self._begun:
            self._extend(self._begun[key], parts)
        elif (message := self.add(role, parts, key=key, created_at=created_at)) is not None:
            self._begun[key] = message

    def leave_out_branch(self, key: str) -> None:
        """Note the message of ``key`` as one of another branch than the file shows."""
        self.other_branches.add(self.message_id(key))
        self.note("messages of other branches, left out")

    def _extend(self, message: Message, parts: Sequence[Part]) -> None:
        for part in parts:
            if isinstance(part, ToolPart):
                self._calls += 1
                part.call_id = part.call_id or f"call_{self._calls}"
                self._pending[part.call_id] = part
            message.parts.append(part)

    def call(self, call_id: Json, name: Json, arguments: Json) -> ToolPart:
        """Return a tool call, without its result. Raises InputError if it has no name."""
        if not isinstance(name, str) or not name:
            raise InputError("a tool call without a name")
        return ToolPart(call_id=str(call_id or ""), name=name, args=self.arguments(arguments))

    def arguments(self, given: Json) -> dict[str, Json]:
        """Return the arguments of a tool call: a JSON object, perhaps as text. Other values are kept as one text."""
        if isinstance(given, str):
            with suppress(json.JSONDecodeError):
                given = parse(given) if given.strip() else {}
        args = {} if given is None else as_object(given)
        if args is None:
            self.note("tool arguments that cannot be used, kept as text")
            args = {"arguments": given}
        return args

    def answer(self, call_id: Json, name: Json, result: Json, state: ToolState) -> None:
        """Add a result to its call: by id, or in older logs to the oldest open call of that name."""
        if not call_id:
            call_id = next((key for key, part in self._pending.items() if not name or name == part.name), "")
        part = self._pending.pop(str(call_id), None)
        if part is None:
            self.note("tool results without their call, left out")
            return
        part.result, part.state = result, state

    def time(self, value: Json) -> datetime | None:
        """Parse a time stamp; add a note if it cannot be parsed."""
        if value is None or value == "":
            return None
        moment = parse_time(value, self._zone)
        if moment is None:
            self.note("time stamps that could not be read")
        return moment

    def time_of(self, message: dict[str, Json]) -> datetime | None:
        """Return the time stamp of a message under one of its usual keys."""
        found = (message[key] for key in _TIME_KEYS if message.get(key) is not None)
        return self.time(next(found, None))

    def finish(self) -> None:
        """End the conversation: set the messages apart that wait for a tool's result, and count calls without one."""
        end = _end_of_complete(self.messages)
        self.messages, self.waiting = self.messages[:end], self.messages[end:]
        if count := len(self.waiting):
            self.note(f"messages at the end that wait for a tool's result, left out until the file has it: {count}")
        unanswered = sum(part.state == "call" for message in self.messages for part in message.tool_parts)
        if unanswered:
            self.note(f"tool calls without a result: {unanswered}")

    def message_id(self, key: str) -> str:
        """Return the message id for ``key``: the same each time the file is read."""
        digest = hashlib.sha256(f"{self._scope}\0{key}".encode("utf-8", "replace"))
        return f"msg_{digest.hexdigest()[:32]}"


def _end_of_complete(messages: Sequence[Message]) -> int:
    """Return the number of messages before the first one that waits for a tool's result.

    Stored messages never change, so a call is complete only with its result. A call that the user or the assistant has
    spoken after waits no more.
    """
    end = len(messages)
    for index, message in reversed(list(enumerate(messages))):
        if message.role == "user":
            break
        for part in reversed(message.parts if message.role == "assistant" else ()):
            if isinstance(part, ToolPart):
                end = index if part.state == "call" else end
            elif not isinstance(part, ReasoningPart):
                return end
    return end


def content_key(position: int, value: Json) -> str:
    """Return a key for a message without an id of its own, from its position and content. Additions at the end of the
    file do not change it. Raises InputError."""
    try:
        return f"{position}\0{orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()}"
    except orjson.JSONEncodeError as error:
        raise InputError(f"cannot be stored as JSON: {error}") from error


def path_to(last: Json, parents: Mapping[str, Json]) -> list[str]:
    """Return the ids of a branch, from its root to ``last``, by the parent of each id."""
    path: dict[str, None] = {}
    while isinstance(last, str) and last in parents and last not in path:
        path[last] = None
        last = parents[last]
    return list(reversed(path))


def read_role(value: Json) -> Role:
    """Return the role for a name of any format. Raises InputError."""
    role = _ROLES.get(value.lower()) if isinstance(value, str) else None
    if role is None:
        given = "no role" if value is None else f"the role {value!r}"
        raise InputError(f"a message with {given}; known: {', '.join(_ROLES)}")
    return role
