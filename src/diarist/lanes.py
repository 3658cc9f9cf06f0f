"""The threads in which a database with one writer works."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Protocol, TypeVar

from sqlalchemy import Connection

A = TypeVar("A")
R = TypeVar("R")


class Transactions(Protocol):
    """What a lane works with: an engine of SQLAlchemy's, or one that does the same."""

    def begin(self) -> AbstractContextManager[Connection]:
        """A transaction that is committed at its end, or taken back by an exception."""
        ...

    def dispose(self) -> None:
        """Close the connections that are not in use, now or when they no longer are."""
        ...


Job = Callable[[Transactions, Callable[[], bool]], R]
"""Gets what it works with, and a question: whether nobody waits for it any more."""


class LanesClosedError(Exception):
    """Work was submitted after the end."""


class Lanes:
    """The threads of one open database: one that writes, since there is one writer at a time, and some that read.

    It must not hold the object that it works for, so that it ends when that is forgotten.

    Args:
        engine: Makes an engine of so many connections, whose transactions begin with the given statement.
    """

    READERS = 4

    def __init__(self, engine: Callable[[int, str], Transactions]) -> None:
        self.pid = os.getpid()
        self.ready = False
        self.release: Callable[[], object] = self.abandon
        self._closed = False
        self.writer = engine(1, "BEGIN IMMEDIATE")
        self.reader = engine(self.READERS, "BEGIN")
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="diarist-writer")
        self._reading = ThreadPoolExecutor(self.READERS, thread_name_prefix="diarist-reader")

    async def run(self, writes: bool, job: Job[R]) -> R:
        """What the job comes to, in a thread.

        Not by ``wrap_future``: the second future and its locks take longer than most transactions of SQLite.

        Raises:
            LanesClosedError: The lanes take no more work.
        """
        engine, threads = (self.writer, self._writing) if writes else (self.reader, self._reading)
        loop = asyncio.get_running_loop()
        result: asyncio.Future[R] = loop.create_future()
        try:
            threads.submit(_work, job, engine, loop, result)
        except RuntimeError as error:
            if self._closed:
                raise LanesClosedError from error
            raise
        try:
            return await result
        finally:
            del result  # an error knows this frame

    def close(self) -> None:
        """Take no more work and wait for what there is; blocks."""
        self._closed = True
        self._writing.shutdown()
        self._reading.shutdown()

    def abandon(self) -> None:
        """Release the connections without waiting: also for an owner that was collected, and at exit."""
        if self.pid != os.getpid():
            return
        self._writing.shutdown(wait=False)
        self._reading.shutdown(wait=False)
        self.reader.dispose()
        self.writer.dispose()


def _work(job: Job[R], engine: Transactions, loop: asyncio.AbstractEventLoop, result: asyncio.Future[R]) -> None:
    if result.cancelled():
        return
    try:
        found = job(engine, result.cancelled)
    except BaseException as error:
        answer = partial(_answer, result, result.set_exception, error)
    else:
        answer = partial(_answer, result, result.set_result, found)
    with suppress(RuntimeError):  # the loop has been closed: nobody waits
        loop.call_soon_threadsafe(answer)
    del result, answer  # the error knows this frame


def _answer(result: asyncio.Future[R], give: Callable[[A], None], answer: A) -> None:
    if not result.cancelled():
        give(answer)
