"""Messages with their parts, and the prompt that is sent to a provider.

Users, processors and storage work with ``Message``: one row, one id, parts of several kinds. A tool call and its result
are one part, so that they cannot be separated. ``Prompt`` is the neutral form of a request: messages in the roles that
providers use, with calls and results as separate parts.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, ClassVar, Literal, NamedTuple, cast, get_args

import orjson

from diarist.encoding import dumps, shortened, writable
from diarist.exceptions import InputError

Json = Any
"""Any value that JSON can carry."""

CUT_KEY = "diarist_cut"
"""Metadata key of an answer that the user stopped before its end: True."""

MAX_NESTING = 100
"""Levels of lists and objects that a value may have. Encoders refuse values with more than about 250 levels."""

Role = Literal["system", "user", "assistant", "tool"]
ToolState = Literal["call", "result", "error", "denied"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_UNITS = ((1e17, 1e3), (1e14, 1.0), (1e11, 1e-3), (1e8, 1e-6))  # nano, micro, milli, seconds
_EPOCH_END = 1e19
_NUMBER = re.compile(r"\d+(\.\d+)?")


def new_id(prefix: str) -> str:
    """Return a new id such as ``msg_0199c1f0a3b17f4c2a9d…``: 48 bits of time (milliseconds), then 80 random bits."""
    return f"{prefix}_{int(time.time() * 1000):012x}{secrets.token_hex(10)}"


def utc_now() -> datetime:
    """Return the current time, with time zone UTC."""
    return datetime.now(UTC)


def parse_time(value: Json, zone: tzinfo | None = None) -> datetime | None:
    """Parse a time stamp: ISO 8601, or seconds, milli-, micro- or nanoseconds since 1970; None if it is neither.

    Args:
        zone: Time zone of times without one; None keeps them without one.
    """
    if isinstance(value, str):
        value = value.strip()
        # Eight digits are a day. Other numbers are not ISO dates (1712011231530 is a time in 2024).
        if not _NUMBER.fullmatch(value) or len(value) == 8:
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                return None
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
        for least, per_microsecond in _EPOCH_UNITS:  # the size tells the unit; small numbers are offsets, not dates
            if least <= number < _EPOCH_END:
                return _EPOCH + timedelta(microseconds=number / per_microsecond)
    except (ValueError, OverflowError):
        pass
    return None


@dataclass(slots=True, kw_only=True)
class TextPart:
    """Text. ``provider_data`` goes back to the provider unchanged (an item id, citations)."""

    type: ClassVar[str] = "text"
    text: str
    provider_data: dict[str, Json] | None = None


@dataclass(slots=True, kw_only=True)
class ReasoningPart:
    """The model's thinking.

    ``signature`` proves the text to ``provider``, which wrote it, and means nothing to other providers.
    """

    type: ClassVar[str] = "reasoning"
    text: str
    signature: str | None = None
    provider: str | None = None
    provider_data: dict[str, Json] | None = None


@dataclass(slots=True, kw_only=True)
class ToolPart:
    """A tool call and, as soon as there is one, its result.

    ``state``: ``call`` (no result yet), ``result``, ``error`` (``result`` holds the message for the
    model) or ``denied``. ``result`` is a string or any JSON value. ``provider_executed``: the provider ran it.
    """

    type: ClassVar[str] = "tool"
    call_id: str
    name: str
    args: dict[str, Json]
    state: ToolState = "call"
    result: Json = None
    provider_executed: bool = False
    provider_data: dict[str, Json] | None = None

    @property
    def result_text(self) -> str:
        """Return the result as text: a string as it is, other values as JSON; empty while pending."""
        return "" if self.state == "call" else as_text(self.result)

    def __str__(self) -> str:
        """Return the call and its result on one line: ``get_weather(city='Rome') -> '18 °C'``."""
        args = ", ".join(f"{name}={shortened(value)}" for name, value in self.args.items())
        state = {"call": "", "result": " ->", "error": " -> error", "denied": " -> denied"}[self.state]
        return f"{self.name}({args}){state}" + (f" {shortened(self.result)}" if state else "")


@dataclass(slots=True, kw_only=True)
class FilePart:
    """A file or image, as bytes or as a URL, with its media type (``image/png``)."""

    type: ClassVar[str] = "file"
    media_type: str
    data: bytes | None = None
    url: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if (self.data is None) == (self.url is None):
            raise InputError("a file part needs either data or url, and not both")


@dataclass(slots=True, kw_only=True)
class SourcePart:
    """A source that the model cites."""

    type: ClassVar[str] = "source"
    url: str
    title: str = ""
    id: str = ""


@dataclass(slots=True, kw_only=True)
class DataPart:
    """A part of the application's own type ``data-…``. It is stored and streamed, but never sent to a model."""

    type: str
    data: Json
    id: str = ""

    def __post_init__(self) -> None:
        if not self.type.startswith("data-"):
            raise InputError(f"the type of a data part starts with 'data-', not {self.type!r}")
        if too_deep(self.data):
            raise InputError(f"the data of {self.type!r} is nested more than {MAX_NESTING} deep")


