"""Storage in one SQLite file."""

from __future__ import annotations

import os

from diarist.sqlite_database import SQLiteDatabase
from diarist.storage.sql.storage import SQLStorage
from diarist.storage.sql.versions import SCHEMA


class SQLiteStorage(SQLStorage):
    """Everything in one file that any number of processes on one machine may share.

    Args:
        path: The file, relative to the working directory at this moment; created when it is missing, its
            folder must exist. Beside it SQLite keeps ``-wal`` and ``-shm`` files while it is in use.
        busy_timeout: Seconds to wait while another process writes, before StorageError.

    Raises ConfigError for ``":memory:"``. What a call has returned survives the end of the process, by
    ``kill -9`` too; after a power cut the newest writes may be missing, the file stays whole.
    """

    def __init__(self, path: str | os.PathLike[str] = "memory.db", *, busy_timeout: float = 30.0) -> None:
        super().__init__(SQLiteDatabase(path, SCHEMA, busy_timeout=busy_timeout))
