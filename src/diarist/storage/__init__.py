"""Storage of threads, messages, runs, resources, working memories, observation logs, leases and events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diarist.lazy import lazy_names
from diarist.storage.base import SearchStorage, Storage
from diarist.storage.records import (
    Event,
    Failures,
    Forgotten,
    Hints,
    Hit,
    Lease,
    MessageSource,
    NewEvent,
    Observation,
    ObservationLog,
    Page,
    PendingReflection,
    Replaced,
    Resource,
    RowRef,
    Run,
    RunState,
    Scope,
    Source,
    Thread,
    Tombstone,
    WorkingMemory,
    WorkingMemoryUpdate,
)

if TYPE_CHECKING:
    from diarist.storage.libsql import LibSQLStorage as LibSQLStorage
    from diarist.storage.mongodb import MongoDBStorage as MongoDBStorage
    from diarist.storage.postgres import PostgresStorage as PostgresStorage
    from diarist.storage.sqlite import InMemoryStorage, SQLiteStorage

__all__ = [
    "Event",
    "Failures",
    "Forgotten",
    "Hints",
    "Hit",
    "InMemoryStorage",
    "Lease",
    "MessageSource",
    "NewEvent",
    "Observation",
    "ObservationLog",
    "Page",
    "PendingReflection",
    "Replaced",
    "Resource",
    "RowRef",
    "Run",
    "RunState",
    "SQLiteStorage",
    "Scope",
    "SearchStorage",
    "Source",
    "Storage",
    "Thread",
    "Tombstone",
    "WorkingMemory",
    "WorkingMemoryUpdate",
]


if not TYPE_CHECKING:  # type checkers would otherwise accept any name
    # Database drivers import slowly, and some are extras.
    __getattr__, __dir__ = lazy_names(
        __name__,
        __all__,
        {
            "libsql": "LibSQLStorage",
            "mongodb": "MongoDBStorage",
            "postgres": "PostgresStorage",
            "sqlite": "InMemoryStorage SQLiteStorage",
        },
    )
