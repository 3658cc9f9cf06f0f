"""A memory without an embedder forgets with all that another memory made of the same messages."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diarist import Agent, Memory, Message
from diarist.exceptions import ConfigError
from diarist.processors import Processor, ProcessOutputResultArgs
from diarist.storage import InMemoryStorage, SQLiteStorage, Storage
from diarist.storage.postgres import PostgresStorage
from diarist.testing import ScriptedModel
from diarist.vectors import InMemoryVectorStore, SQLiteVectorStore, VectorStore
from diarist.vectors.postgres import PgVectorStore
from tests.memory.semantic.kit import TopicEmbedder, memory_with, say

INDEX = "messages topics 4"


@pytest.fixture(params=["sqlite", "postgres", "schema"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Storage, VectorStore]:
    """A storage, and the vector store in the same place."""
    if request.param == "sqlite":
        return SQLiteStorage(tmp_path / "memory.db"), SQLiteVectorStore(tmp_path / "memory.db")
    url = request.getfixturevalue("postgres_url")
    schema = "apart" if request.param == "schema" else None
    return PostgresStorage(url, schema=schema), PgVectorStore(url, schema=schema)


@pytest.fixture
async def parts(database: tuple[Storage, VectorStore]) -> AsyncIterator[tuple[Storage, VectorStore]]:
    storage, store = database
    async with storage, store:
        yield storage, store


async def count(store: VectorStore, index: str = INDEX) -> int:
    info = await store.describe(index)
    return info.count if info is not None else 0


async def conversations(storage: Storage, store: VectorStore) -> Memory:
    memory = memory_with(TopicEmbedder(), storage=storage, vector=store)
    for thread, text in (("one", "Rome is warm."), ("two", "Pizza is round.")):
        rows = [Message.user(text, id="m"), Message.user("More of Rome.")]
        await memory.messages.save(rows, thread=thread, resource="ada")
    await memory.settled()
    assert await count(store) == 4
    return memory


async def test_vectors_in_the_same_database_are_found(parts: tuple[Storage, VectorStore]) -> None:
    storage, store = parts
    await conversations(storage, store)
    plain = Memory(storage=storage)
    assert (await plain.forget(message_ids=["m"], thread="one")).vectors == 1
    await plain.threads.delete("one")
    assert await count(store) == 2
    assert (await plain.forget(resource="ada")).vectors == 2
    assert (await count(store), await count(store, f"{INDEX} cursors")) == (0, 0)
    await plain.close()


async def test_notes_that_quote_it_are_cut(parts: tuple[Storage, VectorStore]) -> None:
    storage, store = parts
    memory = await conversations(storage, store)
    await say(memory, "Tell me of Italy.", thread="new")
    plain = Memory(storage=storage)
    assert len((await plain.forget(message_ids=["m"], thread="one")).note_ids) == 1
    assert "Rome is warm." not in await say(memory, "And now?", thread="new")
    await plain.close()


async def test_a_thread_of_the_same_id_is_embedded_from_its_beginning(parts: tuple[Storage, VectorStore]) -> None:
    storage, store = parts
    memory = await conversations(storage, store)
    plain = Memory(storage=storage)
    await plain.threads.delete("one")
    await memory.messages.save([Message.user("A garden.")], thread="one", resource="ada")
    await memory.settled()
    assert "A garden." in [hit.message.text for hit in (await memory.recall("roses", thread="one")).items]
    await plain.close()


async def test_a_store_elsewhere_is_named() -> None:
    storage, store = InMemoryStorage(), InMemoryVectorStore()
    await conversations(storage, store)
    plain = Memory(storage=storage, vector=store)
    assert (await plain.forget(message_ids=["m"], thread="one")).vectors == 1
    assert (await plain.forget(thread="two")).vectors == 2
    with pytest.raises(ConfigError, match="pass embedder="):
        await plain.recall("Rome", resource="ada")
    assert "memory-note" not in await say(plain, "Italy?", thread="new")
    assert await count(store) == 1


async def test_without_vectors_nothing_is_made(tmp_path: Path) -> None:
    """Forgetting must not create tables or an extension that the application does not use."""
    async with Memory(storage=SQLiteStorage(tmp_path / "memory.db")) as memory:
        await memory.messages.save([Message.user("Rome")], thread="one", resource="ada")
        assert (await memory.forget(thread="one")).vectors == 0
    looking = sqlite3.connect(tmp_path / "memory.db")
    names = [row[0] for row in looking.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    looking.close()
    assert [name for name in names if "vector" in name] == []


async def test_vectors_that_come_later_are_found_as_well(parts: tuple[Storage, VectorStore]) -> None:
    storage, store = parts
    plain = Memory(storage=storage)
    await plain.messages.save([Message.user("Rome")], thread="none", resource="bob")
    assert (await plain.forget(thread="none")).vectors == 0
    await conversations(storage, store)
    assert (await plain.forget(thread="one")).vectors == 2
    await plain.close()


async def test_vector_false_leaves_them(parts: tuple[Storage, VectorStore]) -> None:
    storage, store = parts
    await conversations(storage, store)
    assert (await Memory(storage=storage, vector=False).forget(thread="one")).vectors == 0
    assert await count(store) == 4


class Blocking(Processor[None]):
    id = "blocking"

    async def process_output_result(self, args: ProcessOutputResultArgs[None]) -> None:
        args.abort("no")


async def test_a_run_that_is_blocked_removes_nothing(parts: tuple[Storage, VectorStore]) -> None:
    """What it said goes; what was said before in its thread is found as before."""
    storage, store = parts
    memory = await conversations(storage, store)
    agent = Agent(model=ScriptedModel("Rome!", "Rome!"), memory=Memory(storage=storage), output_processors=[Blocking()])
    for thread in ("one", "new"):
        result = await agent.generate("Italy?", thread=thread, resource="ada")
        assert result.tripwire is not None
    assert await count(store) == 4
    assert (await count(store, f"{INDEX} cursors")) == 2
    assert await memory.messages.embed(resource="ada") == 0
