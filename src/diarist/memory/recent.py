"""What is made once per model, and dropped when many others have come since."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MOST = 64


class Recent(Generic[K, V]):
    """Keeps the newest 64 values: a program that makes an agent per request makes a model each time, and would keep
    them all alive."""

    def __init__(self) -> None:
        self._values: dict[K, V] = {}

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value of the key, made if need be."""
        value = self._values.pop(key, None)
        if value is None:
            value = make()
        self._values[key] = value
        while len(self._values) > _MOST:
            del self._values[next(iter(self._values))]
        return value
