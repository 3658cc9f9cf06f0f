"""Writes SQLite's binary JSON, in every way that its description allows for plain JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Choose = Callable[[int], int]
"""Picks one of so many ways, counted from 0."""


def to_jsonb(value: Any, choose: Choose = lambda ways: 0) -> bytes:
    match value:
        case None | True | False:
            return _element({None: 0, True: 1, False: 2}[value], b"", choose)
        case int():
            return _element(3, str(value).encode(), choose)
        case float():
            return _element(5, repr(value).encode(), choose)
        case str():
            kind, text = _texts(value)[choose(len(_texts(value)))]
            return _element(kind, text.encode(), choose)
        case list():
            return _element(11, b"".join(to_jsonb(item, choose) for item in value), choose)
        case dict():
            pairs = b"".join(to_jsonb(key, choose) + to_jsonb(item, choose) for key, item in value.items())
            return _element(12, pairs, choose)
        case _:
            raise TypeError(value)


def _texts(value: str) -> list[tuple[int, str]]:
    """Raw; with the escapes of JSON; and as plain text, where nothing needs an escape."""
    escaped = json.dumps(value)[1:-1]
    plain = [(7, value)] if escaped == value else []
    return [(10, value), (8, escaped), *plain]


def _element(kind: int, payload: bytes, choose: Choose) -> bytes:
    """With the shortest header, or a longer one."""
    size = len(payload)
    headers = [bytes([kind | size << 4])] if size < 12 else []
    headers += [
        bytes([kind | (12 + power) << 4]) + size.to_bytes(1 << power) for power in range(4) if size < 1 << (8 << power)
    ]
    return headers[choose(len(headers))] + payload
