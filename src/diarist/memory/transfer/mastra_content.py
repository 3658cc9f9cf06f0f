"""Reads message content of Mastra's tables: format 2 (an object with parts), and the older lists and texts."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from diarist.memory.transfer.jsonb import read_json
from diarist.messages import DataPart, FilePart, Json, Part, ReasoningPart, SourcePart, TextPart, ToolPart, ToolState

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
class Content:
    """The content of a message.

    Attributes:
        observed: True if a mark says that the whole message was observed; False if only a part was; None without a
            mark.
    """

    parts: list[Part]
    metadata: dict[str, Json]
    observed: bool | None = None


def read_content(cell: object, note: Note, *, is_json: bool = False) -> Content:
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
        return Content(_parts(cast("list[Json]", value), note), {})
    if not isinstance(value, dict):
        return Content(_text(value if isinstance(value, str) else cell), {})
    content = cast("dict[str, Any]", value)
    metadata = as_object(content.get("metadata"))
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
        contents = as_object(metadata.get("signal")).get("contents")
        if isinstance(contents, dict) and "content" in contents:
            contents = cast("dict[str, Json]", contents)["content"]
        parts = _text(contents) if isinstance(contents, str) else _parts(contents, note)
    observed: bool | None = None
    given = _objects(content.get("parts"))
    kinds = [part.get("type") for part in given]
    if _OBSERVED in kinds:  # the whole message was observed if no content follows the last mark
        end = len(kinds) - kinds[::-1].index(_OBSERVED)
        observed = not _parts(given[end:], lambda _: None)
    return Content(parts, metadata, observed)


def _text(value: Json) -> list[Part]:
    return [TextPart(text=value)] if isinstance(value, str) and value else []


def _parts(values: Json, note: Note) -> list[Part]:
    found: list[Part] = []
    for value in cast("list[Json]", values) if isinstance(values, list) else []:
        if isinstance(value, dict):
            found += _part(cast("dict[str, Any]", value), note)
        elif isinstance(value, str):
            found += _text(value)
        else:
            note("parts that are not objects, left out")
    return found


def _objects(values: Json) -> list[dict[str, Any]]:
    found = cast("list[Any]", values) if isinstance(values, list) else []
    return [cast("dict[str, Any]", value) for value in found if isinstance(value, dict)]


def as_object(value: Json) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


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
        yield _tool(as_object(value.get("toolInvocation")))
    elif kind == "tool-call":
        yield _tool({**value, "state": "call"})
    elif kind == "tool-result":
        yield _tool({**value, "state": "error" if value.get("isError") else "result"})
    elif kind.startswith("tool-") and "toolCallId" in value:
        yield _tool({"toolName": kind.removeprefix("tool-"), **value})
    elif kind in ("file", "image"):
        yield from _file(value, note)
    elif kind in ("source", "source-url", "source-document"):
        source = as_object(value.get("source")) or value
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
    try:
        if not isinstance(data, str):
            raise ValueError("no data")
        encoded = data.partition(",")[2] if data.startswith("data:") else data
        yield FilePart(media_type=media_type, data=b64decode(encoded, validate=True), name=name)
    except (binascii.Error, ValueError):
        note("unreadable files, left out")
