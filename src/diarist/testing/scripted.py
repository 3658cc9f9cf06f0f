"""A model that answers from a script: for tests, demos and examples without a key."""

from __future__ import annotations

import asyncio
import inspect
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

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
    ToolCallChunk,
    ToolCallPayload,
    ToolInputDelta,
    ToolInputDeltaPayload,
    ToolInputStart,
    ToolInputStartPayload,
    Usage,
)
from diarist.encoding import parse_arguments
from diarist.messages import Json, as_text
from diarist.models.base import Model, ModelRequest
from diarist.tokens import default_counter


class ScriptError(AssertionError):
    """Raised when a request has no reply left, or a reply is of an unknown kind."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of the model. ``args`` as a string is sent unchanged, so it may be invalid JSON.

    Default of ``id``: ``call_1``, ``call_2``, …, counted per model.
    """

    name: str
    args: Mapping[str, Json] | str = field(default_factory=dict[str, Json])
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A reasoning block of the model."""

    text: str
    signature: str | None = None


Piece: TypeAlias = str | ToolCall | Reasoning


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A complete reply: reasoning, then text, then tool calls.

    Attributes:
        text: The text, streamed in one delta, or a list of texts, streamed in one delta each.
        usage: Default: counted, see ``ScriptedModel``.
        finish_reason: Default: ``tool-calls`` with tool calls, else ``stop``.
        error_after: An exception that is raised inside the stream, after everything else and instead of its end.
    """

    text: str | list[str] = ""
    tool_calls: ToolCall | list[ToolCall] = field(default_factory=list[ToolCall])
    reasoning: str | Reasoning | None = None
    usage: Usage | None = None
    finish_reason: FinishReason | None = None
    error_after: BaseException | None = None

    def pieces(self) -> list[Piece]:
        thought = Reasoning(self.reasoning) if isinstance(self.reasoning, str) else self.reasoning
        texts = [self.text] if isinstance(self.text, str) else self.text
        calls = [self.tool_calls] if isinstance(self.tool_calls, ToolCall) else self.tool_calls
        return [*([thought] if thought else []), *texts, *calls]


Answer: TypeAlias = Piece | Sequence[Piece] | Reply | BaseException
Answerer: TypeAlias = Callable[[ModelRequest], "Answer | Awaitable[Answer]"]


