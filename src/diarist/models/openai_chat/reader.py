"""The events of a chat completion as chunks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import orjson

from diarist.chunks import (
    Chunk,
    FinishReason,
    IdPayload,
    ModelFinish,
    ModelFinishPayload,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningEndPayload,
    ReasoningStart,
    TextDelta,
    TextEnd,
    TextPayload,
    TextStart,
    Usage,
)
from diarist.exceptions import ContentFilterError, ModelConnectionError, ModelResponseError
from diarist.messages import Json
from diarist.models.openai_chat.failures import event_error
from diarist.models.openai_chat.tool_fragments import ToolFragments

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
    "error": "error",
}
_REASONING_FIELDS = ("reasoning_content", "reasoning")


class AnswerReader:
    """Reads one answer. At most one block of text or reasoning is open at a time; tool calls come at the end.

    Attributes:
        done: The server has said that nothing follows.
    """

    def __init__(self, *, provider: str, maker: str) -> None:
        self.done = False
        self._provider = provider
        self._maker = maker
        self._text_id = ""
        """The open text block; empty if none is."""
        self._thought_id = ""
        self._blocks = 0
        self._reasoning_field = _REASONING_FIELDS[0]
        self._reasoning_details: list[dict[str, Any]] = []
        self._calls = ToolFragments()
        self._said_anything = False
        self._refusal = ""
        self._reason: str | None = None
        self._usage = Usage()
        self._response_id = ""
        self._model = ""

    def read(self, data: bytes) -> Sequence[Chunk]:
        """The chunks of one event.

        Raises:
            ModelAPIError: The event is an error.
            ModelResponseError: It is no JSON object.
        """
        if data.startswith(DONE):
            self.done = True
            return ()
        try:
            event: dict[str, Any] = orjson.loads(data)
            if self._text_id and (choices := event.get("choices")) and "error" not in event:
                choice: dict[str, Any] = choices[0]
                delta: dict[str, Any] = choice.get("delta") or {}
                text = delta.get("content")
                # By far the most frequent event: more of the text that is open, and nothing else.
                if text.__class__ is str and text and _only_text(delta) and not choice.get("finish_reason"):
                    return (TextDelta(payload=TextPayload(text=text, id=self._text_id)),)
            return self._read(event)
        except orjson.JSONDecodeError as error:
            return self._read_lines(data, error)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._unreadable(data, error) from error

    def read_whole(self, body: bytes) -> Sequence[Chunk]:
        """The chunks of an answer that a server sent in one piece although it was asked to stream."""
        try:
            answer: dict[str, Any] = orjson.loads(body)
            for choice in answer.get("choices") or ():
                choice["delta"] = choice.get("message")
            return self._read(answer)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._unreadable(body, error) from error

    def read_last(self, events: Sequence[bytes]) -> list[Chunk]:
        """The chunks of what the stream's end left. An event that was cut short says nothing."""
        out: list[Chunk] = []
        for event in events:
            with suppress(ModelResponseError):
                out += self.read(event)
        return out

    def finish(self) -> Sequence[Chunk]:
        """What is left at the end: the open block, the tool calls, and ``ModelFinish``.

        Raises:
            ModelConnectionError: The answer broke off: the server said neither why it stopped nor that it was
                done, nor what it cost.
            ContentFilterError: The provider withheld the whole answer.
        """
        if self._reason is None and not self.done and not self._usage.output_tokens:
            raise ModelConnectionError(
                f"the answer of {self._provider} broke off before its end", provider=self._provider
            )
        reason: FinishReason = _FINISH.get(self._reason or "stop", "other")
        if self._refusal:
            reason = "content-filter"
        if reason == "content-filter" and not self._said_anything and not self._calls:
            raise ContentFilterError(
                f"{self._provider} withheld its answer: {self._refusal or 'content filter'}",
                provider=self._provider,
            )
        if reason == "stop" and self._calls:  # some servers end a turn of tool calls so
            reason = "tool-calls"
        payload = ModelFinishPayload(reason=reason, usage=self._usage, response_id=self._response_id, model=self._model)
        return [*self._close(), *self._calls.finish(), ModelFinish(payload=payload)]

    # -- events

    def _read(self, fields: dict[str, Any]) -> list[Chunk]:
        if (error := event_error(self._provider, fields)) is not None:
            raise error
        choices: list[dict[str, Any]] = fields.get("choices") or []
        self._response_id = self._response_id or fields.get("id") or ""
        self._model = self._model or fields.get("model") or ""
        self._take_usage(fields, choices)
        if not choices:
            return []
        choice = choices[0]
        out = self._read_delta(choice.get("delta") or {})
        self._reason = choice.get("finish_reason") or self._reason
        return out

    def _read_delta(self, delta: dict[str, Any]) -> list[Chunk]:
        out: list[Chunk] = []
        for field in _REASONING_FIELDS:
            if thought := _plain(delta.get(field)):
                self._reasoning_field = field
                out += self._open_thought()
                out.append(ReasoningDelta(payload=TextPayload(text=thought, id=self._thought_id)))
                break
        if details := delta.get("reasoning_details"):
            out += self._open_thought()
            _merge_details(self._reasoning_details, details)
        if text := _plain(delta.get("content")):
            out += self._open_text()
            out.append(TextDelta(payload=TextPayload(text=text, id=self._text_id)))
        self._refusal += delta.get("refusal") or ""
        if calls := delta.get("tool_calls"):
            out += self._close()
            out += self._calls.add(calls)
        return out

    def _read_lines(self, data: bytes, error: orjson.JSONDecodeError) -> list[Chunk]:
        """Some servers leave out the blank line between events."""
        lines = data.split(b"\n")
        if len(lines) == 1:
            raise self._unreadable(data, error) from error
        return [chunk for line in lines for chunk in self.read(line)]

    def _take_usage(self, fields: dict[str, Any], choices: list[dict[str, Any]]) -> None:
        groq: dict[str, Any] = fields.get("x_groq") or {}
        in_choice = choices[0].get("usage") if choices else None  # Moonshot
        if usage := fields.get("usage") or groq.get("usage") or in_choice:
            self._usage = _usage(usage)

    # -- blocks

    def _open_text(self) -> Sequence[Chunk]:
        if self._text_id:
            return ()
        closed = self._close()
        self._blocks += 1
        self._said_anything = True
        self._text_id = str(self._blocks)
        return (*closed, TextStart(payload=IdPayload(id=self._text_id)))

    def _open_thought(self) -> Sequence[Chunk]:
        if self._thought_id:
            return ()
        closed = self._close()
        self._blocks += 1
        self._thought_id = str(self._blocks)
        return (*closed, ReasoningStart(payload=IdPayload(id=self._thought_id)))

    def _close(self) -> Sequence[Chunk]:
        if self._text_id:
            block, self._text_id = self._text_id, ""
            return (TextEnd(payload=IdPayload(id=block)),)
        if self._thought_id:
            block, self._thought_id = self._thought_id, ""
            details, self._reasoning_details = self._reasoning_details, []
            data: dict[str, Json] = {"provider": self._maker, "id": self._reasoning_field}
            if details:
                data["details"] = {"reasoning_details": details}
            payload = ReasoningEndPayload(id=block, provider=self._maker, provider_data=data)
            return (ReasoningEnd(payload=payload),)
        return ()

    def _unreadable(self, data: bytes, why: object) -> ModelResponseError:
        shown = data[:200].decode("utf-8", "replace")
        return ModelResponseError(
            f"cannot read the answer of {self._provider} ({why}): {shown}", provider=self._provider
        )


def _only_text(delta: dict[str, Any]) -> bool:
    return len(delta) == 1 or not any(value for name, value in delta.items() if name not in ("content", "role"))


def _plain(content: Any) -> str:
    """Text that some servers send as a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(part.get("text") or "" for part in cast(list[dict[str, Any]], content))


def _merge_details(known: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    """Join the fragments of a gateway's reasoning details: texts are added, other fields replaced."""
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
    prompt: dict[str, Any] = usage.get("prompt_tokens_details") or {}
    completion: dict[str, Any] = usage.get("completion_tokens_details") or {}
    # DeepSeek and Moonshot have names of their own for cached tokens.
    cached = prompt.get("cached_tokens") or usage.get("prompt_cache_hit_tokens") or usage.get("cached_tokens")
    return Usage(
        input_tokens=int(usage.get("prompt_tokens") or 0),
        output_tokens=int(usage.get("completion_tokens") or 0),
        cached_tokens=int(cached or 0),
        cache_write_tokens=int(prompt.get("cache_write_tokens") or 0),
        reasoning_tokens=int(completion.get("reasoning_tokens") or 0),
    )
