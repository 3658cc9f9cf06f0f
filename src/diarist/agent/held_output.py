"""Release a step that was held back: rewrite its chunks to say what the accepted parts say."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from diarist.agent.message_assembler import MessageAssembler
from diarist.chunks import (
    Chunk,
    DataChunk,
    FileChunk,
    FilePayload,
    IdPayload,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningEndPayload,
    ReasoningStart,
    SourceChunk,
    SourcePayload,
    TextDelta,
    TextEnd,
    TextPayload,
    TextStart,
    ToolCallChunk,
    ToolCallPayload,
    ToolErrorChunk,
    ToolErrorPayload,
    ToolInputDelta,
    ToolInputDeltaPayload,
    ToolInputStart,
    ToolInputStartPayload,
    ToolResultChunk,
    ToolResultPayload,
)
from diarist.encoding import dumps
from diarist.messages import DataPart, FilePart, Part, ReasoningPart, SourcePart, TextPart, ToolPart

UNREADABLE = "the arguments cannot be used"
"""Replaces the actual error, which quotes arguments that no processor has judged."""

_CONTENT = (
    *(TextStart, TextDelta, TextEnd),
    *(ReasoningStart, ReasoningDelta, ReasoningEnd),
    *(ToolInputStart, ToolInputDelta, ToolCallChunk, ToolResultChunk, ToolErrorChunk),
    *(FileChunk, SourceChunk),
)


def accepted_chunks(held: deque[Chunk], parts: Sequence[Part], running: Collection[str] = ()) -> deque[Chunk]:
    """Return the held chunks, rewritten to say exactly what ``parts`` say, in the order of the parts.

    If processors changed nothing, text and reasoning keep their pieces. Streamed arguments always become one piece.

    Args:
        running: Ids of calls whose result comes later.
    """
    rewriting = _Rewriting(held, running)
    if rewriting.parts == list(parts) and not rewriting.inputs and not rewriting.unreadable:
        return held
    return rewriting.as_accepted(parts)


class _Rewriting:
    """The held chunks, sorted into the parts they add up to and the chunks between them."""

    def __init__(self, held: deque[Chunk], running: Collection[str]) -> None:
        self._running = running
        self._run_id = held[0].run_id if held else ""
        self._between: list[tuple[int, Chunk]] = []
        self.inputs: set[str] = set()
        self.unreadable: set[str] = set()
        assembler = MessageAssembler("")
        for chunk in held:
            if isinstance(chunk, ToolInputStart | ToolInputDelta):
                self.inputs.add(chunk.payload.tool_call_id)
            elif isinstance(chunk, _CONTENT) or (isinstance(chunk, DataChunk) and not chunk.transient):
                assembler.add(chunk)
            else:
                self._between.append((assembler.begun, chunk))
        self.unreadable.update(assembler.args_errors)
        message = assembler.message()
        self.parts: list[Part] = [] if message is None else message.parts

    def as_accepted(self, parts: Sequence[Part]) -> deque[Chunk]:
        out: deque[Chunk] = deque()
        for index, part in enumerate(parts):
            while self._between and self._between[0][0] <= index:
                out.append(self._between.pop(0)[1])
            for chunk in self._chunks(part, IdPayload(id=f"accepted-{index + 1}")):
                chunk.run_id = self._run_id
                out.append(chunk)
        out.extend(chunk for _, chunk in self._between)
        return out

    def _chunks(self, part: Part, block: IdPayload) -> list[Chunk]:
        match part:
            case TextPart(text=""):
                return []
            case TextPart(text=text):
                end = IdPayload(id=block.id, provider_data=part.provider_data)
                piece = TextPayload(text=text, id=block.id)
                return [TextStart(payload=block), TextDelta(payload=piece), TextEnd(payload=end)]
            case ReasoningPart():
                return _reasoning(part, block)
            case ToolPart():
                return self._call(part)
            case FilePart():
                return [FileChunk(payload=FilePayload(media_type=part.media_type, data=part.data, url=part.url))]
            case SourcePart():
                return [SourceChunk(payload=SourcePayload(url=part.url, title=part.title, id=part.id))]
            case DataPart():
                return [DataChunk(part.type, part.data, id=part.id)]

    def _call(self, part: ToolPart) -> list[Chunk]:
        call_id, name = part.call_id, part.name
        out: list[Chunk] = []
        if call_id in self.inputs:
            written = dumps(part.args).decode()
            out.append(ToolInputStart(payload=ToolInputStartPayload(tool_call_id=call_id, tool_name=name)))
            out.append(ToolInputDelta(payload=ToolInputDeltaPayload(tool_call_id=call_id, args_text_delta=written)))
        call = ToolCallPayload(
            tool_call_id=call_id,
            tool_name=name,
            args=part.args,
            args_error=UNREADABLE if call_id in self.unreadable and not part.args else None,
            provider_executed=part.provider_executed,
            provider_data=part.provider_data,
        )
        out.append(ToolCallChunk(payload=call))
        if part.state != "call" and call_id not in self._running:
            out.append(_result(part))
        return out


def _reasoning(part: ReasoningPart, block: IdPayload) -> list[Chunk]:
    end = ReasoningEndPayload(
        id=block.id, signature=part.signature, provider=part.provider, provider_data=part.provider_data
    )
    piece = [ReasoningDelta(payload=TextPayload(text=part.text, id=block.id))] if part.text else []
    return [ReasoningStart(payload=block), *piece, ReasoningEnd(payload=end)]


def _result(part: ToolPart) -> Chunk:
    if part.state != "result":
        error = ToolErrorPayload(tool_call_id=part.call_id, tool_name=part.name, args=part.args, error=part.result_text)
        return ToolErrorChunk(payload=error)
    return ToolResultChunk(
        payload=ToolResultPayload(
            tool_call_id=part.call_id,
            tool_name=part.name,
            args=part.args,
            result=part.result,
            provider_executed=part.provider_executed,
            provider_data=part.provider_data,
        )
    )
