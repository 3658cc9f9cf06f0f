"""Hands chunks from the run's task to whoever reads the stream, at most a little ahead of the reader."""

from __future__ import annotations

import asyncio
from collections import deque

from diarist.chunks import Chunk
from diarist.exceptions import DiaristError

AHEAD = 64
"""How many chunks a run may be ahead of its reader before it waits."""


class Outlet:
    """A queue with one reader; of its writers, several may wait. ``discard`` is for runs that nobody reads.

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
        """Add a chunk; waits while the reader is far behind."""
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
        """The next chunk, if it is there already."""
        if not self._queue:
            return None
        chunk = self._queue.popleft()
        if self._writers and len(self._queue) < AHEAD:
            self._wake_writers()
        return chunk

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
            self._wake_writers()
        return chunk

    def _wake_writers(self) -> None:
        waiting, self._writers = self._writers, []
        for waiter in waiting:
            _wake(waiter)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
