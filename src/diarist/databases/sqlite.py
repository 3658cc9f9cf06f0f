"""SQLite, through ``sqlite3``: files, and databases in memory."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

from diarist.databases.base import Connection, Database, P, R, Row, Schema, Work, in_sqlite, json_list, name_of
from diarist.databases.blocking import (
    ClosedError,
    ThreadConnection,
    ThreadDatabase,
    is_busy,
    patiently,
    run_transaction,
)
from diarist.exceptions import ConfigError, InputError, StorageError

LOG_SIZE, WRITES_BETWEEN_LOOKS, WRITES_AFTER_FAILURE = 4_000_000, 8, 1_000
"""When to write a checkpoint of the write-ahead log: at this size in bytes, checked after this number of writes. If
other connections block a checkpoint, try again after this last number of writes.

SQLite's own checkpoints are off: they run after each thousand pages, and the writer would wait for the disk."""
REWRITTEN_UP_TO = 100_000_000
"""Maximum size of a file that is rewritten to erase data, in bytes. Rewriting it blocks writers for about a second."""
_FOR_READERS, _BETWEEN_LOOKS, _LOCKED_AT_MOST = 2.0, 0.02, 0.05
"""Seconds: how long to wait until no reader needs an older state of the file, how long to pause between two attempts,
and how long one attempt may take. Writers wait during an attempt."""

logger = logging.getLogger("diarist")


class SQLiteConnection(ThreadConnection):
    """A connection of ``sqlite3``, which caches prepared statements.

    Args:
        path: The file that ``driver`` has open, if any. No transaction begins if it was moved, deleted or replaced:
            SQLite itself would write to the old file, and the writes would be lost.
    """

    def __init__(self, driver: sqlite3.Connection, busy_timeout: float = 0, path: Path | None = None) -> None:
        self._driver, self._busy_timeout = driver, busy_timeout
        self._path, self._file = path, None if path is None else _file_at(path)
        driver.execute("PRAGMA foreign_keys = ON")

    async def fetch(self, sql: str, /, **values: Any) -> Sequence[Row]:
        return self._run(sql, values).fetchall()

    async def first(self, sql: str, /, **values: Any) -> Row | None:
        cursor = self._run(sql, values)
        row = cursor.fetchone()
        cursor.close()  # an unfinished statement keeps its transaction open
        return row

    async def execute(self, sql: str, /, **values: Any) -> int:
        return self._run(sql, values).rowcount

    async def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]], /) -> None:
        self._driver.executemany(in_sqlite(sql)[0], rows)

    def _run(self, sql: str, values: dict[str, Any]) -> sqlite3.Cursor:
        text, lists = in_sqlite(sql)
        for name in lists:
            values[name] = json_list(values[name])
        return self._driver.execute(text, values)

    def begin(self, statement: str) -> None:
        if self._path is not None and _file_at(self._path) != self._file:
            raise StorageError(
                f"{self._path} was moved, deleted or replaced while it was open: move it back, or start the program"
                " again (or close the storage) to use the file that is there now"
            )
        self._driver.execute(statement)

    def commit(self) -> None:
        self._driver.execute("COMMIT")

    def rollback(self) -> None:
        if self._driver.in_transaction:
            self._driver.execute("ROLLBACK")

    def run_alone(self, statement: str, patience: float | None = None) -> Any:
        """Run a statement outside of transactions and return its first value. Waits ``patience`` seconds for locks."""
        if patience is not None:
            self._driver.execute(f"PRAGMA busy_timeout = {patience * 1000:.0f}")
        try:
            row = self._driver.execute(statement).fetchone()
        finally:
            self._driver.execute(f"PRAGMA busy_timeout = {self._busy_timeout * 1000:.0f}")
        return None if row is None else row[0]

    @property
    def in_transaction(self) -> bool:
        return self._driver.in_transaction

    def close(self) -> None:
        self._driver.close()


