"""Reads message content of Mastra's tables: format 2 (an object with parts), and the older lists and texts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

from diarist.integrations.conversations.loading import fields_of, parse
from diarist.integrations.conversations.ui_parts import (
    Note,
    objects_of,
    read_attachments,
    read_call,
    read_parts,
    text_parts,
)
from diarist.messages import Json, Part, ReasoningPart, ToolPart


def read_json(cell: object) -> Json:
    """Parse a JSON column, in text or binary form. Raises ValueError."""
    if isinstance(cell, bytes):
        try:
            return read_jsonb(cell)
        except ValueError:
            cell = cell.decode()
    return parse(cell) if isinstance(cell, str) else cell


def read_jsonb(data: bytes) -> Json:
    """Parse SQLite's binary JSON (https://sqlite.org/jsonb.html), which SQLite itself reads from 3.45 on.

    An element starts with a byte: its kind in the lower four bits, its size in the upper four. A size of 12 to 15 means
    that the size follows in 1, 2, 4 or 8 bytes. Numbers and texts are written as in JSON. JSON5 is rejected: JavaScript
    writes none. Raises ValueError for other bytes.
    """
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


_OBSERVED = "data-om-observation-end"


@dataclass(frozen=True, slots=True)
class MastraContent:
    """The content of a message.

    Attributes:
        observed: True if a mark says that the whole message was observed; False if only a part was; None without a
            mark.
    """

    parts: list[Part]
    metadata: dict[str, Json]
    observed: bool | None = None


def read_content(cell: object, note: Note, *, is_json: bool = False) -> MastraContent:
    """Parse the column ``content``.

    Args:
        note: Called for content that is left out.
        is_json: True: call ``note`` if the content is not JSON. False for older messages, which may be plain text.
    """
    try:
        value = read_json(cell)
    except ValueError:
        value = cell.decode(errors="replace") if isinstance(cell, bytes) else cell
        if is_json:
            note("contents that are not JSON, imported as text")
    if isinstance(value, list):
        return MastraContent(read_parts(cast("list[Json]", value), note), {})
    if not isinstance(value, dict):
        return MastraContent(text_parts(value if isinstance(value, str) else cell), {})
    content = cast("dict[str, Any]", value)
    metadata = fields_of(content.get("metadata"))
    parts = read_parts(content.get("parts"), note)
    if not parts:
        inner = content.get("content")
        parts = read_parts(cast("list[Json]", inner), note) if isinstance(inner, list) else text_parts(inner)
    if not any(isinstance(part, ToolPart) for part in parts):
        parts += [read_call(call) for call in objects_of(content.get("toolInvocations"))]
    if not any(isinstance(part, ReasoningPart) for part in parts) and isinstance(content.get("reasoning"), str):
        parts[:0] = [ReasoningPart(text=content["reasoning"])] if content["reasoning"] else []
    parts += read_attachments(content, note)
    if not parts:  # early versions stored the content of a signal in the metadata
        contents = fields_of(metadata.get("signal")).get("contents")
        if isinstance(contents, dict) and "content" in contents:
            contents = cast("dict[str, Json]", contents)["content"]
        parts = text_parts(contents) if isinstance(contents, str) else read_parts(contents, note)
    observed: bool | None = None
    given = objects_of(content.get("parts"))
    kinds = [part.get("type") for part in given]
    if _OBSERVED in kinds:  # the whole message was observed if no content follows the last mark
        end = len(kinds) - kinds[::-1].index(_OBSERVED)
        observed = not read_parts(given[end:], lambda _: None)
    return MastraContent(parts, metadata, observed)
