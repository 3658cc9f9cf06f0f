"""The ``process_output_stream`` hooks of a step, chunk by chunk.

``feed`` has two paths. If all hooks are plain functions in a plain list, without tracing, a chunk costs one call per
processor. Otherwise, ``_pass_all`` runs async hooks, compositions, and hooks that fail open.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import fields, replace
from time import time_ns
from typing import Any, cast

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
from diarist.messages import copy_json, copy_message
from diarist.processors.base import Drop, ProcessOutputStreamArgs, call_sync_or_async
from diarist.processors.compose import Branch, Parallel
from diarist.processors.hooks import SKIPPED, Hook, PipelineState, wrong_type
from diarist.tracing import listening, record

_CONTENT = (TextDelta, ReasoningDelta, ToolCallChunk, FileChunk, SourceChunk)

_Args = ProcessOutputStreamArgs[Any]


class StreamHooks:
    """Feeds the chunks of one step through the stream hooks.

    Attributes:
        parts: The original chunks, shared with the processors as ``stream_parts``.
        complete: The response is complete; hooks may not return new content, since no later hook would check it.
    """

    def __init__(self, state: PipelineState, hooks: Sequence[Hook]) -> None:
        self._hooks = hooks
        self._state = state
        self.complete = False
        self.parts: list[Chunk] = []
        self._args: dict[int, _Args] = {}
        self._changed: Counter[int] = Counter()
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._traced = bool(hooks) and listening()
        self._started_at = 0  # nanoseconds since 1970; 0 without tracing, and before the first chunk
        self._leaves = leaves = [leaf for hook in hooks for leaf in hook.leaves()]
        self._copies_chunks = any(hook.processor.edits_in_place for hook in leaves)
        is_sync = not any(hook.parts or hook.is_async for hook in hooks)
        is_fast = is_sync and not self._traced and not any(hook.fails_open for hook in leaves)
        self._fast_calls: list[tuple[int, Callable[[Any], Any], _Args]] = []
        if is_fast:
            self._fast_calls = [(index, hook.function, self._arguments(hook)) for index, hook in enumerate(hooks)]

    async def feed(self, chunk: Chunk) -> Sequence[Chunk]:
        """Pass a chunk through the processors, in order, and return the chunks for the client."""
        self.parts.append(chunk)
        if self._copies_chunks:
            chunk = _copied(chunk)
        if not self._fast_calls or isinstance(chunk, DataChunk):
            if self._traced:
                self._started_at = self._started_at or time_ns()
            return await self._pass_all(self._hooks, (chunk,))
        index = 0
        try:
            for index, function, args in self._fast_calls:  # noqa: B007  needed after the loop
                args.part = chunk
                result = function(args)
                if result is not chunk:
                    if self.complete or not isinstance(result, TextDelta):
                        break
                    chunk = result  # redaction replaces every text chunk
            else:
                return (chunk,)
        except Exception as error:
            result = self._hooks[index].failed(error, self._state.writer, self._state.step_number)
        # A hook returned no chunk, several, or one of another kind: the hooks after it take the general path.
        passed = self._chunks(self._hooks[index], chunk, result)
        following = self._hooks[index + 1 :]
        return await self._pass_all(following, passed) if passed and following else passed

    def close(self, error: BaseException | None = None) -> None:
        """Record one span per processor: from the first chunk until now, with the numbers of chunks seen and changed.

        Args:
            error: The exception that ended the stream, if any.
        """
        self._state.chunks += sum(not isinstance(part, DataChunk) for part in self.parts)
        if not self._started_at:
            return
        for hook in self._leaves:
            if hook.key in self._args:
                attributes = {
                    **hook.attributes,
                    "diarist.stream.chunks": len(self.parts),
                    "diarist.stream.changed": self._changed[hook.key],
                }
                failure = error if isinstance(error, ProcessorError) and hook.raised(error) else None
                record(f"processor {hook.processor.id}", self._started_at, error=failure, **attributes)

    async def _pass_all(self, hooks: Sequence[Hook | None], chunks: Sequence[Chunk]) -> Sequence[Chunk]:
        """Pass chunks through several hooks, in order."""
        for hook in hooks:
            if hook is None:
                continue
            if not chunks:
                break
            following: list[Chunk] = []
            for part in chunks:
                following += await self._pass_one(hook, part)
            chunks = following
        return chunks

    async def _pass_one(self, hook: Hook, part: Chunk) -> Sequence[Chunk]:
        """Pass a chunk through one hook, or through the hooks of a composition's parts."""
        if isinstance(part, DataChunk) and not hook.processor.process_data_parts:
            return (part,)
        if not hook.parts:
            return await self._call(hook, part)
        step = self._state.step_number
        match hook.processor:
            case Branch() as branch:
                args = self._arguments(hook)
                async with self._locks[hook.key]:
                    args.part = part
                    with hook.naming(step):
                        chosen = await branch.chosen(args, hook.parts)
                return (part,) if chosen is None else await self._pass_one(chosen, part)
            case Parallel() as parallel:
                outcomes = [await self._pass_one(each, deepcopy(part)) for each in hook.parts if each is not None]
                if parallel.merge is None:
                    if any(list(outcome) != [part] for outcome in outcomes):
                        problem = "another chunk, but the Parallel has no merge function to choose one"
                        raise hook.bad_result(problem, step)
                    return (part,)
                with hook.naming(step):
                    merged = await call_sync_or_async(parallel.merge, outcomes)
                return self._chunks(hook, part, merged)
            case _:
                return await self._pass_all(hook.parts, (part,))

    async def _call(self, hook: Hook, part: Chunk) -> Sequence[Chunk]:
        args = self._arguments(hook)
        given = _copied(part) if hook.fails_open else part
        before = _content(given) if self._traced else None
        async with self._locks[hook.key]:  # one chunk at a time, in the order in which they come
            args.part = given
            try:
                result = hook.function(args)
                if hook.is_async:
                    result = await result
            except (Exception, asyncio.CancelledError) as error:
                result = hook.failed(error, self._state.writer, self._state.step_number)
        if result is SKIPPED:
            return (part,)
        if before is not None and (result is not given or before != _content(given)):
            self._changed[hook.key] += 1
        return self._chunks(hook, given, result)

    def _arguments(self, hook: Hook) -> _Args:
        """Return the processor's args object for this stream. It is made once; only its ``part`` changes."""
        args = self._args.get(hook.key)
        if args is None:
            part = cast(Chunk, None)  # set before each call
            args = ProcessOutputStreamArgs(**self._state.common_args(hook), part=part, stream_parts=self.parts)
            self._args[hook.key] = args
        return args

    def _chunks(self, hook: Hook, part: Chunk, result: Any) -> Sequence[Chunk]:
        """Return the chunks to pass on after a hook returned ``result`` for ``part``."""
        if result is None and not isinstance(part, DataChunk):
            self._state.dropped[hook.key] += 1
        if result is None or isinstance(result, Drop):
            return ()
        values = cast(Sequence[Any], result) if isinstance(result, list | tuple) else (result,)
        for value in values:
            if not isinstance(value, Chunk):
                raise hook.bad_result(wrong_type(value, "allowed: chunks, None, DROP"), self._state.step_number)
            if self.complete and result is not part and isinstance(value, _CONTENT):
                problem = f"{value.type} for {part.type}, after the response was complete; return held text at text-end"
                raise hook.bad_result(problem, self._state.step_number)
        return values


def _copied(chunk: Chunk) -> Chunk:
    """Copy a chunk for hooks that may edit it; the original stays in ``stream_parts``."""
    if isinstance(chunk, TextDelta | ReasoningDelta):  # nearly all chunks; skipping constructors makes it 3x as fast
        payload, delta = object.__new__(TextPayload), object.__new__(type(chunk))
        payload.text, payload.id = chunk.payload.text, chunk.payload.id
        delta.payload, delta.run_id, delta.from_ = payload, chunk.run_id, chunk.from_
        return delta
    if isinstance(chunk, Finish):
        return replace(chunk, payload=replace(chunk.payload, messages=list(map(copy_message, chunk.payload.messages))))
    copied = copy(chunk)
    holder: Any = copied  # its fields may have lists and dictionaries
    if not isinstance(copied, Start | DataChunk):
        holder = copied.payload = cast(Any, copy(copied.payload))
    for item in fields(holder):
        if isinstance(value := getattr(holder, item.name), dict | list):
            setattr(holder, item.name, copy_json(cast(Any, value)))
    return copied


def _content(part: Chunk) -> tuple[Chunk, Any]:
    """Copy a chunk's content, to detect an edit in place."""
    return copy(part), copy(getattr(part, "payload", None))
