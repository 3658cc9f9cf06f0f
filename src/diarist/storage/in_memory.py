"""Storage in this process's memory: an SQLite database without a file, for tests and temporary data."""

from __future__ import annotations

import sqlite3
import threading
import time
import weakref
from typing import Any

from diarist.databases.base import Connection, Database, P, R, Work, name_of
from diarist.databases.blocking import run_transaction
from diarist.databases.sqlite import SQLiteConnection
from diarist.exceptions import InputError, StorageError
from diarist.storage.sql.schema import SCHEMA
from diarist.storage.sql.storage import SQLStorage


class InMemoryStorage(SQLStorage):
    """Storage in this process's memory. The data lives as long as the object; ``close`` does not delete it.

    Each method runs in the caller's thread, one at a time. So methods are atomic, also between threads and event loops.
    Raises StorageError if Python's SQLite has no FTS5.
    """

    def __init__(self) -> None:
        super().__init__(_MemoryDatabase())


class _MemoryDatabase(Database):
    location = "memory"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        driver = sqlite3.connect(":memory:", isolation_level=None, cached_statements=256, check_same_thread=False)
        self._connection = _MemoryConnection(driver)
        weakref.finalize(self, driver.close)
        self._run(_create_tables)

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


async def _create_tables(connection: Connection) -> None:
    await SCHEMA.ensure(connection, _MemoryDatabase.location)
