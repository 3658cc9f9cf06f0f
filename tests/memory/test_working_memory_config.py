"""What working memory refuses at construction, and how it reads a JSON schema."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel, RootModel

from diarist import Agent, Memory
from diarist.exceptions import ConfigError
from diarist.memory import WorkingMemoryConfig
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel


class Names(RootModel[list[str]]):
    """No object."""


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"template": "# User", "schema": {"type": "object"}}, "template or .*schema"),
        ({"template": "  \n"}, "template is empty"),
        ({"template": 3}, "working_memory.template must be a Markdown text, not 3"),
        ({"enabled": "false"}, "working_memory.enabled must be True or False, not 'false'"),
        ({"scope": "user"}, "scope"),
        ({"kept_by": "me"}, "kept_by"),
        ({"read_only": "yes"}, "read_only"),
        ({"read_only": True, "kept_by": "observer"}, "contradicts"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        WorkingMemoryConfig(**options)


@pytest.mark.parametrize("schema", [{"type": "array"}, {}, Names, list[int], object()])
def test_a_schema_is_of_an_object(schema: Any) -> None:
    with pytest.raises(ConfigError, match=r"working_memory\.schema"):
        Memory(storage=InMemoryStorage(), working_memory=WorkingMemoryConfig(schema=schema))


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({"type": "strng"}, "properties.a.type: 'strng' is not one of ['array', "),
        ({"items": {"type": ["string", "nul"]}}, "properties.a.items.type: "),
        ({"$ref": "#/x"}, "'#/x' is not in the schema"),
        ({"anyOf": [{"$ref": "https://example.com/a"}]}, "https://example.com/a"),
    ],
)
def test_a_schema_that_would_let_everything_pass_is_refused(field: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        Memory(
            storage=InMemoryStorage(),
            working_memory=WorkingMemoryConfig(schema={"type": "object", "properties": {"a": field}}),
        )


def test_a_property_may_have_the_name_of_a_keyword() -> None:
    schema = {"type": "object", "properties": {"type": {"type": "string"}, "enum": {"enum": ["x"]}}}
    Memory(storage=InMemoryStorage(), working_memory=WorkingMemoryConfig(schema=schema))


def test_other_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="WorkingMemoryConfig"):
        Memory(storage=InMemoryStorage(), working_memory="yes")  # pyright: ignore[reportArgumentType]


def test_it_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        WorkingMemoryConfig().scope = "thread"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("value", [False, WorkingMemoryConfig(enabled=False)])
async def test_without_working_memory_calls_raise_config_error(value: Any) -> None:
    memory = Memory(storage=InMemoryStorage(), working_memory=value)
    model = ScriptedModel("ok")
    await Agent(model=model, memory=memory).generate("hello", thread="t")
    assert model.requests[0].tools == []
    for call in (memory.working.get(thread="t"), memory.working.update("# Ada", thread="t")):
        with pytest.raises(ConfigError, match="working_memory=True"):
            await call


# --- values that are hard to write down ---------------------------------------------------------------


class Free(BaseModel):
    note: Any = None
    born: date | None = None


@pytest.mark.parametrize("schema", [{"type": "object"}, Free])
async def test_values_come_back(schema: Any) -> None:
    """Whatever JSON can say, and what it cannot as a string."""
    memory = Memory(storage=InMemoryStorage(), working_memory=WorkingMemoryConfig(schema=schema))
    hard: dict[str, Any] = {"emoji": "🦊", "zero": "\0", "large": 2**70, "empty": {}, "nothing": [None], "": ""}
    await memory.working.update({"note": hard}, resource="ada")
    await memory.working.update({"born": date(1815, 12, 10)}, resource="ada")
    assert await memory.working.get(resource="ada") == {"note": hard, "born": "1815-12-10"}


async def test_a_broken_character_breaks_nothing() -> None:
    memory = Memory(storage=InMemoryStorage(), working_memory=WorkingMemoryConfig(schema={"type": "object"}))
    await memory.working.update({"note": "half \ud83d"}, resource="ada")
    await memory.working.update({"more": 1}, resource="ada")
    assert await memory.working.get(resource="ada") == {"note": "half \ud83d", "more": 1}
