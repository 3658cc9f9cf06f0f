"""Caches with a limit in bytes, since long and short texts need very different amounts of memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from functools import wraps
from sys import getsizeof
from typing import Any, Generic, ParamSpec, TypeVar, cast

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
P = ParamSpec("P")

_ENTRY_BYTES = 300
"""Bytes of an entry in addition to its key and value: its slot in the dictionary, tuples, numbers and links."""


class ByteCache(Generic[K, V]):
    """A cache that evicts the least recently used values above a limit in bytes. Thread-safe.

    Values of more than ``largest`` bytes are not kept, since they would evict the others.

    Args:
        most: Limit of all values together, in bytes.
        largest: Limit of one value; an eighth of ``most`` by default. If it is higher than ``most``, a value above
            ``most`` is kept as the only one.
    """

    def __init__(self, most: int, *, largest: int | None = None) -> None:
        self._most = most
        self._largest = most // 8 if largest is None else largest
        self._lock = threading.Lock()
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes of all kept values."""
        return self._size

    def get(self, key: K) -> V | None:
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value of about ``size`` bytes. It replaces the key's previous value."""
        with self._lock:
            self._drop(key)
            if size > self._largest:
                return
            self._values[key] = value, size
            self._size += size
            while self._size > self._most and len(self._values) > 1:
                self._drop(next(iter(self._values)))

    def drop(self, key: K) -> None:
        """Remove a key."""
        with self._lock:
            self._drop(key)

    def clear(self) -> None:
        """Remove all keys."""
        with self._lock:
            self._values.clear()
            self._size = 0

    def _drop(self, key: K) -> None:
        found = self._values.pop(key, None)
        if found is not None:
            self._size -= found[1]


def cached(
    most: int, *, largest: int | None = None, size: Callable[P, int] | None = None
) -> Callable[[Callable[P, V]], Callable[P, V]]:
    """Cache a function's results by its positional arguments, in at most ``most`` bytes.

    The function must not return None.

    Args:
        largest: As for ``ByteCache``.
        size: Estimates the bytes of arguments and result from the arguments. Default: they are measured by ``size_of``,
            which is slow for results of many parts.
    """

    def decorate(function: Callable[P, V]) -> Callable[P, V]:
        cache: ByteCache[Any, V] = ByteCache(most, largest=largest)

        @wraps(function)
        def remembered(*args: P.args, **kwargs: P.kwargs) -> V:
            if kwargs:
                return function(*args, **kwargs)
            found = cache.get(args)
            if found is None:
                found = function(*args, **kwargs)
                taken = size_of(args, found) if size is None else size(*args, **kwargs)
                cache.put(args, found, _ENTRY_BYTES + taken)
            return found

        return remembered

    return decorate


def size_of(*values: object) -> int:
    """Return the size of values in memory, in bytes, including their parts; shared parts count once."""
    todo, seen, size = list[object](values), set[int](), 0
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        size += getsizeof(item)
        if isinstance(item, dict):
            both = cast("dict[object, object]", item)
            todo += both.keys()
            todo += both.values()
        elif isinstance(item, tuple | list | set | frozenset):
            todo += cast("list[object]", item)
        elif is_dataclass(item):
            todo += [getattr(item, field.name) for field in fields(item)]
    return size
