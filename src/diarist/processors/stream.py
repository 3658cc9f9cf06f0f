"""The ``process_output_stream`` hooks of a run, chunk by chunk.

If all hooks are plain functions in a plain list, a chunk costs one call per processor. Everything else takes the
long way.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Generator, Sequence
from copy import copy, deepcopy
from dataclasses import fields
from functools import cache
from time import time_ns
from typing import Any, TypeVar, cast

from diarist.chunks import (
    Chunk,
    DataChunk,
    FileChunk,
    Finish,
    ReasoningDelta,
    SourceChunk,
    Start,
    TextDelta,
    TextPayload,
    ToolCallChunk,
)
from diarist.exceptions import ProcessorError
from diarist.messages import copy_json
from diarist.processors.base import Drop, ProcessOutputStreamArgs
from diarist.processors.compose import Chain, Choice, Fork, Node, holds, merge_of
from diarist.processors.hooks import SKIPPED, Hook
from diarist.processors.run_state import RunState
from diarist.tracing import listening, record

T = TypeVar("T")

_CONTENT = (TextDelta, ReasoningDelta, ToolCallChunk, FileChunk, SourceChunk)

_Args = ProcessOutputStreamArgs[Any]
_Content = tuple[Chunk, Any]


class StreamHooks:
    """Feeds the chunks of one step through the stream hooks.

    Attributes:
        parts: The chunks as they came, shared with the processors as ``stream_parts``.
        idle: There are no stream hooks.
        is_sync: ``feed_now`` may be used.
        complete: The response is complete; hooks may not return new content, since nothing would check it any more.
    """

    def __init__(self, state: RunState, nodes: Sequence[Node]) -> None:
        nodes = [node for node in nodes if not isinstance(node, Hook) or state.ready(node)]
        self._state = state
        self.complete = False
        self._nodes = nodes
        self._args: dict[int, _Args] = {}
        self._changed: dict[int, int] = {}
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.parts: list[Chunk] = []
        self.idle = not nodes
        plain = [node for node in nodes if isinstance(node, Hook) and not node.is_async]
        self.is_sync = len(plain) == len(nodes)
        self._traced = bool(nodes) and listening()
        self._began = 0
        self._plain = plain
        self._all_answer = False
        self._copies = any(hook.processor.edits_in_place for hook in hooks_of(nodes))
        self._calls = [(hook.function, self._arguments(hook)) for hook in plain] if self.is_sync else []

    def feed_now(self, chunk: Chunk) -> Sequence[Chunk]:
        """Return what the client gets for one chunk, where all hooks are plain functions (``is_sync``)."""
        if self.idle:
            return (chunk,)
        self.parts.append(chunk)
        if self._copies:
            chunk = _own(chunk)
        if self._traced:
            self._began = self._began or time_ns()
            return self._slowly(chunk, 0)
        if isinstance(chunk, DataChunk):
            return self._slowly(chunk, 0)
        index = 0
        try:
            for function, args in self._calls:
                args.part = chunk
                result = function(args)
                if result is not chunk:
                    if not isinstance(result, TextDelta):
                        return self._settle(chunk, index, result)
                    chunk = result  # fast path: redaction replaces every text chunk
                index += 1
        except Exception as error:
            hook = self._plain[index]
            return self._settle(chunk, index, hook.failed(error, self._state.writer, self._state.step_number))
        if not self._all_answer:
            self._all_answer = True
            self._state.answering.update(hook.slot for hook in self._plain)
        return (chunk,)

    async def feed(self, chunk: Chunk) -> Sequence[Chunk]:
        """Return what the client gets for one chunk; it passes the processors in order."""
        self.parts.append(chunk)
        if self._copies:
            chunk = _own(chunk)
        if self._traced:
            self._began = self._began or time_ns()
        return await self._through(self._nodes, [chunk])

    def close(self, error: BaseException | None = None) -> None:
        """Record one span per processor: from the first chunk until now, with the numbers of chunks seen and changed.

        Args:
            error: What ended the stream, if anything did.
        """
        if not self._began:
            return
        for hook in hooks_of(self._nodes):
            if hook.slot in self._args:
                attributes = {
                    **hook.attributes,
                    "diarist.stream.chunks": len(self.parts),
                    "diarist.stream.changed": self._changed.get(hook.slot, 0),
                }
                failure = error if isinstance(error, ProcessorError) and _is_of(hook, error) else None
                record(f"processor {hook.processor.id}", self._began, error=failure, **attributes)

    # -- plain functions, the long way

    def _slowly(self, chunk: Chunk, start: int) -> Sequence[Chunk]:
        current: Sequence[Chunk] = (chunk,)
        for hook, (_, args) in zip(self._plain[start:], self._calls[start:], strict=True):
            following: list[Chunk] = []
            for part in current:
                following += self._one_now(hook, args, part)
            current = following
        return current

    def _settle(self, chunk: Chunk, index: int, result: Any) -> Sequence[Chunk]:
        """Continue after the hook ``index`` returned something other than its chunk."""
        self._state.answering.update(hook.slot for hook in self._plain[:index])
        out: list[Chunk] = []
        for part in self._chunks(self._plain[index], chunk, result):
            out += self._slowly(part, index + 1)
        return out

    def _one_now(self, hook: Hook, args: _Args, part: Chunk) -> Sequence[Chunk]:
        if isinstance(part, DataChunk) and not hook.processor.process_data_parts:
            return (part,)
        args.part = part
        before = _content(part) if self._traced else None
        try:
            result = hook.function(args)
        except Exception as error:
            result = hook.failed(error, self._state.writer, self._state.step_number)
        return self._chunks(hook, part, result, before)

    # -- any node

    async def _through(self, nodes: Sequence[Node], chunks: Sequence[Chunk]) -> Sequence[Chunk]:
        current = chunks
        for node in nodes:
            following: list[Chunk] = []
            for part in current:
                following += await self._node(node, part)
            current = following
            if not current:
                break
        return current

    async def _node(self, node: Node, part: Chunk) -> Sequence[Chunk]:
        match node:
            case Hook():
                if isinstance(part, DataChunk) and not node.processor.process_data_parts:
                    return (part,)
                if node.slot not in self._args and not self._state.ready(node):
                    return (part,)
                args = self._arguments(node)
                if not node.is_async:
                    return self._one_now(node, args, part)
                turn = self._turns[node.slot]
                await turn.acquire()  # one chunk at a time, in the order in which they come
                try:
                    args.part = part
                    before = _content(part) if self._traced else None
                    result = await node.call(args, self._state.step_number)
                finally:
                    turn.release()
                return self._chunks(node, part, result, before)
            case Chain():
                return await self._through(node.nodes, (part,))
            case Choice() | Fork() if isinstance(part, DataChunk) and not node.owner.processor.process_data_parts:
                return (part,)
            case Choice():
                return await self._choose(node, part)
            case Fork():
                return await self._fork(node, part)

    async def _choose(self, node: Choice, part: Chunk) -> Sequence[Chunk]:
        args = self._arguments(node.owner)
        chosen = node.default
        async with self._turns[node.owner.slot]:
            args.part = part
            for condition, branch in node.cases:
                if await node.owner.guarded(holds(condition, args), self._state.step_number):
                    chosen = branch
                    break
        return (part,) if chosen is None else await self._node(chosen, part)

    async def _fork(self, node: Fork, part: Chunk) -> Sequence[Chunk]:
        """Run the branches in listed order, each with a copy of the chunk."""
        outcomes = [await self._node(branch, deepcopy(part)) for branch in node.branches]
        if node.merge is None:
            if any(list(out) != [part] for out in outcomes):
                what = "another chunk, though Parallel has no merge to decide what holds"
                raise node.owner.bad_result(what, self._state.step_number)
            return (part,)
        merged = await node.owner.guarded(merge_of(node.merge, outcomes), self._state.step_number)
        return self._chunks(node.owner, part, merged)

    def _arguments(self, hook: Hook) -> _Args:
        """Return the processor's args object for this stream: made once, its ``part`` changes."""
        args = self._args.get(hook.slot)
        if args is None:
            first = cast(Chunk, None)
            args = ProcessOutputStreamArgs(**self._state.args(hook), part=first, stream_parts=self.parts)
            self._args[hook.slot] = args
        return args

    def _chunks(self, hook: Hook, part: Chunk, result: Any, before: _Content | None = None) -> Sequence[Chunk]:
        """Return the chunks to pass on after a hook returned ``result`` for ``part``; ``before`` is its old content."""
        if result is part or result is SKIPPED:
            self._state.answering.add(hook.slot)
            if before is not None and before != _content(part):
                self._changed[hook.slot] = self._changed.get(hook.slot, 0) + 1
            return (part,)
        self._changed[hook.slot] = self._changed.get(hook.slot, 0) + 1
        if result is None:
            self._state.silent.add(hook.slot)
            return ()
        self._state.answering.add(hook.slot)
        if isinstance(result, Drop):
            return ()
        values = cast(Sequence[Any], result) if isinstance(result, list | tuple) else [result]
        if bad := [value for value in values if not isinstance(value, Chunk)]:
            raise hook.not_allowed(bad[0], "allowed: chunks, None, DROP", self._state.step_number)
        if self.complete and (late := [value for value in values if isinstance(value, _CONTENT)]):
            what = f"{late[0].type} for {part.type}, after the response was complete; return held text at text-end"
            raise hook.bad_result(what, self._state.step_number)
        return values


