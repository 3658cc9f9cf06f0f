"""Ids of tool calls, unique within a step, whatever the model calls them."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import replace
from typing import TypeVar

from diarist.chunks import Chunk, ToolCallChunk, ToolInputDelta, ToolInputStart, ToolResultChunk
from diarist.messages import new_id

ChunkT = TypeVar("ChunkT", ToolInputStart, ToolInputDelta, ToolCallChunk, ToolResultChunk)


class CallIds:
    """The calls of one response. Some models and servers give two calls one id, or an empty one: the later of two is
    then called ``…_2``, and one without an id gets a new one, in all chunks that belong to it."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._begun: defaultdict[str, deque[str]] = defaultdict(deque)
        self._called: defaultdict[str, deque[str]] = defaultdict(deque)

    def own(self, chunk: Chunk) -> Chunk:
        """The chunk with its call's own id; the given one is not changed."""
        match chunk:
            case ToolInputStart():
                begun = self._begun[chunk.payload.tool_call_id]
                begun.append(self._fresh(chunk.payload.tool_call_id))
                return _named(chunk, begun[-1])
            case ToolInputDelta():
                begun = self._begun[chunk.payload.tool_call_id]
                return _named(chunk, begun[-1]) if begun else chunk
            case ToolCallChunk():
                given = chunk.payload.tool_call_id
                begun = self._begun[given]
                own = begun.popleft() if begun else self._fresh(given)
                self._called[given].append(own)
                return _named(chunk, own)
            case ToolResultChunk():
                called = self._called[chunk.payload.tool_call_id]
                return _named(chunk, called.popleft()) if called else chunk
            case _:
                return chunk

    def _fresh(self, given: str) -> str:
        own, number = given or new_id("call"), 1
        while own in self._taken:
            number += 1
            own = f"{given}_{number}"
        self._taken.add(own)
        return own


def _named(chunk: ChunkT, call_id: str) -> ChunkT:
    if chunk.payload.tool_call_id == call_id:
        return chunk
    return replace(chunk, payload=replace(chunk.payload, tool_call_id=call_id))  # pyright: ignore[reportArgumentType]
