"""Reads the parts of the AI SDK's ``UIMessage``, of its versions 4 to 6. Mastra stores messages in this form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from diarist.data_urls import decode_base64
from diarist.integrations.conversations.loading import elements_of, fields_of
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


def read_parts(values: Json, note: Note) -> list[Part]:
    """Return the parts. ``note``: called for each that is left out."""
    found: list[Part] = []
    for value in elements_of(values):
        if isinstance(value, dict):
            found += _part(cast("dict[str, Any]", value), note)
        elif isinstance(value, str):
            found += text_parts(value)
        else:
            note("parts that are not objects, left out")
    return found


def text_parts(value: Json) -> list[Part]:
    """Return a part with the text; none for an empty text or another value."""
    return [TextPart(text=value)] if isinstance(value, str) and value else []


def objects_of(values: Json) -> list[dict[str, Json]]:
    """Return the JSON objects of an array; an empty list for any other value."""
    return [cast("dict[str, Json]", value) for value in elements_of(values) if isinstance(value, dict)]


def _part(value: dict[str, Any], note: Note) -> Iterator[Part]:
    kind = str(value.get("type"))
    if kind == "text":
        if not isinstance(value.get("text"), str):
            note("parts of the type 'text' without a text, left out")
        yield from text_parts(value.get("text"))
    elif kind == "reasoning":
        details = "".join(str(item.get("text") or "") for item in objects_of(value.get("details")))
        text = value.get("reasoning") or value.get("text") or details
        if text:
            yield ReasoningPart(text=str(text))
    elif kind == "tool-invocation":
        yield read_call(fields_of(value.get("toolInvocation")))
    elif kind == "tool-call":
        yield read_call({**value, "state": "call"})
    elif kind == "tool-result":
        yield read_call({**value, "state": "error" if value.get("isError") else "result"})
    elif kind.startswith(("tool-", "dynamic-tool")) and "toolCallId" in value:
        yield read_call({"toolName": kind.removeprefix("tool-"), **value})
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


def read_attachments(message: dict[str, Any], note: Note) -> list[Part]:
    """Return the files that version 4 keeps beside the parts. ``note``: called for each that cannot be read."""
    return [part for file in objects_of(message.get("experimental_attachments")) for part in _file(file, note)]


def read_call(value: dict[str, Any]) -> ToolPart:
    """Return a call, with its result if there is one."""
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
    named = value.get("mimeType") or value.get("mediaType") or value.get("contentType")
    media_type = str(named or "application/octet-stream")
    data = value.get("data") or value.get("url") or value.get("image")
    name = str(value.get("filename") or value.get("name") or "") or None
    if isinstance(data, str) and data.startswith(("http://", "https://")):
        yield FilePart(media_type=media_type, url=data, name=name)
        return
    text = data if isinstance(data, str) else ""
    decoded = decode_base64(text.partition(",")[2] if text.startswith("data:") else text)
    if decoded:
        yield FilePart(media_type=media_type, data=decoded, name=name)
    else:
        note("unreadable files, left out")
