"""One call of the model: its request, its response as it streams, and how it ended."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import TypeVar

from diarist.chunks import (
    Chunk,
    IdPayload,
    ModelFinish,
    ModelFinishPayload,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningEndPayload,
    TextDelta,
    TextEnd,
    TextPayload,
    TextStart,
    ToolCallChunk,
    ToolInputDelta,
    ToolInputStart,
    ToolResultChunk,
    Usage,
)
from diarist.message_list import MessageList
from diarist.messages import MAX_NESTING, new_id, too_deep
from diarist.models.base import Model, ModelRequest
from diarist.processors.hook_calls import OnRequest, OnResponse
from diarist.processors.setup import StepSetup
from diarist.prompting import build_prompt
from diarist.tracing import Carrier, client_span

ChunkT = TypeVar("ChunkT", ToolInputStart, ToolInputDelta, ToolCallChunk, ToolResultChunk)


class CallFailed(Carrier):
    """Control flow of the loop: the model call of an attempt failed, with ``error``."""

    def __init__(self, error: Exception, model: Model) -> None:
        super().__init__(error)
        self.model = model


def make_request(messages: MessageList, setup: StepSetup, feedback: str | None) -> ModelRequest:
    """Build a step's request; ``feedback`` is why the previous attempt was rejected."""
    prompt = build_prompt(
        messages.system, messages.messages, feedback=feedback, cache_breakpoints=setup.model.cache_breakpoints
    )
    return ModelRequest(
        prompt=prompt,
        tools=[tool.definition for tool in setup.offered.values()],
        tool_choice=setup.tool_choice,
        settings=setup.model_settings,
        output=setup.structured_output,
        provider_options=setup.provider_options,
    )


class ModelCall:
    """A call that all ``process_llm_request`` hooks have seen.

    Attributes:
        finish: How the model ended, and its tokens; ``error`` and none before the response has ended.
    """

    def __init__(self, asked: OnRequest) -> None:
        self._asked = asked
        self.finish = ModelFinishPayload(reason="error", usage=Usage())

    async def run(
        self, send: Callable[[Chunk], Awaitable[None]], observe: Callable[[OnResponse], Awaitable[None]] | None
    ) -> None:
        """``send`` each chunk, then let ``observe`` see the complete response. Raises CallFailed."""
        asked = self._asked
        model, settings = asked.model, asked.request.settings
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": model.provider,
            "gen_ai.request.model": model.name,
            "gen_ai.request.temperature": settings.temperature,
            "gen_ai.request.max_tokens": settings.max_output_tokens,
            "gen_ai.request.top_p": settings.top_p,
        }
        with client_span(f"chat {model.name}", **attributes) as current:
            whole = await self._read(send)
            if observe is not None:
                await observe(
                    OnResponse(
                        messages=asked.messages,
                        step=asked.step,
                        request=asked.request,
                        model=model,
                        response=whole,
                        from_cache=asked.response is not None,
                    )
                )
            if current.recording:
                current.set(
                    **{
                        "gen_ai.response.model": self.finish.model or None,
                        "gen_ai.response.id": self.finish.response_id or None,
                        "gen_ai.response.finish_reasons": [self.finish.reason],
                        "gen_ai.usage.input_tokens": self.finish.usage.input_tokens,
                        "gen_ai.usage.output_tokens": self.finish.usage.output_tokens,
                        "gen_ai.usage.cache_read.input_tokens": self.finish.usage.cached_tokens,
                    }
                )

    async def _read(self, send: Callable[[Chunk], Awaitable[None]]) -> list[Chunk]:
        """Send the response and return it as it came.

        The end of a block is sent with the chunk after it: a call that fails right there may have cut the block.
        Blocks that the model leaves open are ended, so that stream hooks let go what they hold.
        """
        asked, whole, ids = self._asked, list[Chunk](), CallIds()
        end: TextEnd | ReasoningEnd | None = None
        left_open: TextEnd | ReasoningEnd | None = None  # what would end the block that the model is in
        source = asked.model.stream(asked.request) if asked.response is None else replay(asked.response)
        try:
            while True:
                try:
                    chunk = ids.own(await anext(source))
                except StopAsyncIteration:
                    break
                except Exception as error:
                    raise CallFailed(error, asked.model) from error
                whole.append(chunk)
                if end is not None:
                    await send(end)
                    end = None
                if isinstance(chunk, TextDelta):  # nearly all chunks
                    if not isinstance(left_open, TextEnd):
                        if left_open is not None:
                            await send(left_open)
                        left_open = TextEnd(payload=IdPayload(id=chunk.payload.id))
                    await send(chunk)
                    continue
                match chunk:
                    case ModelFinish():
                        self.finish = chunk.payload
                        continue
                    case TextEnd() | ReasoningEnd():
                        end, left_open = chunk, None
                        continue
                    case ReasoningDelta() if not isinstance(left_open, ReasoningEnd):
                        if left_open is not None:
                            await send(left_open)
                        left_open = ReasoningEnd(payload=ReasoningEndPayload(id=chunk.payload.id))
                    case _:
                        pass
                await send(chunk)
        finally:
            if isinstance(source, AsyncGenerator):
                await source.aclose()
        for last in (end, left_open):
            if last is not None:
                await send(last)
        return whole


