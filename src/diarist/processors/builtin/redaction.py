"""Redact a run: the chunks of its stream and its messages, in every field that may contain text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any, TypeVar, cast

from diarist.chunks import (
    Chunk,
    DataChunk,
    Finish,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    Start,
    StepFinish,
    StepStart,
    TextDelta,
    TextEnd,
    TextPayload,
    TextStart,
    ToolApprovalChunk,
    ToolCallChunk,
    ToolErrorChunk,
    ToolInputDelta,
    ToolInputStart,
    ToolResultChunk,
)
from diarist.encoding import dumps
from diarist.messages import FilePart, Json, Message, Part, ReasoningPart, TextPart, ToolPart, new_id
from diarist.processors.streaming_redaction import Look, Redactor, Replace, Span, SpanBuffer

T = TypeVar("T")

_JSON_ITEM = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"(?=\s*(:)?)|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?', re.DOTALL)
"""A string or a number in JSON; the group is set if the string is a key."""

_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})|\\(.)")
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
_OPAQUE_KEY = re.compile(r"(?i)signature$|^encrypted")
_OPAQUE_VALUE = re.compile(r"[A-Za-z0-9+/_-]{64,}={0,2}")

_OF_TOOLS = (ToolInputStart, ToolCallChunk, ToolApprovalChunk, ToolResultChunk, ToolErrorChunk)

_FIXED_FIELDS = {"kind", "media_type", "state", "type"}
"""Fields whose values are fixed, so that they contain no text of the model or the provider."""


class RedactingStream:
    """Redacts one run: its chunks in order, and its messages.

    Text and reasoning are held while a match may still be open. Later chunks wait behind them, so the order stays the
    same. The end of a block releases everything; if a match continues in the step's next block (text with citations
    has several blocks), its rest is redacted there. The deltas of a tool call's arguments are dropped, because a match
    in them may contain escapes; the arguments are searched when they are complete. Changed reasoning loses its
    signature, which would be invalid. Changed text keeps only the provider and id of its provider data.

    Args:
        look: Finds matches.
        replace: Returns the replacement of a match.
        has_schema: The answer has to be JSON. Its text is held until its block is complete, and searched string by
            string, with the escapes resolved, together with the step's blocks before it.
        tools: False leaves tool calls and results unchanged.
        tool_names: Returns the names of the available tools, which stay unchanged. Other names, invented by the model,
            are redacted. A call id that contains a match is replaced by a new id.
    """

    def __init__(
        self,
        look: Look,
        replace: Replace,
        *,
        has_schema: bool = False,
        tools: bool = True,
        tool_names: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._look, self._replace = look, replace
        self._tools = tools
        self._tool_names = tool_names
        self._ids: dict[str, str] = {}  # ids of tool calls: given, or new, to the id to show
        self._whole = Redactor(look, replace)
        self._answer = _Answer(look, replace) if has_schema else None
        self._attempt: object = None
        self._begin_step()

    def _begin_step(self) -> None:
        if self._answer is not None:
            self._answer.begin()
        self._begin_text()
        self._reasoning = _RunningText(ReasoningDelta, self._look, self._replace)

    def _begin_text(self) -> None:
        text = self._answer
        look, replace = (self._look, self._replace) if text is None else (text.look, text.replace)
        self._text = _RunningText(TextDelta, look, replace)

    # -- complete values

    def redact(self, text: str) -> str:
        """Redact a complete text."""
        return self._whole.redact(text)

    def redact_json(self, value: Any) -> Any:
        """Redact every text in a JSON value."""
        return _map_text(value, self.redact)

    def redact_provider_data(self, data: dict[str, Json] | None) -> dict[str, Json] | None:
        """Redact every text in a part's provider data; return the same object if nothing changed.

        Signatures and encrypted contents stay, since a match in them would be a coincidence.
        """
        return _map_text(data, self.redact, keep_opaque=True)

    def redact_message(self, message: Message) -> Message:
        """Return the message with every part redacted; the same object if nothing changed.

        Adjacent texts are also searched as one text, since the prompt joins them; so is adjacent reasoning. Empty parts
        are removed.
        """
        texts: dict[int, str] = {}
        for kind in (TextPart, ReasoningPart):
            found = {place: part.text for place, part in enumerate(message.parts) if isinstance(part, kind)}
            if kind is TextPart and self._answer is not None:
                calls = [place for place, part in enumerate(message.parts) if isinstance(part, ToolPart)]
                for first, end in pairwise([-1, *calls, len(message.parts)]):
                    between = {place: text for place, text in found.items() if first < place < end}
                    texts |= zip(between, self._answer.redact_pieces([*between.values()]), strict=True)
            else:
                texts |= zip(found, self._whole.redact_pieces([*found.values()]), strict=True)
        parts = [self._part(part, texts.get(place, "")) for place, part in enumerate(message.parts)]
        if all(new is old for new, old in zip(parts, message.parts, strict=True)):
            return message
        left = [
            new
            for new, old in zip(parts, message.parts, strict=True)
            if new is old or not isinstance(new, TextPart | ReasoningPart) or new.text
        ]
        return replace(message, parts=left or parts, part_tokens=None)

    def _part(self, part: Part, text: str) -> Part:
        match part:
            case TextPart():
                data = part.provider_data if text == part.text else provider_identity(part.provider_data)
                data = self.redact_provider_data(data)
                same = text == part.text and data is part.provider_data
                return part if same else replace(part, text=text, provider_data=data)
            case ReasoningPart():
                if text == part.text and self.redact_provider_data(part.provider_data) is part.provider_data:
                    return part
                return ReasoningPart(text=text)  # the signature was for the old text
            case ToolPart() if not self._tools:
                return part
            case FilePart():  # keep the address: without it, the file is lost
                name = self.redact(part.name or "")
                return part if name == (part.name or "") else replace(part, name=name)
            case _:
                return self._fields(part)

    def _fields(self, item: T) -> T:
        """Redact the fields of a payload or part; return the same object if nothing changed."""
        changed: dict[str, Any] = {}
        for name in (each.name for each in fields(cast(Any, item))):
            value = redacted = getattr(item, name)
            match name:
                case _ if name in _FIXED_FIELDS or not value:
                    continue
                case "tool_call_id" | "call_id":
                    if value not in self._ids:  # two calls must not get the same id
                        call_id = value if self.redact(value) == value else new_id("call")
                        self._ids[value] = self._ids[call_id] = call_id
                    redacted = self._ids[value]
                case "tool_name" | "name":
                    if value not in self._tool_names() and (redacted := self.redact(value)) != value:
                        # Providers allow only some characters in names.
                        redacted = _NOT_IN_NAMES.sub("_", redacted).strip("_")[:64] or "unnamed"
                case "provider_data":
                    redacted = self.redact_provider_data(value)
                case "args_error":  # the error quotes the arguments, possibly with escapes
                    redacted = value if self._is_clean(value) else "the arguments cannot be used"
                case _:
                    redacted = self.redact_json(value)
            if redacted is not value and redacted != value:
                changed[name] = redacted
        return replace(cast(Any, item), **changed) if changed else item

    # -- the stream

    def feed(self, chunk: Chunk, attempt: object = None) -> Sequence[Chunk]:
        """Return the chunks that may be sent now that ``chunk`` has arrived.

        Args:
            chunk: The next chunk.
            attempt: Identifies the attempt, as ``stream_parts`` of a hook does. When another begins, held chunks of the
                previous attempt are discarded.
        """
        if attempt is not self._attempt:
            self._attempt = attempt
            self._text.buffer.discard()
            self._reasoning.buffer.discard()
            if self._answer is not None:
                self._answer.begin()
        if isinstance(chunk, TextDelta):  # nearly all chunks
            return self._text.feed(chunk)
        match chunk:
            case ReasoningDelta():
                return self._reasoning.feed(chunk)
            case TextEnd() | ReasoningEnd():
                running = self._text if isinstance(chunk, TextEnd) else self._reasoning
                out = running.flush()
                if running.changed:
                    running.changed, chunk = False, changed_end(chunk)
                if running is self._text and self._answer is not None:
                    self._answer.end_block()
                    self._begin_text()
                return [*out, self._block(chunk)]
            case TextStart() | ReasoningStart():
                return self._in_order(self._block(chunk))
            case StepStart():
                self._begin_step()
                return (chunk,)
            case StepFinish() | Finish():
                return [*self._flushed(), chunk]
            case ToolInputDelta() if self._tools:
                return ()
            case ToolCallChunk() | ToolApprovalChunk() | ToolResultChunk() | ToolErrorChunk():
                return [*self._flushed(), self._other(chunk)]
            case _:
                return self._in_order(self._other(chunk))

    def _flushed(self) -> list[Chunk]:
        """Release everything that is held, as if the texts ended here."""
        out = [*self._text.flush(), *self._reasoning.flush()]
        if self._answer is not None:
            self._answer.begin()
        return out

    def _in_order(self, chunk: Chunk) -> list[Chunk]:
        """Return a finished chunk, or queue it behind held text."""
        for running in (self._text, self._reasoning):
            if running.buffer.holding:
                return running.chunks(running.buffer.put(chunk))
        return [chunk]

    def _block(self, chunk: TextStart | TextEnd | ReasoningStart | ReasoningEnd) -> Chunk:
        """Redact the data of a block's start or end. Reasoning with changed data loses its signature."""
        given = chunk.payload.provider_data
        data = self.redact_provider_data(given)
        if data is given:
            return chunk
        if isinstance(chunk, ReasoningEnd):
            return changed_end(chunk)
        return replace(cast(Any, chunk), payload=replace(chunk.payload, provider_data=data))

    def _is_clean(self, written: str) -> bool:
        """Return True if JSON text has no match, both as written and with its escapes resolved."""
        plain = _unescaped(written)
        return self.redact(written) == written and self.redact(plain) == plain

    def _other(self, chunk: Chunk) -> Chunk:
        if isinstance(chunk, DataChunk):
            data = self.redact_json(chunk.data)
            return chunk if data is chunk.data else replace(chunk, data=data)
        if isinstance(chunk, Start) or (isinstance(chunk, _OF_TOOLS) and not self._tools):
            return chunk
        payload = self._fields(chunk.payload)
        return chunk if payload is chunk.payload else replace(cast(Any, chunk), payload=payload)