Part = TextPart | ReasoningPart | ToolPart | FilePart | SourcePart | DataPart

_PART_TYPES: dict[str, type[Any]] = {kind.type: kind for kind in get_args(Part) if kind is not DataPart}


def too_deep(value: Json, room: int = MAX_NESTING) -> bool:
    """Return True for lists and objects nested in more than ``room`` levels."""
    if not isinstance(value, dict | list):
        return False
    items = cast(list[Json], value) if isinstance(value, list) else cast(dict[str, Json], value).values()
    return room == 0 or any(too_deep(item, room - 1) for item in items if isinstance(item, dict | list))


def copy_json(value: Json) -> Json:
    """Return a deep copy of a JSON value; several times as fast as ``deepcopy``."""
    if isinstance(value, dict):
        return {key: copy_json(item) for key, item in cast(dict[str, Json], value).items()}
    return [copy_json(item) for item in cast(list[Json], value)] if isinstance(value, list) else value


def as_text(value: Json) -> str:
    """Return a tool's result as the model sees it: a string as it is, other values as JSON."""
    return writable(value) if isinstance(value, str) else dumps(value).decode()


@dataclass(slots=True, kw_only=True)
class SentBlock:
    """The block that memory adds to a user message when it is sent: dates, current task and the like.

    It is composed once, stored with the message and sent again byte for byte, but never shown, embedded, observed or
    exported as the user's words. ``made_from`` holds the values it was composed of.
    """

    text: str
    tokens: int = 0
    made_from: dict[str, Json] = field(default_factory=dict[str, Json])

    def to_dict(self) -> dict[str, Json]:
        """Return the block as JSON values; ``SentBlock(**values)`` is equal to it."""
        return {"text": self.text, "tokens": self.tokens, "made_from": self.made_from}


