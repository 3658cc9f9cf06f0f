"""A run whose thread it has just begun outlives the forgetting of its resource: what it was told does not come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from diarist import Agent, Memory, Message, tool
from diarist.exceptions import InputError
from diarist.memory.observational.log.log_store import LogStore
from diarist.models.base import ModelRequest
from diarist.storage import InMemoryStorage, SQLiteStorage, Storage, Thread
from diarist.testing import ScriptedModel, ToolCall
from tests.memory.diary_kit import everything, keeping_diary, note_taker, told, word
from tests.scenarios.kit import words


@pytest.fixture(params=["sqlite", "in-memory"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Storage]:
    made: Storage = SQLiteStorage(tmp_path / "memory.db") if request.param == "sqlite" else InMemoryStorage()
    async with made:
        yield made


async def forgotten(memory: Memory) -> None:
    await memory.forget(resource="ada")


async def begun_anew(memory: Memory) -> None:
    """The new diary has been saved more often than the old one."""
    await memory.forget(resource="ada")
    for number in range(21, 41, 2):
        await told(memory, [number, number + 1], thread="later")


async def begun_anew_as_far(memory: Memory) -> None:
    """The new diary has been saved as often as the old one."""
    version = await version_of(memory)
    await memory.forget(resource="ada")
    number = 21
    while await version_of(memory) < version:
        await told(memory, [number, number + 1], thread="later")
        number += 2
    assert await version_of(memory) == version


async def begun_anew_just_now(memory: Memory) -> None:
    """The new diary has been saved once, the old one more often."""
    await memory.forget(resource="ada")
    await told(memory, [21, 22], thread="later")


async def version_of(memory: Memory) -> int:
    log = await memory.storage.get_log("resource:ada")
    return log.version if log else 0


Meanwhile = Callable[[Memory], Awaitable[None]]
whatever = pytest.mark.parametrize("meanwhile", [forgotten, begun_anew, begun_anew_as_far, begun_anew_just_now])


def working(memory: Memory, meanwhile: Meanwhile, *, steps: int = 8) -> tuple[Agent, ScriptedModel]:
    """An agent that calls a tool with long results step by step; in the first call something else happens."""
    calls = 0

    @tool
    async def look() -> str:
        """Look."""
        nonlocal calls
        calls += 1
        if calls == 1:
            await meanwhile(memory)
        return words(word(100 + calls), 30)

    model = ScriptedModel(*[ToolCall("look", {})] * steps, lambda _: "Done.", name="actor")
    return Agent(model=model, memory=memory, tools=[look], max_steps=steps + 2), model


@whatever
async def test_what_it_was_told_is_not_noted_again(storage: Storage, meanwhile: Meanwhile) -> None:
    memory = keeping_diary(storage, scope="resource", echoes=True)
    await told(memory, range(1, 7))
    agent, model = working(memory, meanwhile)
    await agent.generate("What do you see?", thread="new", resource="ada")
    await memory.settled()
    assert word(5) in model.requests[0].text
    assert word(5) not in model.requests[2].text
    log = await memory.diary.get(thread="new")
    assert any(word(101) in entry.text for entry in log.entries)
    assert (word(1) in await everything(storage), word(5) in await everything(storage)) == (False, False)


@whatever
async def test_an_observation_in_flight_is_dropped(storage: Storage, meanwhile: Meanwhile) -> None:
    """The Observer had been told what was forgotten while it worked."""
    writer, started, go = note_taker(echoes=True), asyncio.Event(), asyncio.Event()

    class Held(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
            if word(101) in request.text and not started.is_set():
                started.set()
                await go.wait()
            async for chunk in writer.stream(request):
                yield chunk

    memory = keeping_diary(storage, scope="resource", observer_model=Held("", name="observer"))
    await told(memory, range(1, 7))
    agent, _ = working(memory, nothing)
    run = asyncio.create_task(agent.generate("What do you see?", thread="new", resource="ada"))
    await started.wait()
    await meanwhile(memory)
    go.set()
    await run
    await memory.settled()
    stored = await everything(storage)
    assert (word(1) in stored, word(5) in stored, word(101) in stored) == (False, False, True)


async def nothing(_: Memory) -> None:
    """Change nothing."""


@whatever
async def test_its_note_is_cut_before_the_next_run(storage: Storage, meanwhile: Meanwhile) -> None:
    """The note of its message quotes the diary; the run had it in hand."""
    plan = f"<diary>\nDate: 2026-03-02\n- 🟡 tomorrow {word(6)} (meaning 3 March 2026)\n</diary>"
    planning = keeping_diary(storage, scope="resource", observer_model=ScriptedModel(plan))
    await told(planning, [1, 2])
    memory = keeping_diary(storage, scope="resource")
    agent, model = working(memory, meanwhile, steps=1)
    await agent.generate("What do you see?", thread="new", resource="ada")
    assert word(6) in model.requests[0].prompt.messages[-1].text
    await Agent(model=ScriptedModel("Fine."), memory=memory).generate("And now?", thread="new", resource="ada")
    await memory.settled()
    assert word(6) not in await everything(storage)


async def test_a_failure_does_not_quote_what_it_was_told(storage: Storage) -> None:
    """Errors of an Observer may repeat what it read, notes that are forgotten by now included."""
    asked: list[str] = []

    async def fail(request: ModelRequest) -> str:
        asked.append(request.text)
        await memory.forget(resource="ada")
        raise RuntimeError(f"cannot read: {request.text}")

    await told(keeping_diary(storage, scope="resource"), range(1, 7))
    memory = keeping_diary(storage, scope="resource", observer_model=ScriptedModel(fail, lambda _: "", name="observer"))
    agent, _ = working(memory, nothing)
    await agent.generate("What do you see?", thread="new", resource="ada")
    await memory.settled()
    assert word(5) in asked[0]
    assert word(5) not in await everything(storage)


@pytest.mark.parametrize("scope", ["thread", "resource"])
async def test_a_diary_that_came_in_is_another_one(storage: Storage, scope: Literal["thread", "resource"]) -> None:
    """Even if both came from the same lines, a run that read the old diary does not mistake the new one for it."""
    key = {"thread": "thread:t", "resource": "resource:ada"}[scope]
    memory = keeping_diary(storage, scope=scope)
    await told(memory, range(1, 5))
    await memory.diary.reflect(thread="t")
    lines = [line async for line in memory.threads.export_all(resource="ada")]
    assert not any("born" in line for line in lines)
    born = {await born_of(storage, key)}
    for _ in range(2):
        await memory.forget(resource="ada")
        await memory.threads.import_all(lines)
        born.add(await born_of(storage, key))
    assert len(born) == 3
    if scope == "thread":
        await memory.threads.clone("t", new_thread="copy")
        born.add(await born_of(storage, "thread:copy"))
        assert len(born) == 4


async def born_of(storage: Storage, key: str) -> str:
    """What tells a diary from one that stood in its place: its earlier generation says the same."""
    log = await storage.get_log(key)
    (past,) = await storage.list_generations(key)
    assert log is not None
    assert log.born
    assert past.born == log.born
    return log.born


@pytest.mark.parametrize("how", ["imported", "cloned"])
async def test_notes_of_a_thread_that_came_in_stay_as_they_were_sent(storage: Storage, how: str) -> None:
    plan = f"<diary>\nDate: 2026-03-02\n- 🟡 tomorrow {word(6)} (meaning 3 March 2026)\n</diary>"
    memory = keeping_diary(storage, observer_model=ScriptedModel(lambda _: plan))
    await told(memory, [1, 2])
    agent = Agent(model=ScriptedModel(lambda _: "Fine."), memory=memory)
    await agent.generate("What was planned?", thread="t", resource="ada")
    await memory.settled()
    if how == "imported":
        lines = [line async for line in memory.threads.export("t")]
        await memory.forget(resource="ada")
        await memory.threads.import_all(lines)
    copy = "t" if how == "imported" else (await memory.threads.clone("t", new_thread="copy")).id
    await agent.generate("And now?", thread=copy, resource="ada")
    await memory.settled()
    sent = (await storage.list_messages(copy))[2].sent
    assert sent is not None
    assert word(6) in sent.text


FIRST = pytest.mark.parametrize(
    "asked", [{"resource": "ada"}, {"thread": "first"}, {"thread": "first", "resource": "ada"}]
)


@FIRST
async def test_a_thread_whose_first_run_died_is_deleted(storage: Storage, asked: dict[str, str]) -> None:
    """Until another run takes it over, nothing else shows the thread."""
    memory = Memory(storage=storage)
    run = await storage.begin_run("dead", Thread(id="first", resource_id="ada"), ttl=0)  # expires at once
    await storage.append_messages(run, [Message.user("secret")])
    with pytest.raises(InputError, match="belong"):
        await memory.forget(thread="first", resource="grace")
    receipt = await memory.forget(**asked)  # type: ignore[arg-type]
    assert (receipt.thread_ids, len(receipt.message_ids), receipt.left_on_disk) == (("first",), 1, ())
    assert await storage.get_thread("first", hidden=True) is None


@FIRST
async def test_the_receipt_names_a_thread_whose_first_run_is_live(storage: Storage, asked: dict[str, str]) -> None:
    memory = Memory(storage=storage)
    run = await storage.begin_run("live", Thread(id="first", resource_id="ada"))
    await storage.append_messages(run, [Message.user("secret")])
    claim = LogStore(storage).job_name("first", "ada", "observation")
    assert await storage.acquire_lease(claim, "worker", ttl=60)
    receipt = await memory.forget(**asked)  # type: ignore[arg-type]
    assert receipt.thread_ids == ()
    assert await storage.acquire_lease(claim, "another worker", ttl=60) is None
    assert "thread 'first' has a live first run" in receipt.left_on_disk[0]
    await storage.finish_run(run, "committed")
    assert (await memory.forget(**asked)).thread_ids == ("first",)  # type: ignore[arg-type]
