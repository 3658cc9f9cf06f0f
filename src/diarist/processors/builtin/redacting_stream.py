"""All chunks of an answer with their text redacted, whatever kind of chunk the text is in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from diarist.chunks import (
    Chunk,
    DataChunk,
    FileChunk,
    Finish,
    ObjectChunk,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    SourceChunk,
    StepFinish,
    StepStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolApprovalChunk,
    ToolCallChunk,
    ToolErrorChunk,
    ToolInputDelta,
    ToolResultChunk,
)
from diarist.encoding import dumps
from diarist.messages import Json
from diarist.payloads import TextPayload, ToolCallPayload, ToolInputDeltaPayload
from diarist.processors.builtin.json_text import map_text
from diarist.processors.builtin.provider_text import identity, redacted_data
from diarist.processors.streaming_redaction import Look, MakeSkim, Redactor, Replace, Span, SpanBuffer, no_skim

_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})|\\(.)")


class RedactingStream:
    """One run's chunks, in order, with what ``look`` finds taken out of their texts.

    Text and reasoning are held back as long as a match may still be going on, and chunks that come meanwhile
    wait behind them, so that the order stays; a block's end lets everything go. What goes on in the next block of
    the step (a text with citations comes in several) is taken out there. The arguments of a tool call are
    judged when they are complete: their deltas are held until then, since what matches may be written with
    escapes in them. Reasoning that was changed loses its signature, which would no longer fit. What a provider attached
    is redacted as well; of a text that was changed, only its maker and id stay.

    Args:
        skim: Makes a quick look for one text, where there is one.
        tools: False leaves tool calls and results alone.
    """

    def __init__(self, look: Look, replace: Replace, *, skim: MakeSkim = no_skim, tools: bool = True) -> None:
        self._look, self._replace, self._skim = look, replace, skim
        self._tools = tools
        self._whole = Redactor(look, replace)
        self._begin_step()

    def _begin_step(self) -> None:
        self._text: SpanBuffer[Chunk] = SpanBuffer(self._look, self._replace_text, self._skim())
        self._reasoning: SpanBuffer[Chunk] = SpanBuffer(self._look, self._replace_reasoning, self._skim())
        self._text_changed = False
        self._reasoning_changed = False
        self._inputs: dict[str, list[ToolInputDelta]] = {}
        self._last: TextPayload | None = None

    def _replace_text(self, matched: str, span: Span) -> str:
        replaced = self._replace(matched, span)
        self._text_changed = self._text_changed or replaced != matched
        return replaced

    def _replace_reasoning(self, matched: str, span: Span) -> str:
        replaced = self._replace(matched, span)
        self._reasoning_changed = self._reasoning_changed or replaced != matched
        return replaced

    def redact(self, text: str) -> str:
        """A text that is complete."""
        return self._whole.redact(text)

    def redact_json(self, value: Any) -> Any:
        """Every text in a JSON value."""
        return map_text(value, self.redact)

    def redact_attached(self, data: dict[str, Json] | None) -> dict[str, Json] | None:
        """Every text in what a provider attached to a part."""
        return redacted_data(data, self.redact)

    def feed(self, chunk: Chunk) -> Sequence[Chunk]:
        """What may go out now that ``chunk`` has come."""
        if isinstance(chunk, TextDelta):  # nearly all chunks
            return self._delta(chunk, self._text)
        match chunk:
            case ReasoningDelta():
                return self._delta(chunk, self._reasoning)
            case TextEnd():
                return [*self._flushed(TextDelta, self._text), self._ended(chunk)]
            case ReasoningEnd():
                return [*self._flushed(ReasoningDelta, self._reasoning), self._signed(chunk)]
            case TextStart() | ReasoningStart():
                return self._in_order(self._attached(chunk))
            case StepStart():
                self._begin_step()
                return (chunk,)
            case StepFinish() | Finish():
                return [*self._rest(), *self._unclaimed(), chunk]
            case ToolInputDelta() if self._tools:
                self._inputs.setdefault(chunk.payload.tool_call_id, []).append(chunk)
                return ()
            case ToolCallChunk() if self._tools:
                return [*self._rest(), *self._call(chunk)]
            case ToolCallChunk() | ToolApprovalChunk() | ToolResultChunk() | ToolErrorChunk():
                return [*self._rest(), self._other(chunk)]
            case _:
                return self._in_order(self._other(chunk))

    # -- running text

    def _delta(self, chunk: TextDelta | ReasoningDelta, buffer: SpanBuffer[Chunk]) -> Sequence[Chunk]:
        self._last = payload = chunk.payload
        out = buffer.feed(payload.text)
        if not out:
            return ()
        if len(out) == 1 and isinstance(text := out[0], str):
            return (chunk if text == payload.text else type(chunk)(payload=TextPayload(text=text, id=payload.id)),)
        return self._as_chunks(type(chunk), out)

    def _rest(self) -> list[Chunk]:
        """All that is held: the texts end here, whether or not the model says so."""
        return [*self._flushed(TextDelta, self._text), *self._flushed(ReasoningDelta, self._reasoning)]

    def _flushed(self, kind: type[TextDelta | ReasoningDelta], buffer: SpanBuffer[Chunk]) -> list[Chunk]:
        return self._as_chunks(kind, buffer.flush())

    def _as_chunks(self, kind: type[TextDelta | ReasoningDelta], out: Sequence[str | Chunk]) -> list[Chunk]:
        """Neighbouring texts as one delta."""
        chunks: list[Chunk] = []
        for item in out:
            if not isinstance(item, str):
                chunks.append(item)
            elif chunks and isinstance(last := chunks[-1], TextDelta | ReasoningDelta):
                last.payload = replace(last.payload, text=last.payload.text + item)
            elif item:
                chunks.append(kind(payload=TextPayload(text=item, id=self._last.id if self._last else "")))
        return chunks

    def _in_order(self, chunk: Chunk) -> list[Chunk]:
        """A chunk that is complete, behind the text that is being held."""
        for kind, buffer in ((TextDelta, self._text), (ReasoningDelta, self._reasoning)):
            if buffer.holding:
                return self._as_chunks(kind, buffer.put(chunk))
        return [chunk]

    def _ended(self, end: TextEnd) -> Chunk:
        changed, self._text_changed = self._text_changed, False
        if not changed:
            return self._attached(end)
        data = self.redact_attached(identity(end.payload.provider_data))
        return replace(end, payload=replace(end.payload, provider_data=data))

    def _signed(self, end: ReasoningEnd) -> ReasoningEnd:
        changed, self._reasoning_changed = self._reasoning_changed, False
        data = end.payload.provider_data
        if not changed and self.redact_attached(data) is data:
            return end
        return replace(end, payload=replace(end.payload, signature=None, provider_data=None))

    def _attached(self, chunk: TextStart | TextEnd | ReasoningStart) -> Chunk:
        data = self.redact_attached(chunk.payload.provider_data)
        if data is chunk.payload.provider_data:
            return chunk
        changed = copy(chunk)
        changed.payload = replace(chunk.payload, provider_data=data)
        return changed

    # -- tool calls

    def _call(self, chunk: ToolCallChunk) -> list[Chunk]:
        """The deltas that were held, then the call: as they were, or with what is left of the arguments."""
        call = chunk.payload
        deltas = self._inputs.pop(call.tool_call_id, [])
        written = "".join(delta.payload.args_text_delta for delta in deltas)
        redacted = self._redacted_call(call)
        if redacted is call and self._is_clean(written):
            return [*deltas, chunk]
        text = self.redact(dumps(redacted.args).decode())
        out: list[Chunk] = []
        if deltas and not call.args_error:  # what is no JSON cannot be cleaned with certainty, so it is left out
            payload = ToolInputDeltaPayload(tool_call_id=call.tool_call_id, args_text_delta=text)
            out.append(replace(deltas[0], payload=payload))
        return [*out, replace(chunk, payload=redacted)]

    def _redacted_call(self, call: ToolCallPayload) -> ToolCallPayload:
        args, data = self.redact_json(call.args), self.redact_attached(call.provider_data)
        error = call.args_error
        if error and not self._is_clean(error):
            error = "the arguments cannot be used"  # they are quoted there, possibly with escapes in them
        if args is call.args and data is call.provider_data and error == call.args_error:
            return call
        return replace(call, args=args, args_error=error, provider_data=data)

    def _is_clean(self, written: str) -> bool:
        """Whether nothing matches in JSON text, neither as it stands nor with its escapes resolved."""
        plain = _ESCAPED.sub(lambda match: chr(int(match[1], 16)) if match[1] else match[2], written)
        return self.redact(written) == written and self.redact(plain) == plain

    def _unclaimed(self) -> list[Chunk]:
        """Deltas whose call never came complete."""
        inputs, self._inputs = self._inputs, {}
        out: list[Chunk] = []
        for deltas in inputs.values():
            if self._is_clean("".join(delta.payload.args_text_delta for delta in deltas)):
                out += deltas
        return out

    # -- everything else that carries text

    def _other(self, chunk: Chunk) -> Chunk:
        match chunk:
            case DataChunk():
                data = self.redact_json(chunk.data)
                if data is not chunk.data:
                    chunk = copy(chunk)
                    chunk.data = data
            case ToolApprovalChunk() if self._tools:
                chunk = replace(chunk, payload=self._redacted_call(chunk.payload))
            case ToolResultChunk() if self._tools:
                result, args = self.redact_json(chunk.payload.result), self.redact_json(chunk.payload.args)
                data = self.redact_attached(chunk.payload.provider_data)
                chunk = replace(chunk, payload=replace(chunk.payload, result=result, args=args, provider_data=data))
            case ToolErrorChunk() if self._tools:
                error, args = self.redact(chunk.payload.error), self.redact_json(chunk.payload.args)
                chunk = replace(chunk, payload=replace(chunk.payload, error=error, args=args))
            case SourceChunk():
                url, title = self.redact(chunk.payload.url), self.redact(chunk.payload.title)
                chunk = replace(chunk, payload=replace(chunk.payload, url=url, title=title))
            case FileChunk() if chunk.payload.url:
                chunk = replace(chunk, payload=replace(chunk.payload, url=self.redact(chunk.payload.url)))
            case ObjectChunk():
                chunk = replace(chunk, payload=replace(chunk.payload, object=self.redact_json(chunk.payload.object)))
            case _:
                pass
        return chunk