def _own(chunk: Chunk) -> Chunk:
    """Copy a chunk for hooks that may edit it; the original stays in ``stream_parts``. Finish is not copied."""
    if isinstance(chunk, TextDelta):  # nearly all chunks; skipping constructors makes it 3x as fast
        payload, own = object.__new__(TextPayload), object.__new__(TextDelta)
        payload.text, payload.id = chunk.payload.text, chunk.payload.id
        own.payload, own.run_id, own.from_ = payload, chunk.run_id, chunk.from_
        return own
    if isinstance(chunk, Finish):
        return chunk
    own = _copied(chunk)
    if not isinstance(own, Start | DataChunk):
        own.payload = cast(Any, _copied(own.payload))
    return own


def _copied(thing: T) -> T:
    """Copy a dataclass; lists and dictionaries in it are copied deeply."""
    own = object.__new__(type(thing))
    for name in _names(cast(Any, type(thing))):
        value = getattr(thing, name)
        setattr(own, name, copy_json(value) if isinstance(value, dict | list) else value)
    return own


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _content(part: Chunk) -> _Content:
    """Copy a chunk's content, to notice an edit in place."""
    return copy(part), copy(getattr(part, "payload", None))


def _is_of(hook: Hook, error: ProcessorError) -> bool:
    return (error.processor_id, error.hook) == (hook.processor.id, hook.name)


def hooks_of(nodes: Sequence[Node | None]) -> Generator[Hook]:
    """Yield the processors' own hooks in a plan, those in compositions included."""
    for node in nodes:
        match node:
            case Hook():
                yield node
            case Chain():
                yield from hooks_of(node.nodes)
            case Fork():
                yield from hooks_of(node.branches)
            case Choice():
                yield from hooks_of([*(part for _, part in node.cases), node.default])
            case None:
                pass