@dataclass(slots=True, kw_only=True, repr=False)
class Message:
    """One message of a conversation.

    Attributes:
        role: ``user`` or ``assistant``; ``system`` only in input; ``tool`` for a result that comes in a later
            call than its tool call.
        parts: Its content, in order.
        created_at: Time of the message, with time zone; None if unknown (an imported file without time stamps).
        seq: Its position in the thread, given by storage; None until it is stored. Messages are ordered by it.
        part_tokens: Token count of each part; None until the message is stored.
        sent: The block that memory added before the user's words, if any.
        rendered: Its form in prompts, cached by ``prompting`` if nothing changes messages in place.
    """

    id: str = field(default_factory=lambda: new_id("msg"))
    role: Role
    parts: list[Part]
    created_at: datetime | None = field(default_factory=utc_now)
    thread_id: str | None = None
    resource_id: str | None = None
    run_id: str | None = None
    metadata: dict[str, Json] = field(default_factory=dict[str, Json])
    seq: int | None = None
    part_tokens: tuple[int, ...] | None = None
    sent: SentBlock | None = None
    rendered: Rendered | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def text(self) -> str:
        """Return the text of all text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def is_cut(self) -> bool:
        """Return True for an answer that the user stopped before its end, kept by a call with ``on_stop="keep"``."""
        return self.metadata.get(CUT_KEY) is True

    @property
    def tool_parts(self) -> list[ToolPart]:
        """Return the parts that are tool calls."""
        return [part for part in self.parts if isinstance(part, ToolPart)]

    def __repr__(self) -> str:
        shown = [repr(self.role)]
        for part in self.parts:
            match part:
                case TextPart():
                    shown.append(shortened(part.text))
                case ToolPart():
                    shown.append(str(part))
                case _:
                    shown.append(f"<{getattr(part, 'media_type', part.type)}>")
        return f"Message({', '.join(shown)}, id={self.id!r})"

    @classmethod
    def user(cls, text: str, **more: Any) -> Message:
        """Return a user message with one text part; ``more`` are further fields."""
        return cls(role="user", parts=[TextPart(text=text)], **more)

    @classmethod
    def assistant(cls, text: str, **more: Any) -> Message:
        """Return an assistant message with one text part; ``more`` are further fields."""
        return cls(role="assistant", parts=[TextPart(text=text)], **more)

    @classmethod
    def system(cls, text: str, **more: Any) -> Message:
        """Return a system message with one text part; ``more`` are further fields."""
        return cls(role="system", parts=[TextPart(text=text)], **more)

    def to_dict(self) -> dict[str, Json]:
        """Return the message as JSON values; ``from_dict`` turns them into an equal message."""
        out: dict[str, Json] = {
            "id": self.id,
            "role": self.role,
            "parts": [part_to_dict(part) for part in self.parts],
        }
        if self.created_at is not None:
            out["created_at"] = self.created_at.isoformat()
        for name in ("thread_id", "resource_id", "run_id", "seq"):
            if (value := getattr(self, name)) is not None:
                out[name] = value
        if self.metadata:
            out["metadata"] = self.metadata
        if self.part_tokens is not None:
            out["part_tokens"] = list(self.part_tokens)
        if self.sent is not None:
            out["sent"] = self.sent.to_dict()
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Json]) -> Message:
        """Return the message that ``to_dict`` wrote. Raises InputError, which names a missing field, or an unknown
        part or field of a part.
        """
        try:
            tokens, sent = data.get("part_tokens"), data.get("sent")
            created = data.get("created_at")
            return cls(
                id=data.get("id") or new_id("msg"),
                role=data["role"],
                parts=[part_from_dict(part) for part in data["parts"]],
                created_at=datetime.fromisoformat(created) if created else None,
                thread_id=data.get("thread_id"),
                resource_id=data.get("resource_id"),
                run_id=data.get("run_id"),
                metadata=dict(data.get("metadata") or {}),
                seq=data.get("seq"),
                part_tokens=None if tokens is None else tuple(tokens),
                sent=None if sent is None else SentBlock(**sent),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"not a message: {error!r} in {str(data)[:200]}") from error


def part_to_dict(part: Part) -> dict[str, Json]:
    """Return a part as JSON values: bytes as base64, without fields that are None."""
    if isinstance(part, TextPart) and part.provider_data is None:  # nearly always
        return {"type": "text", "text": part.text}
    out: dict[str, Json] = {"type": part.type}
    for item in fields(part):
        value = getattr(part, item.name)
        if value is not None and item.name != "type":
            out[item.name] = b64encode(value).decode() if isinstance(value, bytes) else value
    return out


def part_from_dict(data: Mapping[str, Json]) -> Part:
    """Return the part that ``part_to_dict`` wrote. Raises InputError for an unknown type."""
    kind = data["type"]
    if kind == "text" and len(data) == 2:  # nearly always, and every run reads its whole window
        return TextPart(text=data["text"])
    if kind.startswith("data-"):
        return DataPart(type=kind, data=data.get("data"), id=data.get("id", ""))
    part_type = _PART_TYPES.get(kind)
    if part_type is None:
        raise InputError(f"unknown part type {kind!r}; known: {', '.join(_PART_TYPES)}, data-…")
    values = {name: value for name, value in data.items() if name != "type"}
    if kind == "file" and values.get("data") is not None:
        values["data"] = b64decode(values["data"])
    return cast(Part, part_type(**values))


def copy_message(message: Message) -> Message:
    """Return a copy with its own parts and metadata, so that edits do not change the original."""
    if not message.metadata and message.sent is None and len(message.parts) == 1:
        part = message.parts[0]
        if isinstance(part, TextPart) and part.provider_data is None:  # nearly always
            return replace(message, parts=[TextPart(text=part.text)], metadata={})
    try:
        data = orjson.loads(orjson.dumps(message.to_dict(), default=str, option=orjson.OPT_NON_STR_KEYS))
    except TypeError:  # strings and numbers that only the standard library can write and read
        data = json.loads(json.dumps(message.to_dict(), default=str))
    return Message.from_dict(data)


# --- the prompt --------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class ToolCallPart:
    """A tool call in a prompt's assistant message. ``provider_executed``: the provider ran the tool."""

    type: ClassVar[str] = "tool-call"
    call_id: str
    name: str
    args: dict[str, Json]
    provider_executed: bool = False
    provider_data: dict[str, Json] | None = None


