"""Reads plain messages: a role, a text, and optionally a time and an author."""

from __future__ import annotations

from diarist.exceptions import InputError
from diarist.memory.conversations.building import Builder, read_role
from diarist.memory.conversations.loading import Item, Source, as_object
from diarist.memory.conversations.openai import read_messages

_KEYS = {"role", "content", "created_at", "createdAt", "timestamp", "name"}


def detect(source: Source) -> bool:
    for item in source.items:
        value = as_object(item.value) or {}
        if not value.keys() <= _KEYS or not isinstance(value.get("content"), str):
            return False
        if value.get("role") in ("tool", "function", None):
            return False
    return bool(source.items)


def split(source: Source) -> list[list[Item]]:
    return [source.items] if source.items else []


def build(found: list[Item], builder: Builder) -> str:
    items: list[Item] = []
    for item in found:
        where = item.where or "message 1"
        with builder.reading(where):
            value = as_object(item.value) or {}
            if read_role(value.get("role"), where) == "tool" or not isinstance(value.get("content"), str):
                raise InputError(f"{where}: a plain message has a text as content and no tool results")
            items.append(Item(where, value))
    read_messages(items, builder)
    return ""
