"""The chunks of a stream and their payloads: one class per chunk type, so that ``match`` works.

Every chunk has ``type``, ``run_id`` and ``from_``; all but ``start`` have a ``payload``. ``to_dict()`` returns the wire
form, JSON with names in camelCase. Type checkers infer the payload's type from ``chunk.type == "text-delta"``, as from
``isinstance``. A model's chunks (text, reasoning, tool calls, files, sources) pass every ``process_output_stream``
hook; ``data-*`` chunks pass only the hooks of processors with ``process_data_parts``.
"""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, cast

from diarist.encoding import clean, jsonable
from diarist.exceptions import InputError
from diarist.messages import Json, Message

FinishReason = Literal["stop", "length", "tool-calls", "content-filter", "error", "other", "retry"]
"""``retry`` ends a rejected attempt; ``other`` is a blocked run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one model call, or the sum of several; ``+`` returns a new ``Usage``.

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
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in Usage.__slots__})


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
    """``args`` is empty when the model's arguments cannot be used; ``args_error`` then says why, unless ``hold_output``
    held the call."""

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
    """``object`` is the typed answer itself; in the wire form, the answer as JSON."""

    object: Any


@dataclass(slots=True, kw_only=True)
class ModelFinishPayload:
    """The end of a model call. ``response_id`` and ``model`` are the names that the provider gave, if any."""

    reason: FinishReason
    usage: Usage
    response_id: str = ""
    model: str = ""


# --- chunks ------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Base:
    type: ClassVar[Any]
    run_id: str = ""
    from_: str = "AGENT"

    def to_dict(self) -> dict[str, Json]:
        """Return the wire form as JSON: field names in camelCase, ``from_`` as ``from``; user data keeps its names."""
        out: dict[str, Json] = {"type": self.type, "runId": self.run_id, "from": self.from_}
        payload = getattr(self, "payload", None)
        if payload is not None:
            out["payload"] = wire(payload)
        return out


@dataclass(slots=True, kw_only=True)
class Start(_Base):
    """The run began."""

    type: ClassVar[Literal["start"]] = "start"


@dataclass(slots=True, kw_only=True)
class StepStart(_Base):
    type: ClassVar[Literal["step-start"]] = "step-start"
    payload: StepStartPayload


@dataclass(slots=True, kw_only=True)
class TextStart(_Base):
    type: ClassVar[Literal["text-start"]] = "text-start"
    payload: IdPayload = field(default_factory=IdPayload)


@dataclass(slots=True, kw_only=True)
class TextDelta(_Base):
    type: ClassVar[Literal["text-delta"]] = "text-delta"
    payload: TextPayload


@dataclass(slots=True, kw_only=True)
class TextEnd(_Base):
    type: ClassVar[Literal["text-end"]] = "text-end"
    payload: IdPayload = field(default_factory=IdPayload)


@dataclass(slots=True, kw_only=True)
class ReasoningStart(_Base):
    type: ClassVar[Literal["reasoning-start"]] = "reasoning-start"
    payload: IdPayload = field(default_factory=IdPayload)


@dataclass(slots=True, kw_only=True)
class ReasoningDelta(_Base):
    type: ClassVar[Literal["reasoning-delta"]] = "reasoning-delta"
    payload: TextPayload


@dataclass(slots=True, kw_only=True)
class ReasoningEnd(_Base):
    type: ClassVar[Literal["reasoning-end"]] = "reasoning-end"
    payload: ReasoningEndPayload = field(default_factory=ReasoningEndPayload)


@dataclass(slots=True, kw_only=True)
class ToolInputStart(_Base):
    type: ClassVar[Literal["tool-call-input-streaming-start"]] = "tool-call-input-streaming-start"
    payload: ToolInputStartPayload


@dataclass(slots=True, kw_only=True)
class ToolInputDelta(_Base):
    type: ClassVar[Literal["tool-call-delta"]] = "tool-call-delta"
    payload: ToolInputDeltaPayload


@dataclass(slots=True, kw_only=True)
class ToolCallChunk(_Base):
    """A complete tool call."""

    type: ClassVar[Literal["tool-call"]] = "tool-call"
    payload: ToolCallPayload


@dataclass(slots=True, kw_only=True)
class ToolResultChunk(_Base):
    type: ClassVar[Literal["tool-result"]] = "tool-result"
    payload: ToolResultPayload


@dataclass(slots=True, kw_only=True)
class ToolApprovalChunk(_Base):
    """The run ends here until this call is approved with ``agent.resume``."""

    type: ClassVar[Literal["tool-call-approval"]] = "tool-call-approval"
    payload: ToolCallPayload


@dataclass(slots=True, kw_only=True)
class ToolErrorChunk(_Base):
    type: ClassVar[Literal["tool-error"]] = "tool-error"
    payload: ToolErrorPayload


@dataclass(slots=True, kw_only=True)
class FileChunk(_Base):
    type: ClassVar[Literal["file"]] = "file"
    payload: FilePayload


@dataclass(slots=True, kw_only=True)
class SourceChunk(_Base):
    type: ClassVar[Literal["source"]] = "source"
    payload: SourcePayload


@dataclass(slots=True, kw_only=True)
class ObjectChunk(_Base):
    """The validated object of a run with ``output_type``."""

    type: ClassVar[Literal["object-result"]] = "object-result"
    payload: ObjectPayload


@dataclass(slots=True, kw_only=True)
class StepFinish(_Base):
    type: ClassVar[Literal["step-finish"]] = "step-finish"
    payload: StepFinishPayload


@dataclass(slots=True, kw_only=True)
class Finish(_Base):
    type: ClassVar[Literal["finish"]] = "finish"
    payload: FinishPayload


@dataclass(slots=True, kw_only=True)
class ErrorChunk(_Base):
    type: ClassVar[Literal["error"]] = "error"
    payload: ErrorPayload


@dataclass(slots=True, kw_only=True)
class AbortChunk(_Base):
    """The caller cancelled the run."""

    type: ClassVar[Literal["abort"]] = "abort"
    payload: AbortPayload = field(default_factory=AbortPayload)


@dataclass(slots=True, kw_only=True)
class TripwireChunk(_Base):
    """A processor blocked the run; nothing follows."""

    type: ClassVar[Literal["tripwire"]] = "tripwire"
    payload: TripwirePayload


@dataclass(slots=True, kw_only=True)
class ModelFinish(_Base):
    """The last chunk of a ``Model``; the agent loop reads it and does not send it to the client."""

    type: ClassVar[Literal["model-finish"]] = "model-finish"
    payload: ModelFinishPayload


@dataclass(slots=True)
class DataChunk:
    """An application's own chunk, sent with ``writer.custom(DataChunk("data-x", {...}))``.

    ``data`` is converted to JSON when it is sent. ``transient`` chunks are only streamed; others are also stored as a
    part of the assistant message.
    """

    type: str
    data: Json = None
    transient: bool = False
    run_id: str = ""
    from_: str = "AGENT"
    id: str = ""

    def __post_init__(self) -> None:
        if not str(self.type).startswith("data-"):
            raise InputError(f"the type of a data chunk starts with 'data-', not {self.type!r}")

    @property
    def payload(self) -> Json:
        """Return ``data``, under the name that other chunks use."""
        return self.data

    def to_dict(self) -> dict[str, Json]:
        """Return the wire form as JSON; ``data`` keeps its own names."""
        return {"type": self.type, "runId": self.run_id, "from": self.from_, "data": as_json(self.data)}


Chunk = (
    Start
    | StepStart
    | TextStart
    | TextDelta
    | TextEnd
    | ReasoningStart
    | ReasoningDelta
    | ReasoningEnd
    | ToolInputStart
    | ToolInputDelta
    | ToolCallChunk
    | ToolResultChunk
    | ToolErrorChunk
    | ToolApprovalChunk
    | FileChunk
    | SourceChunk
    | ObjectChunk
    | StepFinish
    | Finish
    | ErrorChunk
    | AbortChunk
    | TripwireChunk
    | ModelFinish
    | DataChunk
)


# --- the wire form -----------------------------------------------------------------------------------------


_UNDERSCORE = re.compile(r"_([a-z])")

_USER_DATA = {"args", "metadata", "object", "provider_data", "result"}
"""Fields whose values are the application's, a tool's or a provider's own."""


def camel(name: str) -> str:
    return _UNDERSCORE.sub(lambda match: match[1].upper(), name.rstrip("_"))


def wire(payload: Any) -> dict[str, Json]:
    """Return a payload as JSON with field names in camelCase; user data keeps its names."""
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
    """Return any value as JSON.

    Models and dataclasses become objects with their own field names. Dates become ISO texts, bytes become base64, and
    NaN and infinity become null. Lone surrogates become U+FFFD. Any other value without a JSON form becomes its
    ``str``.
    """
    if value is None or isinstance(value, str | bool | int):
        return clean(value)
    from pydantic_core import PydanticSerializationError, from_json, to_json

    try:
        return from_json(to_json(value, bytes_mode="base64", inf_nan_mode="null", fallback=str))
    except PydanticSerializationError:  # rare, such as a lone surrogate
        return clean(jsonable(value, bytes_mode="base64", fallback=str))
