"""Storage in this process's memory, as strict as a database: for tests and temporary data."""

from __future__ import annotations

from diarist.storage.base import Storage
from diarist.storage.in_memory.records import InMemoryRecords
from diarist.storage.in_memory.search import InMemorySearch


class InMemoryStorage(InMemoryRecords, InMemorySearch, Storage):
    """Storage in this process's memory. The data lives as long as the object; ``close`` does not delete it.

    Values are encoded as in the SQL back ends, so the same values are rejected or converted. Every method is atomic,
    also between threads and event loops.
    """
