"""What both halves of the in-memory storage share: a lock and two clocks."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod

from diarist.storage.records import RowRef


class Locked(ABC):
    """Every method takes the lock once and never waits inside it, so each is atomic in every thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    @abstractmethod
    def _has_row(self, row: RowRef) -> bool:
        """Whether this message is stored; the half that keeps messages knows."""


def now() -> int:
    """Microseconds since 1970, UTC."""
    return time.time_ns() // 1000


def steady() -> int:
    """Microseconds, for what expires: unlike the time of day it never goes back."""
    return time.monotonic_ns() // 1000