@dataclass(slots=True, kw_only=True)
class ToolResultPart:
    """A tool's result in a prompt's tool message; the model reads ``text``.

    ``provider_executed``: the provider ran the tool, and the result follows its call in the assistant message.
    """

    type: ClassVar[str] = "tool-result"
    call_id: str
    name: str
    text: str
    is_error: bool = False
    provider_executed: bool = False
    provider_data: dict[str, Json] | None = None


PromptPart = TextPart | ReasoningPart | ToolCallPart | ToolResultPart | FilePart


@dataclass(slots=True)
class Derived:
    """Values derived from a prompt message that never changes, kept for the next request.

    Attributes:
        encoded: The message as JSON in requests, and the key of the protocol for which it was encoded.
        block: Hash and length, for comparing prompts.
    """

    encoded: tuple[tuple[object, ...], bytes] | None = None
    block: tuple[int, int] | None = None


@dataclass(slots=True, kw_only=True)
class PromptMessage:
    """One message of a prompt.

    ``cache`` sets a cache breakpoint after the message. Providers with explicit breakpoints (Anthropic, Bedrock) use
    it; others ignore it. ``message_id`` is the id of the original ``Message``. A message with ``derived`` may be part
    of several prompts and must not be changed.
    """

    role: Role
    parts: list[PromptPart]
    cache: bool = False
    message_id: str | None = None
    derived: Derived | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def text(self) -> str:
        """Return the content as text."""
        if len(self.parts) == 1 and isinstance(part := self.parts[0], TextPart):  # nearly always
            return part.text
        texts: list[str] = []
        for part in self.parts:
            match part:
                case ToolCallPart():
                    texts.append(f"{part.name}({as_text(part.args)})")
                case FilePart():
                    texts.append(f"<{part.media_type}>")
                case _:
                    texts.append(part.text)
        return "".join(texts)


class Rendered(NamedTuple):
    """A message's form in prompts, valid while the message has the same ``sent``."""

    sent: SentBlock | None
    prompt: list[PromptMessage]


@dataclass(slots=True, kw_only=True)
class Prompt:
    """The conversation that is sent to a model: system messages first, then the turns."""

    messages: list[PromptMessage]

    def __iter__(self) -> Iterator[PromptMessage]:
        return iter(self.messages)

    @property
    def text(self) -> str:
        """Return the prompt as text with a ``[role]`` heading per message, for tests, logs and prefix comparisons."""
        return "\n".join(f"[{message.role}]\n{message.text}" for message in self.messages)
