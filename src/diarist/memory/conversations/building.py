"""What all formats share on the way from a file's values to messages."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo

from diarist.exceptions import InputError
from diarist.messages import Json, Message, Part, Role, ToolPart, ToolState

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
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_UNITS = ((1e17, 1e3), (1e14, 1.0), (1e11, 1e-3), (1e8, 1e-6))  # nano, micro, milli, seconds
_EPOCH_END = 1e19
_NUMBER = re.compile(r"\d+(\.\d+)?")


class Builder:
    """Collects the messages of one conversation, joins calls with results, counts what it notes.

    Args:
        zone: Of time stamps that name none.
        scope: Sets the ids of one format apart from another's.
    """

    def __init__(self, *, zone: tzinfo, scope: str) -> None:
        self.messages: list[Message] = []
        self._zone = zone
        self._scope = scope
        self._pending: dict[str, ToolPart] = {}
        self._calls = 0
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    @property
    def notes(self) -> list[str]:
        return [self._sentence(text, count) for text, count in self._counts.items()]

    def note(self, text: str, where: str = "") -> None:
        """Note something once; with ``where`` it is counted, and the first place is named."""
        if where:
            self._first.setdefault(text, where)
        self._counts[text] += 1

    def add(
        self,
        role: Role,
        parts: Sequence[Part],
        *,
        key: str,
        where: str,
        created_at: datetime | None = None,
        metadata: dict[str, Json] | None = None,
    ) -> Message | None:
        """Append a message whose id is made from ``key``; one without parts is only noted."""
        if not parts:
            self.note("empty messages, left out", where)
            return None
        message = Message(
            id=self.message_id(key),
            role=role,
            parts=[],
            created_at=created_at,
            metadata=metadata or {},
        )
        self.extend(message, parts)
        self.messages.append(message)
        return message

    def extend(self, message: Message, parts: Sequence[Part]) -> None:
        """Add parts to a message; its calls wait for their results from now on."""
        for part in parts:
            if isinstance(part, ToolPart):
                self._calls += 1
                part.call_id = part.call_id or f"call_{self._calls}"
                self._pending[part.call_id] = part
            message.parts.append(part)

    def answer(self, call_id: str | None, name: str | None, result: Json, state: ToolState, where: str) -> None:
        """Put a result into its call: by id, or (older logs) the oldest open call of that name."""
        if not call_id:
            named = (key for key, part in self._pending.items() if name in (None, part.name))
            call_id = next(named, "")
        part = self._pending.pop(call_id, None)
        if part is None:
            self.note("tool results without their call, left out", where)
            return
        part.result, part.state = result, state

    def time(self, value: Json, where: str) -> datetime | None:
        """A time stamp: ISO 8601, or seconds, milli-, micro- or nanoseconds since 1970.

        None, and a note, where it cannot be read.
        """
        if value is None or value == "":
            return None
        moment = _parse_time(value, self._zone)
        if moment is None:
            self.note("time stamps that could not be read", where)
        return moment

    def time_of(self, message: dict[str, Json], where: str) -> datetime | None:
        """The time stamp of a message under one of its usual keys."""
        found = (message[key] for key in _TIME_KEYS if message.get(key) is not None)
        return self.time(next(found, None), where)

    def finish(self) -> None:
        unanswered = sum(part.state == "call" for message in self.messages for part in message.tool_parts)
        if unanswered:
            self.note(f"tool calls without a result: {unanswered}")

    def message_id(self, key: str) -> str:
        """The id that belongs to ``key`` in this format, in every reading."""
        digest = hashlib.sha256(f"{self._scope}\0{key}".encode("utf-8", "replace"))
        return f"msg_{digest.hexdigest()[:32]}"

    def _sentence(self, text: str, count: int) -> str:
        where = self._first.get(text)
        return f"{text}: {count} (first: {where})" if where else text


def read_role(value: Json, where: str) -> Role:
    """One of our roles; raises InputError."""
    role = _ROLES.get(value.lower()) if isinstance(value, str) else None
    if role is None:
        given = "no role" if value is None else f"the role {value!r}"
        raise InputError(f"{where}: a message with {given}; known: {', '.join(_ROLES)}")
    return role


def _parse_time(value: Json, zone: tzinfo) -> datetime | None:
    if isinstance(value, str):
        value = value.strip()
        # Eight digits are a day; other numbers must not be read as one (1712011231530 is of 2024).
        if not _NUMBER.fullmatch(value) or len(value) == 8:
            return _parse_iso(value, zone)
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return _parse_epoch(value)


def _parse_iso(value: str, zone: tzinfo) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)


def _parse_epoch(value: str | float) -> datetime | None:
    """The unit shows in the size. Small numbers are offsets into a recording, not dates."""
    try:
        number = float(value)
        for least, per_microsecond in _EPOCH_UNITS:
            if least <= number < _EPOCH_END:
                return _EPOCH + timedelta(microseconds=number / per_microsecond)
    except (ValueError, OverflowError):
        pass
    return None
