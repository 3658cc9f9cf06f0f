"""People read the diary, go back to the words, and change what it says."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Memory
from diarist.exceptions import ConfigError, InputError, NotFoundError
from diarist.storage import InMemoryStorage, SQLiteStorage, Storage
from diarist.testing import ScriptedModel
from tests.memory.diary_kit import keeping_diary, told, word
from tests.scenarios.kit import answering, raw_rows, words


@pytest.fixture(params=["sqlite", "in-memory"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Storage]:
    made: Storage = SQLiteStorage(tmp_path / "memory.db") if request.param == "sqlite" else InMemoryStorage()
    async with made:
        yield made


@pytest.fixture
def memory(storage: Storage) -> Memory:
    return keeping_diary(storage)


def ids(page: Any) -> list[str]:
    return [row.id for row in page.items]


# --- reading -------------------------------------------------------------------------------------------------


async def test_an_observation_leads_back_to_its_messages(memory: Memory) -> None:
    await told(memory, range(1, 7))
    log = await memory.diary.get(thread="t")
    assert [ids(await memory.diary.sources(entry.id, thread="t")) for entry in log.entries] == [
        ["m1", "m2"],
        ["m3", "m4"],
        ["m5", "m6"],
    ]


async def test_the_sources_of_a_reflection_are_those_of_all_it_replaced(memory: Memory) -> None:
    await told(memory, range(1, 5))
    first = (await memory.diary.get(thread="t")).entries[0]
    await memory.diary.reflect(thread="t", guidance="keep all")
    await told(memory, range(5, 9))
    log = await memory.diary.reflect(thread="t", guidance="keep all")
    assert ids(await memory.diary.sources(log.entries[0].id, thread="t")) == [f"m{number}" for number in range(1, 9)]
    assert ids(await memory.diary.sources(first.id, thread="t")) == ["m1", "m2"]


async def test_a_log_does_not_grow_with_what_was_condensed(storage: Storage, memory: Memory) -> None:
    for start in range(1, 16, 4):
        await told(memory, range(start, start + 4))
        log = await memory.diary.reflect(thread="t", guidance="keep all")
    assert [(source.first_seq, source.last_seq) for entry in log.entries for source in entry.sources] == [(1, 16)]
    assert await raw_rows(storage) == []


async def test_sources_come_in_pages(memory: Memory) -> None:
    await told(memory, range(1, 10))
    log = await memory.diary.reflect(thread="t", guidance="keep all")
    found: list[str] = []
    cursor: str | None = None
    sizes: list[int] = []
    while cursor is not None or not sizes:
        page = await memory.diary.sources(log.entries[0].id, thread="t", limit=4, cursor=cursor)
        found, cursor = [*found, *ids(page)], page.cursor
        sizes.append(len(page.items))
    assert found == [f"m{number}" for number in range(1, 10)]
    assert sizes == [4, 4, 1]
    wrong: dict[str, Any]
    for wrong in ({"limit": 0}, {"cursor": "nonsense"}):
        with pytest.raises(InputError):
            await memory.diary.sources(log.entries[0].id, thread="t", **wrong)


async def test_an_unknown_observation_is_named(memory: Memory) -> None:
    await told(memory, [1, 2])
    for call in (memory.diary.sources, memory.diary.delete):
        with pytest.raises(NotFoundError, match="obs_unknown"):
            await call("obs_unknown", thread="t")
    with pytest.raises(NotFoundError, match="obs_unknown"):
        await memory.diary.edit("obs_unknown", "text", thread="t")


async def test_history_has_the_earlier_generations(memory: Memory) -> None:
    assert await told(memory, [1, 2]) is None
    assert await memory.diary.history(thread="t") == []
    await memory.diary.reflect(thread="t", guidance="keep all")
    await told(memory, [3, 4])
    await memory.diary.reflect(thread="t", guidance="keep all")
    first, second = await memory.diary.history(thread="t")
    assert [log.generation for log in (first, second)] == [0, 1]
    assert [entry.kind for entry in first.entries] == ["observation"]
    assert [entry.kind for entry in second.entries] == ["reflection", "observation"]


async def test_the_diary_as_of_a_moment(memory: Memory) -> None:
    before = datetime.now(UTC)
    await told(memory, [1, 2])
    one = (await memory.diary.get(thread="t")).entries[-1]
    await told(memory, [3, 4])
    two = (await memory.diary.get(thread="t")).entries[-1]
    reflected = (await memory.diary.reflect(thread="t", guidance="keep all")).entries[0]
    await told(memory, [5, 6])
    three = (await memory.diary.get(thread="t")).entries[-1]
    moments = {before: [], one.observed_at: [one], two.observed_at: [one, two], reflected.observed_at: [reflected]}
    moments[three.observed_at] = [reflected, three]
    for moment, entries in moments.items():
        log = await memory.diary.as_of(moment, thread="t")
        assert list(log.entries) == entries
        assert log.generation == (reflected in entries)
        assert log.current_task == (entries[-1].current_task if entries else None)
    today = datetime.now(UTC).date()
    assert (await memory.diary.as_of(today + timedelta(days=1), thread="t")).entries == (reflected, three)
    assert (await memory.diary.as_of(today - timedelta(days=2), thread="t")).entries == ()
    assert (await memory.diary.as_of(date.max, thread="t")).entries == (reflected, three)
    with pytest.raises(InputError, match="time zone"):
        await memory.diary.as_of(datetime(2026, 1, 1), thread="t")


async def test_another_resources_diary_is_refused(memory: Memory) -> None:
    await told(memory, [1, 2])
    entry = (await memory.diary.get(thread="t")).entries[0]
    for call in (
        memory.diary.get(thread="t", resource="grace"),
        memory.diary.history(thread="t", resource="grace"),
        memory.diary.as_of(datetime.now(UTC), thread="t", resource="grace"),
        memory.diary.sources(entry.id, thread="t", resource="grace"),
        memory.diary.edit(entry.id, "mine", thread="t", resource="grace"),
        memory.diary.delete(entry.id, thread="t", resource="grace"),
        memory.diary.observe(thread="t", resource="grace"),
        memory.diary.reflect(thread="t", resource="grace"),
        memory.diary.clear(thread="t", resource="grace"),
        memory.forget(thread="t", resource="grace"),
        memory.forget(message_ids=["m1"], thread="t", resource="grace"),
        memory.threads.delete("t", resource="grace"),
    ):
        with pytest.raises(InputError, match="grace"):
            await call
    assert (await memory.diary.get(thread="t", resource="ada")).entries == (entry,)
    with pytest.raises(NotFoundError, match="nothing"):
        await memory.diary.history(thread="nothing")


# --- changing ------------------------------------------------------------------------------------------------


async def test_an_edited_observation_is_what_the_model_reads(storage: Storage, memory: Memory) -> None:
    await told(memory, range(1, 5))
    first, second = (await memory.diary.get(thread="t")).entries
    log = await memory.diary.edit(first.id, "- 🔴 Bea, not Ada, flies", thread="t")
    assert [entry.text for entry in log.entries] == ["- 🔴 Bea, not Ada, flies", second.text]
    assert log.entries[0].tokens == 6
    assert log.entries[0].sources == first.sources
    assert await raw_rows(storage) == []
    model = answering()
    await Agent(model=model, memory=memory).generate("who?", thread="t", resource="ada")
    assert "Bea, not Ada, flies" in model.requests[0].text
    assert word(1) not in model.requests[0].text
    with pytest.raises(InputError, match=r"memory\.diary\.delete"):
        await memory.diary.edit(first.id, " \n", thread="t")


async def test_lines_that_an_edit_leaves_keep_their_citations(storage: Storage) -> None:
    notes = "<diary>\nDate: 2026-03-02\n- 🔴 a fact [#1]\n- 🟡 an answer [#2]\n</diary>"
    memory = keeping_diary(storage, observer_model=ScriptedModel(notes))
    await told(memory, [1, 2])
    entry = (await memory.diary.get(thread="t")).entries[0]
    assert entry.citations == ((), ("m1",), ("m2",))
    text = entry.text.replace("a fact", "another fact") + "\n- 🟢 more"
    edited = (await memory.diary.edit(entry.id, text, thread="t")).entries[0]
    assert edited.citations == ((), (), ("m2",), ())
    assert (await memory.diary.delete(entry.id, thread="t")).entries[0].citations == ()


async def test_a_deleted_observation_still_covers_its_messages(storage: Storage, memory: Memory) -> None:
    await told(memory, range(1, 5))
    last = (await memory.diary.get(thread="t")).entries[-1]
    log = await memory.diary.delete(last.id, thread="t")
    assert (log.entries[-1].text, log.entries[-1].tokens) == ("", 0)
    assert log.current_task == f"task {word(2)}"
    assert await raw_rows(storage) == []
    assert await memory.diary.observe(thread="t") == log
    model = answering()
    await Agent(model=model, memory=memory).generate("who?", thread="t", resource="ada")
    assert word(2) in model.requests[0].text
    assert word(4) not in model.requests[0].text


async def test_a_reflection_that_waits_falls_with_an_edit(storage: Storage) -> None:
    memory = keeping_diary(storage, observation_tokens=20)
    agent = Agent(model=answering(), memory=memory)
    await told(memory, range(1, 5))
    await agent.generate("go on", thread="t", resource="ada")
    await memory.settled()
    log = await memory.diary.get(thread="t")
    assert log.reflection is not None, "the Reflector should have worked ahead"
    edited = log.reflection.replaces[0].id
    assert (await memory.diary.edit(edited, "- 🔴 other words", thread="t")).reflection is None


async def test_clearing_makes_everything_raw_again(storage: Storage, memory: Memory) -> None:
    await told(memory, range(1, 5))
    await memory.diary.reflect(thread="t", guidance="keep all")
    await Agent(model=answering(), memory=memory).generate("go on", thread="t", resource="ada")
    await memory.settled()
    before = await memory.diary.get(thread="t")
    await memory.diary.clear(thread="t")
    log = await memory.diary.get(thread="t")
    assert (log.entries, log.current_task, log.reflection) == ((), None, None)
    assert log.version > before.version
    assert await memory.diary.history(thread="t") == []
    assert await storage.list_events(log.key) == []
    rows = await raw_rows(storage)
    assert [row.id for row in rows[:4]] == ["m1", "m2", "m3", "m4"]
    assert not any(word(4) in row.sent.text for row in rows if row.sent)
    log = await memory.diary.observe(thread="t")
    assert word(1) in log.text
    assert await raw_rows(storage) == []
    await memory.diary.clear(thread="t")
    await memory.diary.clear(thread="t")


async def test_clearing_leaves_the_title(memory: Memory) -> None:
    await told(memory, [1, 2])
    await memory.threads.update("t", title="My summer")
    await memory.diary.clear(thread="t")
    assert (await memory.threads.get("t")).title == "My summer"


# --- reflecting by hand --------------------------------------------------------------------------------------


async def test_the_reflector_hears_the_users_wish(storage: Storage) -> None:
    reflector = ScriptedModel(lambda _: "- 🔴 a whole text that is by no means shorter than what it was made from")
    memory = keeping_diary(storage, reflector_model=reflector)
    await told(memory, range(1, 5))
    log = await memory.diary.reflect(thread="t", guidance="keep every part number")
    assert "keep every part number" in reflector.requests[0].text
    assert [entry.kind for entry in log.entries] == ["reflection"]
    assert log.text.startswith("- 🔴 a whole text")
    assert log.generation == 1
    assert await raw_rows(storage) == []
    types = [event.type for event in await storage.list_events(log.key)][-2:]
    assert types == ["data-om-observation-start", "data-om-observation-end"]


async def test_reflecting_without_a_wish_must_make_it_smaller(storage: Storage) -> None:
    reflector = ScriptedModel(lambda _: "- 🔴 " + words("long", 50), name="reflector")
    memory = keeping_diary(storage, reflector_model=reflector)
    await told(memory, range(1, 5))
    log = await memory.diary.get(thread="t")
    with pytest.raises(Exception, match="hardly shortened"):
        await memory.diary.reflect(thread="t")
    assert (await memory.diary.get(thread="t")).entries == log.entries
    await memory.diary.clear(thread="t")
    assert (await memory.diary.reflect(thread="t")).entries == ()


async def test_without_a_diary_there_is_nothing_to_reflect(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    memory = Memory(storage=InMemoryStorage())
    await memory.messages.save([], thread="t")
    await Agent(model=answering(), memory=memory).generate("hello", thread="t")
    with pytest.raises(ConfigError, match="observational_memory"):
        await memory.diary.reflect(thread="t")
    assert (await memory.diary.get(thread="t")).entries == ()
    await memory.diary.clear(thread="t")
