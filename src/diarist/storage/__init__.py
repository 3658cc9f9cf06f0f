"""Storage of threads, messages, runs, resources, working memories, observation logs, leases and events."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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


_BACK_ENDS = {
    "InMemoryStorage": "sqlite",
    "LibSQLStorage": "libsql",
    "MongoDBStorage": "mongodb",
    "PostgresStorage": "postgres",
    "SQLiteStorage": "sqlite",
}


def __getattr__(name: str) -> Any:
    """Import a back end at first use, since database drivers import slowly, and some are extras."""
    if name in _BACK_ENDS:
        return getattr(import_module(f"diarist.storage.{_BACK_ENDS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, without loading them."""
    return sorted({*__all__, *_BACK_ENDS})
