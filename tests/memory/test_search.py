"""``memory.messages.search`` and ``memory.diary.search``: what people find, and whose."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from diarist import Agent, Memory, Message, ObservationalMemoryConfig
from diarist.exceptions import ConfigError, InputError, NotFoundError
from diarist.storage import InMemoryStorage, SQLiteStorage, Storage
from diarist.testing import ScriptedModel

MONDAY = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


@pytest.fixture(params=["sqlite", "in-memory"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Storage]:
    made: Storage = SQLiteStorage(tmp_path / "memory.db") if request.param == "sqlite" else InMemoryStorage()
    async with made:
        yield made


def keeping(storage: Storage, scope: Literal["thread", "resource"] = "thread") -> Memory:
    return Memory(storage=storage, observational_memory=ObservationalMemoryConfig(model="extractive", scope=scope))


async def save(memory: Memory, *texts: str, thread: str = "t", resource: str = "ada", days: int = 0) -> None:
    start = MONDAY + timedelta(days=days)
    rows = [Message.user(text, created_at=start + timedelta(minutes=n)) for n, text in enumerate(texts)]
    await memory.messages.save(rows, thread=thread, resource=resource)


async def found(memory: Memory, query: str, **options: Any) -> list[str]:
    return [hit.message.text for hit in (await memory.messages.search(query, **options)).items]


async def noted(memory: Memory, query: str, **options: Any) -> list[str]:
    return [hit.excerpt for hit in await memory.diary.search(query, **options)]


async def test_messages_of_a_resource_or_of_a_thread(storage: Storage) -> None:
    memory = Memory(storage=storage)
    await save(memory, "A train to Rome", "A train to Oslo")
    await save(memory, "Rome by night", thread="u", days=1)
    await save(memory, "Rome for Grace", thread="v", resource="grace", days=2)
    assert await found(memory, "rome", resource="ada") == ["Rome by night", "A train to Rome"]
    assert await found(memory, "rome", thread="t") == ["A train to Rome"]
    assert await found(memory, "rome train", resource="ada", thread="t") == ["A train to Rome"]
    page = await memory.messages.search("train", resource="ada", limit=1)
    assert await found(memory, "train", resource="ada", cursor=page.cursor) == ["A train to Rome"]


async def test_a_turn_is_found_once_it_is_over(storage: Storage) -> None:
    memory = Memory(storage=storage)
    agent = Agent(model=ScriptedModel("The Colosseum."), memory=memory)
    await agent.generate("What is in Rome?", thread="t", resource="ada")
    assert await found(memory, "colosseum", resource="ada") == ["The Colosseum."]


async def test_what_was_forgotten_is_not_found(storage: Storage) -> None:
    memory = keeping(storage)
    await save(memory, "I decided to meet Bob in Rome on 12 June 2026.", "Fine.")
    await memory.diary.observe(thread="t")
    (first, _) = await memory.messages.list(thread="t")
    assert len(await noted(memory, "rome", thread="t")) == 1
    await memory.forget(message_ids=[first.id], thread="t")
    assert await found(memory, "rome", resource="ada") == []
    assert await noted(memory, "rome", thread="t") == []


async def test_notes_of_a_thread_and_of_all_threads(storage: Storage) -> None:
    memory = keeping(storage)
    await save(memory, "I decided to fly to Rome on 12 June 2026.")
    await save(memory, "I decided to fly to Rome by night on 13 June 2026.", thread="u", days=1)
    await save(memory, "I decided to fly to Rome with Grace on 14 June 2026.", thread="v", resource="grace")
    for thread in ("t", "u", "v"):
        await memory.diary.observe(thread=thread)
    one, two = await memory.diary.search("ROME", resource="ada")
    assert (one.key, two.key) == ("thread:u", "thread:t")
    assert "Rome by night" in one.excerpt
    assert one.observation in (await memory.diary.get(thread="u")).active
    assert len(await noted(memory, "rome", resource="ada", limit=1)) == 1
    assert len(await noted(memory, "rome", thread="t")) == 1
    assert await noted(memory, "rome night", thread="t") == []
    assert await noted(memory, "grace", resource="ada") == []


async def test_notes_of_a_whole_resource(storage: Storage) -> None:
    memory = keeping(storage, "resource")
    await save(memory, "I decided to fly to Rome on 12 June 2026.")
    await save(memory, "I decided to fly to Oslo on 13 June 2026.", thread="u", days=1)
    await memory.diary.observe(thread="t")
    await memory.diary.observe(thread="u")
    (hit,) = await memory.diary.search("rome", resource="ada")
    assert hit.key == "resource:ada"
    assert await noted(memory, "rome", thread="t") == [hit.excerpt]
    assert await noted(memory, "rome", resource="grace") == []


@pytest.mark.parametrize("search", [lambda m: m.messages.search, lambda m: m.diary.search])
async def test_refused_values(storage: Storage, search: Any) -> None:
    memory = keeping(storage)
    await save(memory, "Rome")
    with pytest.raises(InputError, match="pass resource"):
        await search(memory)("rome")
    with pytest.raises(InputError, match="'grace'"):
        await search(memory)("rome", thread="t", resource="grace")
    with pytest.raises(NotFoundError, match="'nowhere'"):
        await search(memory)("rome", thread="nowhere")
    with pytest.raises(InputError, match="at least one word"):
        await search(memory)("!", resource="ada")
    with pytest.raises(InputError, match="limit"):
        await search(memory)("rome", resource="ada", limit=0)


async def test_a_storage_that_cannot_search() -> None:
    class Plain(Storage):
        """Has every duty of a storage, and that is all."""

    Plain.__abstractmethods__ = frozenset()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ConfigError, match="Plain cannot search; use SQLiteStorage"):
        await Memory(storage=Plain()).messages.search("rome", resource="ada")
