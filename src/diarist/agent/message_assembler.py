"""Assembles a step's message from its chunks, after the stream hooks."""

from __future__ import annotations

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
    ToolResultPayload,
)
from diarist.messages import (
    MAX_NESTING,
    DataPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    SourcePart,
    TextPart,
    ToolPart,
    copy_json,
    too_deep,
)


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

    @property
    def begun(self) -> int:
        """The number of parts so far, including an unfinished one."""
        return len(self._parts) + (self._text is not None) + (self._thinking is not None)

    def message(self) -> Message | None:
        """Return the message so far; None if the model said nothing."""
        self._close()
        if not self._parts:
            return None
        return Message(role="assistant", parts=list(self._parts), run_id=self._run_id)

    def _add_call(self, chunk: ToolCallChunk) -> None:
        call = chunk.payload
        if too_deep(call.args):
            call.args, call.args_error = {}, f"the arguments are nested more than {MAX_NESTING} deep"
        if call.args_error:
            self.args_errors[call.tool_call_id] = call.args_error
        self._parts.append(
            ToolPart(
                call_id=call.tool_call_id,
                name=call.tool_name,
                args=copy_json(call.args),
                provider_executed=call.provider_executed,
                provider_data=call.provider_data,
            )
        )

    def _add_result(self, found: ToolResultPayload) -> None:
        """Add the result of a tool that the provider ran."""
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
