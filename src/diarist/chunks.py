"""What a stream yields: one class per chunk type, so that ``match`` works.

Every chunk has ``type``, ``run_id`` and ``from_``, all but ``start`` a ``payload``; ``to_dict()`` is the wire form,
JSON in camelCase. To a type checker ``chunk.type == "text-delta"`` says what the payload is, as ``isinstance`` does.
Chunks that a model makes (text, reasoning, tool calls, files, sources) pass every ``process_output_stream`` hook;
``data-*`` chunks only those of processors with ``process_data_parts``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from diarist.exceptions import InputError
from diarist.messages import Json
from diarist.payloads import (
    AbortPayload,
    ErrorPayload,
    FilePayload,
    FinishPayload,
    IdPayload,
    ModelFinishPayload,
    ObjectPayload,
    ReasoningEndPayload,
    SourcePayload,
    StepFinishPayload,
    StepStartPayload,
    TextPayload,
    ToolCallPayload,
    ToolErrorPayload,
    ToolInputDeltaPayload,
    ToolInputStartPayload,
    ToolResultPayload,
    TripwirePayload,
    as_json,
    wire,
)
from diarist.payloads import FinishReason as FinishReason
from diarist.payloads import Usage as Usage


@dataclass(slots=True, kw_only=True)
class _Base:
    type: ClassVar[Any]
    run_id: str = ""
    from_: str = "AGENT"

    def to_dict(self) -> dict[str, Json]:
        """The wire form, JSON: field names in camelCase, ``from_`` as ``from``; user data keeps its own names."""
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
    """The run ends here: somebody has to approve this call first, with ``agent.resume``."""

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
    """The last thing a ``Model`` yields; the loop reads it and does not pass it on."""

    type: ClassVar[Literal["model-finish"]] = "model-finish"
    payload: ModelFinishPayload


@dataclass(slots=True)
class DataChunk:
    """An application's own chunk, sent with ``writer.custom(DataChunk("data-x", {...}))``.

    ``transient`` chunks are streamed only; others are also stored as a part of the assistant message.
    """

    type: str
    data: Json = None
    transient: bool = False
    run_id: str = ""
    from_: str = "AGENT"
    id: str = ""

    def __post_init__(self) -> None:
        if not self.type.startswith("data-"):
            raise InputError(f"the type of a data chunk starts with 'data-', not {self.type!r}")

    @property
    def payload(self) -> Json:
        """``data``, by the name that it has in other chunks."""
        return self.data

    def to_dict(self) -> dict[str, Json]:
        """The wire form, JSON: ``data`` keeps its own names."""
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