class SQLiteDatabase(ThreadDatabase):
    """An SQLite file in WAL mode. Any number of readers and one writer may use it at a time, across processes.

    Args:
        path: The file; created if it is missing, but its folder must exist.
        schema: The tables that this object uses.
        busy_timeout: Seconds to wait while another process writes, before StorageError.
    """

    def __init__(self, path: str | os.PathLike[str], schema: Schema, *, busy_timeout: float = 30.0) -> None:
        self._path = path = _file_path(path)
        super().__init__(
            schema,
            str(path),
            connect=partial(_open_file, path, busy_timeout),
            busy_timeout=busy_timeout,
            remedies={code: text.format(folder=path.parent) for code, text in _REMEDIES.items()},
        )
        self._log = Path(f"{os.path.realpath(path)}-wal")
        self._erases = False
        self._writes_to_skip = 0

    async def erase(self) -> tuple[str, ...]:
        """Remove all traces of deleted rows from the file and from its write-ahead log; see ``Database.erase``.

        ``secure_delete`` overwrites a row in place. When SQLite moves rows between pages, old copies remain in unused
        parts of pages, so the file is rewritten.
        """
        run, path = self._run_alone, self._path
        left: list[str] = []
        if await run("PRAGMA page_count") * await run("PRAGMA page_size") <= REWRITTEN_UP_TO:
            try:
                await run("VACUUM")
            except StorageError as error:
                if not str(error.__cause__).startswith("no such"):
                    raise  # not for want of a function or collation that an index of another program uses
                left.append(
                    f"{path} cannot be rewritten here: {error.__cause__}; unused parts of its pages may hold copies of"
                    " deleted data; run VACUUM on it with the program that made its other tables"
                )
        else:
            left.append(
                f"{path} is too large to be rewritten now: unused parts of its pages may hold copies of deleted data;"
                " run VACUUM on it"
            )
        deadline = time.monotonic() + _FOR_READERS
        while await run("PRAGMA wal_checkpoint(TRUNCATE)", _LOCKED_AT_MOST):
            if time.monotonic() >= deadline:
                waits = (
                    f"another program reads an older state of {path}, or writes to it all the time, so {path.name}-wal"
                    " still holds deleted data; call forget again when that program is done"
                )
                logger.warning("%s", waits)
                left.append(waits)
                break
            await asyncio.sleep(_BETWEEN_LOOKS)
        if left:
            self.erase_soon()  # the next writes continue it
        return tuple(left)

    async def _run_alone(self, statement: str, patience: float | None = None) -> Any:
        """Run a statement outside of transactions, in the writing thread, and return its first value."""

        def rewrite_the_file(connection: ThreadConnection, cancelled: object) -> Any:
            return cast(SQLiteConnection, connection).run_alone(statement, patience)

        return await self._run("writer", rewrite_the_file, rewrite_the_file)

    def erase_soon(self) -> None:
        self._erases, self._writes_to_skip = True, 0
        if self._open is not None:
            with suppress(ClosedError):  # closing the last connection erases the log
                self._open.writing.submit(lambda connection, cancelled: None, self._after_write)

    def _after_write(self, connection: ThreadConnection) -> None:
        """Checkpoint the write-ahead log if it is long or contains deleted text."""
        if self._writes_to_skip:
            self._writes_to_skip -= 1
            return
        erases, emptied = self._erases, False
        try:
            if not erases and self._log.stat().st_size < LOG_SIZE:
                self._writes_to_skip = WRITES_BETWEEN_LOOKS
                return
            self._erases = False  # reset it first: the checkpoint may miss rows that are deleted while it runs
            emptied = checkpoint(cast(SQLiteConnection, connection))
        except (sqlite3.Error, OSError) as error:
            if not is_busy(error) and not isinstance(error, FileNotFoundError):
                logger.warning("cannot write a checkpoint: %s", error)
        if not emptied:  # a long reader or writer, or a full disk: try later
            self._erases |= erases
            self._writes_to_skip = WRITES_BETWEEN_LOOKS if self._erases else WRITES_AFTER_FAILURE


# --- in memory ---------------------------------------------------------------------------------------------


