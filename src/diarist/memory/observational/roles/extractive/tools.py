"""A tool call and its result on one line."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, cast

import orjson

from diarist.memory.observational.roles.transcript import outline_arguments
from diarist.messages import ToolPart, as_text

_ROOM, _ARGUMENTS, _ARGUMENT = 220, 200, 100
_MOST_FIELDS, _MOST_ITEMS, _DEEPEST = 30, 5, 4

_SPACE = re.compile(r"\s+")
_CHANGES = re.compile(
    r"(?:^|[\W_])(?i:add|book|cancel|commit|create|delete|deploy|edit|exchange|insert|modify|pay|publish|refund|remove|"
    r"reserve|save|schedule|send|submit|transfer|update|upload|write)(?![a-z])"
)
_FAILED = re.compile(
    r"(?:status )?(?:\w*(?:error|exception)\b(?! false)|traceback|failed|fatal|not found|invalid|no such)",
    re.IGNORECASE,
)
_TELLING = re.compile(r"\d|^\w*(?:error|message|status|success|result|summary)", re.IGNORECASE)


def note_tool(part: ToolPart) -> tuple[str, str]:
    """Return a line such as ``search(city="Rome") → 3 items: …`` and its mark: ✅ for a change that succeeded."""
    brief: dict[str, object] = {
        name: value if len(as_text(value)) <= _ARGUMENT else "…" for name, value in part.args.items()
    }
    call = f"{_SPACE.sub(' ', part.name)}({shorten(outline_arguments(brief), _ARGUMENTS)})"
    if part.state == "call":
        return f"{call} (no result yet)", "🟢"
    outcome = _outline(_parsed(part.result), _ROOM) or "(empty)"
    if part.state != "result":
        outcome = f"{part.state}: {outcome}"
    done = part.state == "result" and _CHANGES.search(part.name) and not _FAILED.match(outcome)
    return f"{call} → {outcome}", "✅" if done else "🟡"


def shorten(text: str, length: int) -> str:
    """Cut ``text`` to at most ``length`` characters, between words if possible."""
    if len(text) <= length:
        return text
    head = text[: length - 1]
    space = head.rfind(" ", length * 2 // 3)
    return f"{head[:space] if space > 0 else head} …"


def _parsed(value: Any) -> Any:
    """Return the JSON in a text, or in text parts; other values unchanged."""
    if isinstance(value, list):
        parts = [cast("dict[str, Any]", item) for item in cast("list[Any]", value) if isinstance(item, dict)]
        texts = [str(part.get("text")) for part in parts if part.get("type") == "text"]
        value = "\n".join(texts) or cast("list[Any]", value)
    if isinstance(value, str) and len(value) < 4_000_000 and value.lstrip()[:1] in ("{", "["):
        with suppress(orjson.JSONDecodeError):
            return orjson.loads(value)
    return cast("Any", value)


def _outline(value: Any, room: int, depth: int = 0) -> str:
    """Write a value in about ``room`` characters: telling fields first; the first items; the last line."""
    if depth == _DEEPEST:
        return "…"
    if isinstance(value, list):
        items = cast("list[Any]", value)
        shown = _fit([_outline(item, max(36, room // 4), depth + 1) for item in items[:_MOST_ITEMS]], room)
        return f"{len(items)} items{': ' if shown else ''}{'; '.join(shown)}"
    if isinstance(value, dict):
        simple_first = sorted(cast("dict[str, Any]", value).items(), key=lambda field: isinstance(field[1], dict))
        filled = [(name, inner) for name, inner in simple_first if inner not in (None, "", [], {})][:_MOST_FIELDS]
        fields = [f"{name} {_outline(inner, room // 2, depth + 1)}" for name, inner in filled]
        return ", ".join(_fit(sorted(fields, key=lambda field: _TELLING.search(field) is None), room))
    text = "" if value is None else as_text(value).strip()
    before, _, last = text.rpartition("\n")
    if before and len(text) > room:
        text = f"{before.count(chr(10)) + 2} lines: {last}"
    return shorten(_SPACE.sub(" ", text[: 2 * room]), room)


def _fit(texts: list[str], room: int) -> list[str]:
    """Return the texts that fit into ``room`` characters, tried in order."""
    chosen: list[str] = []
    for text in texts:
        if len(text) + 2 <= room:
            chosen.append(text)
            room -= len(text) + 2
    return chosen
