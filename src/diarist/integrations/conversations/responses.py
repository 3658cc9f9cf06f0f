"""Reads items of OpenAI's Responses API: messages, reasoning, calls and their outputs.

The items stand in a list, as in ``to_input_list()`` and the sessions of OpenAI's Agents SDK, or under ``input``,
``output``, ``data`` or ``items`` of an object. The form is that of the API reference
(https://platform.openai.com/docs/api-reference/responses).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from diarist.exceptions import InputError
from diarist.integrations.conversations.building import Builder, content_key, read_role
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
from diarist.messages import Json, Part, ReasoningPart, Role, ToolPart

_LISTS = ("input", "output", "data", "items")
# Calls with their output in an item of its own. The provider runs the others, and reports their results with the call.
ANSWERED = (
    "function_call",
    "custom_tool_call",
    "local_shell_call",
    "shell_call",
    "apply_patch_call",
    "computer_call",
)
_ARGUMENTS = ("arguments", "input", "action", "operation", "queries", "code")
_ANTHROPIC = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")
_RESULTS = ("output", "error", "results", "outputs")


def detect(file: JsonFile) -> bool:
    items = _items(file.first)
    return any(is_item(item.value) for item in (file.items if items is None else items))


def split(file: JsonFile) -> list[list[JsonItem]]:
    if not file.items:
        return []
    whole = [_items(item.value) for item in file.items]
    if whole[0] is None:
        return [file.items]
    return [items for items in whole if items is not None]


def build(found: list[JsonItem], builder: Builder) -> str:
    reader = ItemReader(builder)
    for position, item in enumerate(found):
        with builder.reading(item.where):
            reader.read(position, item.value)
    reader.close()
    return ""


def is_item(value: Json) -> bool:
    """Return True for an item that chat completions do not have. A message with only role and content may be either."""
    item = fields_of(value)
    kind = item.get("type")
    if kind == "message":  # Anthropic's answers have this type too
        blocks = [fields_of(block) for block in elements_of(item.get("content"))]
        return "role" in item and not any(block.get("type") in _ANTHROPIC for block in blocks)
    return isinstance(kind, str) and (kind == "reasoning" or kind.endswith(("_call", "_call_output")))


class ItemReader:
    """Adds items to a conversation, one by one. Reasoning becomes a part of the message that follows it.

    Args:
        own_words: Returns a part of a user message, or None for text that a program added to it.
        result: Changes the output of a call.
    """

    def __init__(
        self,
        builder: Builder,
        *,
        own_words: Callable[[Part], Part | None] = lambda part: part,
        result: Callable[[Json], Json] = lambda output: output,
    ) -> None:
        self._builder, self._own_words, self._result = builder, own_words, result
        self._content = ContentReader(builder)
        self._thoughts: list[Part] = []

    def read(self, position: int, value: Json, created_at: datetime | None = None) -> None:
        """Add an item. Raises InputError."""
        item = as_object(value)
        if item is None:
            raise InputError("an item must be an object")
        kind = item.get("type", "message")
        key = str(item.get("id") or "") or content_key(position, value)
        if kind == "message":
            role = read_role(item.get("role"))
            parts = self._content.parts(item.get("content"))
            if role == "user":
                said = [part for part in map(self._own_words, parts) if part is not None]
                if parts and not said:
                    self._builder.note("messages in the user's role that a program added, left out")
                    return
                parts = said
            self._add(role, parts, key, created_at or self._builder.time_of(item))
        elif kind == "reasoning":
            self._thoughts += read_reasoning(item)
        elif isinstance(kind, str) and kind.endswith("_call"):
            self._add("assistant", [read_call(kind, item, self._builder)], key, created_at)
        elif isinstance(kind, str) and kind.endswith("_call_output"):
            output = self._result(self._content.result(item.get("output")))
            self._builder.answer(item.get("call_id") or item.get("id"), None, output, "result")
        else:
            self._builder.note(f"items of type {kind}, left out")

    def close(self) -> None:
        """End the conversation. Reasoning at its end, without an answer yet, is left out."""
        if self._thoughts:
            self._builder.note("reasoning at the end, without an answer, left out")

    def _add(self, role: Role, parts: list[Part], key: str, created_at: datetime | None) -> None:
        if role == "assistant":
            parts, self._thoughts = [*self._thoughts, *parts], []
        self._builder.add(role, parts, key=key, created_at=created_at)


def read_reasoning(item: dict[str, Json]) -> list[Part]:
    """Return the summaries and texts of a reasoning item."""
    lists = (elements_of(item.get(name)) for name in ("summary", "content"))
    texts = [str(fields_of(block).get("text") or "") for blocks in lists for block in blocks]
    return [ReasoningPart(text=text) for text in texts if text.strip()]


def read_call(kind: str, item: dict[str, Json], builder: Builder) -> ToolPart:
    """Return the call of an item of type ``kind``, with its result if the provider ran it."""
    name = item.get("name") or kind.removesuffix("_call")
    given = next((item[key] for key in _ARGUMENTS if item.get(key) is not None), None)
    if kind == "custom_tool_call" or "code" in item:  # free text
        given = {"input": given}
    elif (several := as_list(given)) is not None:
        given = {"queries": several}
    call = builder.call(item.get("call_id") or item.get("id"), name, given)
    if kind not in ANSWERED:
        call.state = "error" if item.get("error") else "result"
        call.result = next((item[key] for key in _RESULTS if item.get(key) is not None), "")
    return call


def _items(value: Json) -> list[JsonItem] | None:
    """Return the items under one of the usual keys of an object, or None."""
    whole = fields_of(value)
    for key in _LISTS if "type" not in whole and "role" not in whole else ():
        found = as_list(whole.get(key))
        if found and any(is_item(item) for item in found):
            return numbered(found, word="item")
    return None
