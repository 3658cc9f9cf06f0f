"""The content of a message in Mastra's tables: format 2 (an object with parts), and the older lists and texts."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any, cast

import orjson

from diarist.messages import (
    DataPart,
    FilePart,
    Json,
    Part,
    ReasoningPart,
    SourcePart,
    TextPart,
    ToolPart,
    ToolState,
)

Note = Callable[[str], None]

_STATES: dict[str, ToolState] = {
    "result": "result",
    "output-available": "result",
    "error": "error",
    "output-error": "error",
    "output-denied": "denied",
}
_NOT_SAID = ("step-start", "step-finish")


def read_content(text: str, note: Note) -> tuple[list[Part], dict[str, Json]]:
    """The parts of a message and its metadata. ``note``: is told what is left out."""
    try:
        value: Json = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = text
    if isinstance(value, list):
        return _parts(cast("list[Json]", value), note), {}
    if not isinstance(value, dict):
        return _text(value if isinstance(value, str) else text), {}
    content = cast("dict[str, Any]", value)
    parts = _parts(content.get("parts") or [], note)
    if not parts:
        inner = content.get("content")
        parts = _parts(cast("list[Json]", inner), note) if isinstance(inner, list) else _text(inner)
    parts += [
        FilePart(media_type=str(file.get("contentType") or "application/octet-stream"), url=str(file["url"]))
        for file in _objects(content.get("experimental_attachments"))
        if file.get("url")
    ]
    metadata = content.get("metadata")
    return parts, cast("dict[str, Json]", metadata) if isinstance(metadata, dict) else {}


def _text(value: Json) -> list[Part]:
    return [TextPart(text=value)] if isinstance(value, str) and value else []


def _parts(values: list[Json], note: Note) -> list[Part]:
    return [part for value in _objects(values) for part in _part(value, note)]


def _objects(values: Json) -> list[dict[str, Any]]:
    found = cast("list[Any]", values) if isinstance(values, list) else []
    return [cast("dict[str, Any]", value) for value in found if isinstance(value, dict)]


def _part(value: dict[str, Any], note: Note) -> Iterator[Part]:
    kind = str(value.get("type"))
    if kind == "text":
        yield from _text(value.get("text"))
    elif kind == "reasoning":
        text = value.get("reasoning") or value.get("text") or _details(value)
        if text:
            yield ReasoningPart(text=str(text))
    elif kind == "tool-invocation":
        yield _tool(value.get("toolInvocation") or {})
    elif kind == "tool-call":
        yield _tool({**value, "state": "call"})
    elif kind == "tool-result":
        yield _tool({**value, "state": "error" if value.get("isError") else "result"})
    elif kind.startswith("tool-") and "toolCallId" in value:
        yield _tool({"toolName": kind.removeprefix("tool-"), **value})
    elif kind in ("file", "image"):
        yield from _file(value, note)
    elif kind in ("source", "source-url"):
        source = value.get("source") or value
        yield SourcePart(
            url=str(source.get("url") or ""),
            title=str(source.get("title") or ""),
            id=str(source.get("id") or source.get("sourceId") or ""),
        )
    elif kind.startswith("data-"):
        if not kind.startswith("data-om-"):  # marks of its observational memory
            yield DataPart(type=kind, data=value.get("data"), id=str(value.get("id") or ""))
    elif kind not in _NOT_SAID:
        note(f"parts of the unknown type {kind!r}, left out")


def _details(value: dict[str, Any]) -> str:
    return "".join(str(item.get("text") or "") for item in _objects(value.get("details")))


def _tool(value: dict[str, Any]) -> ToolPart:
    state = _STATES.get(str(value.get("state")), "call")
    args = value.get("args", value.get("input"))
    result = value.get("result", value.get("output", value.get("errorText"))) if state != "call" else None
    return ToolPart(
        call_id=str(value.get("toolCallId") or ""),
        name=str(value.get("toolName") or ""),
        args=cast("dict[str, Json]", args) if isinstance(args, dict) else {},
        state=state,
        result=result,
    )


def _file(value: dict[str, Any], note: Note) -> Iterator[Part]:
    media_type = str(value.get("mimeType") or value.get("mediaType") or "application/octet-stream")
    data = value.get("data") or value.get("url") or value.get("image")
    name = value.get("filename")
    if isinstance(data, str) and data.startswith(("http://", "https://")):
        yield FilePart(media_type=media_type, url=data, name=name)
        return
    try:
        encoded = str(data).partition(",")[2] if str(data).startswith("data:") else str(data or "")
        yield FilePart(media_type=media_type, data=b64decode(encoded, validate=True), name=name)
    except (binascii.Error, ValueError):
        note("files that could not be read, left out")
