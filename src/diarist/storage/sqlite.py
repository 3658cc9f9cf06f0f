"""Storage in SQLite: in a file, or in memory."""

from __future__ import annotations

import os

from diarist.databases.sqlite import MemoryDatabase, SQLiteDatabase
from diarist.storage.sql.schema import SCHEMA
from diarist.storage.sql.storage import SQLStorage


class SQLiteStorage(SQLStorage):
    """Storage in one SQLite file, which any number of processes on one machine may share.

    Args:
        path: The file, relative to the current working directory; created if it is missing, but its folder must
            exist. While the file is in use, SQLite keeps ``-wal`` and ``-shm`` files next to it.
        busy_timeout: Seconds to wait while another process writes, before StorageError.

    Raises ConfigError for ``":memory:"`` and for URLs. Completed writes survive the end of the process, ``kill -9``
    included. After a power cut the newest writes may be missing, but the file is not corrupted.
    """

    def __init__(self, path: str | os.PathLike[str] = "memory.db", *, busy_timeout: float = 30.0) -> None:
        super().__init__(SQLiteDatabase(path, SCHEMA, busy_timeout=busy_timeout))


class InMemoryStorage(SQLStorage):
    """Storage in this process's memory, for tests and temporary data: an SQLite database without a file.

    The data lives as long as the object; ``close`` does not delete it.

    Each method runs in the caller's thread, one at a time. So methods are atomic, also between threads and event loops.
    Raises StorageError if Python's SQLite has no FTS5.
    """

    def __init__(self) -> None:
        super().__init__(MemoryDatabase(SCHEMA))