class _Answer:
    """Redacts an answer that has to be JSON, as one text: each string without its escapes, and each number.

    A changed number becomes a string. Text that is no JSON is searched as it is, and without its escapes.
    """

    def __init__(self, look: Look, replace: Replace) -> None:
        self._whole = Redactor(look, replace)
        self.begin()

    def begin(self) -> None:
        """Begin a new text."""
        self._before = self._block = self._redacted = ""
        self._is_json = False

    def end_block(self) -> None:
        """End a block. The next one continues the text, unless the text is complete."""
        self._before, self._block = self._before + self._block, ""
        if self._is_json and self._before.rstrip().endswith(("}", "]", "```")):
            self._before = ""

    def look(self, text: str, start: int, final: bool) -> tuple[Sequence[Span], int]:
        if not final:
            return (), len(text) - start
        self._block = text[start:]
        self._redacted = self._rest(self._block)
        return [Span(start, len(text))] if self._redacted != self._block else [], 0

    def replace(self, matched: str, span: Span) -> str:
        """Return the redacted block: ``look`` finds a match only for the whole block."""
        return self._redacted

    def _rest(self, block: str) -> str:
        """Redact a block of which the blocks before are sent: also the rest of a match that begins in them."""
        before = self._before
        whole = before + block
        items = json_items(whole)
        self._is_json = items is not None
        if not before:
            return self._redact(block, items)
        if items is None:
            found = json_items(block)
            alone, sent, redacted = self._redact(block, found), self.redact(before), self._redact(whole, None)
            is_value = block.lstrip()[:1] in ("{", "[") and found is not None
            return alone if is_value or redacted == sent + alone else _after(sent, redacted)
        out, place = "", len(before)
        for item in items:
            value = json.loads(item[0])
            if item.end() <= place or (changed := _map_text(value, self._whole.redact)) == value:
                continue
            new = dumps(changed).decode()
            if item.start() < place:  # the digits that were sent are a number, to which no text can be added
                new = _after(self._whole.redact(whole[item.start() : place]), new) if item[0][0] == '"' else ""
            out, place = f"{out}{whole[place : max(place, item.start())]}{new}", item.end()
        return out + whole[place:]

    def redact_pieces(self, pieces: Sequence[str]) -> list[str]:
        """Redact adjacent texts: as one text and, if that is no JSON, each by itself, too.

        If the joined text has a match, all of it is in the first text, and the others are empty.
        """
        if len(pieces) < 2:
            return [self.redact(text) for text in pieces]
        complete = json_items("".join(pieces)) is not None
        redacted = list(pieces) if complete else [self.redact(text) for text in pieces]
        if not complete and all(json_items(text) is not None for text in pieces):
            return redacted
        joined = "".join(redacted)
        whole = self.redact(joined)
        return redacted if whole == joined else [whole, *[""] * (len(pieces) - 1)]

    def redact(self, text: str) -> str:
        return self._redact(text, json_items(text))

    def _redact(self, text: str, items: Sequence[re.Match[str]] | None) -> str:
        """Redact a text, given what ``json_items`` returns for it."""
        if items is not None:
            return with_items(text, items, [_map_text(json.loads(item[0]), self._whole.redact) for item in items])
        redacted = self._whole.redact(text)
        plain = _unescaped(redacted)
        safe = self._whole.redact(plain)
        return redacted if safe == plain else safe


