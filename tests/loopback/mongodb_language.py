"""Queries, updates and expressions of MongoDB, as far as diarist uses them."""

from __future__ import annotations

import copy
from datetime import datetime, timedelta
from typing import Any

Document = dict[str, Any]
_MISSING = object()


class Unsupported(Exception):
    """Nothing here knows that."""


class DuplicateKey(Exception):
    """A unique index has it already."""


def sort_key(value: Any) -> tuple[int, Any]:
    match value:
        case None:
            return (0, 0)
        case bool():
            return (3, value)
        case int() | float():
            return (1, value)
        case str():
            return (2, value.encode())
        case _:
            return (4, value)


# --- queries -------------------------------------------------------------------------------------------------


def matches(document: Document, query: Document, now: datetime) -> bool:
    return all(_holds(document, name, wanted, now) for name, wanted in query.items())


def _holds(document: Document, name: str, wanted: Any, now: datetime) -> bool:
    match name:
        case "$or":
            return any(matches(document, one, now) for one in wanted)
        case "$expr":
            return bool(evaluated(wanted, document, now))
        case _ if name.startswith("$"):
            raise Unsupported(name)
    value = _at(document, name)
    if isinstance(wanted, dict) and any(key.startswith("$") for key in wanted):
        return all(_compares(value, operator, operand) for operator, operand in wanted.items())
    return _equals(value, wanted)


def _compares(value: Any, operator: str, operand: Any) -> bool:
    match operator:
        case "$ne":
            return not _equals(value, operand)
        case "$in":
            return any(_equals(value, one) for one in operand)
        case "$all":
            return all(_equals(value, one) for one in operand)
        case "$gt" | "$gte" | "$lt" | "$lte":
            if value is _MISSING or sort_key(value)[0] != sort_key(operand)[0]:
                return False  # of different types nothing is greater than the other
            return _ordered(operator, value, operand)
        case _:
            raise Unsupported(operator)


def _ordered(operator: str, one: Any, two: Any) -> bool:
    left, right = sort_key(one), sort_key(two)
    return {"$gt": left > right, "$gte": left >= right, "$lt": left < right, "$lte": left <= right}[operator]


def _equals(value: Any, wanted: Any) -> bool:
    if wanted is None:
        return value is _MISSING or value is None
    if isinstance(value, list) and not isinstance(wanted, list):
        return any(_equals(item, wanted) for item in value)
    return value is not _MISSING and isinstance(value, bool) == isinstance(wanted, bool) and value == wanted


def _at(document: Any, path: str) -> Any:
    for name in path.split("."):
        if not isinstance(document, dict) or name not in document:
            return _MISSING
        document = document[name]
    return document


# --- updates -------------------------------------------------------------------------------------------------


def changed(old: Document, update: Any, now: datetime, *, inserting: bool) -> Document:
    new = copy.deepcopy(old)
    if isinstance(update, list):
        for stage in update:
            (name, fields) = next(iter(stage.items()))
            if name != "$set" or len(stage) != 1:
                raise Unsupported(f"stage {stage}")
            values = {path: evaluated(expression, new, now) for path, expression in fields.items()}
            for path, value in values.items():
                _put(new, path, copy.deepcopy(value))
        return new
    for operator, fields in update.items():
        for path, operand in fields.items():
            _apply(new, operator, path, operand, inserting)
    return new


def _apply(new: Document, operator: str, path: str, operand: Any, inserting: bool) -> None:
    value = _at(new, path)
    match operator:
        case "$set":
            _put(new, path, operand)
        case "$setOnInsert":
            if inserting:
                _put(new, path, operand)
        case "$inc":
            _put(new, path, (0 if value is _MISSING else value) + operand)
        case "$max":
            _put(new, path, operand if value is _MISSING else max(value, operand))
        case "$push":
            _put(new, path, [*value, operand])
        case "$pull":
            _put(new, path, [item for item in value if not matches(item, operand, datetime.min)])
        case _:
            raise Unsupported(operator)


def _put(document: Document, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for name in parents:
        document = document.setdefault(name, {})
    document[last] = copy.deepcopy(value)


# --- expressions ---------------------------------------------------------------------------------------------


def evaluated(expression: Any, document: Document, now: datetime) -> Any:
    match expression:
        case "$$NOW":
            return now
        case str() if expression.startswith("$$"):
            raise Unsupported(expression)
        case str() if expression.startswith("$"):
            found = _at(document, expression[1:])
            return None if found is _MISSING else found
        case list():
            return [evaluated(item, document, now) for item in expression]
        case dict() if any(name.startswith("$") for name in expression):
            ((operator, operands),) = expression.items()
            return _computed(operator, operands, document, now)
        case dict():
            return {name: evaluated(item, document, now) for name, item in expression.items()}
        case _:
            return expression


def _computed(operator: str, operands: Any, document: Document, now: datetime) -> Any:
    if operator == "$literal":
        return operands
    values = evaluated(operands, document, now)
    match operator:
        case "$add":
            return _sum(values)
        case "$multiply":
            return values[0] * values[1]
        case "$toLong":
            return round(values.timestamp() * 1000)
        case "$ifNull":
            return values[0] if values[0] is not None else values[1]
        case "$cond":
            return values[1] if values[0] else values[2]
        case "$eq":
            return values[0] == values[1]
        case "$gt" | "$lte":
            return _ordered(operator, *values)
        case "$concatArrays":
            return [item for some in values for item in some]
        case "$mergeObjects":
            return {name: item for some in values for name, item in (some or {}).items()}
        case _:
            raise Unsupported(operator)


def _sum(values: list[Any]) -> Any:
    if isinstance(values[0], datetime):
        return values[0] + timedelta(milliseconds=sum(values[1:]))
    if any(value is None for value in values):
        return None
    return sum(values)
