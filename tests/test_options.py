"""Options of the wrong type are refused where they are written, by name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Memory, ModelSettings, Tool, tool
from diarist.exceptions import ConfigError, InputError
from diarist.integrations.conversations import read_conversation
from diarist.memory import MemoryHooks, MessageHistory, ObservationalMemory, WorkingMemory
from diarist.memory.queue import PostgresQueue
from diarist.storage import InMemoryStorage, MongoDBStorage, PostgresStorage
from diarist.testing import ScriptedModel
from diarist.vectors import SQLiteVectorStore
from diarist.vectors.postgres import PgVectorStore
from diarist.vectors.qdrant import QdrantVectorStore

URL = "postgresql://localhost/app"
NO_COUNTER = r"token_counter must be an object with count\(text\), not 'o200k_base'"


@pytest.mark.parametrize(
    ("make", "options", "says"),
    [
        (Agent, {"model": ScriptedModel(), "name": 5}, "Agent: name must be a text, not 5"),
        (Tool, {"name": 5}, "Tool: name must be a text, not 5"),
        (Tool, {"name": "look", "description": None}, "tool 'look': description must be a text, not None"),
        (Tool, {"name": "look", "function": "look"}, "tool 'look': function must be a function, not 'look'"),
        (partial(tool, abs), {"description": 5}, "tool 'abs': description must be a text, not 5"),
        (ModelSettings, {"seed": "7"}, "ModelSettings: seed must be a whole number from .*, not '7'"),
        (ModelSettings, {"parallel_tool_calls": "no"}, "parallel_tool_calls must be True or False, not 'no'"),
        (Memory, {"token_counter": "o200k_base"}, f"Memory: {NO_COUNTER}"),
        (MessageHistory, {"storage": InMemoryStorage(), "token_counter": "o200k_base"}, NO_COUNTER),
        (WorkingMemory, {"storage": InMemoryStorage(), "token_counter": "o200k_base"}, NO_COUNTER),
        (ObservationalMemory, {"storage": InMemoryStorage(), "token_counter": "o200k_base"}, NO_COUNTER),
        (MemoryHooks, {"before_observation": []}, r"MemoryHooks: before_observation must be a function, not \[\]"),
        (PostgresStorage, {"url": None}, "not a URL of a PostgreSQL database"),
        (PostgresStorage, {"url": 5}, "not a URL of a PostgreSQL database"),
        (PostgresStorage, {"url": URL, "schema": 5}, "schema must be a text, not 5"),
        (PgVectorStore, {"url": URL, "schema": 5}, "schema must be a text, not 5"),
        (PostgresQueue, {"url": URL, "schema": None}, "schema must be a text, not None"),
        (PostgresQueue, {"url": URL, "name": None}, "name must be a text, not None"),
        (PostgresQueue, {"url": URL, "statement_timeout": "5"}, "statement_timeout must be a number of seconds"),
        (MongoDBStorage, {"url": None}, "not a URL of MongoDB"),
        (MongoDBStorage, {"url": "mongodb://localhost", "database": None}, "database must be a text, not None"),
        (QdrantVectorStore, {"location": None}, "location must be a URL, a folder or ':memory:', not None"),
        (QdrantVectorStore, {"location": ""}, "location must be a URL, a folder or ':memory:', not ''"),
        (SQLiteVectorStore, {"path": "v.db", "cache_bytes": "1 GB"}, "cache_bytes must be a whole number .*'1 GB'"),
    ],
)
def test_an_option_of_the_wrong_type_is_refused_by_name(
    make: Callable[..., Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        make(**options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"date": "2026-03-02"}, "date must be a date or datetime, such as .*, not '2026-03-02'"),
        ({"date": datetime}, "date must be a date or datetime"),
        ({"select": "1"}, "holds 1 conversation; select one from 1 to 1, not '1'"),
        ({"timezone": None}, "unknown time zone None; use a name such as Europe/Rome"),
    ],
)
def test_arguments_of_a_file_to_read(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text('{"role": "user", "content": "Hello"}\n')
    with pytest.raises(InputError, match=says):
        partial(read_conversation, file)(**options)


class Letters:
    """A token counter without a name."""

    def count(self, text: str) -> int:
        return len(text)


async def test_a_token_counter_needs_no_name() -> None:
    memory = Memory(storage=InMemoryStorage(), token_counter=Letters())
    await memory.messages.save("Hello", thread="t")
    assert [message.part_tokens for message in await memory.messages.list(thread="t")] == [(5,)]


class Budget(IntEnum):
    """Numbers of a user with names."""

    MESSAGES = 2


async def test_a_whole_number_may_have_a_name() -> None:
    memory = Memory(storage=InMemoryStorage(), last_messages=Budget.MESSAGES)
    for text in ("one", "two", "three"):
        await memory.messages.save(text, thread=f"about {text}")
    page = await memory.threads.list(limit=Budget.MESSAGES)
    assert len(page.items) == 2
