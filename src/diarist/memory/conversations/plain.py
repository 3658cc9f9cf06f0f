"""Reads plain messages: a role, a text, and optionally a time and an author."""

from __future__ import annotations

from diarist.exceptions import InputError
from diarist.memory.conversations.building import Builder, read_role
from diarist.memory.conversations.loading import Item, Source, as_object
from diarist.memory.conversations.openai import message_key
from diarist.messages import TextPart

_KEYS = {"role", "content", "created_at", "createdAt", "timestamp", "name"}


def detect(source: Source) -> bool:
    return bool(source.items) and all(_is_plain(item) for item in source.items)


def split(source: Source) -> list[list[Item]]:
    return [source.items] if source.items else []


def build(found: list[Item], builder: Builder) -> str:
    for position, item in enumerate(found):
        value = as_object(item.value) or {}
        where = item.where or "message 1"
        role = read_role(value.get("role"), where)
        text = value.get("content")
        if not isinstance(text, str) or role == "tool":
            raise InputError(f"{where}: a plain message has a text as content and no tool results")
        name = value.get("name")
        builder.add(
            role,
            [TextPart(text=text)] if text.strip() else [],
            key=message_key(position, value, where),
            where=where,
            created_at=builder.time_of(value, where),
            metadata={"name": name} if isinstance(name, str) and name else None,
        )
    return ""


def _is_plain(item: Item) -> bool:
    value = as_object(item.value)
    return (
        value is not None
        and value.keys() <= _KEYS
        and isinstance(value.get("content"), str)
        and value.get("role") not in ("tool", "function", None)
    )