def _after(sent: str, redacted: str) -> str:
    """Return a redacted text without its beginning that was sent."""
    same = next((at for at, (old, new) in enumerate(zip(sent, redacted, strict=False)) if old != new), None)
    return redacted[min(len(sent), len(redacted)) if same is None else same :]


def json_items(text: str) -> list[re.Match[str]] | None:
    """Find the strings and numbers of a JSON text, which may be in a code fence. None if the text is no JSON."""
    fence = re.fullmatch(r"\s*```[^\n]*\n(.*)```\s*", text, re.DOTALL)
    first, last = fence.span(1) if fence else (0, len(text))
    try:
        json.loads(text[first:last])
    except (ValueError, RecursionError):
        return None
    return list(_JSON_ITEM.finditer(text, first, last))


def with_items(text: str, items: Sequence[re.Match[str]], values: Sequence[Any]) -> str:
    """Return a JSON text with these values in the place of its strings and numbers."""
    out, place = "", 0
    for item, value in zip(items, values, strict=True):
        if value != json.loads(item[0]):
            out, place = f"{out}{text[place : item.start()]}{dumps(value).decode()}", item.end()
    return out + text[place:]


def _unescaped(written: str) -> str:
    """Resolve the escapes of JSON in a text that may be no complete JSON."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)) if match[1] else _SHORT.get(match[2], match[2]), written)


class _RunningText:
    """Redacts the text, or the reasoning, of one step.

    Attributes:
        changed: True if a match was replaced since the last block's end.
    """

    def __init__(self, kind: type[TextDelta | ReasoningDelta], look: Look, replace: Replace) -> None:
        self._kind = kind
        self._replace = replace
        self._id = ""
        self.changed = False
        self.buffer: SpanBuffer[Chunk] = SpanBuffer(look, self._replaced)

    def _replaced(self, matched: str, span: Span) -> str:
        replaced = self._replace(matched, span)
        self.changed = self.changed or replaced != matched
        return replaced

    def feed(self, chunk: TextDelta | ReasoningDelta) -> Sequence[Chunk]:
        payload = chunk.payload
        self._id = payload.id
        out = self.buffer.feed(payload.text)
        if len(out) == 1 and out[0] == payload.text:
            return (chunk,)
        return self.chunks(out)

    def flush(self) -> list[Chunk]:
        return self.chunks(self.buffer.flush())

    def chunks(self, out: Sequence[str | Chunk]) -> list[Chunk]:
        """Turn the buffer's output into chunks, adjacent texts into one delta."""
        chunks: list[Chunk] = []
        for item in out:
            if not isinstance(item, str):
                chunks.append(item)
            elif chunks and isinstance(last := chunks[-1], TextDelta | ReasoningDelta):
                last.payload = replace(last.payload, text=last.payload.text + item)
            elif item:
                chunks.append(self._kind(payload=TextPayload(text=item, id=self._id)))
        return chunks


