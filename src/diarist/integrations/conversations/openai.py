"""Reads messages in the form of OpenAI's chat completions, and similar ones: plain messages, those of the AI SDK, and
tau-bench's runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from diarist.exceptions import InputError
from diarist.integrations.conversations.building import Builder, content_key, read_role
from diarist.integrations.conversations.content import ContentReader, has_results
from diarist.integrations.conversations.loading import JsonFile, JsonItem, as_list, as_object, fields_of, numbered
from diarist.integrations.conversations.ui_parts import objects_of, read_attachments, read_call, read_parts
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
            moment = builder.time_of(value) or builder.time_of(fields_of(value.get("metadata")))
            add_message(value, reader, builder, key=content_key(position, value), created_at=moment)


def add_message(
    value: dict[str, Json], reader: ContentReader, builder: Builder, *, key: str, created_at: datetime | None
) -> None:
    """Add a message, or a result to its call. Raises InputError."""
    role, content, name = read_role(value.get("role")), value.get("content") or value.get("refusal"), value.get("name")
    if role == "tool":
        state = "error" if value.get("status") == "error" else "result"
        builder.answer(value.get("tool_call_id"), name, reader.result(content), state)
        return
    parts = read_parts(value.get("parts"), builder.note)
    if not parts:
        thought = value.get("reasoning_content") or value.get("reasoning")
        parts += [ReasoningPart(text=thought)] if isinstance(thought, str) and thought.strip() else []
        parts += map(read_call, objects_of(value.get("toolInvocations")))  # the AI SDK's, before version 4.2
        parts += [*reader.parts(content), *_calls(value, builder)]
    parts += read_attachments(value, builder.note)
    if parts or not has_results(content):
        metadata: dict[str, Json] | None = {"name": name} if isinstance(name, str) and name else None
        builder.add(role, parts, key=key, created_at=created_at, metadata=metadata)


def _calls(value: dict[str, Json], builder: Builder) -> Iterator[Part]:
    calls = as_list(value.get("tool_calls") or [])
    if calls is None:
        raise InputError("tool_calls must be a list")
    if legacy := value.get("function_call"):
        calls = [*calls, {"function": legacy}]
    for found in calls:
        call = fields_of(found)
        function = as_object(call.get("function")) or as_object(call.get("custom")) or call
        arguments = next((function[key] for key in ("arguments", "input", "args") if key in function), None)
        yield builder.call(call.get("id"), function.get("name"), arguments)
