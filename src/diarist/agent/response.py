"""The chunks of one model call, as the stream hooks get them: closed blocks, and a unique id for each tool call.

``StepAttempt`` reads each response through ``read_response``, whether it comes from a model or from a processor that
answers in the model's place.
"""

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
    ReasoningStart,
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

ToolChunkT = TypeVar("ToolChunkT", ToolInputStart, ToolInputDelta, ToolCallChunk, ToolResultChunk)


class CallFailed(Carrier):
    """Tells the loop that the model call of an attempt failed with ``error``."""

    def __init__(self, error: Exception, model: Model) -> None:
        super().__init__(error)
        self.model = model


async def read_response(call: OnRequest, original: list[Chunk]) -> AsyncGenerator[Chunk, None]:
    """Yield the response to a request that all ``process_llm_request`` hooks have seen. Raises CallFailed.

    The end of a block is yielded only when the next chunk arrives: if the call fails before, the block may be cut.
    If the model leaves out the beginning or the end of a block, it is added, since stream hooks release held text at
    the end.

    Args:
        original: Collects the model's own chunks, for ``process_llm_response``.
    """
    call_ids = _CallIds()
    delayed_end: TextEnd | ReasoningEnd | None = None
    missing_end: TextEnd | ReasoningEnd | None = None  # the chunk that would end the open block
    source = call.model.stream(call.request) if call.response is None else _replay(call.response)
    try:
        while True:
            try:
                chunk = call_ids.make_unique(await anext(source))
            except StopAsyncIteration:
                break
            except Exception as error:
                raise CallFailed(error, call.model) from error
            original.append(chunk)
            if delayed_end is not None:
                yield delayed_end
                delayed_end = None
            match chunk:
                case TextEnd() | ReasoningEnd():
                    delayed_end, missing_end = chunk, None
                    continue
                case TextDelta() if isinstance(missing_end, TextEnd):
                    pass
                case ReasoningDelta() if isinstance(missing_end, ReasoningEnd):
                    pass
                case TextStart() | TextDelta() | ReasoningStart() | ReasoningDelta():
                    if missing_end is not None:
                        yield missing_end
                    begin, missing_end = _block_of(chunk)
                    if isinstance(chunk, TextDelta | ReasoningDelta):
                        yield begin
                case _:
                    pass
            yield chunk
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()
    for end in (delayed_end, missing_end):
        if end is not None:
            yield end


def _block_of(
    chunk: TextStart | TextDelta | ReasoningStart | ReasoningDelta,
) -> tuple[TextStart | ReasoningStart, TextEnd | ReasoningEnd]:
    """Return the chunks that begin and end the block of a chunk."""
    block = IdPayload(id=chunk.payload.id)
    if isinstance(chunk, TextStart | TextDelta):
        return TextStart(payload=block), TextEnd(payload=block)
    return ReasoningStart(payload=block), ReasoningEnd(payload=ReasoningEndPayload(id=block.id))


async def _replay(response: Sequence[Chunk] | str) -> AsyncIterator[Chunk]:
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


class _CallIds:
    """Makes the ids of a response's tool calls unique.

    Some models and servers give two calls the same id, or a call an empty id. The later of two gets the suffix ``_2``,
    and a call without an id gets a new one, in all chunks that belong to the call.

    Chunks with one given id belong to the calls in this order: an input delta to the call that started last, a complete
    call to the first that started and is not complete, a result to the first that has none.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()
        # Unique ids by given id:
        self._started: defaultdict[str, deque[str]] = defaultdict(deque)  # calls that have begun
        self._without_result: defaultdict[str, deque[str]] = defaultdict(deque)  # complete calls

    def make_unique(self, chunk: Chunk) -> Chunk:
        """Return the chunk with the unique id of its call; arguments that are nested too deep become an error.

        The given chunk is not changed. Raises TypeError for an object that is no chunk.
        """
        match chunk:
            case ToolInputStart():
                given = chunk.payload.tool_call_id
                unique = self._new_id(given)
                self._started[given].append(unique)
                return _with_call_id(chunk, unique)
            case ToolInputDelta():
                started = self._started[chunk.payload.tool_call_id]
                return _with_call_id(chunk, started[-1]) if started else chunk
            case ToolCallChunk():
                if too_deep(chunk.payload.args):
                    problem = f"the arguments are nested more than {MAX_NESTING} deep"
                    chunk = replace(chunk, payload=replace(chunk.payload, args={}, args_error=problem))
                given = chunk.payload.tool_call_id
                started = self._started[given]
                unique = started.popleft() if started else self._new_id(given)
                self._without_result[given].append(unique)
                return _with_call_id(chunk, unique)
            case ToolResultChunk():
                calls = self._without_result[chunk.payload.tool_call_id]
                return _with_call_id(chunk, calls.popleft()) if calls else chunk
            case _:
                if not hasattr(chunk, "run_id"):
                    raise TypeError(f"a model yields chunks of diarist.chunks, such as TextDelta, not {chunk!r}")
                return chunk

    def _new_id(self, given: str) -> str:
        unique, number = given or new_id("call"), 1
        while unique in self._taken:
            number += 1
            unique = f"{given}_{number}"
        self._taken.add(unique)
        return unique


def _with_call_id(chunk: ToolChunkT, call_id: str) -> ToolChunkT:
    if chunk.payload.tool_call_id == call_id:
        return chunk
    return replace(chunk, payload=replace(chunk.payload, tool_call_id=call_id))  # pyright: ignore[reportArgumentType]
