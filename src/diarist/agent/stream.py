"""A run that is streamed to its caller."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator
from contextlib import suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Generic, Self

from diarist.agent.loop import AgentRun
from diarist.agent.result import AgentResult, OutputT
from diarist.agent.stream_writer import ChunkQueue
from diarist.chunks import Chunk, TextDelta
from diarist.concurrency import cancel_and_wait

_enclosing_runs: ContextVar[frozenset[str]] = ContextVar("diarist_streams", default=frozenset())
"""Ids of the streamed runs that the current code is part of."""


class AgentStream(Generic[OutputT]):
    """A streamed run. It starts, in its own asyncio task, when the first chunk is read.

    Iterate it for its chunks, or ``text()`` for text alone; ``await result()`` runs it to its end, also after
    an early break. Leaving ``async with`` before the end, or cancelling the task that reads, cancels the run.
    Its finished steps and the results of finished tools are kept; with ``on_stop="keep"``, also the text so far.
    """

    def __init__(self, run: AgentRun) -> None:
        self._run = run
        self._queue = run.queue = ChunkQueue(run.context.run_id)
        self._task: asyncio.Task[None] | None = None

    @property
    def run_id(self) -> str:
        return self._run.context.run_id

    def __repr__(self) -> str:
        state = "ended" if self._queue.closed else "not started" if self._task is None else "running"
        return f"AgentStream(run_id={self.run_id!r}, {state})"

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        if self._task is None and not self._queue.closed:
            self._task = task = asyncio.create_task(_execute(self._run))
            weakref.finalize(self, _cancel, task, asyncio.get_running_loop())
        try:
            return await self._queue.next()
        except asyncio.CancelledError:
            await self.close()
            raise

    async def text(self) -> AsyncIterator[str]:
        """Yield the pieces of text as they arrive, including those of repeated attempts. At the end, raises the run's
        error, as ``result`` does."""
        async for chunk in self:
            if isinstance(chunk, TextDelta):
                yield chunk.payload.text
        await self.result()

    async def result(self) -> AgentResult[OutputT]:
        """Run to the end and return the result, also of a blocked or cancelled run. Raises the run's error."""
        async for _ in self:
            pass
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()  # raises a BaseException that is no Exception, such as SystemExit
        if self._run.error is not None:
            raise self._run.error
        return self._run.result

    async def close(self) -> None:
        """Cancel the run if it has not ended, and wait for its end. If the stream was never read, the run never starts.

        Does not wait if it is called by the run's own tools, hooks or callbacks.
        """
        if self._task is not None and self.run_id in _enclosing_runs.get():
            self._task.cancel()
            return
        try:
            if self._task is not None:
                await cancel_and_wait(self._task)
        finally:
            if not self._queue.closed:  # the run has not started
                self._run.skip()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _execute(run: AgentRun) -> None:
    """Execute the run as a task. Its error is kept in ``run.error``, for ``result()``."""
    _enclosing_runs.set(_enclosing_runs.get() | {run.context.run_id})
    with suppress(Exception):
        await run.execute()


def _cancel(task: asyncio.Task[None], loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the run of a stream that was dropped before its end; else the run would wait for a reader for ever."""
    if not loop.is_closed() and not task.done():
        loop.call_soon_threadsafe(task.cancel)
