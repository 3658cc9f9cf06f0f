"""Databases with drivers that block. Their transactions run in one writing thread and some reading threads.

A whole transaction runs in one thread with a single switch. (An asynchronous driver switches threads for each
statement, which takes several times as long as the work itself.)
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sqlite3
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple, TypeVar
from weakref import WeakSet

from diarist.checks import seconds
from diarist.databases.base import Connection, Database, Dialect, P, R, Schema, Work, name_of
from diarist.exceptions import InputError, StorageError
from diarist.sync import end_shared_loop

T = TypeVar("T")

READERS = 4
_BUSY = "; another program has been writing for {seconds:g} seconds (busy_timeout): end it, or raise busy_timeout"


class ThreadConnection(Connection):
    """A connection used by one thread at a time. Its calls return when the statement is finished.

    Its errors are those of ``sqlite3``, with SQLite's names in ``sqlite_errorname``.
    """

    dialect: Dialect = "sqlite"
    violations: type[Exception] = sqlite3.IntegrityError

    @abstractmethod
    def begin(self, statement: str) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def rollback(self) -> None: ...

    @property
    @abstractmethod
    def in_transaction(self) -> bool: ...

    @abstractmethod
    def close(self) -> None: ...


Job = Callable[[ThreadConnection, Callable[[], bool]], T]
"""Work for a thread. The second argument returns True if the caller was cancelled."""


class ThreadDatabase(Database):
    """Runs the transactions of one database in threads, and opens it at first use.

    Args:
        schema: The tables that are created or migrated.
        location: Location of the data, to show to users.
        connect: Opens a connection. Must hold no reference to this object, or it could never be garbage-collected.
        busy_timeout: Seconds to wait while another program writes.
        remedies: Advice by error name, such as ``SQLITE_FULL``.
    """

    def __init__(
        self,
        schema: Schema,
        location: str,
        *,
        connect: Callable[[], ThreadConnection],
        busy_timeout: float,
        remedies: Mapping[str, str],
    ) -> None:
        seconds("", "busy_timeout", busy_timeout, zero=True)
        self._schema, self.location, self._connect = schema, location, connect
        self._remedies = {**remedies, "SQLITE_BUSY": _BUSY.format(seconds=busy_timeout)}
        self._open: _Threads | None = None
        self._finalizer: weakref.finalize[..., ThreadDatabase] | None = None

    async def close(self) -> None:
        with _changing:
            opened, self._open = self._open, None
        if opened is not None:
            await asyncio.to_thread(opened.close)

    def _threads(self) -> _Threads:
        """Return the threads; open others if there are none, if they were closed, or after a fork."""
        opened = self._open
        if opened is None or not opened.is_open:
            with _changing:
                opened = self._open
                if opened is None or not opened.is_open:
                    self._open = opened = _Threads(self._connect)
                    if self._finalizer is not None:
                        self._finalizer.detach()
                    self._finalizer = weakref.finalize(self, opened.close, wait=False)
                    self._finalizer.atexit = False  # see _close_at_exit
        return opened

    async def read(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        job: Job[R] = partial(run_transaction, "BEGIN", lambda connection: work(connection, *args, **kwargs))
        return await self._run("reader", work, job)

    async def glance(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        # The writing connection has the newest pages in its cache; the others read them again after each write.
        job: Job[R] = partial(run_transaction, "BEGIN", lambda connection: work(connection, *args, **kwargs))
        return await self._run("writer", work, job)

    async def write(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        # If a transaction reads first and writes later, no other writer may write in between.
        job: Job[R] = partial(run_transaction, "BEGIN IMMEDIATE", lambda connection: work(connection, *args, **kwargs))
        return await self._run("writer", work, job, self._after_write)

    def _after_write(self, connection: ThreadConnection) -> None:
        """Run in the writing thread after each write, once the caller has its result."""

    async def _run(
        self,
        thread: Literal["reader", "writer"],
        work: Callable[..., object],
        job: Job[T],
        after: Callable[[ThreadConnection], None] | None = None,
    ) -> T:
        """Run a job in a thread, after opening the database if it is closed. Raises StorageError.

        Args:
            work: Names the job in error messages.
            after: Called in the same thread, once the caller has its result.
        """
        while True:
            opened = self._threads()
            try:
                if not opened.ready:
                    await opened.writing.submit(partial(self._make_ready, opened))
                workers = opened.writing if thread == "writer" else opened.reading
                return await workers.submit(job, after)
            except ClosedError:
                continue  # another task closed it between opening and submitting: open again
            except UnicodeEncodeError as error:
                raise InputError(f"cannot {name_of(work)}: {error.object!r} is not valid Unicode") from error
            except sqlite3.Error as error:
                code = "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])
                doing = f"{name_of(work)} in" if opened.ready else "open"
                raise StorageError(f"cannot {doing} {self.location}: {error}{self._remedies.get(code, '')}") from error

    def _make_ready(self, opened: _Threads, connection: ThreadConnection, cancelled: Callable[[], bool]) -> None:
        """Create or migrate the tables. Runs in the single writing thread, so it happens once."""
        if not opened.ready:
            if not run_transaction("BEGIN", lambda c: self._schema.is_current(c, self.location), connection):
                run_transaction("BEGIN IMMEDIATE", lambda c: self._schema.ensure(c, self.location), connection)
            opened.ready = True


def run_transaction(
    begin: str,
    work: Callable[[Connection], Coroutine[Any, Any, T]],
    connection: ThreadConnection,
    cancelled: Callable[[], bool] = lambda: False,
) -> T:
    """Run ``work`` to its end in this thread, and commit. An exception, or a cancelled caller, rolls back."""
    connection.begin(begin)
    try:
        result = _run_now(work(connection))
        if cancelled():
            raise asyncio.CancelledError
        connection.commit()
    except BaseException:
        with suppress(sqlite3.Error):
            connection.rollback()
        raise
    return result


def _run_now(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise RuntimeError("work in a transaction may wait for its connection only")


# --- threads -----------------------------------------------------------------------------------------------


class ClosedError(Exception):
    """A job was submitted to closed threads."""


class _Task(NamedTuple):
    job: Job[Any]
    loop: asyncio.AbstractEventLoop
    result: asyncio.Future[Any]
    after: Callable[[ThreadConnection], None] | None


class _Workers:
    """Threads that take jobs from one queue. They are started when needed; each has its own connection.

    (The futures of a ``ThreadPoolExecutor`` would take as long as a short transaction.) The threads are daemons: see
    ``_close_at_exit``.

    Attributes:
        is_closed: They take no more jobs.
    """

    def __init__(self, most: int, name: str, connect: Callable[[], ThreadConnection], closing: threading.Lock) -> None:
        self._most, self._name, self._connect, self._closing = most, name, connect, closing
        self._pid = os.getpid()
        self._queue: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0
        self.is_closed = False
        self._lock = threading.RLock()  # garbage collection may call ``close`` in one of these threads
        _living.add(self)

    def submit(self, job: Job[T], after: Callable[[ThreadConnection], None] | None = None) -> asyncio.Future[T]:
        """Run ``job`` in a thread. Raises ClosedError.

        ``after`` runs in the same thread once the caller has its result. ``wrap_future`` is not used: a second future
        and its locks take longer than most SQLite transactions.
        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        with _changing, self._lock:
            if self.is_closed:
                raise ClosedError
            if len(self._threads) < min(self._most, self._unfinished + 1):
                thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                try:
                    thread.start()
                    self._threads.append(thread)
                except RuntimeError as error:  # newer versions of Python start none while the program ends
                    if not self._threads:
                        raise StorageError(f"cannot start a thread for the database: {error}") from error
            self._unfinished += 1
            self._queue.put(_Task(job, loop, result, after))
        return result

    def _serve(self) -> None:
        connection: ThreadConnection | None = None
        while (task := self._queue.get()) is not None:
            found = failure = None
            if not task.result.cancelled():
                try:
                    if connection is None:
                        connection = self._connect()
                    found = task.job(connection, task.result.cancelled)
                except BaseException as error:
                    failure = error
            with suppress(RuntimeError):  # the loop is closed: no caller is left
                task.loop.call_soon_threadsafe(_answer, task.result, found, failure)
            if connection is not None and failure is not None and connection.in_transaction:  # the rollback failed
                with suppress(sqlite3.Error):
                    connection.close()
                connection = None
            if connection is not None and task.after is not None:
                task.after(connection)
            del task, found, failure  # otherwise an error's traceback would keep them alive
            with self._lock:
                self._unfinished -= 1
        if connection is not None:
            with suppress(sqlite3.Error), self._closing:
                connection.close()

    def close(self, *, wait: bool) -> None:
        """Reject new jobs; with ``wait``, wait for the queued ones. The threads close their connections."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if not self.is_closed:
                self.is_closed = True
                for _ in self._threads:
                    self._queue.put(None)
        if wait:
            for thread in self._threads:
                thread.join()


def _answer(result: asyncio.Future[Any], found: object, error: BaseException | None) -> None:
    if result.cancelled():
        return
    if error is None:
        result.set_result(found)
    else:
        result.set_exception(error)


class _Threads:
    """The threads of an open database. Holds no reference to its owner."""

    def __init__(self, connect: Callable[[], ThreadConnection]) -> None:
        self.pid = os.getpid()
        self.ready = False
        # Close connections one after the other: SQLite removes its log with the last connection to a file. If two close
        # at the same time, neither is the last.
        closing = threading.Lock()
        self.writing = _Workers(1, "diarist-writer", connect, closing)
        self.reading = _Workers(READERS, "diarist-reader", connect, closing)

    @property
    def is_open(self) -> bool:
        """Return True in the process that opened them, until they are closed."""
        return self.pid == os.getpid() and not (self.writing.is_closed or self.reading.is_closed)

    def close(self, *, wait: bool = True) -> None:
        self.writing.close(wait=wait)
        self.reading.close(wait=wait)


_living: WeakSet[_Workers] = WeakSet()
_changing = threading.RLock()
"""Held while a job is submitted, which may start a thread, and during a fork."""


def _close_all() -> None:
    """Let all threads finish their work and close their connections."""
    for wait in (False, True):
        for workers in list(_living):
            workers.close(wait=wait)


def _close_before_fork() -> None:
    """Close all connections, and start no thread until the fork is over; the next jobs open connections again.

    SQLite remembers the locks on its files in memory. A child would inherit that memory, but not the locks: other
    processes would take themselves for the last user of the file, and remove the log to which the child writes.
    """
    _changing.acquire()
    _close_all()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_close_before_fork, after_in_parent=_changing.release, after_in_child=_changing.release)


@atexit.register
def _close_at_exit() -> None:
    """Wait until the threads finish their work, since the interpreter may stop daemon threads at any point."""
    try:
        end_shared_loop()
    finally:
        _close_all()


# --- locks -------------------------------------------------------------------------------------------------


def is_busy(error: Exception) -> bool:
    """Return True if another connection holds the lock."""
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def patiently(attempt: Callable[[], T], patience: float) -> T:
    """Repeat ``attempt`` while another connection writes."""
    deadline, pause = time.monotonic() + patience, 0.001
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(pause)
        pause = min(pause * 2, 0.02)
