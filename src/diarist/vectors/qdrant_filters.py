"""Filters as Qdrant conditions, and metadata in the form that they test.

Qdrant reads a key with dots as a path. So metadata is stored twice: unchanged, to be returned, and under encoded keys.
"""

from __future__ import annotations

from typing import Any

from qdrant_client import models as q

from diarist.vectors.base import Value
from diarist.vectors.filters import AllOf, AnyOf, Compare, Node, Not, is_number


def payload_key(key: str) -> str:
    """Return the payload key of a metadata key."""
    return f"key_{key.encode().hex()}"


def payload_of(id: str, metadata: dict[str, Value]) -> dict[str, Any]:
    return {"id": id, "metadata": metadata, **{payload_key(key): value for key, value in metadata.items()}}


def condition(node: Node) -> q.Filter:
    match node:
        case AllOf(nodes):
            return q.Filter(must=[condition(inner) for inner in nodes])
        case AnyOf(nodes):
            return q.Filter(should=[condition(inner) for inner in nodes] or [_NOTHING])
        case Not(inner):
            return q.Filter(must_not=[condition(inner)])
        case Compare():
            return _comparison(node)


_NOTHING = q.HasIdCondition(has_id=[])


def _comparison(node: Compare) -> q.Filter:
    key = payload_key(node.key)
    match node.operator:
        case "$eq":
            return q.Filter(must=[_equals(key, node.value)])
        case "$in":
            return q.Filter(should=[_equals(key, value) for value in node.value] or [_NOTHING])
        case "$exists":
            missing = q.IsEmptyCondition(is_empty=q.PayloadField(key=key))
            return q.Filter(must_not=[missing]) if node.value else q.Filter(must=[missing])
        case ordered:
            return q.Filter(must=[q.FieldCondition(key=key, range=q.Range(**{ordered[1:]: node.value}))])


def _equals(key: str, value: Value) -> q.FieldCondition:
    if is_number(value):
        number = float(value)
        return q.FieldCondition(key=key, range=q.Range(gte=number, lte=number))
    assert isinstance(value, str | bool)
    return q.FieldCondition(key=key, match=q.MatchValue(value=value))
