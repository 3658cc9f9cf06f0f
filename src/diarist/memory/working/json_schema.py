"""Checking a JSON value against a JSON schema, as far as schemas for models go."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from operator import ge, gt, le, lt
from typing import Any, cast

Schema = Mapping[str, Any]

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: (isinstance(value, int) and not isinstance(value, bool)) or _is_whole(value),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "null": lambda value: value is None,
}


_BOUNDS: tuple[tuple[str, Callable[[Any, Any], bool], str], ...] = (
    ("minimum", ge, "at least"),
    ("maximum", le, "at most"),
    ("exclusiveMinimum", gt, "more than"),
    ("exclusiveMaximum", lt, "less than"),
)


def problems(value: Any, schema: Schema) -> list[str]:
    """What is wrong with ``value``, each with its place; empty where it fits.

    Checked are ``type``, ``enum``, ``const``, ``properties``, ``additionalProperties``, ``items``, ``minItems``,
    ``maxItems``, ``minLength``, ``maxLength``, ``pattern``, ``minimum``, ``maximum``, ``exclusiveMinimum``,
    ``exclusiveMaximum``, ``anyOf``, ``oneOf``, ``allOf`` and local ``$ref``. Properties may be missing, also those
    that are ``required``: what is not known yet is not there.
    """
    return list(_problems(value, schema, schema, ""))


def faults(schema: Any, root: Schema, place: str = "the schema") -> Iterator[str]:
    """What would make a schema let everything pass: types that there are not, and references that lead nowhere."""
    if isinstance(schema, list):
        for index, item in enumerate(cast(list[Any], schema)):
            yield from faults(item, root, f"{place}[{index}]")
    if not isinstance(schema, Mapping):
        return
    schema = cast(Schema, schema)
    named: Any = schema.get("type", [])
    names = cast(list[Any], [named] if isinstance(named, str) else named if isinstance(named, list) else [])
    for name in names:
        if name not in _TYPES:
            yield f"{place} has the type {name!r}; there are {', '.join(_TYPES)}"
    if isinstance(ref := schema.get("$ref"), str) and (not ref.startswith("#") or not resolved(schema, root)):
        yield f"{place} refers to {ref!r}, which is not in the schema"
    for name, item in schema.items():
        if name not in ("enum", "const", "default", "examples"):
            yield from faults(item, root, f"{place}.{name}")


def resolved(schema: Any, root: Schema) -> Schema:
    """The schema that a local ``$ref`` stands for; itself where it has none."""
    seen: set[str] = set()
    while isinstance(schema, Mapping) and isinstance(ref := cast(Schema, schema).get("$ref"), str) and ref not in seen:
        seen.add(ref)
        schema = root
        for name in ref.removeprefix("#").strip("/").split("/") if ref != "#" else ():
            schema = cast(Schema, schema).get(name, {}) if isinstance(schema, Mapping) else {}
    return cast(Schema, schema) if isinstance(schema, Mapping) else {}


def _problems(value: Any, schema: Any, root: Schema, place: str) -> Iterator[str]:
    if schema is False:
        yield f"{place or 'it'} must not be there"
        return
    schema = resolved(schema, root)
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(_TYPES.get(name, lambda _: True)(value) for name in types):
        yield f"{place or 'it'} must be {' or '.join(types)}, not {_shorten(value)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{place or 'it'} must be one of {', '.join(map(repr, schema['enum']))}, not {_shorten(value)}"
    if "const" in schema and value != schema["const"]:
        yield f"{place or 'it'} must be {schema['const']!r}, not {_shorten(value)}"
    yield from _limits(value, schema, place or "it")
    if isinstance(value, dict):
        yield from _properties(cast(dict[str, Any], value), schema, root, place)
    if isinstance(value, list):
        for index, item in enumerate(cast(list[Any], value)):
            yield from _problems(item, schema.get("items", {}), root, f"{place}[{index}]")
    yield from _choices(value, schema, root, place)


def _properties(value: Mapping[str, Any], schema: Schema, root: Schema, place: str) -> Iterator[str]:
    known = schema.get("properties", {})
    for name, item in value.items():
        where = f"{place}.{name}" if place else name
        if name in known:
            yield from _problems(item, known[name], root, where)
        elif schema.get("additionalProperties") is False:
            yield f"{where} is not known; known: {', '.join(known) or 'none'}"
        else:
            yield from _problems(item, schema.get("additionalProperties", {}), root, where)


def _choices(value: Any, schema: Schema, root: Schema, place: str) -> Iterator[str]:
    for option in schema.get("allOf", ()):
        yield from _problems(value, option, root, place)
    for name in ("anyOf", "oneOf"):
        found = [list(_problems(value, option, root, place)) for option in schema.get(name, ())]
        if found and all(found):
            yield " or ".join(dict.fromkeys("; ".join(wrong) for wrong in found))
        elif name == "oneOf" and sum(not wrong for wrong in found) > 1:
            yield f"{place or 'it'} fits more than one of the schemas of oneOf"


def _limits(value: Any, schema: Schema, place: str) -> Iterator[str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        for name, fits, words in _BOUNDS:
            if name in schema and not fits(value, schema[name]):
                yield f"{place} must be {words} {schema[name]}, not {value}"
    if isinstance(value, str | list):
        kind, unit = ("Length", "characters") if isinstance(value, str) else ("Items", "items")
        size = len(cast(str, value))
        if size < schema.get(f"min{kind}", 0):
            yield f"{place} must have at least {schema[f'min{kind}']} {unit}, not {size}"
        if size > schema.get(f"max{kind}", size):
            yield f"{place} must have at most {schema[f'max{kind}']} {unit}, not {size}"
    if isinstance(value, str) and "pattern" in schema and re.search(schema["pattern"], value) is None:
        yield f"{place} must match {schema['pattern']}, not {_shorten(value)}"


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
