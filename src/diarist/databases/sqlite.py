"""SQLite files, through ``sqlite3``, with one writing thread and some reading threads, outside of any event loop.

A whole transaction runs in one thread with a single switch. (An asynchronous driver switches threads for each
statement, which takes several times as long as the work itself.)
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import orjson

from diarist.databases.base import (
    Connection,
    Database,
    Dialect,
    P,
    R,
    Row,
    Schema,
    Work,
    do_nothing,
    in_sqlite,
    name_of,
)
from diarist.exceptions import ConfigError, DiaristError, InputError, StorageError

T = TypeVar("T")

READERS = 4
LOG_SIZE, WRITES_BETWEEN_LOOKS, WRITES_AFTER_FAILURE = 4_000_000, 8, 1_000
"""Size of the write-ahead log that causes a checkpoint, in bytes; writes between two checks of its size; writes until
the next attempt after other connections have blocked one.
SQLite's own checkpoints, after a thousand pages, would keep the writer waiting for the disk."""
REWRITTEN_UP_TO = 100_000_000
"""Maximum size of a file that is rewritten to erase data, in bytes. It blocks other writers for about a second."""
_FOR_READERS, _BETWEEN_LOOKS, _LOCKED_AT_MOST = 2.0, 0.02, 0.05
"""Seconds to wait for readers of an older state of the file; seconds between two attempts; maximum seconds per attempt,
during which writers wait."""

logger = logging.getLogger("diarist")


class ThreadConnection(Connection, Protocol):
    """A connection used by one thread at a time. Its calls return when the statement is finished."""

    def begin(self, statement: str) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def run_alone(self, statement: str, patience: float | None = None) -> Any:
        """Run a statement outside of transactions and return its first value. Waits ``patience`` seconds for locks."""
        ...

    def is_idle(self) -> bool:
        """Return True if the connection is open and in no transaction."""
        ...

    def close(self) -> None: ...


class SQLiteConnection:
    """A connection of ``sqlite3``, which caches prepared statements."""

    dialect: Dialect = "sqlite"
    violations: type[Exception] = sqlite3.IntegrityError

    def __init__(self, path: Path, busy_timeout: float) -> None:
        self._busy_timeout = busy_timeout
        self._driver = sqlite3.connect(
            path,
            timeout=busy_timeout,
            isolation_level=None,  # the driver begins no transactions by itself
            check_same_thread=False,  # one thread at a time uses it
            cached_statements=256,
        )
        self._driver.execute("PRAGMA foreign_keys = ON")
        self._driver.execute("PRAGMA secure_delete = ON")  # deleted text must not remain in unused pages
        # Commits survive the end of any process. After a power cut the newest commits may be missing, but the file is
        # not corrupted; FULL would wait for the disk at each commit.
        self._driver.execute("PRAGMA synchronous = NORMAL")
        self._driver.execute("PRAGMA wal_autocheckpoint = 0")  # see checkpoint()

    async def fetch(self, sql: str, /, **values: Any) -> Sequence[Row]:
        return self._run(sql, values).fetchall()

    async def first(self, sql: str, /, **values: Any) -> Row | None:
        cursor = self._run(sql, values)
        row = cursor.fetchone()
        cursor.close()  # an unfinished statement keeps its transaction open
        return row

    async def value(self, sql: str, /, **values: Any) -> Any:
        row = await self.first(sql, **values)
        return None if row is None else row[0]

    async def execute(self, sql: str, /, **values: Any) -> int:
        return self._run(sql, values).rowcount

    async def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]], /) -> None:
        self._driver.executemany(in_sqlite(sql)[0], rows)

    def _run(self, sql: str, values: dict[str, Any]) -> sqlite3.Cursor:
        text, lists = in_sqlite(sql)
        for name in lists:
            values[name] = orjson.dumps(values[name]).decode()
        return self._driver.execute(text, values)

    def lift_time_limit(self) -> None:
        pass

    def begin(self, statement: str) -> None:
        self._driver.execute(statement)

    def commit(self) -> None:
        self._driver.execute("COMMIT")

    def rollback(self) -> None:
        if self._driver.in_transaction:
            self._driver.execute("ROLLBACK")

    def run_alone(self, statement: str, patience: float | None = None) -> Any:
        if patience is not None:
            self._driver.execute(f"PRAGMA busy_timeout = {patience * 1000:.0f}")
        try:
            row = self._driver.execute(statement).fetchone()
        finally:
            self._driver.execute(f"PRAGMA busy_timeout = {self._busy_timeout * 1000:.0f}")
        return None if row is None else row[0]

    def is_idle(self) -> bool:
        try:
            return not self._driver.in_transaction
        except sqlite3.ProgrammingError:
            return False

    def close(self) -> None:
        self._driver.close()


