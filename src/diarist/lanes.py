"""The threads in which a database with one writer works."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from diarist.concurrency import PATIENCE
from diarist.in_place import InPlace

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
        place: Runs short transactions without a thread of its own, where the database can.
    """

    READERS = 4

    def __init__(self, engine: Callable[[int, str], Transactions], place: InPlace | None = None) -> None:
        self.pid = os.getpid()
        self.ready = False
        self.release: Callable[[], object] = self.abandon
        self.place = place
        self._closed = False
        self._changed = threading.Condition()
        self._short = 0
        self._writes = 0
        self._done = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
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
        engine = self.writer if writes else self.reader
        loop = asyncio.get_running_loop()
        result: asyncio.Future[R] = loop.create_future()
        work = partial(_work, job, engine, loop, result)
        try:
            if writes:
                self._submit_write(work)
            else:
                self._reading.submit(work)
        except RuntimeError as error:
            if self._closed:
                raise LanesClosedError from error
            raise
        try:
            return await result
        finally:
            del result  # an error knows this frame

    def _submit_write(self, work: Callable[[], object]) -> None:
        with self._changed:
            self._writes += 1
        try:
            done = self._writing.submit(work)
        except RuntimeError:
            self._written()
            raise
        done.add_done_callback(lambda _: self._written())

    def _written(self) -> None:
        with self._changed:
            self._writes -= 1
            self._done += 1
            self._changed.notify_all()
            due = [future for number, future in self._waiting if number <= self._done]
            self._waiting = self._waiting[len(due) :]
        for future in due:
            with suppress(RuntimeError):  # the loop has been closed: nobody waits
                future.get_loop().call_soon_threadsafe(_answer, future, future.set_result, None)

    @property
    def is_writing(self) -> bool:
        """Whether the writing thread has something to do."""
        return self._writes > 0

    async def written(self) -> None:
        """Wait until the writing thread has done what it has to do by now."""
        future = asyncio.get_running_loop().create_future()
        with self._changed:
            if not self._writes:
                return
            self._waiting.append((self._done + self._writes, future))
        await future

    def tend(self) -> None:
        """Have the file's log brought into the file where it is time for that; nobody waits for it."""
        if self.place is not None and self.place.needs_checkpoint():
            with suppress(RuntimeError):  # closed: then the last connection does what is left to do
                self._submit_write(self.place.checkpoint)

    def enter(self) -> None:
        """Short work begins, for which ``close`` waits until ``leave``. Raises LanesClosedError."""
        with self._changed:
            if self._closed:
                raise LanesClosedError
            self._short += 1

    def leave(self) -> None:
        with self._changed:
            self._short -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Take no more work and wait for what there is; blocks. Not for ever for work of a loop that stands still."""
        with self._changed:
            self._closed = True
            while self._short and (self._changed.wait(PATIENCE) or self._writes):
                pass  # each that ends gives the others time
        self._writing.shutdown()
        self._reading.shutdown()

    def abandon(self) -> None:
        """Release the connections without waiting: also for an owner that was collected, and at exit."""
        if self.pid != os.getpid():
            return
        self._writing.shutdown(wait=False)
        self._reading.shutdown(wait=False)
        for connections in (self.place, self.reader, self.writer):
            if connections is not None:
                connections.dispose()


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
