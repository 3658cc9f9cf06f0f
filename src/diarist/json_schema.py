"""Check JSON values against a JSON schema (draft 2020-12)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from jsonschema import ValidationError
    from pydantic import ValidationError as PydanticError

_SHOWN = 60
"""Characters of a value that an error message shows."""

_DATA = ("enum", "const", "default", "examples")


def no_schema(error: Exception) -> str:
    """Return one line for an error of pydantic about a type: its first sentence, and which types can be used."""
    why = str(error).partition("\n")[0].partition(". ")[0]
    return f"has no JSON schema; use a Pydantic model, a dataclass, a TypedDict or a built-in type: {why}"


def listed_problems(error: PydanticError, *, whole: str) -> str:
    """Return the problems of a value that pydantic refused, each with its place; ``whole`` names the value itself."""
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or whole}: {each['msg']}" for each in error.errors())


class JsonSchema:
    """A JSON schema. References are resolved within the schema; nothing is fetched.

    Args:
        partial: Accept values with only some of the fields, as if nothing were ``required``.
    """

    def __init__(self, schema: Mapping[str, Any], *, partial: bool = False) -> None:
        from referencing import Registry, Resource
        from referencing.jsonschema import DRAFT202012

        self._schema = schema
        self._partial = partial
        root: Any = Resource(contents=schema, specification=DRAFT202012)
        registry: Any = Registry[Any]()
        self._registry: Any = registry.with_resource("", root)

    def faults(self) -> Iterator[str]:
        """Yield the errors of the schema itself, including unresolved references."""
        from jsonschema import Draft202012Validator

        meta: Any = Draft202012Validator(Draft202012Validator.META_SCHEMA)
        yield from (_message(error) for error in meta.iter_errors(self._schema))
        yield from (f"{ref!r} is not in the schema" for ref in _references(self._schema) if self._lookup(ref) is None)

    def problems(self, value: object) -> list[str]:
        """Return the errors of ``value``, each with its place; empty if it is valid."""
        validator = _validator(self._partial)(self._schema, registry=self._registry)
        return [_message(error) for error in validator.iter_errors(value)]

    def forbidden(self, value: object) -> list[tuple[str | int, ...]]:
        """Return the paths of the fields of ``value`` that ``"additionalProperties": false`` forbids."""
        validator: Any = _validator(self._partial)(self._schema, registry=self._registry)
        found: list[tuple[str | int, ...]] = []
        for error in validator.iter_errors(value):
            if error.validator == "additionalProperties" and error.validator_value is False:
                known: Any = error.schema.get("properties", {})
                patterns: list[str] = list(error.schema.get("patternProperties", {}))
                names = [name for name in error.instance if name not in known]
                found += [
                    (*error.absolute_path, name) for name in names if not any(re.search(p, name) for p in patterns)
                ]
        return found

    @property
    def is_object(self) -> bool:
        """Return True if the schema describes an object, directly or by reference."""
        schema: Mapping[str, Any] = self._schema
        seen: set[str] = set()
        while isinstance(ref := schema.get("$ref"), str) and ref not in seen:
            seen.add(ref)
            schema = self._lookup(ref) or {}
        return schema.get("type") == "object"

    def _lookup(self, ref: str) -> Mapping[str, Any] | None:
        from referencing.exceptions import Unresolvable

        try:
            found = self._registry.resolver().lookup(ref).contents
        except Unresolvable:
            return None
        return cast(Mapping[str, Any], found) if isinstance(found, Mapping) else None


@cache
def _validator(partial: bool) -> Any:
    from jsonschema import Draft202012Validator, validators

    def accept(*_: Any) -> tuple[()]:
        return ()

    make: Any = validators
    return make.extend(Draft202012Validator, {"required": accept} if partial else {})


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for item in cast(list[Any], schema):
            yield from _references(item)
    elif isinstance(schema, Mapping):
        for name, item in cast(Mapping[str, Any], schema).items():
            if name == "$ref" and isinstance(item, str):
                yield item
            elif name not in _DATA:
                yield from _references(item)


def _message(error: ValidationError) -> str:
    """Return the place and the reason of an error; for several alternatives (``anyOf``), the reasons of all."""
    place = ".".join(str(name) for name in error.absolute_path)
    why = " or ".join(dict.fromkeys(map(_reason, error.context or (error,))))
    return f"{place}: {why}" if place else why


def _reason(error: ValidationError) -> str:
    value = repr(error.instance)
    return error.message if len(value) <= _SHOWN else error.message.replace(value, f"{value[:_SHOWN]}…")
