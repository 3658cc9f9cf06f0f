"""Redacting what a provider attached to a part, which may quote the part's text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import cast

from diarist.messages import Json
from diarist.processors.builtin.json_text import map_text

_IDENTITY = ("provider", "id")

_OPAQUE_KEY = re.compile(r"(?i)signature$|^encrypted")
_OPAQUE_VALUE = re.compile(r"[A-Za-z0-9+/_-]{64,}={0,2}")


def redacted_data(data: dict[str, Json] | None, redact: Callable[[str], str]) -> dict[str, Json] | None:
    """The data with every text redacted; the same object where nothing is to be taken out.

    Signatures and encrypted contents stay as they are: one that looks like a number inside is none.
    """
    return None if data is None else _redacted(data, "", redact)


def identity(data: dict[str, Json] | None) -> dict[str, Json] | None:
    """What may stay with a part whose text was changed: who made it, and its id there. Citations and the like speak
    of another text, and may have pieces of what was taken out."""
    return {name: data[name] for name in _IDENTITY if name in data} or None if data else None


def _redacted(value: Json, key: str, redact: Callable[[str], str]) -> Json:
    if isinstance(value, dict):
        pairs = cast(dict[str, Json], value)
        mapped = {redact(str(name)): _redacted(item, str(name), redact) for name, item in pairs.items()}
        return pairs if mapped == pairs else mapped
    if isinstance(value, list):
        given = cast(list[Json], value)
        items = [_redacted(item, key, redact) for item in given]
        return given if items == given else items
    if isinstance(value, str) and _OPAQUE_KEY.search(key) and _OPAQUE_VALUE.fullmatch(value):
        return value
    return map_text(value, redact)
