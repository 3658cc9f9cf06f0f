"""Storage in this process's memory: an SQLite database without a file, for tests and temporary data."""

from __future__ import annotations

from diarist.databases.sqlite import MemoryDatabase
from diarist.storage.sql.schema import SCHEMA
from diarist.storage.sql.storage import SQLStorage


class InMemoryStorage(SQLStorage):
    """Storage in this process's memory. The data lives as long as the object; ``close`` does not delete it.

    Each method runs in the caller's thread, one at a time. So methods are atomic, also between threads and event loops.
    Raises StorageError if Python's SQLite has no FTS5.
    """

    def __init__(self) -> None:
        super().__init__(MemoryDatabase(SCHEMA))
