"""What a tool returned, on one line: the telling fields of JSON, the telling lines of a text."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Any, cast

from diarist.memory.observational.roles.extractive.sentences import shorten, split_sentences
from diarist.memory.observational.roles.extractive.weighing import Speaker, weigh
from diarist.messages import Json, as_text

_LIST_ROOM = 110
_MAX_LEAVES = 300
_MAX_ITEMS = 5
_MIN_PROSE = 0.5

_SUMMARY = re.compile(
    r"\b\d+(?:\.\d+)?%? (?:\w+ )?(?:passed|failed|errors?|warnings?|tests?|files? changed|rows?|results?|matches|"
    r"insertions?|packages?|problems?)\b",
    re.IGNORECASE,
)
_ERROR_LINE = re.compile(r"^\s*(?:E\s+)?\w*(?:Error|Exception)\b.{0,300}|^\s*(?:error|fatal):.{1,300}")
_LINE_NUMBER = re.compile(r"^\s*\d+\s*[→|:\t]\s*")
_PROSE_LINE = re.compile(r"[\s\d§#*.•-]{0,12}[\"“(]?[A-Z][^{}<>=;\\]*[.:,]?\s*")
_SPACE = re.compile(r"\s+")
_FIRST = re.compile(
    r"error|message|status|state|success|confirm|reference|total|price|amount|balance|title|name|result|summary|count",
    re.IGNORECASE,
)
_IDENTIFIER = re.compile(r"(?:^|_)(?:id|number|code|key)$|Id$", re.IGNORECASE)
_SECOND = re.compile(r"date|time|email|city|origin|destination|cabin|type|address|phone|url", re.IGNORECASE)


def outline(value: Json, room: int, echoes: frozenset[str] = frozenset()) -> str:
    """About ``room`` characters; fields whose value is among ``echoes`` are left out."""
    match value:
        case None:
            return ""
        case str():
            return _outline_text(value, room)
        case dict():
            return _outline_fields(cast("dict[str, Any]", value), room, echoes)
        case list():
            return _outline_items(cast("list[Any]", value), room)
        case _:
            return scalar(value)


def _outline_fields(fields: dict[str, Any], room: int, echoes: frozenset[str]) -> str:
    """The most telling fields that fit, in their own order."""
    leaves = [leaf for leaf in _leaves(fields) if leaf[2] not in echoes]
    ranked = sorted(range(len(leaves)), key=lambda index: (-_rank(*leaves[index]), index))
    chosen: list[int] = []
    for index in ranked:
        cost = len(leaves[index][0]) + len(leaves[index][2]) + 3
        if cost <= room or not chosen:
            chosen.append(index)
            room -= cost
    return ", ".join(f"{leaves[index][0]} {leaves[index][2]}" for index in sorted(chosen))


def _leaves(fields: dict[str, Any]) -> Iterator[tuple[str, int, str]]:
    """Name, depth and written value of each simple field, outer ones first; a list is one field."""
    queue: deque[tuple[dict[str, Any], int]] = deque([(fields, 0)])
    found = 0
    while queue:
        current, depth = queue.popleft()
        for name, value in current.items():
            if isinstance(value, dict):
                queue.append((cast("dict[str, Any]", value), depth + 1))
                continue
            if value in (None, "", []):
                continue
            found += 1
            if found > _MAX_LEAVES:
                return
            yield str(name), depth, _field(value)


def _field(value: Json) -> str:
    if isinstance(value, list):
        return _outline_items(cast("list[Any]", value), _LIST_ROOM)
    return shorten(scalar(value), 70)


def _rank(name: str, depth: int, value: str) -> float:
    rank = 1.0
    if _FIRST.search(name):
        rank = 3.0
    elif _IDENTIFIER.search(name):
        rank = 2.5
    elif _SECOND.search(name) or " items: " in value:
        rank = 2.0
    return rank - 0.8 * depth


def _outline_items(items: list[Any], room: int) -> str:
    """``3 items: first; second …``, as many as fit."""
    head = f"{len(items)} item{'s' if len(items) != 1 else ''}"
    shown: list[str] = []
    left = room - len(head)
    for item in items[:_MAX_ITEMS]:
        text = outline(item, max(36, room // 4))
        left -= len(text) + 2
        if left < 0:
            break
        shown.append(text)
    if not shown:
        return head
    more = "; …" if len(shown) < len(items) else ""
    return f"{head}: {'; '.join(shown)}{more}" if len(items) > 1 else shown[0]


def _outline_text(text: str, room: int) -> str:
    """A short text whole; of a longer one how long it is, and an error or the last summary in it."""
    text = text.strip()
    if len(text) <= room:
        return _SPACE.sub(" ", text)
    lines = [line for line in text.splitlines() if any(map(str.isalnum, line[:200]))]
    if len(lines) <= 1:
        return shorten(_SPACE.sub(" ", text[: 2 * room]), room)
    size = f"{len(lines)} lines: "
    telling = _telling_line(lines) or _telling_sentences(lines)
    return size + shorten(_SPACE.sub(" ", _LINE_NUMBER.sub("", telling, count=1)).strip(), room - len(size))


def _telling_line(lines: list[str]) -> str | None:
    """The last error, else the last summary, near the end."""
    tail = [line[:400] for line in reversed(lines[-40:])]
    for line in tail:
        if error := _ERROR_LINE.match(line):
            return error[0]
    return next((line for line in tail if _SUMMARY.search(line)), None)


def _telling_sentences(lines: list[str]) -> str:
    """The first line; of prose also the sentence that says most."""
    first = next((line[:400] for line in lines[:20] if any(map(str.isalpha, line[:200]))), lines[0][:400])
    prose = sum(_PROSE_LINE.fullmatch(line[:400]) is not None for line in lines)
    if prose < _MIN_PROSE * len(lines):
        return first
    weighed = (weigh(each, Speaker.ASSISTANT) for each in split_sentences("\n".join(lines)) if len(each) <= 160)
    best = max(weighed, key=lambda each: each.worth, default=None)
    return first if best is None or best.text in first else f"{shorten(first.strip(), 70)} … {best.text}"


def scalar(value: Json) -> str:
    """A simple value on one line, at most 400 characters."""
    return _SPACE.sub(" ", as_text(value)[:400]).strip()
