"""A function of texts, applied to every text in a JSON value."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from diarist.messages import Json


def map_text(value: Json, change: Callable[[str], str]) -> Json:
    """A copy of ``value`` with every string changed, keys included; a number whose digits change becomes text.

    What nothing changed in is returned as it is.
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = str(value)
        changed = change(text)
        return value if changed == text else changed
    if isinstance(value, list | tuple):
        given = list(cast(list[Json], value))
        items = [map_text(item, change) for item in given]
        return cast(Json, value) if items == given else items
    if isinstance(value, dict):
        pairs = cast(dict[str, Json], value)
        mapped = {change(str(key)): map_text(item, change) for key, item in pairs.items()}
        return pairs if mapped == pairs else mapped
    return value
