"""MongoDB aggregation expressions. Values are passed as literals, since a string may begin with a dollar sign."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOW: dict[str, Any] = {"$multiply": [{"$toLong": "$$NOW"}, 1000]}
"""The server's clock, in microseconds since 1970, with a resolution of one millisecond."""


def literal(value: Any) -> dict[str, Any]:
    return {"$literal": value}


def literals(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: literal(value) for name, value in values.items()}


def after(ttl: int) -> dict[str, Any]:
    """Return the expression for the time ``ttl`` microseconds from now."""
    return {"$add": [NOW, literal(ttl)]}


def raised(name: str) -> dict[str, Any]:
    """Return the expression for a field's number, or zero, plus one."""
    return {"$add": [{"$ifNull": [f"${name}", 0]}, 1]}


def appended(name: str, item: Any) -> dict[str, Any]:
    """Return the expression for a field's list with ``item`` appended."""
    return {"$concatArrays": [f"${name}", [item]]}


def merged(*parts: Any) -> dict[str, Any]:
    """Return the expression for several objects merged into one, which replaces the field's value."""
    return {"$mergeObjects": list(parts)}
