"""Convert the events of a chat completion to chunks."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

import orjson

from diarist.chunks import (
    Chunk,
    FileChunk,
    FilePayload,
    FinishReason,
    IdPayload,
    ModelFinish,
    ModelFinishPayload,
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
    ToolInputDelta,
    ToolInputDeltaPayload,
    ToolInputStart,
    ToolInputStartPayload,
    Usage,
)
from diarist.data_urls import read_data_url
from diarist.encoding import parse_arguments, writable
from diarist.exceptions import ContentFilterError, ModelConnectionError, ModelResponseError
from diarist.messages import Json
from diarist.models.openai_chat.errors import event_error

T = TypeVar("T")

DONE = b"[DONE]"

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool-calls",
    "function_call": "tool-calls",
    "content_filter": "content-filter",
}
_REASONING_FIELDS = ("reasoning_content", "reasoning")


class AnswerReader:
    """Reads one answer, the first if the server sends several choices. At most one block of text or reasoning is open
    at a time; tool calls come at the end.

    Args:
        server: Its name in messages, if it is not the provider's.

    Attributes:
        done: The server has sent ``[DONE]``.
    """

    def __init__(self, *, provider: str, maker: str, server: str = "") -> None:
        self.done = False
        self._provider = provider
        self._server = server or provider
        self._maker = maker
        self._block: Literal["text", "reasoning"] | None = None
        """The open block."""
        self._blocks = 0
        self._id = ""
        self._half = ""
        """The first half of a character (a surrogate) at the end of the last text."""
        self._reasoning_field = _REASONING_FIELDS[0]
        self._reasoning_details: list[dict[str, Any]] = []
        self._calls = ToolFragments()
        self._images: dict[str, None] = {}
        """URLs. They are sent at the end, as cited pages are, so that no text is split; some servers repeat them."""
        self._cited: dict[str, str] = {}
        """Titles of cited pages, by URL."""
        self._said_anything = False
        self._refusal = ""
        self._reason: str | None = None
        self._usage = Usage()
        self._response_id = ""
        self._model = ""

    def read(self, events: Iterable[bytes]) -> Iterator[Chunk]:
        """Yield the chunks of events. Text of consecutive events becomes one chunk.

        Raises:
            ModelAPIError: An event is an error.
            ModelResponseError: An event is not a JSON object, or has a field of a wrong type.
        """
        texts: list[str] = []  # of the open block, not yielded yet

        def flush() -> Iterator[Chunk]:
            if texts:
                yield TextDelta(payload=TextPayload(text="".join(texts), id=self._id))
                texts.clear()

        for data in events:
            if data.startswith(DONE):
                self.done = True
                continue
            try:
                event = _parsed(data)
                if self._block == "text" and (text := _only_text(event)):
                    texts.append(self._whole(text))
                    continue
                yield from flush()
                yield from self._read(event)
            except json.JSONDecodeError as error:
                yield from flush()
                lines = data.split(b"\n")
                if len(lines) == 1:
                    raise self._unreadable(data, error) from error
                yield from self.read(lines)  # some servers send events without a blank line between them
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                yield from flush()
                raise self._unreadable(data, error) from error
        yield from flush()

    def read_whole(self, body: bytes) -> Sequence[Chunk]:
        """Return the chunks of an answer that was sent in one piece instead of streamed."""
        try:
            answer = _parsed(body)
            for choice in _typed(answer, "choices", list, []):
                choice["delta"] = choice.get("message")
            return self._read(answer)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._unreadable(body, error) from error

    def read_last(self, events: Sequence[bytes]) -> list[Chunk]:
        """Return the chunks of the last events. Ignores an event that was cut off."""
        out: list[Chunk] = []
        for event in events:
            with suppress(ModelResponseError):
                out.extend(self.read([event]))
        return out

    def finish(self) -> Sequence[Chunk]:
        """Return the last chunks of the answer: the end of the open block, the tool calls, and ``ModelFinish``.

        Raises:
            ModelConnectionError: The answer was cut off: it has no finish reason, no ``[DONE]`` and no usage.
            ModelResponseError: A tool call has no name.
            ContentFilterError: The provider withheld the whole answer.
        """
        if self._reason is None and not self.done and not self._usage.output_tokens:
            raise ModelConnectionError(
                f"the answer of {self._server} broke off before its end", provider=self._provider
            )
        reason: FinishReason = _FINISH.get(self._reason or "stop", "other")
        if self._refusal:
            reason = "content-filter"
        if reason == "content-filter" and not (self._said_anything or self._calls or self._images):
            raise ContentFilterError(
                f"{self._server} withheld its answer: {self._refusal or 'content filter'}",
                provider=self._provider,
            )
        if reason == "stop" and self._calls:  # some servers end a turn of tool calls with "stop"
            reason = "tool-calls"
        payload = ModelFinishPayload(reason=reason, usage=self._usage, response_id=self._response_id, model=self._model)
        try:
            pages = [SourceChunk(payload=SourcePayload(url=url, title=title)) for url, title in self._cited.items()]
            return [
                *self._close(),
                *map(_image, self._images),
                *pages,
                *self._calls.finish(),
                ModelFinish(payload=payload),
            ]
        except ValueError as error:
            raise self._unreadable(b"", error) from error

    # -- events

    def _read(self, fields: dict[str, Any]) -> list[Chunk]:
        """Return the chunks of one event, given its fields."""
        choices = cast(list[dict[str, Any]], _typed(fields, "choices", list, []))
        self._response_id = self._response_id or _typed(fields, "id", str, "")
        self._model = self._model or _typed(fields, "model", str, "")
        choice = next((each for each in choices if not each.get("index")), dict[str, Any]())
        holders = (fields, _typed(fields, "x_groq", dict, {}), choice)
        for holder in holders:  # Groq and OpenRouter report failures of a begun answer in the last two
            if (error := event_error(self._provider, holder, server=self._server)) is not None:
                raise error
        for holder in holders:  # Groq and Moonshot send usage in the last two
            if usage := _typed(holder, "usage", dict, {}):
                self._usage = _usage(usage)
                break
        delta = _typed(choice, "delta", dict, {})
        self._reason = _typed(choice, "finish_reason", str, "") or self._reason
        out: list[Chunk] = []
        for name in _REASONING_FIELDS:
            if reasoning := _plain(delta, name):
                self._reasoning_field = name
                out += self._open("reasoning")
                out.append(ReasoningDelta(payload=TextPayload(text=self._whole(reasoning), id=self._id)))
                break
        if details := _typed(delta, "reasoning_details", list, []):
            out += self._open("reasoning")
            _merge_details(self._reasoning_details, details)
        if text := _plain(delta, "content"):
            out += self._open("text")
            out.append(TextDelta(payload=TextPayload(text=self._whole(text), id=self._id)))
        for image in _with_url(delta.get("images"), "image_url"):
            self._images.setdefault(image["url"])
        for cited in _with_url(delta.get("annotations"), "url_citation"):
            self._cited.setdefault(cited["url"], str(cited.get("title") or ""))
        self._refusal += _typed(delta, "refusal", str, "")
        if calls := _typed(delta, "tool_calls", list, []):
            out += self._close()
            out += self._calls.add(calls)
        return out

    # -- blocks

    def _open(self, block: Literal["text", "reasoning"]) -> Sequence[Chunk]:
        """Return the chunks that open a block, unless it is open."""
        if self._block == block:
            return ()
        closed = self._close()
        self._block = block
        self._blocks += 1
        self._id = str(self._blocks)
        self._said_anything = self._said_anything or block == "text"
        start = TextStart if block == "text" else ReasoningStart
        return (*closed, start(payload=IdPayload(id=self._id)))

    def _close(self) -> Sequence[Chunk]:
        block, self._block, self._half = self._block, None, ""
        if block == "text":
            return (TextEnd(payload=IdPayload(id=self._id)),)
        if block == "reasoning":
            details, self._reasoning_details = self._reasoning_details, []
            data: dict[str, Json] = {"provider": self._maker, "id": self._reasoning_field}
            if details:
                data["details"] = {"reasoning_details": details}
            payload = ReasoningEndPayload(id=self._id, provider=self._maker, provider_data=data)
            return (ReasoningEnd(payload=payload),)
        return ()

    def _whole(self, text: str) -> str:
        """Return a text of the open block. Half a character at its end waits for the next text."""
        if text.isascii() and not self._half:
            return text
        text = self._half + text
        self._half = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
        return writable(text.removesuffix(self._half))

    def _unreadable(self, data: bytes, why: object) -> ModelResponseError:
        shown = f": {data[:200].decode('utf-8', 'replace')}" if data else ""
        return ModelResponseError(f"cannot read the answer of {self._server} ({why}){shown}", provider=self._provider)


def _parsed(data: bytes) -> dict[str, Any]:
    """Parse JSON. Some servers split texts inside a character; orjson refuses such halves. Raises JSONDecodeError."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        if b"\\ud" not in data.lower():
            raise
        return json.loads(data)


