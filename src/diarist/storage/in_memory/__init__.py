"""Storage in this process's memory, as strict as a database: for tests and for what need not last."""

from __future__ import annotations

from diarist.storage.base import Storage
from diarist.storage.in_memory.records import InMemoryRecords
from diarist.storage.in_memory.search import InMemorySearch


class InMemoryStorage(InMemoryRecords, InMemorySearch, Storage):
    """Kept until this object goes, whatever ``close`` does.

    Values are written down as the SQL back ends write them, so what a file would refuse or change is refused
    or changed here as well. Every method is atomic, also between threads and event loops.
    """
