"""Reads histories of LangChain and LangGraph.

A message is ``{type, data}`` as written by ``messages_to_dict`` (and by chat histories in files and databases), a
constructor ``{lc, id, kwargs}`` as written by ``dumpd``, or the fields of ``model_dump``; in a list, in JSON lines, or
under ``messages`` of a graph's state. (``langchain_core/messages`` and ``langchain_core/load/dump.py`` of
https://github.com/langchain-ai/langchain.)
"""

from __future__ import annotations

from typing import NamedTuple

from diarist.exceptions import InputError
from diarist.integrations.conversations.building import Builder, content_key
from diarist.integrations.conversations.content import ContentReader
from diarist.integrations.conversations.loading import (
    JsonFile,
    JsonItem,
    as_list,
    as_object,
    elements_of,
    fields_of,
    numbered,
)
from diarist.integrations.conversations.openai import add_message
from diarist.messages import Json

_KINDS = ("human", "ai", "system", "tool", "function", "chat")
CALL_BLOCKS = ("tool_use", "tool_call", "function_call", "custom_tool_call", "input_json_delta", "tool_call_chunk")
"""Types of content blocks that repeat the calls of ``tool_calls``."""


class _Message(NamedTuple):
    kind: str
    fields: dict[str, Json]


def detect(file: JsonFile) -> bool:
    first = fields_of(file.first)
    messages = as_list(first.get("messages"))
    return _read(messages[0] if messages else file.first) is not None


def split(file: JsonFile) -> list[list[JsonItem]]:
    if "messages" not in fields_of(file.first):
        return [file.items] if file.items else []
    return [numbered(elements_of(fields_of(item.value).get("messages"))) for item in file.items]


def build(found: list[JsonItem], builder: Builder) -> str:
    reader = ContentReader(builder)
    for position, item in enumerate(found):
        with builder.reading(item.where):
            message = _read(item.value)
            if message is None:
                raise InputError(f"not a message of LangChain; known types: {', '.join(_KINDS)}")
            _add(message, content_key(position, item.value), reader, builder)
    return ""


def _add(message: _Message, key: str, reader: ContentReader, builder: Builder) -> None:
    kind, fields = message
    more = fields_of(fields.get("additional_kwargs"))
    # Older histories have the calls in OpenAI's form.
    calls = as_list(fields.get("tool_calls")) or elements_of(more.get("tool_calls"))
    calls = [*calls, *elements_of(fields.get("invalid_tool_calls"))]
    legacy = None if calls else more.get("function_call")
    content = fields.get("content")
    if (calls or legacy) and (blocks := as_list(content)) is not None:
        content = [block for block in blocks if fields_of(block).get("type") not in CALL_BLOCKS]
    value = {
        **fields,
        "role": fields.get("role") if kind == "chat" else kind,
        "content": content,
        "tool_calls": calls,
        "function_call": legacy,
    }
    add_message(value, reader, builder, key=key, created_at=builder.time_of(more))


def _read(value: Json) -> _Message | None:
    """Return the kind and the fields of a message in one of the forms, or None."""
    found = fields_of(value)
    kind, fields = found.get("type"), found
    if kind == "constructor" and (path := as_list(found.get("id"))):
        kind, fields = str(path[-1]).removesuffix("Chunk").removesuffix("Message").lower(), found.get("kwargs")
    elif "data" in found:
        fields = found["data"]
    elif "content" not in found or "role" in found:
        return None
    fields = as_object(fields)
    kind = kind.removesuffix("MessageChunk").lower() if isinstance(kind, str) else ""
    return _Message(kind, fields) if kind in _KINDS and fields is not None else None
