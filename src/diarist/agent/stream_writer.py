"""Sends a run's chunks to its reader: through the stream hooks, in order, held back until they may be seen."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from itertools import dropwhile
from typing import Any, TypeVar

from diarist.agent.held_output import accepted_chunks
from diarist.chunks import Chunk, DataChunk, StepStart
from diarist.concurrency import cancel_and_wait
from diarist.exceptions import DiaristError
from diarist.messages import Part
from diarist.processors.pipeline import PipelineRun
from diarist.processors.stream import StreamHooks
from diarist.run_context import RunContext

T = TypeVar("T")

AHEAD = 64
"""How many chunks a run may be ahead of its reader before it waits."""


class ChunkQueue:
    """A queue with one reader and several writers. ``discard`` is for runs without a reader.

    Attributes:
        closed: No further chunk will come.
    """

    def __init__(self, *, discard: bool = False) -> None:
        self._discard = discard
        self._queue: deque[Chunk] = deque()
        self.closed = False
        self._reader: asyncio.Future[None] | None = None
        self._writers: list[asyncio.Future[None]] = []

    def put(self, chunk: Chunk) -> bool:
        """Add a chunk; False when the reader is far behind: then ``await room()``."""
        if self._discard:
            return True
        self._queue.append(chunk)
        if self._reader is not None:
            _wake(self._reader)
        return len(self._queue) < AHEAD

    async def send(self, chunk: Chunk) -> None:
        """Add a chunk; wait while the reader is far behind."""
        if not self.put(chunk):
            await self.room()

    async def room(self) -> None:
        """Wait while the reader is far behind."""
        while len(self._queue) >= AHEAD and not self.closed:
            self._writers.append(waiter := asyncio.get_running_loop().create_future())
            await waiter

    def finish(self, chunk: Chunk | None = None) -> None:
        """Add the last chunk and close; never waits."""
        if chunk is not None and not self._discard:
            self._queue.append(chunk)
        self.closed = True
        _wake(self._reader)
        self._wake_writers()

    def take(self) -> Chunk | None:
        """Return the next chunk if it has arrived already."""
        if not self._queue:
            return None
        chunk = self._queue.popleft()
        if self._writers and len(self._queue) < AHEAD:
            self._wake_writers()
        return chunk

    async def next(self) -> Chunk:
        """Return the next chunk. Raises StopAsyncIteration after the last, DiaristError if another task waits."""
        while not self._queue:
            if self.closed:
                raise StopAsyncIteration
            if self._reader is not None and not self._reader.done():
                raise DiaristError("this stream is being read by another task already; read it in one place")
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        chunk = self._queue.popleft()
        if len(self._queue) < AHEAD:
            self._wake_writers()
        return chunk

    def _wake_writers(self) -> None:
        waiting, self._writers = self._writers, []
        for waiter in waiting:
            _wake(waiter)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class StreamWriter:
    """The way of a run's chunks to its reader.

    Attributes:
        unkept: Data sent between steps, to be stored with the next step's message.
        before_guards: The input guards have not passed yet: everything is held back.
        before_verdict: The step was not accepted yet: everything is held back.
    """

    def __init__(self, context: RunContext[Any], pipeline: PipelineRun, queue: ChunkQueue) -> None:
        self._run_id = context.run_id
        self._written = context.writer
        self._pipeline = pipeline
        self._has_hooks = pipeline.has("process_output_stream")
        self._queue = queue
        self._hooks: StreamHooks | None = None
        self._keep: Callable[[Chunk], bool] | None = None  # None between steps; a bound method here would be a cycle
        self._held: deque[Chunk] = deque()
        self.unkept: list[DataChunk] = []
        self.before_guards = False
        self.before_verdict = False

    @property
    def is_sync(self) -> bool:
        """True if no stream hook has to be awaited."""
        return not self._has_hooks or self._opened().is_sync

    def complete(self) -> None:
        """Note that the response is complete: stream hooks may return no further text."""
        if self._has_hooks:
            self._opened().complete = True

    def _opened(self) -> StreamHooks:
        """Return the stream hooks at work; opened at the first chunk outside of a step."""
        if self._hooks is None:
            self._hooks = self._pipeline.open_stream()
        return self._hooks

    # -- steps

    def begin_step(self, keep: Callable[[Chunk], bool], *, hold: bool, guards: bool) -> None:
        """Send what comes through stream hooks of its own; ``keep`` puts each chunk into the step's message."""
        self.leave()
        self._keep = keep
        self.before_verdict, self.before_guards = hold, guards

    async def end_step(self, error: BaseException | None = None) -> None:
        """Leave the step. After an error, send the data that was written until then, but store none of it."""
        self.leave(error)
        if isinstance(error, Exception):
            self._keep = _is_data
            await self.drain()
            self.leave()
        self._held.clear()
        self.before_verdict = self.before_guards = False

    def leave(self, error: BaseException | None = None) -> None:
        """Close the stream hooks at work, which ends their spans."""
        if self._hooks is not None:
            self._hooks.close(error)
        self._hooks = self._keep = None

    async def release(self, parts: Sequence[Part], running: Collection[str] = ()) -> None:
        """Let the reader have what was held back of an accepted step, as ``parts`` say it now.

        Args:
            running: Ids of calls whose result comes later.
        """
        if self.before_verdict:
            self._held = accepted_chunks(self._held, parts, running)
        self.before_verdict = False
        await self._flush()

    async def guards_passed(self) -> None:
        """Let the reader have what was held back until the input guards had passed."""
        self.before_guards = False
        await self._flush()

    async def _flush(self) -> None:
        while self._held and not (self.before_guards or self.before_verdict):
            await self._queue.send(self._held.popleft())

    # -- chunks

    async def send(self, chunk: Chunk) -> None:
        """Send what the stream hooks make of a chunk, behind what they wrote."""
        chunk.run_id = self._run_id
        passed: Sequence[Chunk] = (chunk,)
        if self._has_hooks:
            hooks = self._hooks or self._opened()
            passed = await hooks.feed(chunk)
        if self._written:
            await self.drain()
        for out in passed:  # inlined, since nearly all chunks pass here
            if self._keeps(out) and not self._put(out):
                await self._queue.room()

    async def send_start(self, start: StepStart) -> None:
        """Send a step's first chunk; text before it is left of an attempt that broke off."""
        passed = await self.feed(start)
        await self._emit(dropwhile(lambda chunk: not isinstance(chunk, StepStart | DataChunk), passed))

    async def feed(self, chunk: Chunk) -> Sequence[Chunk]:
        """Return what the stream hooks make of a chunk; what they wrote has been sent."""
        chunk.run_id = self._run_id
        passed = await self._through_hooks(chunk)
        if self._written:
            await self.drain()
        return passed

    async def _through_hooks(self, chunk: Chunk) -> Sequence[Chunk]:
        if not self._has_hooks:
            return (chunk,)
        hooks = self._hooks or self._opened()
        return await hooks.feed(chunk)

    async def drain(self) -> None:
        """Send what processors and tools have written."""
        while self._written:
            chunk = self._written.take()  # one by one: another may be written, and sent, while a hook waits
            await self._emit(await self._through_hooks(chunk))

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work``, and send what it writes as it is written; all of it before an error is raised."""
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._written.wake())
        try:
            while not task.done():
                await self._written.arrived()
                await self.drain()
            await self.drain()
            return await task
        finally:
            await cancel_and_wait(task)

    async def _emit(self, chunks: Iterable[Chunk]) -> None:
        for out in chunks:
            if self._keeps(out) and not self._put(out):
                await self._queue.room()

    def _put(self, chunk: Chunk) -> bool:
        """Send a chunk, or hold it back; False where the reader is far behind."""
        chunk.run_id = self._run_id
        if self.before_guards or self.before_verdict or self._held:
            self._held.append(chunk)
            return True
        return self._queue.put(chunk)

    def _keeps(self, chunk: Chunk) -> bool:
        if self._keep is not None:
            return self._keep(chunk)
        if not isinstance(chunk, DataChunk):  # between steps: the rest of an attempt that broke off
            return False
        if not chunk.transient:
            self.unkept.append(chunk)
        return True


def _is_data(chunk: Chunk) -> bool:
    return isinstance(chunk, DataChunk)
