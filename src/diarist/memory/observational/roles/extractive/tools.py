"""A tool call and its result on one line."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

import orjson

from diarist.memory.observational.roles.transcript import outline_arguments
from diarist.messages import Json, ToolPart, as_text

_ROOM, _ARGUMENTS, _BRIEF, _LIST_ROOM, _FIELD = 220, 130, 100, 110, 70
_MAX_JSON = 4_000_000
_MAX_FIELDS, _MAX_ITEMS = 300, 5
_LONGEST_TEXT, _LONGEST_END = 100_000, 20_000
"""Maximum characters that are read of a text, and how many of these are taken from its end."""

_SPACE = re.compile(r"\s+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WRITES = re.compile(
    r"(?:^|[_\W])(?:book|create|update|cancel|send|delete|write|edit|pay|add|remove|submit|transfer|schedule|modify|"
    r"insert|post|commit|deploy|exchange|refund|order|reserve|upload|publish|move|save)(?:$|[_\W])"
)
_ERROR = re.compile(r"\s*(?:\w*error\b|\w*exception\b|traceback|failed|fatal|not found|invalid|no such)", re.IGNORECASE)
_ERROR_LINE = re.compile(r"^\s*(?:E\s+)?\w*(?:Error|Exception)\b|^\s*(?:error|fatal):")
_SUMMARY = re.compile(
    r"\b\d+ (?:\w+ )?(?:passed|failed|errors?|warnings?|tests?|files? changed|rows?|results?|matches|problems?)\b",
    re.IGNORECASE,
)
_TELLING = re.compile(r"\d|^\w*(?:error|message|status|success|result|summary)", re.IGNORECASE)


def note_tool(part: ToolPart) -> tuple[str, str]:
    """Return a line such as ``search(city="Rome") → 3 items: …`` and its mark: ✅ for a change that succeeded."""
    brief = {key: value for key, value in part.args.items() if len(as_text(value)[: _BRIEF + 1]) <= _BRIEF}
    arguments = shorten(outline_arguments(brief), _ARGUMENTS)
    if len(brief) < len(part.args):
        arguments = f"{arguments}, …" if arguments else "…"
    name = _SPACE.sub(" ", part.name)
    if part.state == "call":
        return f"{name}({arguments}) (no result yet)", "🟢"
    value = _parsed(part.result)
    outcome = shorten(_outline(value, _ROOM) or "(empty)", _ROOM)
    failed = part.state != "result" or (isinstance(value, str) and _ERROR.match(value[:300]) is not None)
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        failed = failed or bool(fields.get("error")) or str(fields.get("status")).lower() in ("error", "failed")
    if failed and not outcome.lower().startswith(("error", "failed")):
        outcome = f"{'denied' if part.state == 'denied' else 'error'}: {outcome}"
    changes = _WRITES.search(_CAMEL.sub("_", part.name).lower()) is not None
    return f"{name}({arguments}) → {outcome}", "✅" if changes and not failed else "🟡"


def shorten(text: str, length: int) -> str:
    """Cut ``text`` to at most ``length`` characters, between words if possible."""
    if len(text) <= length:
        return text
    head = text[: length - 1]
    space = head.rfind(" ", length * 2 // 3)
    return f"{head[:space] if space > 0 else head} …"


def clip(text: str) -> str:
    """Return the text; if it has more than 100,000 characters, only its beginning and its end."""
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"{text[: _LONGEST_TEXT - _LONGEST_END]}\n{text[-_LONGEST_END:]}"


def _parsed(value: Json) -> Json:
    """Return the JSON in a text, or in text parts; other values unchanged."""
    if isinstance(value, list) and value:
        parts = [cast("dict[str, Any]", item) if isinstance(item, dict) else {} for item in cast("list[Any]", value)]
        if all(item.get("type") == "text" and isinstance(item.get("text"), str) for item in parts):
            value = "\n".join(item["text"] for item in parts)
    if isinstance(value, str) and len(value) < _MAX_JSON and value.lstrip()[:1] in ("{", "["):
        with suppress(orjson.JSONDecodeError):
            value = orjson.loads(value)
    return cast("Json", value)


def _outline(value: Json, room: int) -> str:
    """Write a value in about ``room`` characters: the most informative fields or line, or the first items."""
    if isinstance(value, str):
        return _outline_text(value, room)
    if isinstance(value, list):
        items = cast("list[Any]", value)
        head = f"{len(items)} item{'s' if len(items) != 1 else ''}"
        shown = _fit([_outline(item, max(36, room // 4)) for item in items[:_MAX_ITEMS]], room - len(head))
        more = "; …" if len(shown) < len(items) else ""
        return f"{head}: {'; '.join(shown)}{more}" if shown else head
    if isinstance(value, dict):
        fields = list(_fields(cast("dict[str, Any]", value)))
        telling = sorted(fields, key=lambda field: _TELLING.search(field) is None)
        chosen = set(_fit(telling, room) or telling[:1])
        return ", ".join(field for field in fields if field in chosen)
    return "" if value is None else _scalar(value)


def _fit(texts: list[str], room: int) -> list[str]:
    """Return the texts that fit into ``room`` characters, tried in order."""
    chosen: list[str] = []
    for text in texts:
        if len(text) + 2 <= room:
            chosen.append(text)
            room -= len(text) + 2
    return chosen


def _fields(fields: dict[str, Any]) -> Iterator[str]:
    """Yield ``name text`` of at most 300 simple fields, outer ones first; a list counts as one field."""
    queue = deque([fields])
    found = 0
    while queue:
        for name, value in queue.popleft().items():
            if isinstance(value, dict):
                queue.append(cast("dict[str, Any]", value))
            elif value not in (None, "", []):
                text = _outline(value, _LIST_ROOM) if isinstance(value, list) else shorten(_scalar(value), _FIELD)
                yield f"{name} {text}"
                found += 1
                if found == _MAX_FIELDS:
                    return


def _outline_text(text: str, room: int) -> str:
    """Return a short text as it is; for a long one, its number of lines and one line: error, summary or first."""
    text = text.strip()
    lines = [line[:400] for line in clip(text).splitlines() if any(map(str.isalnum, line[:200]))]
    if len(text) <= room or "\n" not in text or not lines:
        return shorten(_SPACE.sub(" ", text[: 2 * room]), room)
    tail = lines[:-40:-1]
    telling = [*filter(_ERROR_LINE.match, tail), *filter(_SUMMARY.search, tail), lines[0]]
    return f"{text.count(chr(10)) + 1} lines: {shorten(_SPACE.sub(' ', telling[0]).strip(), room)}"


def _scalar(value: Json) -> str:
    return _SPACE.sub(" ", as_text(value)[:400]).strip()
