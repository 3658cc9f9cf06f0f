"""The two kinds of working memory: an update replaces the whole Markdown text, but is merged into the JSON object."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import orjson

from diarist.exceptions import ConfigError, InputError
from diarist.json_schema import JsonSchema, no_schema
from diarist.memory.working.config import DEFAULT_TEMPLATE, WorkingMemoryConfig
from diarist.memory.working.prompts import load_prompt
from diarist.memory.working.store import merge, object_of
from diarist.messages import Json, copy_json
from diarist.storage.records import WorkingMemoryUpdate
from diarist.tools import Tool

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

UPDATE_TOOL = "update_working_memory"
MAX_LENGTH = 20_000
"""Maximum length of a working memory, in characters: about 5,000 tokens of every prompt."""


class Shape(ABC):
    """A kind of working memory: its texts for the model, and the check of updates.

    Attributes:
        replaces: True if an update is the whole new text, so it must be based on the newest text.
        blank: Text to show while nothing is known.
        how_to_keep: Instructions for the model that updates it.
    """

    replaces: bool
    blank: str
    how_to_keep: str

    @abstractmethod
    def update(self, value: Json, current: str, run_id: str) -> WorkingMemoryUpdate | None:
        """Return the update that ``value`` makes to the text ``current``; None if it changes nothing.

        Raises InputError with a message for the model.
        """

    @abstractmethod
    def parameters(self) -> dict[str, Json]:
        """Return the JSON schema of the tool's arguments."""

    def tool(self) -> Tool:
        """Return the tool, without a function."""
        name = "tool_text" if self.replaces else "tool_json"
        return Tool(name=UPDATE_TOOL, description=load_prompt(name), parameters=self.parameters())


def check_size(text: str) -> None:
    """Raise InputError for a working memory that is too long to be in every prompt."""
    if len(text) > MAX_LENGTH:
        raise InputError(
            f"nothing was changed: the working memory would have {len(text):,} characters, and the limit is "
            f"{MAX_LENGTH:,}. Leave out the least important"
        )


class TextShape(Shape):
    """A Markdown text that follows a template; an update is the whole new text."""

    replaces = True

    def __init__(self, template: str) -> None:
        self.blank = template.strip()
        self.how_to_keep = load_prompt("keep_text")

    def update(self, value: Json, current: str, run_id: str) -> WorkingMemoryUpdate | None:
        if not isinstance(value, str):
            raise InputError(f"memory must be a text, the whole new working memory, not {type(value).__name__}")
        text = value.strip()
        check_size(text)
        if _bones(text) in ("", _bones(self.blank)) and current:
            raise InputError(
                "nothing was changed: this is the empty template, and everything known would be lost. Pass the "
                "whole new working memory"
            )
        if text == current or _bones(text) in ("", _bones(self.blank)):
            return None
        return WorkingMemoryUpdate(run_id=run_id, text=text, base=current or self.blank)

    def parameters(self) -> dict[str, Json]:
        memory = {"type": "string", "description": "The whole new working memory, in Markdown."}
        return {"type": "object", "properties": {"memory": memory}, "required": ["memory"]}


