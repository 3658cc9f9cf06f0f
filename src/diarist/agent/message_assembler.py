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
)
from diarist.messages import (
    CUT_KEY,
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
        self._block: type[TextPart | ReasoningPart] | None = None  # the kind of the block that is not finished
        self._pieces: list[str] = []

    def add(self, chunk: Chunk) -> None:
        match chunk:
            case TextDelta():
                self._add_text(TextPart, chunk.payload.text)
            case ReasoningDelta():
                self._add_text(ReasoningPart, chunk.payload.text)
            case TextStart():
                self._close()
            case ReasoningStart():
                self._close()
                self._block = ReasoningPart  # encrypted thinking has no text, only a signature
            case TextEnd() if self._block is TextPart:
                self._close(chunk)
            case ReasoningEnd() if self._block is ReasoningPart:
                self._close(chunk)
            case ToolCallChunk(payload=call):
                self._close()
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
            case ToolResultChunk(payload=found):  # of a tool that the provider ran
                for part in self._parts:
                    if isinstance(part, ToolPart) and part.call_id == found.tool_call_id and part.provider_executed:
                        part.state, part.result = "result", found.result
                        part.provider_data = {**(part.provider_data or {}), **(found.provider_data or {})} or None
            case FileChunk(payload=file):
                self._close()
                self._parts.append(FilePart(media_type=file.media_type, data=file.data, url=file.url))
            case SourceChunk(payload=source):
                self._close()
                self._parts.append(SourcePart(url=source.url, title=source.title, id=source.id))
            case DataChunk() if not chunk.transient:
                self._close()
                self._parts.append(DataPart(type=chunk.type, data=chunk.data, id=chunk.id))
            case _:
                pass

    def _add_text(self, kind: type[TextPart | ReasoningPart], text: str) -> None:
        if self._block is not kind:
            self._close()
            self._block = kind
        self._pieces.append(text)

    @property
    def begun(self) -> int:
        """The number of parts so far, including an unfinished one."""
        return len(self._parts) + (self._block is not None)

    def cut(self) -> Message | None:
        """Return the message so far of an answer that was stopped, marked as such; None if it says nothing.

        Unfinished reasoning is left out, since providers refuse it.
        """
        if self._block is ReasoningPart:
            self._block, self._pieces = None, []
        message = self.message()
        if message is None or not (message.text.strip() or message.tool_parts):
            return None
        message.metadata[CUT_KEY] = True
        return message

    def message(self) -> Message | None:
        """Return the message so far; None if the model said nothing."""
        self._close()
        if not self._parts:
            return None
        return Message(role="assistant", parts=list(self._parts), run_id=self._run_id)

    def _close(self, end: TextEnd | ReasoningEnd | None = None) -> None:
        """Finish the open block, if any; drop it if it is empty."""
        text, data = "".join(self._pieces), end.payload.provider_data if end else None
        if self._block is TextPart and text:
            self._parts.append(TextPart(text=text, provider_data=data))
        elif self._block is ReasoningPart:
            signature, provider = None, None
            if isinstance(end, ReasoningEnd):
                signature, provider = end.payload.signature, end.payload.provider
            if text or signature or data:
                self._parts.append(ReasoningPart(text=text, signature=signature, provider=provider, provider_data=data))
        self._block, self._pieces = None, []
