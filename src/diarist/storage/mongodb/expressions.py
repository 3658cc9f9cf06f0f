"""Pieces of MongoDB's language of expressions. Values go in as literals: a string may begin with a dollar sign."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOW: dict[str, Any] = {"$multiply": [{"$toLong": "$$NOW"}, 1000]}
"""The server's clock, in microseconds since 1970; it has steps of one millisecond."""


def literal(value: Any) -> dict[str, Any]:
    return {"$literal": value}


def literals(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: literal(value) for name, value in values.items()}


def after(ttl: int) -> dict[str, Any]:
    """So many microseconds from now."""
    return {"$add": [NOW, literal(ttl)]}


def raised(name: str) -> dict[str, Any]:
    """The number in a field, or zero, plus one."""
    return {"$add": [{"$ifNull": [f"${name}", 0]}, 1]}


def appended(name: str, item: Any) -> dict[str, Any]:
    """The list in a field with one item more."""
    return {"$concatArrays": [f"${name}", [item]]}


def merged(*parts: Any) -> dict[str, Any]:
    """One object of several; also where the field has another value before, which would be merged with it."""
    return {"$mergeObjects": list(parts)}
