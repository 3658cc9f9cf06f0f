"""Chunks of a step become its message; what a processor dropped from the stream is not in it."""

from __future__ import annotations

from collections import deque

from diarist.chunks import (
    Chunk,
    DataChunk,
    FileChunk,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    SourceChunk,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallChunk,
    ToolResultChunk,
)
from diarist.messages import DataPart, FilePart, Message, Part, ReasoningPart, SourcePart, TextPart, ToolPart
from diarist.payloads import IdPayload, TextPayload, ToolResultPayload


class MessageAssembler:
    """Collects one step's chunks.

    Attributes:
        args_errors: Per call id, why the model's arguments could not be read.
    """

    def __init__(self, run_id: str) -> None:
        self.args_errors: dict[str, str] = {}
        self._run_id = run_id
        self._parts: list[Part] = []
        self._text: list[str] | None = None
        self._thinking: list[str] | None = None

    def add(self, chunk: Chunk) -> None:
        if isinstance(chunk, TextDelta) and self._text is not None:  # nearly all chunks
            self._text.append(chunk.payload.text)
            return
        match chunk:
            case TextDelta():
                if self._text is None:
                    self._close()
                    self._text = []
                self._text.append(chunk.payload.text)
            case ReasoningDelta():
                if self._thinking is None:
                    self._close()
                    self._thinking = []
                self._thinking.append(chunk.payload.text)
            case TextEnd():
                self._close_text(chunk.payload.provider_data)
            case ReasoningEnd():
                self._close_thinking(chunk)
            case TextStart():
                self._close()
            case ReasoningStart():
                self._close()
                self._thinking = []  # encrypted thinking has no text, only a signature
            case ToolCallChunk():
                self._close()
                self._add_call(chunk)
            case ToolResultChunk():
                self._add_result(chunk.payload)
            case FileChunk():
                self._close()
                file = chunk.payload
                self._parts.append(FilePart(media_type=file.media_type, data=file.data, url=file.url))
            case SourceChunk():
                self._close()
                source = chunk.payload
                self._parts.append(SourcePart(url=source.url, title=source.title, id=source.id))
            case DataChunk() if not chunk.transient:
                self._close()
                self._parts.append(DataPart(type=chunk.type, data=chunk.data, id=chunk.id))
            case _:
                pass

    def message(self) -> Message | None:
        """The message so far; None if the model said nothing at all."""
        self._close()
        if not self._parts:
            return None
        return Message(role="assistant", parts=list(self._parts), run_id=self._run_id)

    def _add_call(self, chunk: ToolCallChunk) -> None:
        call = chunk.payload
        if call.args_error:
            self.args_errors[call.tool_call_id] = call.args_error
        self._parts.append(
            ToolPart(
                call_id=call.tool_call_id,
                name=call.tool_name,
                args=call.args,
                provider_executed=call.provider_executed,
                provider_data=call.provider_data,
            )
        )

    def _add_result(self, found: ToolResultPayload) -> None:
        """What a tool of the provider's own came to."""
        for part in self._parts:
            if isinstance(part, ToolPart) and part.call_id == found.tool_call_id and part.provider_executed:
                part.state, part.result = "result", found.result
                part.provider_data = {**(part.provider_data or {}), **(found.provider_data or {})} or None

    def _close(self) -> None:
        self._close_text(None)
        self._close_thinking(None)

    def _close_text(self, provider_data: dict[str, object] | None) -> None:
        if self._text:
            self._parts.append(TextPart(text="".join(self._text), provider_data=provider_data))
        self._text = None

    def _close_thinking(self, end: ReasoningEnd | None) -> None:
        if self._thinking is None:
            return
        text, self._thinking = "".join(self._thinking), None
        payload = end.payload if end else None
        if text or (payload and (payload.signature or payload.provider_data)):
            self._parts.append(
                ReasoningPart(
                    text=text,
                    signature=payload.signature if payload else None,
                    provider=payload.provider if payload else None,
                    provider_data=payload.provider_data if payload else None,
                )
            )


def append_text(message: Message, text: str) -> None:
    """Say something more at the end of a message that is complete."""
    last = message.parts[-1] if message.parts else None
    if isinstance(last, TextPart):
        last.text += text
    elif text:
        message.parts.append(TextPart(text=text))


def with_text(chunks: deque[Chunk], text: str) -> deque[Chunk]:
    """The chunks, saying this text: where they say another one, a single block stands in place of theirs."""
    if text == "".join(chunk.payload.text for chunk in chunks if isinstance(chunk, TextDelta)):
        return chunks
    spoken = [index for index, chunk in enumerate(chunks) if isinstance(chunk, TextStart | TextDelta | TextEnd)]
    place = spoken[0] if spoken else len(chunks)
    others = [chunk for chunk in chunks if not isinstance(chunk, TextStart | TextDelta | TextEnd)]
    block: list[Chunk] = []
    if text:
        ids = IdPayload(id="accepted")
        block = [TextStart(payload=ids), TextDelta(payload=TextPayload(text=text, id=ids.id)), TextEnd(payload=ids)]
        run_id = chunks[0].run_id if chunks else ""
        for chunk in block:
            chunk.run_id = run_id
    return deque([*others[:place], *block, *others[place:]])