class ScriptedModel(Model):
    """A model that answers from a list of replies.

    Each request gets the next reply; if none is left, it raises ``ScriptError``. If the last reply is a function, it
    answers all further requests: ``ScriptedModel(lambda request: "Hello!")`` never runs out.

    A reply is

    - a string: the text, in one delta;
    - a ``ToolCall``, or a ``Reasoning``;
    - a list or tuple of these: one answer, streamed in these pieces (several tool calls are parallel calls);
    - a ``Reply``, to set usage, finish reason, or an error inside the stream;
    - an exception: raised when the model is called;
    - a function of the ``ModelRequest`` that returns any of these, sync or async.

    Usage is counted with ``default_counter()`` over the prompt as text. ``cached_tokens`` are the tokens of
    the longest prefix that the prompt shares with the request before: the most that a provider's prompt cache
    could save.

    By default, a scripted error is not retried (``default_retries`` is 0).

    Attributes:
        requests: Copies of all requests so far; ``requests[-1].text`` is the whole prompt of the last one.
    """

    default_retries = 0

    def __init__(
        self,
        *replies: Answer | Answerer,
        provider: str = "scripted",
        name: str = "model",
        cache_breakpoints: bool = False,
    ) -> None:
        self.provider = provider
        self.name = name
        self.cache_breakpoints = cache_breakpoints
        self.requests: list[ModelRequest] = []
        self._replies = replies
        self._last_text = ""
        self._calls = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        number, last = len(self.requests), len(self._replies) - 1
        answer: Any = self._replies[min(number, last)] if self._replies else None
        if number > last and not callable(answer):
            replies = "1 reply" if last == 0 else f"{last + 1} replies"
            raise ScriptError(
                f"request {number + 1} arrived, but the script of {self.id!r} has {replies}; "
                "add one, or end with a function, which answers every further request"
            )
        # These never change, and copying them would take most of the time of a test with a long conversation.
        fixed = [*request.tools, *[message for message in request.prompt.messages if message.derived is not None]]
        self.requests.append(deepcopy(request, {id(each): each for each in fixed}))
        before, self._last_text = self._last_text, request.text
        if callable(answer):
            answer = answer(request)
            if inspect.isawaitable(answer):
                answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        reply = answer if isinstance(answer, Reply) else Reply()
        pieces: list[Any] = [answer]
        if reply is answer:
            pieces = list(reply.pieces())
        elif isinstance(answer, list | tuple):
            pieces = list(cast(list[Any], answer))
        for chunk in self._chunks(pieces):
            await asyncio.sleep(0)  # like a network: other tasks run, and a cancellation can arrive
            yield chunk
        if reply.error_after is not None:
            raise reply.error_after
        called = any(isinstance(piece, ToolCall) for piece in pieces)
        reason: FinishReason = reply.finish_reason or ("tool-calls" if called else "stop")
        usage = reply.usage or _usage(before, self._last_text, pieces)
        yield ModelFinish(payload=ModelFinishPayload(reason=reason, usage=usage))

    def _chunks(self, pieces: list[Piece]) -> Iterator[Chunk]:
        """Yield the chunks of the pieces; neighbouring strings form one text block."""
        block = 0
        in_text = False
        for piece in pieces:
            if not isinstance(piece, str) and in_text:
                yield TextEnd(payload=IdPayload(id=str(block)))
                in_text = False
            match piece:
                case str():
                    if not in_text:
                        in_text, block = True, block + 1
                        yield TextStart(payload=IdPayload(id=str(block)))
                    if piece:
                        yield TextDelta(payload=TextPayload(text=piece, id=str(block)))
                case Reasoning():
                    block += 1
                    end = ReasoningEndPayload(id=str(block), signature=piece.signature, provider=self.provider)
                    yield ReasoningStart(payload=IdPayload(id=str(block)))
                    yield ReasoningDelta(payload=TextPayload(text=piece.text, id=str(block)))
                    yield ReasoningEnd(payload=end)
                case ToolCall():
                    self._calls += 1
                    call_id = piece.id or f"call_{self._calls}"
                    start = ToolInputStartPayload(tool_call_id=call_id, tool_name=piece.name)
                    delta = ToolInputDeltaPayload(tool_call_id=call_id, args_text_delta=as_text(piece.args))
                    yield ToolInputStart(payload=start)
                    yield ToolInputDelta(payload=delta)
                    given = piece.args
                    args, problem = parse_arguments(given) if isinstance(given, str) else (deepcopy(dict(given)), None)
                    yield ToolCallChunk(
                        payload=ToolCallPayload(
                            tool_call_id=call_id, tool_name=piece.name, args=args, args_error=problem
                        )
                    )
                case _:
                    raise ScriptError(f"not a reply: {piece!r}; see ScriptedModel for the kinds of replies")
        if in_text:
            yield TextEnd(payload=IdPayload(id=str(block)))


def _usage(before: str, text: str, pieces: list[Piece]) -> Usage:
    """Count the prompt ``text`` and the answer. The prefix shared with the prompt ``before`` counts as cached."""
    count = default_counter().count
    # The longest common prefix, by halving: os.path.commonprefix compares character by character in Python.
    lengths = range(1, min(len(before), len(text)) + 1)
    shared = text[: bisect_left(lengths, True, key=lambda length: before[:length] != text[:length])]
    total = count(text)
    said, thought, called = "", 0, 0
    for piece in pieces:
        if isinstance(piece, str):
            said += piece
        elif isinstance(piece, Reasoning):
            thought += count(piece.text)
        else:
            called += count(piece.name) + count(as_text(piece.args))
    return Usage(
        input_tokens=total,
        cached_tokens=min(count(shared), total),
        output_tokens=count(said) + thought + called,
        reasoning_tokens=thought,
    )
