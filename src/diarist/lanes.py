"""The threads in which a database with one writer works."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from sqlalchemy import Connection

R = TypeVar("R")


class Transactions(Protocol):
    """What a lane works with: an engine of SQLAlchemy's, or one that does the same."""

    def begin(self) -> AbstractContextManager[Connection]:
        """A transaction that is committed at its end, or taken back by an exception."""
        ...

    def dispose(self) -> None:
        """Close the connections that are not in use, now or when they no longer are."""
        ...


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

    def submit(self, writes: bool, job: Callable[[Transactions], R]) -> Future[R]:
        """Raises LanesClosedError."""
        engine, threads = (self.writer, self._writing) if writes else (self.reader, self._reading)
        try:
            return threads.submit(job, engine)
        except RuntimeError as error:
            if self._closed:
                raise LanesClosedError from error
            raise

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
