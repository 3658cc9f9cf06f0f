"""The chunks of a step that were held back, made again from the accepted parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

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
    ToolInputStart,
    ToolResultChunk,
    ToolResultPayload,
)
from diarist.messages import DataPart, FilePart, Part, ReasoningPart, SourcePart, TextPart, ToolPart

_CONTENT = (
    *(TextStart, TextDelta, TextEnd),
    *(ReasoningStart, ReasoningDelta, ReasoningEnd),
    *(ToolInputStart, ToolInputDelta, ToolCallChunk, ToolResultChunk, ToolErrorChunk),
    *(FileChunk, SourceChunk),
)


def accepted_chunks(held: Iterable[Chunk], parts: Sequence[Part], running: Collection[str]) -> deque[Chunk]:
    """Return the chunks of an accepted step: the held chunks outside its message, then one piece for each of ``parts``.

    A ``tool-call`` has no ``args_error``, which quotes arguments that no processor has judged.

    Args:
        running: Ids of calls that have no result yet.
    """
    out = deque[Chunk]()
    for chunk in held:
        if chunk.transient if isinstance(chunk, DataChunk) else not isinstance(chunk, _CONTENT):
            out.append(chunk)
    for index, part in enumerate(parts, start=1):
        out.extend(_content(part, IdPayload(id=f"accepted-{index}"), running))
    return out


def _content(part: Part, block: IdPayload, running: Collection[str]) -> list[Chunk]:
    match part:
        case TextPart(text=text):
            end = IdPayload(id=block.id, provider_data=part.provider_data)
            piece = TextPayload(text=text, id=block.id)
            return [TextStart(payload=block), TextDelta(payload=piece), TextEnd(payload=end)] if text else []
        case ReasoningPart():
            end = ReasoningEndPayload(
                id=block.id, signature=part.signature, provider=part.provider, provider_data=part.provider_data
            )
            pieces = [ReasoningDelta(payload=TextPayload(text=part.text, id=block.id))] if part.text else []
            return [ReasoningStart(payload=block), *pieces, ReasoningEnd(payload=end)]
        case FilePart():
            return [FileChunk(payload=FilePayload(media_type=part.media_type, data=part.data, url=part.url))]
        case SourcePart():
            return [SourceChunk(payload=SourcePayload(url=part.url, title=part.title, id=part.id))]
        case DataPart():
            return [DataChunk(part.type, part.data, id=part.id)]
        case ToolPart():
            call = ToolCallPayload(
                tool_call_id=part.call_id,
                tool_name=part.name,
                args=part.args,
                provider_executed=part.provider_executed,
                provider_data=part.provider_data,
            )
            results = [result_chunk(part)] if part.state != "call" and part.call_id not in running else []
            return [ToolCallChunk(payload=call), *results]


def result_chunk(part: ToolPart) -> ToolResultChunk | ToolErrorChunk:
    """Return the chunk of a call that has a result."""
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
            provider_data=part.provider_data if part.provider_executed else None,
        )
    )
