"""The connections of a process to one database."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar
from weakref import WeakSet

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from diarist.postgres_database.patience import watch

T = TypeVar("T")

_GOODBYE = 2.0
"""Seconds for a server to close a connection."""


class PoolClosedError(Exception):
    """Work was submitted after the end."""


class Pool:
    """The connections of an open database, and the thread with the event loop that they live in.

    It must not hold the object that it works for, so that it ends when that is forgotten.
    """

    def __init__(self, connect: Callable[[], Awaitable[Any]], size: int, busy_timeout: float) -> None:
        self.pid = os.getpid()
        self.prepared = False
        self.preparing: asyncio.Task[None] | None = None
        self._connect = connect
        self._connections: WeakSet[Any] = WeakSet()
        # Readers see one state of the data in all their statements. Writers see what was committed when they
        # got their lock, since everything that is read to be changed is locked first.
        self.engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=self._connected,
            isolation_level="READ COMMITTED",
            pool_size=size,
            max_overflow=0,
            pool_timeout=busy_timeout,
        )
        watch(self.engine.sync_engine)
        self.reader: AsyncEngine = self.engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
        self._closed = False
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="diarist-postgres", daemon=True)
        self._thread.start()
        _living.add(self)

    def submit(self, job: Callable[[Pool], Coroutine[Any, Any, T]]) -> Future[T]:
        with self._lock:
            if self._closed:
                raise PoolClosedError
            return asyncio.run_coroutine_threadsafe(job(self), self._loop)

    async def _connected(self) -> Any:
        connection = await self._connect()
        self._connections.add(connection)
        return connection

    def close(self) -> None:
        """Take no more work, wait for what there is, and release the connections; blocks."""
        if (ended := self._end(cancel=False)) is not None:
            ended.result()
        self._thread.join()

    def abandon(self) -> None:
        """Release the connections without waiting: for an owner that was collected, in whatever thread."""
        if self.pid == os.getpid():
            self._end(cancel=True)

    def close_at_exit(self) -> None:
        if self.pid == os.getpid():
            self._end(cancel=True)
            self._thread.join(timeout=2)

    def _serve(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _end(self, *, cancel: bool) -> Future[None] | None:
        with self._lock:
            if self._closed:
                return None
            self._closed = True
            ended = asyncio.run_coroutine_threadsafe(self._finish(cancel), self._loop)
        ended.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
        _living.discard(self)
        return ended

    async def _finish(self, cancel: bool) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            if cancel:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # All at once, for a server may be silent: the driver lets go of what is not closed in time.
        goodbyes = [connection.close(timeout=_GOODBYE) for connection in self._connections]
        await asyncio.gather(*goodbyes, return_exceptions=True)
        await self.engine.dispose()


_living: set[Pool] = set()
"""What is to be closed at exit."""


@atexit.register
def _close_at_exit() -> None:
    for pool in list(_living):
        pool.close_at_exit()
