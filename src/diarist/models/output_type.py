"""``output_type``: makes the schema for the model from a type or JSON schema, and parses the answer's text."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

import orjson

from diarist.exceptions import ConfigError, InputError
from diarist.json_schema import JsonSchema, listed_problems, no_schema
from diarist.messages import Json
from diarist.models.base import OutputSchema

_FIELD = "answer"
"""The field of the object that the model is asked for if the type is not an object's: OpenAI refuses other schemas."""


class OutputType:
    """The type of a run's answer.

    ``schema`` is the schema for the model. Of a type such as ``list[Flight]``, it has one field, ``answer``; an answer
    without this object is accepted, too.

    Args:
        of: A Pydantic model, dataclass, TypedDict or any type with a JSON schema; or a JSON schema, as a dictionary or
            as an ``OutputSchema``.

    Raises:
        ConfigError: The type has no JSON schema, or the JSON schema is invalid.
    """

    def __init__(self, of: Any) -> None:
        named = of if isinstance(of, OutputSchema) else None
        self._of: Any = of if named is None else named.schema  # a type, or a JSON schema
        self._is_schema = isinstance(self._of, Mapping)
        self._in_field = False
        if self._is_schema:
            schema: dict[str, Json] = dict(self._of)
            if fault := next(self._checker.faults(), None):
                name = "output_type" if named is None else f"the schema {named.name!r}"
                raise ConfigError(f"{name} is no JSON schema: {fault}")
            self.schema = named or OutputSchema(name=str(schema.get("title", "answer")), schema=schema)
            return
        try:
            schema = self._adapter.json_schema()
        except Exception as error:  # pydantic raises various errors for types without a schema
            raise ConfigError(f"output_type {self._of!r} {no_schema(error)}") from error
        if schema.get("type") != "object":
            self._in_field = True
            definitions = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
            field = {"properties": {_FIELD: schema}, "required": [_FIELD], "additionalProperties": False}
            schema = {"type": "object", **field, **definitions}
        self.schema = OutputSchema(name=getattr(self._of, "__name__", "answer"), schema=schema)

    @cached_property
    def _checker(self) -> JsonSchema:
        return JsonSchema(self._of)

    @cached_property
    def _adapter(self) -> Any:
        from pydantic import TypeAdapter

        return TypeAdapter(self._of)

    def plain(self, text: str) -> Json:
        """Return the value in ``text`` as JSON. Raises InputError as ``parse`` does."""
        value = self.parse(text)
        return value if self._is_schema else self._adapter.dump_python(value, mode="json")

    def parse(self, text: str) -> Any:
        """Return the value in ``text``, which may be in a code fence. Raises InputError with text for the model."""
        text = text.strip()
        if text.startswith("```") and text.endswith("```") and "\n" in text:
            text = text[text.index("\n") + 1 : -3].strip()
        if self._is_schema:
            try:
                value = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                raise InputError(f"the answer is not JSON: {error}") from error
            if problems := self._checker.problems(value):
                raise InputError(f"the answer does not fit {self.schema.name}: {'; '.join(problems)}")
            return value
        from pydantic import ValidationError

        try:
            return self._adapter.validate_json(self._held(text) if self._in_field else text)
        except ValidationError as error:
            if self._in_field:
                with suppress(ValidationError):  # the value may be an object with this field only
                    return self._adapter.validate_json(text)
            problems = listed_problems(error, whole="answer")
            raise InputError(f"the answer does not fit {self.schema.name}: {problems}") from None  # it quotes the value

    @staticmethod
    def _held(text: str) -> str | bytes:
        """Return the JSON in the field of an object that has no other; of any other text, the text."""
        from pydantic_core import from_json, to_json

        with suppress(ValueError):
            value = from_json(text)
            if isinstance(value, dict) and value.keys() == {_FIELD}:
                return to_json(value[_FIELD])
        return text
