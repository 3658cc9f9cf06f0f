"""Storage in this process's memory: an SQLite database without a file, for tests and temporary data."""

from __future__ import annotations

import sqlite3
import threading
import time
import weakref
from functools import lru_cache

from diarist.databases.base import Connection, Database, P, R, Work, in_sqlite, name_of
from diarist.databases.blocking import run_transaction
from diarist.databases.sqlite import SQLiteConnection
from diarist.exceptions import InputError, StorageError
from diarist.storage.sql.schema import SCHEMA
from diarist.storage.sql.storage import SQLStorage


class InMemoryStorage(SQLStorage):
    """Storage in this process's memory. The data lives as long as the object; ``close`` does not delete it.

    Each method runs in the caller's thread without waiting for anything but the methods of other threads. So methods
    are atomic, also between threads and event loops. Raises StorageError if Python's SQLite has no FTS5.
    """

    def __init__(self) -> None:
        super().__init__(_MemoryDatabase())


class _MemoryDatabase(Database):
    location = "memory"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        driver = sqlite3.connect(":memory:", isolation_level=None, cached_statements=256, check_same_thread=False)
        driver.create_function("now", 0, lambda: time.time_ns() // 1000)
        self._connection = SQLiteConnection(driver, translate=_in_memory)
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


@lru_cache(2048)
def _in_memory(sql: str) -> tuple[str, tuple[str, ...]]:
    """Return the SQL for SQLite with Python's clock: it counts microseconds, and simulations can replace it."""
    return in_sqlite(sql.replace("{now}", "now()"))


async def _create_tables(connection: Connection) -> None:
    await SCHEMA.ensure(connection, _MemoryDatabase.location)
