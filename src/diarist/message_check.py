"""Check the field types of messages that a program has built, since dataclasses do not check them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import Any, cast, get_args, get_origin, get_type_hints

from diarist.messages import (
    Message,
    Part,
    Prompt,
    PromptMessage,
    PromptPart,
    Role,
    SentBlock,
    TextPart,
    ToolPart,
    ToolState,
)

_ROLES: tuple[str, ...] = get_args(Role)
_STATES: tuple[str, ...] = get_args(ToolState)

_PARTS: tuple[type[Any], ...] = get_args(Part)
_PROMPT_PARTS: tuple[type[Any], ...] = get_args(PromptPart)


def flaw(message: Message) -> str | None:
    """Return the first mistake in a message as text, or None."""
    if not isinstance(message.id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        return f"id must be str, not {_kind(message.id)}"
    if not isinstance(message.created_at, datetime | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        return f"created_at must be datetime or None, not {_kind(message.created_at)}"
    if not isinstance(message.metadata, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        return f"metadata must be dict, not {_kind(message.metadata)}"
    if not isinstance(message.sent, SentBlock | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        return f"sent must be a SentBlock or None, not {_kind(message.sent)}"
    if message.sent is not None and (wrong := _field_flaw(message.sent, SentBlock)):
        return wrong
    return _turn_flaw(message, _PARTS)


def prompt_flaw(prompt: Prompt) -> str | None:
    """Return the first mistake in a prompt as text, or None."""
    messages: Any = prompt.messages
    if not isinstance(messages, list):
        return f"messages of a Prompt must be a list, not {_kind(messages)}"
    for place, message in enumerate(cast(list[Any], messages)):
        if not isinstance(message, PromptMessage):
            return f"message {place} of the prompt must be a PromptMessage, not {_kind(message)}"
        if wrong := _turn_flaw(message, _PROMPT_PARTS):
            return f"message {place} of the prompt: {wrong}"
    return None


def part_flaw(part: Any, allowed: Sequence[type[Any]] = _PARTS) -> str | None:
    """Return the first mistake in a part as text, or None."""
    kind = next((kind for kind in allowed if isinstance(part, kind)), None)
    if kind is None:
        return f"a part must be {_either([kind.__name__ for kind in allowed])}, not {_kind(part)}"
    if wrong := _field_flaw(part, kind):
        return wrong
    if kind is ToolPart and part.state not in _STATES:
        return f"state of a ToolPart must be {_either(_STATES)}, not {part.state!r}"
    return None


def _field_flaw(thing: object, kind: type[Any]) -> str | None:
    """Return the first field with a value of another type than its annotation, as text, or None."""
    for name, types in _types_of(kind).items():
        value = getattr(thing, name)
        if not isinstance(value, types) or (types == (int,) and isinstance(value, bool)):
            words = _either(["None" if each is NoneType else each.__name__ for each in types])
            return f"{name} of a {kind.__name__} must be {words}, not {_kind(value)}"
    return None


@cache
def _types_of(kind: type[Any]) -> dict[str, tuple[type[Any], ...]]:
    """Return the types of a class's fields, as they are annotated; without fields of any type, and with choices."""
    hints = get_type_hints(kind)
    found: dict[str, tuple[type[Any], ...]] = {}
    for field in fields(kind):
        hint = hints[field.name]
        types = [get_origin(each) or each for each in (get_args(hint) if isinstance(hint, UnionType) else (hint,))]
        if all(isinstance(each, type) and each is not Any for each in types):
            found[field.name] = tuple(types)
    return found


def _turn_flaw(message: Message | PromptMessage, allowed: Sequence[type[Any]]) -> str | None:
    if message.role not in _ROLES:
        return f"role must be {_either(_ROLES)}, not {message.role!r}"
    parts: Any = message.parts
    if not isinstance(parts, list):
        return f"parts must be a list of parts, not {_kind(parts)}"
    for part in cast(list[Any], parts):
        if type(part) is TextPart and type(part.text) is str:  # nearly all parts
            continue
        if wrong := part_flaw(part, allowed):
            return wrong
    return None


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
