"""An agent closes what it has: its memory, and its processors, but not those that a call brought along."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Memory, ObservationalMemoryConfig, ObservationConfig, Processor
from diarist.exceptions import ConfigError
from diarist.memory import ObservationalMemory
from diarist.processors import Sequence
from diarist.storage import SQLiteStorage
from diarist.testing import ScriptedModel
from tests.agent.kit import collect
from tests.memory.semantic.kit import TopicEmbedder, memory_with


class Holds(Processor[Any]):
    """Holds something open from the first input that it sees until it is closed."""

    def __init__(self, id: str = "holds") -> None:
        self.id = id
        self.is_open = False
        self.closed = 0

    async def process_input(self, args: Any) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open, self.closed = False, self.closed + 1


class Fails(Holds):
    async def close(self) -> None:
        await super().close()
        raise OSError("gone")


def model(name: str = "m") -> ScriptedModel:
    return ScriptedModel(lambda _: "ok", name=name)


async def test_what_was_given_beside_a_function_is_closed_with_the_agent() -> None:
    own = Holds()
    agent = Agent(model=model(), input_processors=[own], processors=lambda _: [])
    await agent.generate("hi")
    assert (own.is_open, own.closed) == (True, 0)
    await agent.close()
    assert own.closed == 1


@pytest.mark.parametrize("option", ["processors", "input_processors", "extra_processors"])
async def test_what_a_call_brought_stays_open(option: str) -> None:
    own, brought = Holds("own"), Holds("brought")
    async with Agent(model=model(), processors=[Sequence(own)]) as agent:
        await agent.generate("hi", **{option: [brought]})  # type: ignore[arg-type]
        await agent.generate("hi", **{option: lambda _: [brought]})  # type: ignore[arg-type]
    assert (brought.is_open, brought.closed, own.closed) == (True, 0, 1)


@pytest.mark.parametrize("wrong", [Holds(), ["no processor"], "text"])
def test_a_wrong_list_beside_a_function_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="processor"):
        Agent(model=model(), input_processors=wrong, processors=lambda _: [])


async def test_an_agent_closes_the_others_too_where_one_fails() -> None:
    others = [Fails("a"), Holds("b")]
    with pytest.raises(OSError, match="gone"):
        await Agent(model=model(), processors=others).close()
    assert [holds.closed for holds in others] == [1, 1]


# -- its memory


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(storage=SQLiteStorage(tmp_path / "memory.db"))


def files(folder: Path) -> list[str]:
    """Return the file names. SQLite removes ``-wal`` and ``-shm`` when the last connection to a file is closed."""
    return sorted(file.name for file in folder.iterdir())


IN_USE = ["memory.db", "memory.db-shm", "memory.db-wal"]


@pytest.mark.parametrize("how", ["async with", "close"])
async def test_its_memory_is_closed_with_it(memory: Memory, tmp_path: Path, how: str) -> None:
    agent = Agent(model=model(), memory=memory)
    if how == "close":
        await agent.generate("hi", thread="t")
        await agent.close()
    else:
        async with agent:
            await agent.generate("hi", thread="t")
            assert files(tmp_path) == IN_USE
    assert files(tmp_path) == ["memory.db"]


async def test_background_work_is_done_before_its_memory_is_closed(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def note(request: Any) -> str:
        await gate.wait()
        return "Date: 2026-03-02\n- 🟡 10:00 User said much."

    class Last(Holds):
        async def close(self) -> None:
            assert gate.is_set(), "closed before background work was done"

    config = ObservationConfig(model=ScriptedModel(note), message_tokens=200, buffer_tokens=20)
    diary = ObservationalMemoryConfig(observation=config)
    memory = Memory(storage=SQLiteStorage(tmp_path / "memory.db"), observational_memory=diary)
    async with Agent(model=model(), memory=memory, processors=[Last()]) as agent:
        await agent.generate("talk " * 60, thread="t")
        assert (await memory.diary.get(thread="t")).entries == ()
        asyncio.get_running_loop().call_soon(gate.set)
    assert files(tmp_path) == ["memory.db"]
    log = await memory.storage.get_log("thread:t")
    assert log is not None
    assert [entry.text for entry in log.entries] == ["Date: 2026-03-02\n- 🟡 10:00 User said much."]
    await memory.close()


async def test_a_memory_among_its_processors_is_closed_with_its_storage(tmp_path: Path) -> None:
    diary = ObservationalMemory(SQLiteStorage(tmp_path / "memory.db"), ObservationalMemoryConfig(model="extractive"))
    async with Agent(model=model(), input_processors=[diary]) as agent:
        await agent.generate("hi", thread="t")
        assert files(tmp_path) == IN_USE
    assert files(tmp_path) == ["memory.db"]


async def test_agents_that_share_a_memory_leave_it_to_the_last(memory: Memory, tmp_path: Path) -> None:
    async with Agent(model=model(), memory=memory) as first:
        async with Agent(model=model(), memory=memory) as second:
            await second.generate("hi", thread="t")
        assert files(tmp_path) == IN_USE
        await first.generate("hi", thread="t")
    assert files(tmp_path) == ["memory.db"]


async def test_agents_of_one_request_each_leave_a_memory_open_that_is_held(memory: Memory, tmp_path: Path) -> None:
    async with memory:
        for number in range(3):
            async with Agent(model=model(), memory=memory) as agent:
                await agent.generate("hi", thread=f"t{number}")
            assert files(tmp_path) == IN_USE
    assert files(tmp_path) == ["memory.db"]


async def test_a_memory_closes_its_storage_also_where_something_else_cannot_be_closed(tmp_path: Path) -> None:
    class Stuck(TopicEmbedder):
        async def close(self) -> None:
            raise OSError("gone")

    agent = Agent(model=model(), memory=memory_with(Stuck(), storage=SQLiteStorage(tmp_path / "memory.db")))
    with pytest.raises(OSError, match="gone"):
        async with agent:
            await agent.generate("hi", thread="t")
    assert files(tmp_path) == ["memory.db"]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_run_that_was_cancelled_before_the_agent_was_closed_is_stored(tmp_path: Path, streams: bool) -> None:
    answering = asyncio.Event()

    async def never(request: Any) -> str:
        answering.set()
        await asyncio.Event().wait()
        return "late"

    agent = Agent(model=ScriptedModel(never), memory=Memory(storage=SQLiteStorage(tmp_path / "memory.db")))

    async def ask() -> None:
        if streams:
            await collect(agent.stream("question", thread="t"))
        else:
            await agent.generate("question", thread="t")

    async with agent:
        task = asyncio.create_task(ask())
        await answering.wait()
        task.cancel()
    async with Memory(storage=SQLiteStorage(tmp_path / "memory.db")) as memory:  # as another process sees it
        assert [message.text for message in await memory.messages.list(thread="t")] == ["question"]
    await asyncio.gather(task, return_exceptions=True)
