"""``memory.threads.prune``: delete what was not used for a long time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from diarist import Agent, Memory, Message, ObservationalMemoryConfig
from diarist.exceptions import InputError
from diarist.memory import Receipt
from diarist.models.base import ModelRequest
from diarist.storage import InMemoryStorage, Storage, Thread
from diarist.testing import ScriptedModel
from tests.memory.diary_kit import everything
from tests.memory.stores import made_storage, storage

__all__ = ["made_storage", "storage"]

NOW = datetime.now(UTC)


async def thread(storage: Storage, name: str, days: int, *, resource: str = "ada", **metadata: Any) -> None:
    """Create a thread that was last used some days ago."""
    used = NOW - timedelta(days=days)
    await storage.create_thread(
        Thread(id=name, resource_id=resource, metadata=metadata, created_at=used, updated_at=used)
    )


async def left(memory: Memory) -> set[str]:
    return {thread.id for thread in (await memory.threads.list()).items}


@pytest.mark.parametrize("first", [True, False])
async def test_a_run_whose_process_died_long_ago_keeps_no_thread(storage: Storage, first: bool) -> None:
    memory, used = Memory(storage=storage), NOW - timedelta(days=100)
    dead = Thread(id="dead", resource_id="ada", created_at=used, updated_at=used)
    if not first:
        await storage.create_thread(dead)
    run = await storage.begin_run("run", dead, ttl=-90 * 86_400)  # expired 90 days ago
    await storage.append_messages(run, [Message.user("secret")])
    assert await memory.threads.prune(older_than=timedelta(days=95)) == Receipt()
    assert (await memory.threads.prune(older_than=timedelta(days=30))).thread_ids == ("dead",)


async def test_old_threads_go_with_a_receipt(storage: Storage) -> None:
    memory = Memory(storage=storage)
    await thread(storage, "old", 100)
    await thread(storage, "older", 400, resource="bob")
    await thread(storage, "new", 10)
    receipt = await memory.threads.prune(older_than=timedelta(days=90))
    assert set(receipt.thread_ids) == {"old", "older"}
    assert await left(memory) == {"new"}
    assert await memory.threads.prune(older_than=timedelta(days=90)) == Receipt()


async def test_everything_made_from_them_goes_too(storage: Storage) -> None:
    om = ObservationalMemoryConfig(model="extractive")
    memory = Memory(storage=storage, observational_memory=om)
    await memory.messages.save([Message.user("My sister Bea lives in Trieste.", id="m1")], thread="t", resource="ada")
    await memory.diary.observe(thread="t")
    receipt = await memory.threads.prune(older_than=datetime.now(UTC) + timedelta(seconds=5))
    assert (receipt.message_ids, len(receipt.observation_ids), receipt.thread_ids) == (("m1",), 1, ("t",))
    assert "Trieste" not in await everything(storage)


async def test_a_time_a_resource_and_metadata_select_threads(storage: Storage) -> None:
    memory = Memory(storage=storage)
    await thread(storage, "a", 30, kind="draft")
    await thread(storage, "b", 20, kind="draft")
    await thread(storage, "c", 30, kind="final")
    await thread(storage, "d", 30, resource="bob", kind="draft")
    limit = NOW - timedelta(days=25)
    receipt = await memory.threads.prune(older_than=limit, resource="ada", metadata={"kind": "draft"})
    assert receipt.thread_ids == ("a",)
    assert await left(memory) == {"b", "c", "d"}


async def test_a_run_or_an_update_makes_a_thread_new_again(storage: Storage) -> None:
    memory = Memory(storage=storage)
    for name in ("asked", "renamed", "saved", "idle"):
        await thread(storage, name, 100)
    await Agent(model=ScriptedModel("Hello."), memory=memory).generate("Hi", thread="asked", resource="ada")
    await memory.threads.update("renamed", title="Still of use")
    await memory.messages.save("Hi", thread="saved", resource="ada")
    assert (await memory.threads.prune(older_than=timedelta(days=1))).thread_ids == ("idle",)


async def test_a_thread_with_a_live_run_stays(storage: Storage) -> None:
    memory = Memory(storage=storage)
    await thread(storage, "t", 100)
    begun, go = asyncio.Event(), asyncio.Event()

    async def answer(request: ModelRequest) -> str:
        begun.set()
        await go.wait()
        return "Hello."

    run = asyncio.create_task(
        Agent(model=ScriptedModel(answer), memory=memory).generate("Hi", thread="t", resource="ada")
    )
    await begun.wait()
    assert await memory.threads.prune(older_than=timedelta(days=1)) == Receipt()
    go.set()
    assert (await run).text == "Hello."
    assert [row.text for row in await memory.messages.list(thread="t")] == ["Hi", "Hello."]


async def test_an_age_before_the_calendar_begins_keeps_every_thread() -> None:
    memory = Memory(storage=InMemoryStorage())
    await memory.threads.create("t")
    assert await memory.threads.prune(older_than=timedelta(days=1_000_000)) == Receipt()
    assert (await memory.threads.get("t")).id == "t"


@pytest.mark.parametrize("value", [90, timedelta(days=-1), datetime(2026, 1, 1), "90 days"])
async def test_other_ages_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match="older_than must be an age"):
        await Memory(storage=InMemoryStorage()).threads.prune(older_than=value)
