"""Reads SQLite's binary JSON (https://sqlite.org/jsonb.html) without SQLite, which supports it from 3.45 on.

An element starts with a byte: its kind in the lower four bits, its size in the upper four. A size of 12 to 15 means
that the size follows in 1, 2, 4 or 8 bytes. Numbers and texts are written as in JSON. JSON5 is rejected: JavaScript
writes none.
"""

from __future__ import annotations

import json
from typing import cast

import orjson

from diarist.messages import Json


def read_json(cell: object) -> Json:
    """Parse a JSON column, in text or binary form. Raises ValueError."""
    if isinstance(cell, bytes):
        try:
            return read_jsonb(cell)
        except ValueError:
            cell = cell.decode()
    if not isinstance(cell, str):
        return cell
    try:
        return orjson.loads(cell)
    except orjson.JSONDecodeError:
        try:
            return json.loads(cell)  # accepts lone surrogates, which JavaScript writes into truncated texts
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


def read_jsonb(data: bytes) -> Json:
    """Parse binary JSON. Raises ValueError for other bytes."""
    try:
        value, end = _element(data, 0, len(data))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes after the value")
    return value


def _element(data: bytes, at: int, end: int) -> tuple[Json, int]:
    """Return the element at an offset, and the offset after it."""
    if at >= end:
        raise ValueError("cut off")
    kind, size = data[at] & 15, data[at] >> 4
    at += 1
    if size > 11:
        width = 1 << (size - 12)
        size = int.from_bytes(data[at : at + width])
        at += width
    stop = at + size
    if stop > end:
        raise ValueError("cut off")
    if kind not in (11, 12):
        return _single(kind, data[at:stop]), stop
    items: list[Json] = []
    while at < stop:
        item, at = _element(data, at, stop)
        items.append(item)
    if kind == 11:
        return items, stop
    keys, values = items[::2], items[1::2]
    if len(keys) != len(values) or not all(isinstance(key, str) for key in keys):
        raise ValueError("an object must consist of pairs of a text and a value")
    return dict(zip(cast("list[str]", keys), values, strict=True)), stop


def _single(kind: int, payload: bytes) -> Json:
    match kind:
        case 0 | 1 | 2:
            return (None, True, False)[kind]
        case 3:
            return int(payload)
        case 5:
            return float(payload)
        case 7 | 10:  # without escapes
            return payload.decode()
        case 8:  # with escapes
            return json.loads(f'"{payload.decode()}"')
        case _:
            raise ValueError(f"unknown kind {kind}")
