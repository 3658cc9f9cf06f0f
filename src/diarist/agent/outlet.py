"""Hands chunks from the run's task to whoever reads the stream, at most a little ahead of the reader."""

from __future__ import annotations

import asyncio
from collections import deque

from diarist.chunks import Chunk
from diarist.exceptions import DiaristError

AHEAD = 64
"""How many chunks a run may be ahead of its reader before it waits."""


class Outlet:
    """A queue with one writer and one reader. ``discard`` is for runs that nobody reads.

    Attributes:
        closed: No further chunk will come.
    """

    def __init__(self, *, discard: bool = False) -> None:
        self._discard = discard
        self._queue: deque[Chunk] = deque()
        self.closed = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    async def send(self, chunk: Chunk) -> None:
        """Add a chunk; waits while the reader is far behind."""
        if self._discard:
            return
        self._queue.append(chunk)
        _wake(self._reader)
        while len(self._queue) >= AHEAD and not self.closed:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer

    def finish(self, chunk: Chunk | None = None) -> None:
        """Add the last chunk and close; never waits."""
        if chunk is not None and not self._discard:
            self._queue.append(chunk)
        self.closed = True
        _wake(self._reader)
        _wake(self._writer)

    async def next(self) -> Chunk:
        """The next chunk. Raises StopAsyncIteration after the last, DiaristError if somebody else waits for it."""
        while not self._queue:
            if self.closed:
                raise StopAsyncIteration
            if self._reader is not None and not self._reader.done():
                raise DiaristError("this stream is being read by another task already; read it in one place")
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        chunk = self._queue.popleft()
        if len(self._queue) < AHEAD:
            _wake(self._writer)
        return chunk


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