def changed_end(chunk: TextEnd | ReasoningEnd) -> TextEnd | ReasoningEnd:
    """Return the end of a block whose text was changed, without data about the old text: a signature, or citations."""
    if isinstance(chunk, ReasoningEnd):
        return replace(chunk, payload=replace(chunk.payload, signature=None, provider=None, provider_data=None))
    data = provider_identity(chunk.payload.provider_data)
    return replace(chunk, payload=replace(chunk.payload, provider_data=data))


def provider_identity(data: dict[str, Json] | None) -> dict[str, Json] | None:
    """Return the provider and id from the provider data of a changed part.

    Citations and the like refer to the old text and may quote it.
    """
    return {name: data[name] for name in ("provider", "id") if name in data} or None if data else None


def _map_text(value: Any, change: Callable[[str], str], *, keep_opaque: bool = False, key: str = "") -> Any:
    """Apply ``change`` to every string in a JSON value, including keys, and to numbers; a changed number becomes text.

    Returns the same object if nothing changed. With ``keep_opaque``, signatures and encrypted contents stay.
    """
    match value:
        case str():
            opaque = keep_opaque and _OPAQUE_KEY.search(key) and _OPAQUE_VALUE.fullmatch(value)
            return value if opaque else change(value)
        case bool():
            return value
        case int() | float():
            text = str(value)
            changed = change(text)
            return value if changed == text else changed
        case list() | tuple():
            given = list(cast(Sequence[Any], value))
            items = [_map_text(item, change, keep_opaque=keep_opaque, key=key) for item in given]
            return cast(Any, value) if items == given else items
        case dict():
            pairs = cast(dict[str, Any], value)
            mapped = {
                change(str(name)): _map_text(item, change, keep_opaque=keep_opaque, key=str(name))
                for name, item in pairs.items()
            }
            return pairs if mapped == pairs else mapped
        case _:
            return value
