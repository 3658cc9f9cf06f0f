"""Filters: conditions on metadata, as plain dictionaries.

``{"role": "user", "year": {"$gte": 2025}}`` requires both conditions. The operators of a key are ``$eq``, ``$ne``,
``$in``, ``$nin``, ``$gt``, ``$gte``, ``$lt``, ``$lte`` (numbers) and ``$exists``; ``$and`` and ``$or`` take a list of
filters, ``$not`` takes one. Numbers never equal booleans. A missing value equals nothing, so it matches ``$ne`` and
``$nin``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import Any, Literal, cast

from diarist.exceptions import InputError
from diarist.vectors.base import Filter, Value

Operator = Literal["$eq", "$in", "$gt", "$gte", "$lt", "$lte", "$exists"]

_NEGATED: dict[str, Operator] = {"$ne": "$eq", "$nin": "$in"}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition on one key. ``value`` is a list for ``$in``, a number for ``$gt`` and the like, a boolean for
    ``$exists``."""

    key: str
    operator: Operator
    value: Any


@dataclass(frozen=True, slots=True)
class Not:
    node: Node


@dataclass(frozen=True, slots=True)
class AllOf:
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    nodes: tuple[Node, ...]


Node = Compare | Not | AllOf | AnyOf


def parse_filter(filter: Filter | None) -> Node:
    """Return a filter as a tree; None matches everything. Raises InputError, which names the invalid part."""
    return AllOf(()) if filter is None else _parse(filter)


def _parse(filter: object) -> Node:
    if not isinstance(filter, Mapping):
        raise InputError(f"a filter is a dictionary, not {filter!r}")
    nodes: list[Node] = []
    for key, value in cast(Mapping[Any, Any], filter).items():
        if key in ("$and", "$or"):
            if not isinstance(value, list | tuple):
                raise InputError(f"{key} takes a list of filters, not {value!r}")
            inner = tuple(_parse(each) for each in cast(list[Any], value))
            nodes.append(AllOf(inner) if key == "$and" else AnyOf(inner))
        elif key == "$not":
            nodes.append(Not(_parse(value)))
        elif not isinstance(key, str) or not is_plain(key):
            raise InputError(f"a filter asks for a key of metadata, not {key!r}")
        elif isinstance(value, Mapping):
            conditions = cast(Mapping[Any, Any], value)
            if not conditions:
                raise InputError(f"the condition on {key!r} is empty")
            nodes += [_condition(key, operator, wanted) for operator, wanted in conditions.items()]
        elif key.startswith("$"):
            raise InputError(f"there is no operator {key!r}; write {{{key!r}: {{'$eq': ...}}}} for a key of that name")
        else:
            nodes.append(_condition(key, "$eq", value))
    return nodes[0] if len(nodes) == 1 else AllOf(tuple(nodes))


Test = Callable[[Mapping[str, Value]], bool]


def predicate(node: Node) -> Test:
    """Return a function that tests metadata. It is built once per query and runs for every vector of a partition."""
    match node:
        case Compare(key, "$exists", wanted):
            return lambda metadata: (key in metadata) is wanted
        case Compare(key, "$eq", str(wanted)):
            return lambda metadata: metadata.get(key) == wanted
        case Compare(key, "$eq" | "$in" as operator, wanted):
            # True equals 1 in Python, but not in a filter. A lookup in a set takes constant time.
            several = {(isinstance(each, bool), each) for each in (wanted if operator == "$in" else [wanted])}
            return lambda metadata: (isinstance(found := metadata.get(key), bool), found) in several
        case Compare(key, operator, wanted):
            compare = _COMPARE[operator]
            return lambda metadata: is_number(found := metadata.get(key)) and compare(found, wanted)
        case Not(inner):
            test = predicate(inner)
            return lambda metadata: not test(metadata)
        case AllOf((only,)):
            return predicate(only)
        case AllOf(nodes):
            tests = [predicate(inner) for inner in nodes]
            return lambda metadata: all(test(metadata) for test in tests)
        case AnyOf(nodes):
            tests = [predicate(inner) for inner in nodes]
            return lambda metadata: any(test(metadata) for test in tests)


def partition_in(node: Node, key: str | None) -> str | None:
    """Return the only value of ``key`` that can match the filter; None if several can."""
    match node:
        case Compare(name, "$eq", value) if name == key:
            return value if isinstance(value, str) else None
        case AllOf(nodes):
            return next((found for inner in nodes if (found := partition_in(inner, key)) is not None), None)
        case _:
            return None


def is_value(value: object) -> bool:
    """Return True for a valid metadata value. Numbers must be finite; integers must be exact as 64-bit floats."""
    if isinstance(value, str):
        return is_plain(value)
    if isinstance(value, bool):
        return True
    if isinstance(value, int):
        return abs(value) <= 1 << 53
    return isinstance(value, float) and value - value == 0


def is_plain(text: str) -> bool:
    """Return True for valid Unicode without NUL."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _condition(key: str, operator: Any, value: object) -> Node:
    if operator in _NEGATED:
        return Not(_condition(key, _NEGATED[operator], value))
    if operator == "$in":
        if not isinstance(value, list | tuple | set | frozenset):
            raise InputError(f"$in of {key!r} takes a list, not {value!r}")
        return Compare(key, "$in", [_checked(key, each) for each in cast(list[object], value)])
    if operator == "$eq":
        return Compare(key, "$eq", _checked(key, value))
    if operator in _COMPARE:
        if not is_number(value):
            raise InputError(f"{operator} of {key!r} compares numbers, not {value!r}")
        return Compare(key, operator, _checked(key, value))
    if operator == "$exists":
        if not isinstance(value, bool):
            raise InputError(f"$exists of {key!r} is True or False, not {value!r}")
        return Compare(key, "$exists", value)
    raise InputError(f"there is no operator {operator!r} (for {key!r})")


def _checked(key: str, value: object) -> object:
    if not is_value(value):
        raise InputError(f"{key!r} is compared with a string, a finite number or a boolean, not {value!r}")
    return value