class ObjectShape(Shape):
    """A JSON object that follows a schema; an update is merged into it.

    Raises:
        ConfigError: The schema is invalid, or not of type object.
    """

    replaces = False
    blank = "{}"

    def __init__(self, schema: type[Any] | Mapping[str, Any]) -> None:
        self.how_to_keep = load_prompt("keep_json")
        self._type = None if isinstance(schema, Mapping) else schema
        try:
            self._schema: dict[str, Any] = dict(schema) if isinstance(schema, Mapping) else self._adapter.json_schema()
        except Exception as error:  # pydantic raises various errors for types without a schema
            raise ConfigError(f"working_memory.schema {self._type!r} {no_schema(error)}") from error
        self._checker = JsonSchema(self._schema, partial=True)
        if self._type is None and (wrong := next(self._checker.faults(), None)):
            raise ConfigError(f"working_memory.schema: {wrong}")
        if not self._checker.is_object:
            raise ConfigError(f"working_memory.schema must be a schema of type object, not {schema!r}")

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        from pydantic import TypeAdapter

        kind: Any = self._type
        return TypeAdapter(kind)

    def update(self, value: Json, current: str, run_id: str) -> WorkingMemoryUpdate | None:
        if isinstance(value, str):  # some models write the object as a text
            try:
                value = orjson.loads(value)
            except orjson.JSONDecodeError as error:
                raise InputError(f"memory must be a JSON object with the fields that change: {error}") from error
        if not isinstance(value, dict):
            kind = type(value).__name__
            raise InputError(f"memory must be a JSON object with the fields that change, not {kind}")
        patch, before = copy_json(cast(dict[str, Json], value)), object_of(current)
        # Fields that an earlier schema allowed and this one forbids go with the next update.
        removal: dict[str, Json] = {}
        for path in self._forbidden(before):
            _remove(removal, before, path)
            _remove(patch, before, path)
        fitting = merge(before, removal)
        after = merge(fitting, patch)
        known = self._problems(fitting)
        if wrong := [problem for problem in self._problems(after) if problem not in known]:
            raise InputError(f"nothing was changed: {'; '.join(wrong)}. Correct that and pass the fields again")
        if after == before:
            return None
        check_size(json.dumps(after, ensure_ascii=False))
        return WorkingMemoryUpdate(run_id=run_id, patch=patch)

    def _problems(self, value: dict[str, Any]) -> list[str]:
        """Return the problems of the fields that are present."""
        if self._type is None:
            return self._checker.problems(value)
        errors = [item for item in self._errors(value) if item["type"] != "missing"]
        return [f"{'.'.join(map(str, item['loc'])) or 'memory'}: {item['msg']}" for item in errors]

    def _forbidden(self, value: dict[str, Any]) -> list[tuple[str | int, ...]]:
        """Return the paths of the fields that the schema forbids."""
        if self._type is None:
            return self._checker.forbidden(value)
        return [item["loc"] for item in self._errors(value) if item["type"] == "extra_forbidden"]

    def _errors(self, value: dict[str, Any]) -> list[ErrorDetails]:
        from pydantic import ValidationError

        try:
            self._adapter.validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            return error.errors()
        return []

    def parameters(self) -> dict[str, Json]:
        shared = [name for name in ("$defs", "definitions") if name in self._schema]  # $ref finds them at the top
        memory = _partial({name: item for name, item in self._schema.items() if name not in shared})
        hoisted = {name: {key: _partial(item) for key, item in self._schema[name].items()} for name in shared}
        return {"type": "object", "properties": {"memory": memory}, "required": ["memory"], **hoisted}


def shape_of(config: WorkingMemoryConfig) -> Shape:
    """Return the shape for a configuration. Raises ConfigError."""
    if config.schema is not None:
        return ObjectShape(config.schema)
    return TextShape(config.template if config.template is not None else DEFAULT_TEMPLATE)


def _bones(text: str) -> str:
    """Return the text without emphasis, case, extra spaces and blank lines, for comparison."""
    lines = (" ".join(line.replace("*", "").split()).casefold() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def kin(text: str) -> set[str]:
    """Return the headings and labels of a text, and its lines without a label, in lower case."""
    return {line.partition(":")[0] for line in _bones(text).splitlines()}


def _remove(patch: Json, value: Json, path: Sequence[str | int]) -> None:
    """Let a patch of ``value`` remove the field at a path, unless the patch itself sets it. Items of lists stay."""
    name, *rest = path
    if isinstance(patch, dict) and isinstance(value, dict) and name in value:
        if rest and not isinstance(value[name], dict):
            return
        inner = cast(dict[Any, Json], patch).setdefault(name, {} if rest else None)
        if rest:
            _remove(inner, value[name], rest)


def _partial(schema: Any) -> Any:
    """Return the schema of an update: no field is required, and null, which removes a field, is always valid."""
    if not isinstance(schema, Mapping):
        return schema
    out = dict(cast(Mapping[str, Any], schema))
    out.pop("required", None)
    for name in ("anyOf", "oneOf", "allOf"):
        if name in out:
            out[name] = [_partial(option) for option in out[name]]
    if isinstance(out.get("additionalProperties"), Mapping):
        out["additionalProperties"] = _or_null(out["additionalProperties"])
    if "properties" in out:
        out["properties"] = {name: _or_null(item) for name, item in out["properties"].items()}
    return out


def _or_null(schema: Any) -> Any:
    return {"anyOf": [_partial(schema), {"type": "null"}]}
