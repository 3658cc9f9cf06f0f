"""A memory that is read only: agents see what there is, and leave nothing."""

from __future__ import annotations

from typing import Any

import pytest

from diarist import Agent, Memory, Message, ObservationalMemoryConfig
from diarist.exceptions import InputError
from diarist.storage import Storage
from diarist.testing import ScriptedModel
from tests.memory.diary_kit import everything, keeping_diary, message, note_taker, told, word
from tests.memory.stores import made_storage, storage
from tests.scenarios.kit import answering

__all__ = ["made_storage", "storage"]


def reader(storage: Storage, kind: str, **options: Any) -> Memory:
    notes = ObservationalMemoryConfig(model=note_taker()) if kind == "diary" else False
    return Memory(storage=storage, observational_memory=notes, read_only=True, **options)


kinds = pytest.mark.parametrize("kind", ["history", "diary"])


async def content(storage: Storage) -> str:
    """All that a storage keeps, whatever it is."""
    memory = Memory(storage=storage)
    lines = [line async for line in memory.threads.export_all()]
    threads = [str(thread) for thread in (await memory.threads.list()).items]
    events = [str(await storage.list_events(f"thread:{thread}")) for thread in "tu"]
    return "\n".join([*lines, *threads, *events])


@kinds
async def test_the_model_sees_the_thread_and_nothing_is_written(storage: Storage, kind: str) -> None:
    await Agent(model=answering(), memory=Memory(storage=storage)).generate("I am Ada.", thread="t", resource="ada")
    before = await content(storage)
    model = answering()
    memory = reader(storage, kind)
    agent = Agent(model=model, memory=memory)
    for _ in range(2):
        assert (await agent.generate("Who am I?", thread="t", resource="ada")).text
    await memory.settled()
    assert next(m.text for m in model.requests[-1].prompt.messages if m.role == "user").endswith("I am Ada.")
    assert model.requests[-1].text.count("Who am I?") == 1
    assert await content(storage) == before


@kinds
async def test_a_thread_that_is_not_there_is_not_made(storage: Storage, kind: str) -> None:
    memory = reader(storage, kind)
    assert (await Agent(model=answering(), memory=memory).generate("hello", thread="new", resource="ada")).text
    assert (await memory.threads.list()).items == []


@kinds
async def test_a_thread_of_another_resource_is_refused(storage: Storage, kind: str) -> None:
    memory = reader(storage, kind)
    await memory.threads.create("t", resource="ada")
    with pytest.raises(InputError, match="'bob'"):
        await Agent(model=answering(), memory=memory).generate("hello", thread="t", resource="bob")


@kinds
async def test_a_message_sent_again_is_shown_once(storage: Storage, kind: str) -> None:
    rows = [Message.user("first", id="m1"), Message.assistant("second", id="m2")]
    memory = reader(storage, kind)
    await memory.messages.save(rows, thread="t", resource="ada")
    model = answering()
    await Agent(model=model, memory=memory).generate(
        [*rows, Message.user("third", id="m3")], thread="t", resource="ada"
    )
    for text in ("first", "second", "third"):
        assert model.requests[0].text.count(text) == 1
    assert [row.id for row in await memory.messages.list(thread="t")] == ["m1", "m2"]


@pytest.mark.parametrize("scope", ["thread", "resource"])
async def test_the_diary_is_shown_and_stays_as_it_is(storage: Storage, scope: Any) -> None:
    writing = keeping_diary(storage, scope=scope)
    await told(writing, [1, 2, 3])
    await writing.messages.save([message(n) for n in range(4, 12)], thread="t", resource="ada")
    before = await everything(storage) if "postgres" not in storage.location else await content(storage)
    notes = note_taker()
    memory = Memory(
        storage=storage,
        observational_memory=ObservationalMemoryConfig(scope=scope, model=notes),
        read_only=True,
    )
    model = answering()
    await Agent(model=model, memory=memory).generate("go on", thread="t", resource="ada")
    await memory.settled()
    shown = model.requests[0].text
    assert f"noted {word(1)}" in shown
    assert word(11) in shown
    assert message(1).text not in shown
    after = await everything(storage) if "postgres" not in storage.location else await content(storage)
    assert after == before
    assert notes.requests == []


async def test_working_memory_can_be_seen_only(storage: Storage) -> None:
    writing = Memory(storage=storage, working_memory=True)
    await writing.threads.create("t", resource="ada")
    await writing.working.update("# Ada lives in Trieste", resource="ada")
    model = ScriptedModel("You live in Trieste.")
    agent = Agent(model=model, memory=Memory(storage=storage, working_memory=True, read_only=True))
    await agent.generate("Where do I live?", thread="t", resource="ada")
    assert "Ada lives in Trieste" in model.requests[0].text
    assert not [name for name in model.requests[0].tools if "working" in str(name)]


async def test_what_people_do_by_hand_still_works(storage: Storage) -> None:
    memory = reader(storage, "history")
    await memory.messages.save([message(1)], thread="t", resource="ada")
    await memory.threads.update("t", title="Mine")
    assert (await memory.threads.get("t")).title == "Mine"
