"""Reads the response of a model call as it streams."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
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
from diarist.messages import MAX_NESTING, new_id, too_deep
from diarist.models.base import Model
from diarist.processors.hook_calls import OnRequest
from diarist.tracing import Carrier

ChunkT = TypeVar("ChunkT", ToolInputStart, ToolInputDelta, ToolCallChunk, ToolResultChunk)


class CallFailed(Carrier):
    """Tells the loop that the model call of an attempt failed with ``error``."""

    def __init__(self, error: Exception, model: Model) -> None:
        super().__init__(error)
        self.model = model


async def read_response(asked: OnRequest, whole: list[Chunk]) -> AsyncGenerator[Chunk, None]:
    """Yield the response to a request that all ``process_llm_request`` hooks have seen. Raises CallFailed.

    The end of a block is yielded only when the next chunk arrives: if the call fails before, the block may be cut.
    Blocks that the model leaves open are ended, so that stream hooks release the text that they hold.

    Args:
        whole: Collects the original chunks of the response.
    """
    ids = CallIds()
    due: TextEnd | ReasoningEnd | None = None
    left_open: TextEnd | ReasoningEnd | None = None  # the chunk that would end the open block
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
            if due is not None:
                yield due
                due = None
            match chunk:
                case TextDelta():
                    if not isinstance(left_open, TextEnd):
                        if left_open is not None:
                            yield left_open
                        left_open = TextEnd(payload=IdPayload(id=chunk.payload.id))
                case ReasoningDelta():
                    if not isinstance(left_open, ReasoningEnd):
                        if left_open is not None:
                            yield left_open
                        left_open = ReasoningEnd(payload=ReasoningEndPayload(id=chunk.payload.id))
                case TextEnd() | ReasoningEnd():
                    due, left_open = chunk, None
                    continue
                case _:
                    pass
            yield chunk
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()
    for last in (due, left_open):
        if last is not None:
            yield last


async def replay(response: Sequence[Chunk] | str) -> AsyncIterator[Chunk]:
    """Stream a response that a processor returned, as a model would."""
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

    Some models and servers give two calls the same id, or a call an empty id. The later of two gets the suffix ``_2``,
    and a call without an id gets a new one, in all chunks that belong to the call.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._begun: defaultdict[str, deque[str]] = defaultdict(deque)
        self._called: defaultdict[str, deque[str]] = defaultdict(deque)

    def own(self, chunk: Chunk) -> Chunk:
        """Return the chunk with the unique id of its call; arguments that are nested too deep become an error.

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
                if not hasattr(chunk, "run_id"):
                    raise TypeError(f"a model yields chunks of diarist.chunks, such as TextDelta, not {chunk!r}")
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
