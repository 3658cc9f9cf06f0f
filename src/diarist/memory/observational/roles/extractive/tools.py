"""A tool call and its result on one line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain, islice
from typing import Any, cast

from diarist.memory.observational.roles.transcript import outline_arguments
from diarist.messages import ToolPart, as_text

_ROOM, _ARGUMENTS, _ARGUMENT, _LONGEST_JSON = 220, 200, 110, 4_000_000
_ITEMS, _FIELDS = 5, (60, 15, 8, 4, 2)
"""Items and fields that are looked at, the latter for each depth; what lies deeper is left out. Dicts around a single
dict or list add no depth."""

_LETTER = re.compile(r"[^\W_]")
_SPACE = re.compile(r"\s+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_CHANGE = re.compile(
    r"(?<![^\W_])(?:add|assign|book|cancel|close|commit|create|delete|deploy|edit|exchange|insert|modify|move|pay|post|"
    r"publish|(?:order|refund|schedule|transfer)(?![_-]status$)|remove|reschedule|reserve|reset|save|send|set|submit|"
    r"update|upload|write)(?![^\W_])"
)
_LOOK = re.compile(
    r"(?:get|list|read|search|find|show|check|fetch|look(?:up)?|view|query)(?:$|[_-](?!(?:or|and|out|in)(?:$|[_-])))"
)
_SERVER = re.compile(r"__|[./:]")
_ERROR = re.compile(r"\s*(?:\w*(?:error|exception)\b|traceback|failed|fatal|not found|invalid|no such)", re.IGNORECASE)
ERROR_LINE = re.compile(r"\s*(?:E\s+)?\w*(?:Error|Exception)\b|\s*(?:error|fatal):")
_SUMMARY = re.compile(
    r"\b\d+ (?:\w+ )?(?:passed|failed|errors?|warnings?|tests?|files? changed|rows?|results?|matches|problems?)\b",
    re.IGNORECASE,
)
_TELLING = re.compile(r"\d|^\w*(?:error|message|status|success|result|summary)", re.IGNORECASE)


def note_tool(part: ToolPart) -> tuple[str, str]:
    """Return a line such as ``search(city="Rome") → 3 items: …`` and its mark: ✅ for a change that succeeded."""
    arguments = [outline_arguments({name: value}) for name, value in part.args.items()]
    shown = _fit((argument for argument in arguments if len(argument) <= _ARGUMENT), _ARGUMENTS)
    more = ["…"] if len(shown) < len(arguments) else []
    call = f"{_SPACE.sub(' ', part.name)}({', '.join([*shown, *more])})"
    if part.state == "call":
        return f"{call} (no result yet)", "🟢"
    result = _parsed(part.result)
    outcome = _outline(result, _ROOM) or "(empty)"
    failed = part.state != "result" or _is_error(result)
    if failed and not outcome.lower().startswith(("error", "failed")):
        outcome = f"{'denied' if part.state == 'denied' else 'error'}: {outcome}"
    name = _CAMEL.sub("_", part.name).lower()
    changes = _CHANGE.search(name) and not _LOOK.match(_SERVER.split(name)[-1])
    return f"{call} → {outcome}", "✅" if changes and not failed else "🟡"


def shorten_at_space(text: str, length: int) -> str:
    """Cut ``text`` to at most ``length`` characters, between words if possible."""
    if len(text) <= length:
        return text
    head = text[: length - 1]
    space = head.rfind(" ", length * 2 // 3)
    return f"{head[:space] if space > 0 else head} …"


def _parsed(value: Any) -> Any:
    """Return the JSON in a text, or in text parts, with numbers as they are written there; other values unchanged."""
    if isinstance(value, list):
        rows = cast("list[Any]", value)
        parts = [cast("dict[str, Any]", row) for row in rows if isinstance(row, dict)]
        texts = [part["text"] for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str)]
        value = "\n".join(texts) if texts and len(texts) == len(rows) else rows
    if isinstance(value, str) and len(value) < _LONGEST_JSON and value.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            return json.loads(value, parse_float=str, parse_int=str, parse_constant=str)
    return cast("Any", value)


def _is_error(result: Any) -> bool:
    if isinstance(result, dict):
        fields = cast("dict[str, Any]", result)
        status = str(fields.get("status")).lower()
        error = fields.get("error")
        failed = bool(error.strip("-.0") if isinstance(error, str) else error)  # "0" and "0.00" are no errors
        return failed or fields.get("success") is False or status in ("error", "failed")
    return isinstance(result, str) and _ERROR.match(result[:300]) is not None


def _outline(value: Any, room: int, depth: int = 0) -> str:
    """Write a value in about ``room`` characters: the first items, telling fields first, or the telling line."""
    while isinstance(value, dict) and len(fields := cast("dict[str, Any]", value)) == 1:
        [(name, inner)] = fields.items()
        if not isinstance(inner, (dict, list)) or "error" in name.lower():
            break
        value = cast("Any", inner)
    if depth == len(_FIELDS) and isinstance(value, (list, dict)):
        return "…"
    if isinstance(value, list):
        items = cast("list[Any]", value)
        head = f"{len(items)} item{'s' if len(items) != 1 else ''}"
        shown = _fit((_outline(item, max(36, room // 4), depth + 1) for item in items[:_ITEMS]), room - len(head))
        return f"{head}: {'; '.join(shown)}{'; …' if len(shown) < len(items) else ''}" if shown else head
    if isinstance(value, dict):
        simple_first = sorted(cast("dict[str, Any]", value).items(), key=lambda field: isinstance(field[1], dict))
        filled = islice((field for field in simple_first if field[1] not in (None, "", [], {})), _FIELDS[depth])
        fields = [f"{as_text(name)} {_outline(inner, room // 2, depth + 1)}" for name, inner in filled]
        telling = sorted(fields, key=lambda field: _TELLING.search(field) is None)
        return ", ".join(_fit(telling, room) or telling[:1])
    text = "" if value is None else as_text(value).strip()
    lines = text.splitlines()
    ends = [line[:300] for line in reversed(lines[-40:])]
    verdicts = chain(filter(ERROR_LINE.match, ends), filter(_SUMMARY.search, ends), filter(_LETTER.search, lines))
    if len(text) <= room or len(lines) < 2 or not (line := next(verdicts, "")):
        return shorten_at_space(_SPACE.sub(" ", text[: 2 * room]), room)
    return f"{len(lines)} lines: {shorten_at_space(_SPACE.sub(' ', line[:300]).strip(), room)}"


def _fit(texts: Iterable[str], room: int) -> list[str]:
    """Return the texts that fit into ``room`` characters, tried in order."""
    chosen: list[str] = []
    for text in texts:
        if len(text) + 2 <= room:
            chosen.append(text)
            room -= len(text) + 2
    return chosen