class MemoryDatabase(Database):
    """A database without a file. The data lives as long as the object; ``close`` does not delete it.

    Transactions run in the caller's thread, one at a time. Raises StorageError if the tables cannot be created.
    """

    location = "memory"

    def __init__(self, schema: Schema) -> None:
        self._lock = threading.Lock()
        driver = sqlite3.connect(":memory:", isolation_level=None, cached_statements=256, check_same_thread=False)
        self._connection = _MemoryConnection(driver)
        weakref.finalize(self, driver.close)

        async def create_tables(connection: Connection) -> None:
            await schema.ensure(connection, self.location)

        self._run(create_tables)

    async def close(self) -> None:
        """Do nothing: the data lives as long as the object."""

    async def read(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(work, *args, **kwargs)

    async def write(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(work, *args, **kwargs)

    def _run(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with self._lock:
                return run_transaction("BEGIN", lambda connection: work(connection, *args, **kwargs), self._connection)
        except UnicodeEncodeError as error:
            raise InputError(f"cannot {name_of(work)}: {error.object!r} is not valid Unicode") from error
        except sqlite3.Error as error:
            raise StorageError(f"cannot {name_of(work)} in memory: {error}") from error


class _MemoryConnection(SQLiteConnection):
    """A connection with Python's clock, which counts microseconds, and which simulations can replace."""

    def _run(self, sql: str, values: dict[str, Any]) -> sqlite3.Cursor:
        return super()._run(sql.replace("{now}", ":now"), {**values, "now": time.time_ns() // 1000})


# --- files -------------------------------------------------------------------------------------------------


def _open_file(path: Path, busy_timeout: float) -> SQLiteConnection:
    try:
        is_folder, has_folder = path.is_dir(), path.parent.is_dir()
    except OSError as error:
        raise StorageError(f"cannot open {path}: {error.strerror}; choose another path") from error
    if is_folder:
        raise StorageError(f"cannot open {path}: it is a folder; name a file in it, such as {path / 'memory.db'}")
    if not has_folder:
        raise StorageError(
            f"cannot open {path}: the folder {path.parent} does not exist; create it, or choose another path"
        )
    driver = sqlite3.connect(
        path,
        timeout=busy_timeout,
        isolation_level=None,  # the driver begins no transactions by itself
        cached_statements=256,
    )
    try:
        # This setting is stored in the file. SQLite does not wait for a lock here.
        patiently(lambda: driver.execute("PRAGMA journal_mode = WAL"), busy_timeout)
        driver.execute("PRAGMA secure_delete = ON")  # deleted text must not remain in unused pages
        # Commits survive the end of any process. After a power cut the newest commits may be missing, but the file
        # is not corrupted; FULL would wait for the disk at each commit.
        driver.execute("PRAGMA synchronous = NORMAL")
        driver.execute("PRAGMA wal_autocheckpoint = 0")  # see checkpoint()
        return SQLiteConnection(driver, busy_timeout, path)
    except BaseException:
        driver.close()
        raise


def _file_at(path: Path) -> tuple[int, int] | None:
    """Return the device and the inode of a file; None if no file can be reached there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def checkpoint(connection: SQLiteConnection) -> bool:
    """Copy the write-ahead log into the file and empty it. Returns False if others read or write all the time.

    The first pass copies most of the log while other processes may write; the second pass blocks them briefly. A log
    that is never emptied grows without limit.
    """
    connection.run_alone("PRAGMA wal_checkpoint(PASSIVE)", 0)
    for _ in range(10):
        if not connection.run_alone("PRAGMA wal_checkpoint(TRUNCATE)", 0):
            return True
        time.sleep(0.001)
    return False


def _file_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of the file. Raises ConfigError for an in-memory database and for a URL."""
    text = os.fspath(path) if isinstance(cast(object, path), str | os.PathLike) else ""
    if not text or "\0" in text or ":memory:" in text or "://" in text:
        scheme, is_url, _ = text.partition("://")
        given = f"'{scheme}://…'" if is_url else repr(path)  # a URL may hold a password
        raise ConfigError(
            f"SQLite needs the path of a file, such as 'memory.db', not {given}; to keep data in memory, use "
            "InMemoryStorage()"
        )
    return Path(path).expanduser().absolute()


_REMEDIES = {
    "SQLITE_READONLY": "; make the file and the folder {folder} writable, or choose another path",
    "SQLITE_CANTOPEN": "; make the folder {folder} readable and writable, or choose another path; or raise the limit of"
    " open files (ulimit -n)",
    "SQLITE_IOERR": "; check the disk and its limits (quota, ulimit -f), and that no program has removed the -wal file",
    "SQLITE_NOTADB": "; move it away, or choose another path",
    "SQLITE_CORRUPT": "; the file is damaged: restore a copy, or save what is readable with"
    " the command .recover of the sqlite3 shell",
    "SQLITE_FULL": "; free some space on the disk",
}
