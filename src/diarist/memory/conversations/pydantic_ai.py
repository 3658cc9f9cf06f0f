"""Reads histories of Pydantic AI, as written by ``ModelMessagesTypeAdapter`` or ``result.all_messages_json()``.

The form is that of ``pydantic_ai/messages.py`` (https://github.com/pydantic/pydantic-ai): a list of requests and
responses, each with parts that have a ``part_kind``.
"""

from __future__ import annotations

from diarist.exceptions import InputError
from diarist.memory.conversations.building import Builder, content_key
from diarist.memory.conversations.content import decode_base64
from diarist.memory.conversations.loading import JsonFile, JsonItem, as_list, fields_of
from diarist.messages import FilePart, Json, Message, Part, ReasoningPart, TextPart, ToolState

_OUTCOMES: dict[str, ToolState] = {"failed": "error", "retried": "error", "denied": "denied", "interrupted": "error"}


def detect(file: JsonFile) -> bool:
    first = fields_of(file.first)
    return first.get("kind") in ("request", "response") and as_list(first.get("parts")) is not None


def build(found: list[JsonItem], builder: Builder) -> str:
    for position, item in enumerate(found):
        with builder.reading(item.where):
            message = fields_of(item.value)
            parts = as_list(message.get("parts"))
            if message.get("kind") not in ("request", "response") or parts is None:
                raise InputError("a message must have the kind request or response, and parts")
            key = content_key(position, item.value)
            builder.conversation_id = builder.conversation_id or str(message.get("conversation_id") or "")
            values = [fields_of(part) for part in parts]
            if message["kind"] == "request":
                for number, part in enumerate(values):
                    _add_request_part(part, f"{key}\0{number}", builder)
            else:
                _add_response(message, values, key, builder)
    return ""


def _add_request_part(part: dict[str, Json], key: str, builder: Builder) -> None:
    kind, moment = part.get("part_kind"), builder.time_of(part)
    if kind == "user-prompt":
        builder.add("user", _said(part.get("content"), builder), key=key, created_at=moment)
    elif kind == "system-prompt":
        parts = [TextPart(text=str(part.get("content") or ""))]
        builder.add("system", parts, key=key, created_at=moment)
    elif kind == "tool-return" or (kind == "retry-prompt" and part.get("tool_name")):
        _answer(part, builder)
    else:
        builder.note(f"parts of kind {kind}, left out")


def _add_response(message: dict[str, Json], values: list[dict[str, Json]], key: str, builder: Builder) -> None:
    added: Message | None = None
    for value in values:
        if value.get("part_kind") == "builtin-tool-return":  # its call stands before it, in the same message
            _answer(value, builder)
            continue
        part = _part(value, builder)
        if part is None:
            builder.note(f"parts of kind {value.get('part_kind')}, left out")
        elif added is not None:
            builder.extend(added, [part])
        else:
            moment = builder.time_of(message)
            added = builder.add("assistant", [part], key=key, created_at=moment)


def _part(value: dict[str, Json], builder: Builder) -> Part | None:
    kind, text = value.get("part_kind"), value.get("content")
    if kind in ("tool-call", "builtin-tool-call"):
        return builder.call(value.get("tool_call_id"), value.get("tool_name"), value.get("args"))
    if kind == "file":
        return _file(fields_of(text))
    if not isinstance(text, str) or not text.strip():
        return None
    if kind == "thinking":
        return ReasoningPart(text=text)
    return TextPart(text=text) if kind == "text" else None


def _answer(part: dict[str, Json], builder: Builder) -> None:
    retried = part.get("part_kind") == "retry-prompt"
    state: ToolState = "error" if retried else _OUTCOMES.get(str(part.get("outcome")), "result")
    builder.answer(part.get("tool_call_id"), part.get("tool_name"), part.get("content"), state)


def _said(content: Json, builder: Builder) -> list[Part]:
    """Return the parts of a user prompt: a text, or a list of texts, URLs and bytes."""
    values = as_list(content)
    parts: list[Part] = []
    for value in [content] if values is None else values:
        block = {"kind": "text-content", "content": value} if isinstance(value, str) else fields_of(value)
        kind = block.get("kind")
        if kind == "cache-point":
            continue
        if kind == "text-content" and isinstance(block.get("content"), str):
            parts += [TextPart(text=block["content"])] if block["content"].strip() else []
        elif (file := _file(block)) is not None:
            parts.append(file)
        else:
            builder.note(f"parts of kind {kind}, kept as a placeholder")
            parts.append(TextPart(text=f"[{kind}]"))
    return parts


def _file(block: dict[str, Json]) -> FilePart | None:
    kind = str(block.get("kind"))
    media_type = str(block.get("media_type") or f"{kind.removesuffix('-url')}/*")
    if kind.endswith("-url") and isinstance(block.get("url"), str) and block["url"]:
        return FilePart(media_type=media_type, url=block["url"])
    data = decode_base64(block.get("data"))
    return None if data is None else FilePart(media_type=media_type, data=data)
