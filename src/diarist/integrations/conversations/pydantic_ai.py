"""Reads histories of Pydantic AI, as written by ``ModelMessagesTypeAdapter`` or ``result.all_messages_json()``.

The form is that of ``pydantic_ai/messages.py`` (https://github.com/pydantic/pydantic-ai): a list of requests and
responses, each with parts that have a ``part_kind``.
"""

from __future__ import annotations

from diarist.exceptions import InputError
from diarist.integrations.conversations.building import Builder, content_key
from diarist.integrations.conversations.content import FILES, ContentReader
from diarist.integrations.conversations.loading import JsonFile, JsonItem, as_list, elements_of, fields_of
from diarist.messages import Json, TextPart, ToolState

_OUTCOMES: dict[str, ToolState] = {"failed": "error", "retried": "error", "denied": "denied", "interrupted": "error"}


def detect(file: JsonFile) -> bool:
    first = fields_of(file.first)
    return first.get("kind") in ("request", "response") and as_list(first.get("parts")) is not None


def build(found: list[JsonItem], builder: Builder) -> str:
    reader = ContentReader(builder, files=FILES)
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
                    _add_request_part(part, f"{key}\0{number}", reader, builder)
            else:
                _add_response(message, values, key, reader, builder)
    return ""


def _add_request_part(part: dict[str, Json], key: str, reader: ContentReader, builder: Builder) -> None:
    kind, moment = part.get("part_kind"), builder.time_of(part)
    if kind == "user-prompt":
        content = part.get("content")
        said = content if isinstance(content, str) else [_block(value) for value in elements_of(content)]
        builder.add("user", reader.parts(said), key=key, created_at=moment)
    elif kind == "system-prompt":
        parts = [TextPart(text=str(part.get("content") or ""))]
        builder.add("system", parts, key=key, created_at=moment)
    elif kind == "tool-return" or (kind == "retry-prompt" and part.get("tool_name")):
        _answer(part, builder)
    else:
        builder.note(f"parts of kind {kind}, left out")


def _add_response(
    message: dict[str, Json], values: list[dict[str, Json]], key: str, reader: ContentReader, builder: Builder
) -> None:
    moment = builder.time_of(message)
    for value in values:
        if value.get("part_kind") == "builtin-tool-return":  # its call stands before it, in the same message
            _answer(value, builder)
            continue
        if parts := reader.parts([_block(value)]):
            builder.append("assistant", parts, key=key, created_at=moment)


def _answer(part: dict[str, Json], builder: Builder) -> None:
    retried = part.get("part_kind") == "retry-prompt"
    state: ToolState = "error" if retried else _OUTCOMES.get(str(part.get("outcome")), "result")
    builder.answer(part.get("tool_call_id"), part.get("tool_name"), part.get("content"), state)


def _block(value: Json) -> Json:
    """Return a part of a message in the form that ``ContentReader`` reads."""
    if isinstance(value, str):
        return value
    part = fields_of(value)
    kind, content = str(part.get("part_kind") or part.get("kind")), part.get("content")
    match kind:
        case "text" | "text-content":
            return {"type": "text", "text": content}
        case "thinking":
            return {"type": "thinking", "thinking": content}
        case "tool-call" | "builtin-tool-call":
            call_id, name = part.get("tool_call_id"), part.get("tool_name")
            return {"type": "tool_use", "id": call_id, "name": name, "input": part.get("args")}
        case "file":
            return {**fields_of(content), "type": "file"}
        case "binary":
            return {**part, "type": "file"}
        case _:
            return {**part, "type": kind.removesuffix("-url")}
