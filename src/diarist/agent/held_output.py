"""Release the chunks of a step that were held back, rewritten to match the accepted parts."""

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
    """Return the held chunks, rewritten so that their content and order are those of ``parts``.

    If processors changed nothing, text and reasoning keep their pieces. Streamed arguments always become one piece.

    Args:
        running: Ids of calls that have no result yet.
    """
    between: deque[tuple[int, Chunk]] = deque()  # chunks outside the parts, with the number of parts before each
    streamed = set[str]()
    assembler = MessageAssembler("")
    for chunk in held:
        if isinstance(chunk, ToolInputStart | ToolInputDelta):
            streamed.add(chunk.payload.tool_call_id)
        elif isinstance(chunk, _CONTENT) or (isinstance(chunk, DataChunk) and not chunk.transient):
            assembler.add(chunk)
        else:
            between.append((assembler.begun, chunk))
    message = assembler.message()
    if not streamed and not assembler.args_errors and list(parts) == ([] if message is None else message.parts):
        return held
    out: deque[Chunk] = deque()
    for index, part in enumerate(parts):
        while between and between[0][0] <= index:
            out.append(between.popleft()[1])
        if not isinstance(part, ToolPart):
            out.extend(_content(part, IdPayload(id=f"accepted-{index + 1}")))
            continue
        call_id, name = part.call_id, part.name
        if call_id in streamed:
            written = dumps(part.args).decode()
            out.append(ToolInputStart(payload=ToolInputStartPayload(tool_call_id=call_id, tool_name=name)))
            out.append(ToolInputDelta(payload=ToolInputDeltaPayload(tool_call_id=call_id, args_text_delta=written)))
        call = ToolCallPayload(
            tool_call_id=call_id,
            tool_name=name,
            args=part.args,
            args_error=UNREADABLE if call_id in assembler.args_errors and not part.args else None,
            provider_executed=part.provider_executed,
            provider_data=part.provider_data,
        )
        out.append(ToolCallChunk(payload=call))
        if part.state != "call" and call_id not in running:
            out.append(result_chunk(part))
    out.extend(chunk for _, chunk in between)
    for chunk in out:
        chunk.run_id = held[0].run_id if held else ""
    return out


def _content(part: Part, block: IdPayload) -> list[Chunk]:
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
            return []


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