class SQLiteDatabase(Database):
    """An SQLite file in WAL mode: any number of readers beside one writer at a time, across processes.

    Args:
        path: The file; created if it is missing, but its folder must exist.
        schema: The tables that this object uses.
        busy_timeout: Seconds to wait while another process writes, before StorageError.
    """

    def __init__(self, path: str | os.PathLike[str], schema: Schema, *, busy_timeout: float = 30.0) -> None:
        check_busy_timeout(busy_timeout)
        self._path = path = file_path(path)
        wal = Path(f"{os.path.realpath(path)}-wal")
        self._threads = Threads(
            schema,
            str(path),
            # None of these may hold a reference to this object, which could then never be garbage-collected.
            connect=partial(SQLiteConnection, path, busy_timeout),
            prepare=partial(_prepare_file, path, busy_timeout),
            remedy=partial(file_remedy, path, busy_timeout),
            log=wal,
        )
        weakref.finalize(self, self._threads.abandon)

    @property
    def location(self) -> str:
        return str(self._path)

    async def open(self) -> None:
        await self.read(do_nothing)

    async def close(self) -> None:
        await self._threads.close()

    async def read(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._threads.transaction(False, name_of(work), lambda c: work(c, *args, **kwargs))

    async def write(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._threads.transaction(True, name_of(work), lambda c: work(c, *args, **kwargs))

    async def erase(self) -> tuple[str, ...]:
        left = await erase_from_file(self._path, self._threads.run_alone)
        if left:
            self.erase_soon()  # the next writes continue it
        return left

    def erase_soon(self) -> None:
        self._threads.erase_soon()


# --- threads -----------------------------------------------------------------------------------------------


class ThreadsClosedError(Exception):
    """Work was submitted to closed threads."""


class _Workers:
    """Threads that take work from one queue, started when needed.

    The futures of a ``ThreadPoolExecutor`` would take as long as a short transaction. The threads are daemons: see
    ``_close_at_exit``.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._queue: SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0
        self._closed = False
        self._lock = threading.Lock()

    def submit(self, work: Callable[..., None], *args: Any) -> None:
        """Queue work. Raises ThreadsClosedError."""
        with self._lock:
            if self._closed:
                raise ThreadsClosedError
            self._unfinished += 1
            if len(self._threads) < min(self._most, self._unfinished):
                thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._queue.put((work, args))

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            work, args = item
            try:
                work(*args)
            except Exception:
                logger.exception("a thread of a database failed after its work")
            del item, work, args  # an error's traceback would keep them alive
            with self._lock:
                self._unfinished -= 1

    def close(self, *, wait: bool) -> None:
        """Reject new work; with ``wait``, wait for the queued work."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in self._threads:
                    self._queue.put(None)
        if wait:
            for thread in self._threads:
                thread.join()


class _Open:
    """The threads and connections of an open database. Holds no reference to its owner."""

    def __init__(self, connect: Callable[[], ThreadConnection]) -> None:
        self.pid = os.getpid()
        self.ready = False
        self.closed = False
        self._connect = connect
        self._writing = _Workers(1, "diarist-writer")
        self._reading = _Workers(READERS, "diarist-reader")
        self._writers: list[ThreadConnection] = []
        self._readers: list[ThreadConnection] = []
        _living.add(self)

    async def run(
        self, writes: bool, job: Callable[[Callable[[], bool]], T], after: Callable[[], None] | None = None
    ) -> T:
        """Run ``job`` in a thread and return its result. Raises ThreadsClosedError.

        The argument of ``job`` returns True if the caller was cancelled. ``after`` runs in the same thread once the
        caller has its result. ``wrap_future`` is not used: a second future and its locks take longer than most SQLite
        transactions.
        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        (self._writing if writes else self._reading).submit(_work, job, loop, result, after)
        try:
            return await result
        finally:
            del result  # an error's traceback would keep it alive

    def submit_write(self, work: Callable[[], None]) -> None:
        with suppress(ThreadsClosedError):  # closing the last connection does the rest
            self._writing.submit(work)

    @contextmanager
    def connection(self, writes: bool) -> Generator[ThreadConnection]:
        idle = self._writers if writes else self._readers
        try:
            connection = idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            yield connection
        finally:
            if connection.is_idle() and not self.closed:
                idle.append(connection)
            else:
                with suppress(sqlite3.Error):
                    connection.close()
            if self.closed:
                self._close_idle()

    def close(self) -> None:
        """Reject new work and wait for running work; blocks."""
        self.closed = True
        self._writing.close(wait=True)
        self._reading.close(wait=True)
        self._close_idle()

    def abandon(self) -> None:
        """Release the connections without waiting."""
        if self.pid == os.getpid():
            self.closed = True
            self._writing.close(wait=False)
            self._reading.close(wait=False)
            self._close_idle()

    def _close_idle(self) -> None:
        for idle in (self._readers, self._writers):
            with suppress(IndexError):  # several threads may empty the list
                while True:
                    connection = idle.pop()
                    with suppress(sqlite3.Error):
                        connection.close()


_living: WeakSet[_Open] = WeakSet()


@atexit.register
def _close_at_exit() -> None:
    """Wait until the threads finish their work, since the interpreter stops daemon threads at any point."""
    for opened in list(_living):
        if opened.pid == os.getpid():
            opened.close()


class Threads:
    """Runs the transactions of one database in threads, and opens it at first use.

    Args:
        schema: The tables that are created or migrated.
        location: Location of the data, to show to users.
        connect: Opens a connection.
        prepare: Runs once, in the writing thread, before the first connection is opened.
        remedy: Returns advice for an error name such as ``SQLITE_BUSY``; empty if there is none.
        log: The write-ahead log to checkpoint from time to time; None if the driver does it by itself.
    """

    def __init__(
        self,
        schema: Schema,
        location: str,
        *,
        connect: Callable[[], ThreadConnection],
        prepare: Callable[[], None],
        remedy: Callable[[str], str],
        log: Path | None = None,
    ) -> None:
        self._schema, self._location = schema, location
        self._connect, self._prepare, self._remedy, self._log = connect, prepare, remedy, log
        self._open: _Open | None = None
        self._lock = threading.Lock()
        self._erases = False
        self._writes_to_skip = 0

    async def transaction(self, writes: bool, doing: str, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        """Run ``work`` in a transaction and commit."""
        return await self._run(writes, doing, lambda opened: partial(_transaction, opened, writes, work))

    async def run_alone(self, statement: str, patience: float | None = None) -> Any:
        """Run a statement outside of transactions, in the writing thread, and return its first value."""

        def job(opened: _Open, _: Callable[[], bool]) -> Any:
            with opened.connection(True) as connection:
                return connection.run_alone(statement, patience)

        return await self._run(True, "rewrite the file", lambda opened: partial(job, opened))

    def erase_soon(self) -> None:
        """Empty the write-ahead log soon, at any size, since it contains deleted text."""
        self._erases, self._writes_to_skip = True, 0
        if (opened := self._open) is not None and self._log is not None:
            opened.submit_write(partial(self._tidy, opened))

    async def close(self) -> None:
        with self._lock:
            opened, self._open = self._open, None
        if opened is not None and opened.pid == os.getpid():
            await asyncio.to_thread(opened.close)

    def abandon(self) -> None:
        """Release the connections without waiting. Called when the owner is garbage-collected, and at exit."""
        if self._open is not None:
            self._open.abandon()

    async def _run(self, writes: bool, doing: str, job: Callable[[_Open], Callable[[Callable[[], bool]], T]]) -> T:
        while True:
            opened = self._open
            if opened is None or opened.pid != os.getpid():  # neither threads nor SQLite survive a fork
                with self._lock:
                    opened = self._open
                    if opened is None or opened.pid != os.getpid():
                        self._open = opened = _Open(self._connect)
            now_doing = "open"
            try:
                if not opened.ready:
                    await opened.run(True, partial(self._make_ready, opened))
                now_doing = doing
                after = partial(self._tidy, opened) if writes and self._log is not None else None
                return await opened.run(writes, job(opened), after)
            except ThreadsClosedError:
                continue  # another task closed it between opening and submitting: open again
            except (sqlite3.Error, UnicodeEncodeError) as error:
                raise self._mapped(now_doing, error) from error

    def _make_ready(self, opened: _Open, _: Callable[[], bool]) -> None:
        """Prepare the file and its tables. Runs in the single writing thread, so it happens once."""
        if opened.ready:
            return
        self._prepare()
        if not _transaction(opened, False, lambda c: self._schema.is_current(c, self._location), _never):
            _transaction(opened, True, lambda c: self._schema.ensure(c, self._location), _never)
        opened.ready = True

    def _tidy(self, opened: _Open) -> None:
        """Checkpoint the write-ahead log if it is long or contains deleted text. Runs in the writing thread."""
        assert self._log is not None
        if self._writes_to_skip:
            self._writes_to_skip -= 1
            return
        erases, emptied = self._erases, False
        try:
            if not erases and self._log.stat().st_size < LOG_SIZE:
                self._writes_to_skip = WRITES_BETWEEN_LOOKS
                return
            self._erases = False  # before the checkpoint, which may miss what is deleted from now on
            with opened.connection(True) as connection:
                emptied = checkpoint(connection)
        except (sqlite3.Error, OSError) as error:
            if not is_busy(error) and not isinstance(error, FileNotFoundError):
                logger.warning("cannot write a checkpoint: %s", error)
        if not emptied:  # a long reader or writer, or a full disk: try later
            self._erases |= erases
            self._writes_to_skip = WRITES_BETWEEN_LOOKS if self._erases else WRITES_AFTER_FAILURE

    def _mapped(self, doing: str, error: sqlite3.Error | UnicodeEncodeError) -> DiaristError:
        if isinstance(error, UnicodeEncodeError):
            return InputError(f"cannot {doing}: {error.object!r} is not valid Unicode")
        code = "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])
        where = self._location if doing == "open" else f"in {self._location}"
        return StorageError(f"cannot {doing} {where}: {error}{self._remedy(code)}")


def _transaction(
    opened: _Open, writes: bool, work: Callable[[Connection], Coroutine[Any, Any, T]], cancelled: Callable[[], bool]
) -> T:
    with opened.connection(writes) as connection:
        # A transaction that reads first and writes later must exclude other writers in between.
        connection.begin("BEGIN IMMEDIATE" if writes else "BEGIN")
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


def _never() -> bool:
    return False


def _work(
    job: Callable[[Callable[[], bool]], T],
    loop: asyncio.AbstractEventLoop,
    result: asyncio.Future[T],
    after: Callable[[], None] | None,
) -> None:
    if result.cancelled():
        return
    try:
        found = job(result.cancelled)
    except BaseException as error:
        answer = partial(_answer, result, None, error)
    else:
        answer = partial(_answer, result, found, None)
    with suppress(RuntimeError):  # the loop is closed: no caller is left
        loop.call_soon_threadsafe(answer)
    del result, answer  # an error's traceback would keep them alive
    if after is not None:
        after()


def _answer(result: asyncio.Future[Any], found: object, error: BaseException | None) -> None:
    if result.cancelled():
        return
    if error is None:
        result.set_result(found)
    else:
        result.set_exception(error)


# --- files -------------------------------------------------------------------------------------------------


def checkpoint(connection: ThreadConnection) -> bool:
    """Copy the write-ahead log into the file and empty it. Returns False if others read or write all the time.

    The first pass lets other processes write and leaves little to do; the second one blocks them briefly. A log that is
    never emptied grows without limit.
    """
    connection.run_alone("PRAGMA wal_checkpoint(PASSIVE)", 0)
    for _ in range(10):
        if not connection.run_alone("PRAGMA wal_checkpoint(TRUNCATE)", 0):
            return True
        time.sleep(0.001)
    return False


async def erase_from_file(path: Path, run: Callable[..., Awaitable[Any]]) -> tuple[str, ...]:
    """Remove all traces of deleted rows from a file in WAL mode and from its log; see ``Database.erase``.

    ``secure_delete`` overwrites a row in place. When SQLite moves rows between pages, old copies remain in unused parts
    of pages, so the file is rewritten.

    Args:
        run: ``Threads.run_alone``.
    """
    left: list[str] = []
    if await run("PRAGMA page_count") * await run("PRAGMA page_size") <= REWRITTEN_UP_TO:
        await run("VACUUM")
    else:
        left.append(
            f"{path} is too large to be rewritten now: unused parts of its pages may hold copies of what was deleted;"
            " run VACUUM on it"
        )
    deadline = time.monotonic() + _FOR_READERS
    while await run("PRAGMA wal_checkpoint(TRUNCATE)", _LOCKED_AT_MOST):
        if time.monotonic() >= deadline:
            waits = (
                f"another program reads an older state of {path}, or writes to it all the time, so {path.name}-wal"
                " still holds what was deleted; forget it again when that program is done"
            )
            logger.warning("%s", waits)
            return (*left, waits)
        await asyncio.sleep(_BETWEEN_LOOKS)
    return tuple(left)


def file_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of the file. Raises ConfigError for an in-memory database."""
    if not os.fspath(path) or ":memory:" in os.fspath(path):
        raise ConfigError(
            f"SQLite needs the path of a file, not {os.fspath(path)!r};"
            " for data that lives in memory use InMemoryStorage()"
        )
    return Path(path).expanduser().absolute()


def check_busy_timeout(seconds: float) -> None:
    """Raise ConfigError for an invalid timeout."""
    if not seconds >= 0:
        raise ConfigError(f"busy_timeout must be zero or more seconds, not {seconds}")


def file_remedy(path: Path, busy_timeout: float, code: str) -> str:
    """Return advice for an SQLite error on a file, by the error's name."""
    return _REMEDIES.get(code, "").format(seconds=busy_timeout, folder=path.parent)


_REMEDIES = {
    "SQLITE_BUSY": "; another program has been writing for {seconds:g} seconds (busy_timeout): end that, or wait"
    " longer",
    "SQLITE_READONLY": "; make the file and the folder {folder} writable, or choose another path",
    "SQLITE_CANTOPEN": "; make the folder {folder} readable and writable, or choose another path",
    "SQLITE_NOTADB": "; the file is something else: move it away, or choose another path",
    "SQLITE_CORRUPT": "; the file is damaged: restore a copy, or save what is readable with"
    " the command .recover of the sqlite3 shell",
    "SQLITE_FULL": "; free some space on the disk",
}


def is_busy(error: Exception) -> bool:
    """Return True if another connection holds the lock."""
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _prepare_file(path: Path, busy_timeout: float) -> None:
    """Set the journal mode, which is stored in the file. SQLite does not wait for a lock here, so this repeats it."""
    refuse_impossible(path)
    connection = sqlite3.connect(path, timeout=busy_timeout, isolation_level=None)
    try:
        deadline = time.monotonic() + busy_timeout
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)  # blocks the writing thread only
    finally:
        connection.close()


def refuse_impossible(path: Path) -> None:
    """Raise StorageError for a path at which no file can be created."""
    if path.is_dir():
        raise StorageError(f"cannot open {path}: it is a folder; name a file in it, such as {path / 'memory.db'}")
    if not path.parent.is_dir():
        raise StorageError(
            f"cannot open {path}: the folder {path.parent} does not exist; create it, or choose another path"
        )
