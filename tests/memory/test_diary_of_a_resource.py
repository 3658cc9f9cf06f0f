"""The diary that all threads of a resource share is read, condensed and changed by the name of the resource."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from diarist import Agent, Memory
from diarist.exceptions import InputError, NotFoundError
from diarist.storage import InMemoryStorage, Storage
from diarist.testing import ScriptedModel
from tests.memory.diary_kit import keeping_diary, told, word
from tests.scenarios.kit import answering

ENTRY = "obs_any"

CALLS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(["get", "observe", "history", "usage", "reflect"], ()),
    **dict.fromkeys(["clear", "events", "watch"], ()),
    "as_of": (datetime.now(UTC),),
    "sources": (ENTRY,),
    "edit": (ENTRY, "other words"),
    "delete": (ENTRY,),
}
"""Everything that is about a diary, with its arguments."""


async def call(memory: Memory, name: str, **whose: str) -> Any:
    called = getattr(memory.diary, name)(*CALLS[name], **whose)
    return await (anext(called) if name == "watch" else called)


@pytest.fixture
def storage() -> Storage:
    return InMemoryStorage()


@pytest.fixture
async def memory(storage: Storage) -> Memory:
    """Ada has said something in two threads, Grace in one."""
    shared = keeping_diary(storage, scope="resource")
    await told(shared, [1, 2], thread="work")
    await told(shared, [3, 4], thread="home")
    await told(shared, [5, 6], thread="other", resource="grace")
    return shared


@pytest.mark.parametrize("name", CALLS)
async def test_in_thread_scope_a_thread_must_be_named(storage: Storage, name: str) -> None:
    memory = keeping_diary(storage)
    await told(memory, [1, 2])
    for whose in ({"resource": "ada"}, {}):
        with pytest.raises(InputError, match=r"name a thread.*scope='resource'"):
            await call(memory, name, **whose)


@pytest.mark.parametrize("name", CALLS)
async def test_a_diary_call_needs_a_thread_or_resource(memory: Memory, name: str) -> None:
    with pytest.raises(InputError, match="name a thread or a resource"):
        await call(memory, name)
    with pytest.raises(NotFoundError, match="nobody"):
        await call(memory, name, resource="nobody")


async def test_it_is_read_by_the_resource(memory: Memory) -> None:
    before = datetime.now(UTC)
    first, second = (await memory.diary.get(resource="ada")).entries
    log = await memory.diary.reflect(resource="ada", guidance="keep all")
    assert word(1) in log.text
    assert word(3) in log.text
    (past,) = await memory.diary.history(resource="ada")
    assert past.entries == (first, second)
    assert (await memory.diary.as_of(before, resource="ada")).entries == (first, second)
    assert (await memory.diary.as_of(datetime.now(UTC), resource="ada")).entries == log.entries
    spent = await memory.diary.usage(resource="ada")
    assert (spent.observations, spent.reflections) == (2, 1)
    assert spent == await memory.diary.usage(thread="home")
    page = await memory.diary.sources(log.entries[0].id, resource="ada")
    assert [row.id for row in page.items] == ["m3", "m4", "m1", "m2"]
    assert (await memory.diary.history(resource="grace")) == []
    with pytest.raises(NotFoundError, match="resource 'grace' has no observation"):
        await memory.diary.sources(log.entries[0].id, resource="grace")


async def test_it_is_condensed_by_the_resource(memory: Memory) -> None:
    heard: list[Any] = []
    log = await memory.diary.reflect(resource="ada", on_event=heard.append)
    assert [entry.kind for entry in log.entries] == ["reflection"]
    assert log == await memory.diary.get(resource="ada")
    assert [part.type for part in heard][-1] == "data-om-observation-end"
    assert {part.data["threadId"] for part in heard} <= {"work", "home"}
    assert [event.type for event in await memory.diary.events(resource="ada")][-1] == "data-om-observation-end"
    assert [entry.kind for entry in (await memory.diary.get(resource="grace")).entries] == ["observation"]
    alone = await memory.diary.reflect(resource="grace", guidance="keep all")
    assert word(5) in alone.text
    assert word(1) not in alone.text


async def test_it_is_changed_by_the_resource(memory: Memory) -> None:
    first, second = (await memory.diary.get(resource="ada")).entries
    await memory.diary.edit(first.id, "- 🔴 Bea, not Ada, flies", resource="ada")
    log = await memory.diary.delete(second.id, resource="ada")
    assert [entry.text for entry in log.entries] == ["- 🔴 Bea, not Ada, flies", ""]
    model = answering()
    await Agent(model=model, memory=memory).generate("who?", thread="new", resource="ada")
    assert "Bea, not Ada, flies" in model.requests[0].text
    await memory.diary.clear(resource="ada")
    assert (await memory.diary.get(resource="ada")).entries == ()
    assert await memory.diary.events(resource="ada") == []
    assert len(await memory.messages.list(thread="work")) == 2
    assert (await memory.diary.get(resource="grace")).entries != ()


async def test_events_of_all_threads_are_watched_by_the_resource(memory: Memory) -> None:
    seen = [event.data["threadId"] for event in await memory.diary.events(resource="ada")]
    assert set(seen) == {"work", "home"}
    async for event in memory.diary.watch(resource="ada", after=len(seen) - 1):
        assert event.data["threadId"] == "home"
        break


async def test_a_named_thread_must_still_be_the_resources(memory: Memory) -> None:
    for name in CALLS:
        with pytest.raises(InputError, match="'work' does not belong to resource 'grace'"):
            await call(memory, name, thread="work", resource="grace")
    assert len((await memory.diary.get(thread="work", resource="ada")).entries) == 2


async def test_a_diary_without_threads_can_be_condensed(storage: Storage) -> None:
    """What is left where the threads are kept elsewhere: an empty diary stays as it is."""
    memory = keeping_diary(storage, scope="resource", reflector_model=ScriptedModel())
    await told(memory, [1, 2], thread="work")
    await memory.threads.delete("work")
    assert (await memory.diary.reflect(resource="ada")).entries == ()
