"""What the chunks of a stream carry, and their form on the wire."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast

import orjson

from diarist.messages import Json, Message

FinishReason = Literal["stop", "length", "tool-calls", "content-filter", "error", "other", "retry"]
"""``retry`` ends a rejected attempt; ``other`` is a blocked run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one model call, or a sum of several: ``+`` makes a new one.

    ``input_tokens`` includes ``cached_tokens`` (read from the provider's cache) and ``cache_write_tokens``;
    ``output_tokens`` includes ``reasoning_tokens``.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )


@dataclass(slots=True, kw_only=True)
class IdPayload:
    id: str = ""
    provider_data: dict[str, Json] | None = None


@dataclass(slots=True, kw_only=True)
class TextPayload:
    text: str
    id: str = ""


@dataclass(slots=True, kw_only=True)
class ReasoningEndPayload:
    id: str = ""
    signature: str | None = None
    provider: str | None = None
    provider_data: dict[str, Json] | None = None


@dataclass(slots=True, kw_only=True)
class ToolInputStartPayload:
    tool_call_id: str
    tool_name: str


@dataclass(slots=True, kw_only=True)
class ToolInputDeltaPayload:
    tool_call_id: str
    args_text_delta: str


@dataclass(slots=True, kw_only=True)
class ToolCallPayload:
    """``args_error`` is set, and ``args`` empty, when the model's arguments cannot be used."""

    tool_call_id: str
    tool_name: str
    args: dict[str, Json]
    args_error: str | None = None
    provider_executed: bool = False
    provider_data: dict[str, Json] | None = None


@dataclass(slots=True, kw_only=True)
class ToolResultPayload:
    tool_call_id: str
    tool_name: str
    args: dict[str, Json]
    result: Json
    provider_executed: bool = False
    provider_data: dict[str, Json] | None = None


@dataclass(slots=True, kw_only=True)
class ToolErrorPayload:
    tool_call_id: str
    tool_name: str
    args: dict[str, Json]
    error: str


@dataclass(slots=True, kw_only=True)
class FilePayload:
    media_type: str
    data: bytes | None = None
    url: str | None = None


@dataclass(slots=True, kw_only=True)
class SourcePayload:
    url: str
    title: str = ""
    id: str = ""


@dataclass(slots=True, kw_only=True)
class StepStartPayload:
    step_number: int
    model: str = ""


@dataclass(slots=True, kw_only=True)
class StepFinishPayload:
    step_number: int
    reason: FinishReason
    usage: Usage


@dataclass(slots=True, kw_only=True)
class FinishPayload:
    """``messages`` are the run's response messages after all processors."""

    reason: FinishReason
    stopped_by: str
    usage: Usage
    messages: list[Message] = field(default_factory=list[Message])


@dataclass(slots=True, kw_only=True)
class ErrorPayload:
    error: str
    kind: str = ""


@dataclass(slots=True, kw_only=True)
class AbortPayload:
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class TripwirePayload:
    reason: str
    processor_id: str
    retry: bool = False
    metadata: Json = None


@dataclass(slots=True, kw_only=True)
class ObjectPayload:
    """``object`` is the typed answer itself; in the wire form its JSON."""

    object: Any


@dataclass(slots=True, kw_only=True)
class ModelFinishPayload:
    """How a model call ended. ``response_id`` and ``model`` are the provider's own names, when it gives them."""

    reason: FinishReason
    usage: Usage
    response_id: str = ""
    model: str = ""


_UNDERSCORE = re.compile(r"_([a-z])")

_USER_DATA = {"args", "metadata", "object", "provider_data", "result"}
"""Fields whose values are the application's, a tool's or a provider's own."""


def camel(name: str) -> str:
    return _UNDERSCORE.sub(lambda match: match[1].upper(), name.rstrip("_"))


def wire(payload: Any) -> dict[str, Json]:
    """A payload as JSON, its field names in camelCase; what is inside user data keeps its names."""
    return {
        camel(item.name): as_json(value) if item.name in _USER_DATA else _wire(value)
        for item in fields(payload)
        for value in (getattr(payload, item.name),)
    }


def _wire(value: Any) -> Json:
    match value:
        case Usage():
            return wire(value)
        case Message():
            return as_json(value.to_dict())
        case list():
            return [_wire(item) for item in cast(list[Any], value)]
        case bytes():
            return b64encode(value).decode()
        case _:
            return value


def as_json(value: Any) -> Json:
    """Any value as JSON: models and dataclasses become objects with their own names, dates become ISO texts, bytes
    base64, NaN and infinity null, and what has no JSON form its ``str``."""
    if value is None or isinstance(value, str | bool | int):
        return value
    from pydantic_core import to_json

    return orjson.loads(to_json(value, bytes_mode="base64", inf_nan_mode="null", fallback=str))
