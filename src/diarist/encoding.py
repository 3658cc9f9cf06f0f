"""JSON for arbitrary Python values, including strings and numbers that JSON or its readers refuse."""

from __future__ import annotations

import json
import math
import re
from typing import Any, cast

import orjson

_OPTIONS = orjson.OPT_NON_STR_KEYS
LONG_NUMBER = re.compile(r"[:\[,]\s*-?\d{19}")
"""Matches in JSON objects and arrays with integers of more than 64 bits, which orjson reads as floats."""


def dumps(value: Any, *, sort_keys: bool = False) -> bytes:
    """Return JSON in UTF-8 that every reader accepts. A value without a JSON form becomes ``str(value)``.

    Lone surrogates (as in file names that are not UTF-8) become U+FFFD; infinite numbers become null. Integers of more
    than 64 bits stay as they are.
    """
    options = _OPTIONS | orjson.OPT_SORT_KEYS if sort_keys else _OPTIONS
    try:
        return orjson.dumps(value, default=str, option=options)
    except TypeError:  # rare, so it is not checked before
        value = clean(value)
    try:
        return orjson.dumps(value, default=str, option=options)
    except TypeError:  # such as a long integer
        return json.dumps(value, default=str, sort_keys=sort_keys).encode()


def parse_arguments(raw: str) -> tuple[dict[str, Any], str | None]:
    """Parse the arguments of a tool call. Returns them and None; or empty arguments and why they cannot be read."""
    if not raw.strip():
        return {}, None
    try:
        value = orjson.loads(raw)
        if LONG_NUMBER.search(raw):
            value = json.loads(raw)
    except (orjson.JSONDecodeError, RecursionError) as error:
        return {}, f"the arguments are not JSON ({error}): {raw[:500]}"
    if not isinstance(value, dict):
        return {}, f"the arguments are not a JSON object: {raw[:500]}"
    return cast(dict[str, Any], value), None


def jsonable(value: Any, **options: Any) -> Any:
    """Return a value as pydantic's ``to_jsonable_python`` does, with U+FFFD for lone surrogates in keys."""
    from pydantic_core import to_jsonable_python

    try:
        return to_jsonable_python(value, **options)
    except UnicodeEncodeError:  # pydantic refuses only such keys
        return to_jsonable_python(clean(value), **options)


def clean(value: Any) -> Any:
    """Return a copy in which all strings and numbers can be encoded."""
    if isinstance(value, str):
        return writable(value)
    if isinstance(value, dict):
        items = cast(dict[Any, Any], value).items()
        return {clean(key) if isinstance(key, str) else str(key): clean(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [clean(item) for item in cast(list[Any], value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def writable(text: str) -> str:
    """Return the text with U+FFFD for lone surrogates; the same object if it has none."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def shortened(value: object, room: int = 80) -> str:
    """Return ``repr(value)``, cut to at most ``room`` characters."""
    text = repr(value)
    return text if len(text) <= room else f"{text[: room - 1]}…"