def _only_text(event: dict[str, Any]) -> str:
    """Return the text of an event that contains nothing else, as most events do; otherwise an empty text."""
    if not (choices := event.get("choices")) or "error" in event or "x_groq" in event or choices[0].get("index"):
        return ""
    choice: dict[str, Any] = choices[0]
    delta: dict[str, Any] = choice.get("delta") or {}
    text: object = delta.get("content")
    if not isinstance(text, str) or choice.get("finish_reason") not in ("", None) or "error" in choice:
        return ""
    others = len(delta) > 1 and any(value for name, value in delta.items() if name not in ("content", "role"))
    return "" if others else text


def _plain(delta: dict[str, Any], name: str) -> str:
    """Return a field's text; some servers send it as a list of parts."""
    if not isinstance(delta.get(name), list):
        return _typed(delta, name, str, "")
    return "".join(_typed(part, "text", str, "") for part in cast(list[dict[str, Any]], delta[name]))


def _with_url(items: Any, name: str) -> list[dict[str, Any]]:
    """Return the objects of that name in a list, if they have a URL. Others are ignored: no provider needs them."""
    every = cast(list[Any], items) if isinstance(items, list) else []
    found = [cast(dict[str, Any], item).get(name) for item in every if isinstance(item, dict)]
    objects = [cast(dict[str, Any], one) for one in found if isinstance(one, dict)]
    return [one for one in objects if isinstance(one.get("url"), str) and one["url"]]


