"""Reads messages in the form of OpenAI's chat completions, and similar ones: plain messages, and tau-bench's runs."""

from __future__ import annotations

from collections.abc import Iterable

from diarist.exceptions import InputError
from diarist.memory.conversations.building import Builder, content_key, read_role
from diarist.memory.conversations.content import ContentReader, has_results
from diarist.memory.conversations.loading import JsonFile, JsonItem, as_list, as_object, fields_of, numbered
from diarist.messages import Json, Part, ReasoningPart

_PLAIN = {"role", "content", "created_at", "createdAt", "timestamp", "name"}

Found = tuple[str, list[JsonItem]]
"""A title (may be empty) and the messages."""


def detect(file: JsonFile) -> bool:
    elements = as_list(file.first)
    value = fields_of(elements[0] if elements else file.first)
    return "role" in value or as_list(value.get("messages")) is not None


def split(file: JsonFile) -> list[Found]:
    """Return the conversations. The first item decides whether the items are the messages of one conversation, or one
    conversation each."""
    items = file.items
    if as_list(file.first) is None and "messages" not in fields_of(file.first):
        return [("", items)] if items else []
    found: list[Found] = []
    for item in items:
        value = fields_of(item.value)
        messages = as_list(value.get("messages")) if value else as_list(item.value)
        if messages is None:
            raise InputError(f"{item.where}: a conversation must have a list of messages")
        title = value.get("title")
        found.append((title if isinstance(title, str) else "", numbered(messages, item.where)))
    return found


def build(found: Found, builder: Builder) -> str:
    title, items = found
    read_messages(items, builder)
    return title


def detect_plain(file: JsonFile) -> bool:
    """Detect plain messages: a role, a text, and optionally a time and an author."""
    for item in file.items:
        value = fields_of(item.value)
        if not value.keys() <= _PLAIN or not isinstance(value.get("content"), str):
            return False
        if value.get("role") in ("tool", "function", None):
            return False
    return bool(file.items)


def build_plain(found: list[JsonItem], builder: Builder) -> str:
    items: list[JsonItem] = []
    for item in found:
        with builder.reading(item.where):
            value = fields_of(item.value)
            if read_role(value.get("role")) == "tool" or not isinstance(value.get("content"), str):
                raise InputError("a plain message has a text as content and no tool results")
            items.append(item)
    read_messages(items, builder)
    return ""


def detect_tau_bench(file: JsonFile) -> bool:
    """Detect tau-bench's list of runs: a customer, an agent with tools, a policy as the system message."""
    return "traj" in fields_of(file.first)


def build_tau_bench(found: JsonItem, builder: Builder) -> str:
    run = fields_of(found.value)
    messages = as_list(run.get("traj"))
    if messages is None:
        raise InputError(f"{found.where or 'the run'}: a run must have its messages under traj")
    read_messages(numbered(messages, found.where), builder)
    known = [f"{key.removesuffix('_id')} {run[key]}" for key in ("task_id", "trial") if key in run]
    return ", ".join(known)


def read_messages(items: Iterable[JsonItem], builder: Builder) -> None:
    """Add all messages. Raises InputError."""
    reader = ContentReader(builder)
    for position, item in enumerate(items):
        with builder.reading(item.where):
            value = as_object(item.value)
            if value is None:
                raise InputError("a message must be an object with role and content")
            role = read_role(value.get("role"))
            if role == "tool":
                result = reader.result(value.get("content"))
                builder.answer(value.get("tool_call_id"), value.get("name"), result, "result")
                continue
            thought = value.get("reasoning_content") or value.get("reasoning")
            parts: list[Part] = []
            if isinstance(thought, str) and thought.strip():
                parts.append(ReasoningPart(text=thought))
            parts += reader.parts(value.get("content"))
            parts += _calls(value, builder)
            if not parts and has_results(value.get("content")):
                continue
            name = value.get("name")
            builder.add(
                role,
                parts,
                key=content_key(position, value),
                created_at=builder.time_of(value),
                metadata={"name": name} if isinstance(name, str) and name else None,
            )


def _calls(value: dict[str, Json], builder: Builder) -> list[Part]:
    calls = as_list(value.get("tool_calls") or [])
    if calls is None:
        raise InputError("tool_calls must be a list")
    if legacy := value.get("function_call"):
        calls = [*calls, {"function": legacy}]
    parts: list[Part] = []
    for found in calls:
        call = fields_of(found)
        function = as_object(call.get("function")) or as_object(call.get("custom")) or call
        arguments = function.get("arguments", function.get("input"))
        parts.append(builder.call(call.get("id"), function.get("name"), arguments))
    return parts
