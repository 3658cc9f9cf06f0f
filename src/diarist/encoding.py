"""JSON of values as they come: Python has strings and numbers that JSON, or those who read it, do not take."""

from __future__ import annotations

import json
import math
from typing import Any, cast

import orjson

_OPTIONS = orjson.OPT_NON_STR_KEYS


def dumps(value: Any, *, sort_keys: bool = False) -> bytes:
    """JSON that every reader takes, in UTF-8. What has no JSON form becomes ``str(value)``.

    Halves of surrogate pairs, as in file names that are no UTF-8, become U+FFFD. Integers of more than 64 bits stay
    as they are. Infinite numbers become null.
    """
    try:
        return orjson.dumps(value, default=str, option=_OPTIONS | orjson.OPT_SORT_KEYS if sort_keys else _OPTIONS)
    except TypeError:  # rare, and slow to look for
        return json.dumps(clean(value), default=str, sort_keys=sort_keys).encode()


def clean(value: Any) -> Any:
    """A copy in which all strings and numbers can be written."""
    if isinstance(value, str):
        return writable(value)
    if isinstance(value, dict):
        items = cast(dict[Any, Any], value).items()
        return {clean(key) if isinstance(key, str) else str(key): clean(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [clean(item) for item in cast(list[Any], value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def writable(text: str) -> str:
    """The text with U+FFFD for what UTF-8 cannot write; the very text where there is nothing of that."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
