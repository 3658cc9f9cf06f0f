"""Reads message content of Mastra's tables: format 2 (an object with parts), and the older lists and texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from diarist.data_urls import decode_base64
from diarist.integrations.conversations.loading import elements_of, fields_of, parse
from diarist.messages import DataPart, FilePart, Json, Part, ReasoningPart, SourcePart, TextPart, ToolPart, ToolState


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


Note = Callable[[str], None]

_STATES: dict[str, ToolState] = {
    "result": "result",
    "output-available": "result",
    "error": "error",
    "output-error": "error",
    "output-denied": "denied",
}
_NOT_SAID = ("step-start", "step-finish")
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
        return MastraContent(_parts(cast("list[Json]", value), note), {})
    if not isinstance(value, dict):
        return MastraContent(_text(value if isinstance(value, str) else cell), {})
    content = cast("dict[str, Any]", value)
    metadata = fields_of(content.get("metadata"))
    parts = _parts(content.get("parts"), note)
    if not parts:
        inner = content.get("content")
        parts = _parts(cast("list[Json]", inner), note) if isinstance(inner, list) else _text(inner)
    if not any(isinstance(part, ToolPart) for part in parts):
        parts += [_tool(call) for call in _objects(content.get("toolInvocations"))]
    if not any(isinstance(part, ReasoningPart) for part in parts) and isinstance(content.get("reasoning"), str):
        parts[:0] = [ReasoningPart(text=content["reasoning"])] if content["reasoning"] else []
    parts += [
        FilePart(media_type=str(file.get("contentType") or "application/octet-stream"), url=str(file["url"]))
        for file in _objects(content.get("experimental_attachments"))
        if file.get("url")
    ]
    if not parts:  # early versions stored the content of a signal in the metadata
        contents = fields_of(metadata.get("signal")).get("contents")
        if isinstance(contents, dict) and "content" in contents:
            contents = cast("dict[str, Json]", contents)["content"]
        parts = _text(contents) if isinstance(contents, str) else _parts(contents, note)
    observed: bool | None = None
    given = _objects(content.get("parts"))
    kinds = [part.get("type") for part in given]
    if _OBSERVED in kinds:  # the whole message was observed if no content follows the last mark
        end = len(kinds) - kinds[::-1].index(_OBSERVED)
        observed = not _parts(given[end:], lambda _: None)
    return MastraContent(parts, metadata, observed)


def _text(value: Json) -> list[Part]:
    return [TextPart(text=value)] if isinstance(value, str) and value else []


def _parts(values: Json, note: Note) -> list[Part]:
    found: list[Part] = []
    for value in elements_of(values):
        if isinstance(value, dict):
            found += _part(cast("dict[str, Any]", value), note)
        elif isinstance(value, str):
            found += _text(value)
        else:
            note("parts that are not objects, left out")
    return found


def _objects(values: Json) -> list[dict[str, Json]]:
    return [cast("dict[str, Json]", value) for value in elements_of(values) if isinstance(value, dict)]


def _part(value: dict[str, Any], note: Note) -> Iterator[Part]:
    kind = str(value.get("type"))
    if kind == "text":
        if not isinstance(value.get("text"), str):
            note("parts of the type 'text' without a text, left out")
        yield from _text(value.get("text"))
    elif kind == "reasoning":
        details = "".join(str(item.get("text") or "") for item in _objects(value.get("details")))
        text = value.get("reasoning") or value.get("text") or details
        if text:
            yield ReasoningPart(text=str(text))
    elif kind == "tool-invocation":
        yield _tool(fields_of(value.get("toolInvocation")))
    elif kind == "tool-call":
        yield _tool({**value, "state": "call"})
    elif kind == "tool-result":
        yield _tool({**value, "state": "error" if value.get("isError") else "result"})
    elif kind.startswith("tool-") and "toolCallId" in value:
        yield _tool({"toolName": kind.removeprefix("tool-"), **value})
    elif kind in ("file", "image"):
        yield from _file(value, note)
    elif kind in ("source", "source-url", "source-document"):
        source = fields_of(value.get("source")) or value
        yield SourcePart(
            url=str(source.get("url") or ""),
            title=str(source.get("title") or source.get("filename") or ""),
            id=str(source.get("id") or source.get("sourceId") or ""),
        )
    elif kind.startswith("data-"):
        if not kind.startswith("data-om-"):  # marks of Mastra's observational memory
            yield DataPart(type=kind, data=value.get("data"), id=str(value.get("id") or ""))
    elif kind not in _NOT_SAID:
        note(f"parts of the unknown type {kind!r}, left out")


def _tool(value: dict[str, Any]) -> ToolPart:
    state = _STATES.get(str(value.get("state")), "call")
    args = value.get("args", value.get("input", value.get("rawInput")))
    result = value.get("result", value.get("output", value.get("errorText"))) if state != "call" else None
    return ToolPart(
        call_id=str(value.get("toolCallId") or ""),
        name=str(value.get("toolName") or ""),
        args=cast("dict[str, Json]", args) if isinstance(args, dict) else {"arguments": args} if args else {},
        state=state,
        result=result,
    )


def _file(value: dict[str, Any], note: Note) -> Iterator[Part]:
    media_type = str(value.get("mimeType") or value.get("mediaType") or "application/octet-stream")
    data = value.get("data") or value.get("url") or value.get("image")
    name = str(value["filename"]) if value.get("filename") else None
    if isinstance(data, str) and data.startswith(("http://", "https://")):
        yield FilePart(media_type=media_type, url=data, name=name)
        return
    text = data if isinstance(data, str) else ""
    decoded = decode_base64(text.partition(",")[2] if text.startswith("data:") else text)
    if decoded:
        yield FilePart(media_type=media_type, data=decoded, name=name)
    else:
        note("unreadable files, left out")
