"""Filters as conditions of PostgreSQL; keys and values go as parameters."""

from __future__ import annotations

from typing import Any

import orjson

from diarist.vectors.filters import AllOf, AnyOf, Compare, Node, Not

_SIGNS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}


def where(node: Node, values: dict[str, Any]) -> str:
    """A condition on the column ``metadata``, true or false and never null. Adds its parameters to ``values``."""
    match node:
        case AllOf(nodes):
            return " AND ".join(f"({where(inner, values)})" for inner in nodes) or "true"
        case AnyOf(nodes):
            return " OR ".join(f"({where(inner, values)})" for inner in nodes) or "false"
        case Not(inner):
            return f"NOT ({where(inner, values)})"
        case Compare():
            return _comparison(node, values)


def _comparison(node: Compare, values: dict[str, Any]) -> str:
    found = f"metadata -> {_text(node.key, values)}"
    match node.operator:
        case "$exists":
            return f"({found}) IS {'NOT ' if node.value else ''}NULL"
        case "$eq":
            return f"coalesce({found} = {_json(node.value, values)}, false)"
        case "$in":
            return " OR ".join(f"coalesce({found} = {_json(each, values)}, false)" for each in node.value) or "false"
        case ordered:
            # Of JSON, all booleans are above all numbers: the type must be asked for.
            compared = f"{found} {_SIGNS[ordered]} {_json(node.value, values)}"
            return f"coalesce(jsonb_typeof({found}) = 'number' AND {compared}, false)"


def _text(value: str, values: dict[str, Any]) -> str:
    return f"CAST({_named(value, values)} AS text)"


def _json(value: object, values: dict[str, Any]) -> str:
    return f"CAST({_named(orjson.dumps(value).decode(), values)} AS jsonb)"


def _named(value: str, values: dict[str, Any]) -> str:
    name = f"value_{len(values)}"
    values[name] = value
    return f":{name}"
