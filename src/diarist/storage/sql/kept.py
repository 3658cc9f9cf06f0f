"""What was read last, kept until there is too much of it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

V = TypeVar("V")


class Kept(Generic[V]):
    """Values by their keys, at most so many characters; what was not asked for for the longest time goes first.

    Several threads may share it. A value that needs more than an eighth of the room is not kept: it would displace the
    others.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._values: OrderedDict[str, tuple[V, int]] = OrderedDict()
        self._size = 0

    def get(self, key: str) -> V | None:
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: str, value: V, size: int) -> None:
        with self._lock:
            self._drop(key)
            if size > self._most // 8:
                return
            self._values[key] = value, size
            self._size += size
            while self._size > self._most:
                self._drop(next(iter(self._values)))

    def drop(self, key: str) -> None:
        """Keep nothing of this key: something of it was removed."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: str) -> None:
        found = self._values.pop(key, None)
        if found is not None:
            self._size -= found[1]