def _image(url: str) -> FileChunk:
    """Return a generated image, of OpenRouter."""
    media_type, data = read_data_url(url) or ("", None)
    return FileChunk(
        payload=FilePayload(media_type=media_type or "image/png", data=data, url=url if data is None else None)
    )


def _merge_details(known: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    """Merge fragments of a gateway's reasoning details: append texts, replace other fields."""
    for item in new:
        same = [old for old in known if old.get("index") == item.get("index") and old.get("type") == item.get("type")]
        if item.get("index") is None or not same:
            known.append(dict(item))
            continue
        for name, value in item.items():
            if name in ("text", "summary", "data") and value:
                same[0][name] = (same[0].get(name) or "") + value
            elif value is not None:
                same[0][name] = value


def _usage(usage: dict[str, Any]) -> Usage:
    prompt, completion = (_typed(usage, f"{kind}_tokens_details", dict, {}) for kind in ("prompt", "completion"))
    # DeepSeek and Moonshot use other names for cached tokens.
    cached = prompt.get("cached_tokens") or usage.get("prompt_cache_hit_tokens") or usage.get("cached_tokens")
    return Usage(
        input_tokens=_tokens(usage.get("prompt_tokens")),
        output_tokens=_tokens(usage.get("completion_tokens")),
        cached_tokens=_tokens(cached),
        cache_write_tokens=_tokens(prompt.get("cache_write_tokens")),
        reasoning_tokens=_tokens(completion.get("reasoning_tokens")),
    )


def _tokens(value: Any) -> int:
    number = 0 if value is None else int(value)
    if not 0 <= number < 2**53:
        raise ValueError(f"{value} is no number of tokens")
    return number


def _typed(fields: dict[str, Any], name: str, kind: type[T], default: T) -> T:
    """Return a field of an event, or ``default`` if it is missing or null. Raises TypeError for another type."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise TypeError(f"{name} is of type {type(value).__name__}, not {kind.__name__}")
    return value


# --- tool calls ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Call:
    """A tool call, as far as it has been received."""

    id: str
    index: int | None
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])


class ToolFragments:
    """Assembles the tool calls of an answer from their fragments.

    In the protocol, fragments with the same index belong to one call. Some servers leave out the index or the id, or
    send the same one for every call. Then a fragment with a tool's name starts a new call. Other servers repeat the
    name in each fragment. So if the fragment has the id or index of an earlier call, it starts a new call only after
    the arguments of the earlier call are complete.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, fragments: list[dict[str, Any]]) -> list[Chunk]:
        """Return the chunks for the fragments of an event."""
        out: list[Chunk] = []
        for fragment in fragments:
            function = _typed(fragment, "function", dict, {})
            name = _typed(function, "name", str, "")
            arguments = function.get("arguments") or ""
            text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
            index = _typed(fragment, "index", int, -1)
            call = self._find(None if index < 0 else index, _typed(fragment, "id", str, ""), name, text)
            if name and not call.name:
                call.name = name
                payload = ToolInputStartPayload(tool_call_id=call.id, tool_name=name)
                out.append(ToolInputStart(payload=payload))
            if text:
                call.pieces.append(text)
                delta = ToolInputDeltaPayload(tool_call_id=call.id, args_text_delta=text)
                out.append(ToolInputDelta(payload=delta))
        return out

    def finish(self) -> list[Chunk]:
        """Return the complete calls in order. Raises ValueError for a call without a name."""
        out: list[Chunk] = []
        for call in self._calls:
            if not call.name:
                raise ValueError("a tool call has no name")
            args, problem = parse_arguments(writable("".join(call.pieces)))
            payload = ToolCallPayload(tool_call_id=call.id, tool_name=call.name, args=args, args_error=problem)
            out.append(ToolCallChunk(payload=payload))
        return out

    def _find(self, index: int | None, call_id: str, name: str, text: str) -> _Call:
        """Return the call that a fragment belongs to; a new one if it begins one."""
        for call in reversed(self._calls):
            same_id = bool(call_id) and call.id == call_id
            same_index = call.index == index or (same_id and None in (call.index, index))
            begins_another = bool(name and call.name) and _begins_another(call, call_id, name, text)
            if same_index and not begins_another:
                return call
        call = _Call(call_id or f"call_{secrets.token_hex(12)}", index)
        self._calls.append(call)
        return call


def _begins_another(call: _Call, call_id: str, name: str, text: str) -> bool:
    """Return True if a fragment starts another call. (Some servers repeat the name and the id in each fragment.)"""
    same_id = bool(call_id) and call.id == call_id
    if name != call.name or (not same_id and (bool(call_id) or call.index is None)):
        return True
    if not text.strip() and same_id:
        return False
    ended = bool(call.pieces) and call.pieces[-1].rstrip().endswith("}")
    return ended and parse_arguments("".join(call.pieces))[1] is None
