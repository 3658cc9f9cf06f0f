"""Shared state of the two parts of the in-memory storage: a lock and two clocks."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod

from diarist.storage.records import RowRef


class Locked(ABC):
    """Base class with a lock. Every method takes it once and never waits while holding it, so each is atomic."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    @abstractmethod
    def _has_row(self, row: RowRef) -> bool:
        """Return True if this message is stored; implemented by the part that stores messages."""


def now() -> int:
    """Return the time as microseconds since 1970, UTC."""
    return time.time_ns() // 1000


def steady() -> int:
    """Return a monotonic time in microseconds, for expiry."""
    return time.monotonic_ns() // 1000