async def replay(response: Sequence[Chunk] | str) -> AsyncIterator[Chunk]:
    """Stream a processor's answer as a model would have streamed it."""
    finish = ModelFinish(payload=ModelFinishPayload(reason="stop", usage=Usage()))
    if isinstance(response, str):
        text_id = new_id("txt")
        yield TextStart(payload=IdPayload(id=text_id))
        yield TextDelta(payload=TextPayload(text=response, id=text_id))
        yield TextEnd(payload=IdPayload(id=text_id))
    else:
        for chunk in deepcopy(list(response)):  # a cache gives the same chunks again
            if isinstance(chunk, ModelFinish):
                finish = chunk
            else:
                yield chunk
    yield finish


class CallIds:
    """Makes the ids of a response's tool calls unique.

    Some models and servers give two calls one id, or an empty one. The later call is then named ``…_2``, and one
    without an id gets a new one, in all chunks that belong to it.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._begun: defaultdict[str, deque[str]] = defaultdict(deque)
        self._called: defaultdict[str, deque[str]] = defaultdict(deque)

    def own(self, chunk: Chunk) -> Chunk:
        """Return the chunk with its call's own id, and without arguments that are nested too deep to walk through.

        The given chunk is not changed.
        """
        match chunk:
            case ToolInputStart():
                begun = self._begun[chunk.payload.tool_call_id]
                begun.append(self._fresh(chunk.payload.tool_call_id))
                return _renamed(chunk, begun[-1])
            case ToolInputDelta():
                begun = self._begun[chunk.payload.tool_call_id]
                return _renamed(chunk, begun[-1]) if begun else chunk
            case ToolCallChunk():
                if too_deep(chunk.payload.args):
                    why = f"the arguments are nested more than {MAX_NESTING} deep"
                    chunk = replace(chunk, payload=replace(chunk.payload, args={}, args_error=why))
                given = chunk.payload.tool_call_id
                begun = self._begun[given]
                own = begun.popleft() if begun else self._fresh(given)
                self._called[given].append(own)
                return _renamed(chunk, own)
            case ToolResultChunk():
                called = self._called[chunk.payload.tool_call_id]
                return _renamed(chunk, called.popleft()) if called else chunk
            case _:
                return chunk

    def _fresh(self, given: str) -> str:
        own, number = given or new_id("call"), 1
        while own in self._taken:
            number += 1
            own = f"{given}_{number}"
        self._taken.add(own)
        return own


def _renamed(chunk: ChunkT, call_id: str) -> ChunkT:
    if chunk.payload.tool_call_id == call_id:
        return chunk
    return replace(chunk, payload=replace(chunk.payload, tool_call_id=call_id))  # pyright: ignore[reportArgumentType]
