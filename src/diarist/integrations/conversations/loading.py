"""Loads a file of JSON or JSON lines, with errors that name the place."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import orjson

from diarist.encoding import LONG_NUMBER
from diarist.exceptions import InputError
from diarist.messages import Json

_BYTE_ORDER_MARK = "\ufeff"
_UNDECODED = re.compile("[\udc80-\udcff]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class BrokenLine(InputError):
    """A line or a message that cannot be read; the rest of the file may be fine."""


@dataclass(frozen=True, slots=True)
class JsonItem:
    """One line, or one element of the file's array. ``where``: its place in words, or empty."""

    where: str
    value: Json


@dataclass(frozen=True, slots=True)
class JsonFile:
    """A file of JSON. ``items``: its lines, the elements of its array, or its one object. ``broken``: places of lines
    that are not JSON."""

    items: list[JsonItem]
    broken: list[str] = field(default_factory=list[str])

    @property
    def first(self) -> Json:
        """Return the first value; None for an empty array."""
        return self.items[0].value if self.items else None

    def describe(self) -> str:
        """Return a description of the file's start, for an error message."""
        keys = ", ".join(list(fields_of(self.first))[:8])
        return f"its first object has the keys {keys}" if keys else "no JSON objects"


def load(path: Path, *, skip_broken: bool = False) -> JsonFile:
    """Read the file completely. Raises InputError with the place in the file.

    ``skip_broken``: leave out lines that are not JSON, or not UTF-8.
    """
    text = _read_text(path)
    if not text.strip():
        raise InputError("the file is empty")
    undecoded = _undecoded(text)
    text = text.removeprefix(_BYTE_ORDER_MARK)
    try:
        if undecoded:
            raise json.JSONDecodeError("not UTF-8", text, 0)
        value = parse(text)
    except json.JSONDecodeError as error:
        # Several values are not a JSON document, but may be JSON lines.
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        if not _is_lines(lines):
            raise InputError(
                undecoded or f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
            ) from error
        if undecoded and not skip_broken:
            raise BrokenLine(undecoded) from error
        items: list[JsonItem] = []
        broken: list[str] = []
        for number, line in lines:
            if _UNDECODED.search(line):
                broken.append(f"line {number}")
                continue
            try:
                items.append(JsonItem(f"line {number}", parse(line)))
            except json.JSONDecodeError as error:
                if skip_broken:
                    broken.append(f"line {number}")
                    continue
                remedy = "repair or remove that line"
                if number == lines[-1][0]:
                    remedy = "if the file is still being written, try again, else remove that line"
                    remedy = f"the last line looks cut off; {remedy}"
                raise BrokenLine(f"line {number}, column {error.colno}: not JSON: {error.msg}; {remedy}") from error
        return JsonFile(items, broken)
    elements = as_list(value)
    if elements is None:
        return JsonFile([JsonItem("", value)])
    return JsonFile([JsonItem(f"item {number}", element) for number, element in enumerate(elements, 1)])


def as_object(value: Json) -> dict[str, Json] | None:
    """Return the value if it is a JSON object, else None."""
    return cast("dict[str, Json]", value) if isinstance(value, dict) else None


def as_list(value: Json) -> list[Json] | None:
    """Return the value if it is a JSON array, else None."""
    return cast("list[Json]", value) if isinstance(value, list) else None


def fields_of(value: Json) -> dict[str, Json]:
    """Return the fields of a JSON object; an empty dict for any other value."""
    return as_object(value) or {}


def elements_of(value: Json) -> list[Json]:
    """Return the elements of a JSON array; an empty list for any other value."""
    return as_list(value) or []


def numbered(values: list[Json], where: str = "", word: str = "message") -> list[JsonItem]:
    """Return the values with their places in words, such as ``message 1``, behind ``where``."""
    prefix = f"{where}, " if where else ""
    return [JsonItem(f"{prefix}{word} {number}", value) for number, value in enumerate(values, 1)]


def parse(text: str) -> Json:
    """Parse JSON as leniently as Python's own parser, but into values that can be stored.

    Lone surrogates become U+FFFD, and integers of more than 64 bits become texts. Raises JSONDecodeError.
    """
    if not LONG_NUMBER.search(text):
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            pass  # orjson rejects lone surrogates and NaN, which real logs contain
    try:
        return _storable(json.loads(text))
    except RecursionError as error:
        raise json.JSONDecodeError("nested too deeply", text, 0) from error
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # an integer of thousands of digits
        raise json.JSONDecodeError(str(error), text, 0) from error


def _storable(value: Any) -> Json:
    match value:
        case str():
            return _LONE_SURROGATE.sub("\ufffd", value)
        case bool():
            return value
        case int():
            return value if -(2**63) <= value < 2**64 else str(value)
        case list():
            return [_storable(item) for item in cast("list[Any]", value)]
        case dict():
            pairs = cast("dict[str, Any]", value).items()
            return {_storable(key): _storable(item) for key, item in pairs}
        case _:
            return value


def _read_text(path: Path) -> str:
    """Return the text with its byte order mark; bytes that are not UTF-8 stand as lone surrogates."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}") from error
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError("is UTF-16; save it as UTF-8")
    if data[:4] == b"PK\x03\x04":
        raise InputError("is a zip archive; unpack it, and name the file in it, such as conversations.json")
    if b"\0" in data:
        raise InputError("is a binary file; a conversation is JSON or JSON lines")
    return data.decode("utf-8", "surrogateescape")


def _undecoded(text: str) -> str:
    """Return where the first byte is that is not UTF-8, and what to do; empty if there is none."""
    if (found := _UNDECODED.search(text)) is None:
        return ""
    before = text[: found.start()]
    offset = len(before.encode("utf-8", "surrogateescape"))
    return (
        f"line {before.count(chr(10)) + 1}: not UTF-8 (byte {ord(found[0]) - 0xDC00:#04x} at offset {offset}); "
        "convert it, for example with iconv -t UTF-8"
    )


def _is_lines(lines: list[tuple[int, str]]) -> bool:
    """Return True if at least one of the first two lines is a JSON object or array; the other may be damaged."""
    if len(lines) < 2 or lines[0][1].strip() in ("[", "{"):
        return False
    for _, line in lines[:2]:
        with suppress(json.JSONDecodeError):
            if isinstance(parse(line), dict | list):
                return True
    return False
