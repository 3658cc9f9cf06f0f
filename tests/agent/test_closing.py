"""An agent closes what it has: its memory, and its processors, but for those that a call brought along."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, AgentStream, Memory, ObservationalMemoryConfig, ObservationConfig, Processor
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
        self.opened = asyncio.Event()
        self.gate: asyncio.Event | None = None

    async def process_input(self, args: Any) -> None:
        self.is_open = True
        self.opened.set()
        if self.gate is not None and args.messages[-1].text == "wait":
            await self.gate.wait()
            assert self.is_open, "closed while it was in use"

    async def close(self) -> None:
        self.is_open, self.closed = False, self.closed + 1


class Fails(Holds):
    error: BaseException = OSError("gone")

    async def close(self) -> None:
        await super().close()
        raise self.error


def model(name: str = "m") -> ScriptedModel:
    return ScriptedModel(lambda _: "ok", name=name)


async def test_what_a_function_made_is_closed_with_its_call() -> None:
    made: list[Holds] = []

    def make(request_context: dict[str, Any]) -> list[Processor[Any]]:
        made.append(Holds())
        return [Sequence(made[-1])]

    agent = Agent(model=model(), processors=make)
    await agent.generate("hi")
    await collect(agent.stream("hi"))
    assert [holds.closed for holds in made] == [1, 1]
    await agent.close()
    assert [holds.closed for holds in made] == [1, 1]


async def test_what_was_given_beside_a_function_is_closed_with_the_agent() -> None:
    own = Holds()
    agent = Agent(model=model(), input_processors=[own], processors=lambda _: [])
    await agent.generate("hi")
    assert (own.is_open, own.closed) == (True, 0)
    await agent.close()
    assert own.closed == 1


@pytest.mark.parametrize("option", ["processors", "input_processors", "extra_processors"])
async def test_what_a_call_brought_is_closed_with_it(option: str) -> None:
    own, brought = Holds("own"), Holds("brought")
    agent = Agent(model=model(), processors=[own])
    await agent.generate("hi", **{option: [brought]})  # type: ignore[arg-type]
    assert (brought.closed, own.closed) == (1, 0)
    await agent.generate("hi", **{option: lambda _: [brought]})  # type: ignore[arg-type]
    assert (brought.closed, own.closed) == (2, 0)


async def test_what_the_agent_has_stays_open_when_a_call_brings_it_once_more() -> None:
    own = Holds()
    agent = Agent(model=model(), processors=[own])
    await agent.generate("hi", processors=[own])
    assert own.closed == 0


@pytest.mark.parametrize("elsewhere", ["another call of it", "a run of an agent that has it"])
async def test_nothing_is_closed_while_another_run_uses_it(elsewhere: str) -> None:
    shared = Holds()
    shared.gate = asyncio.Event()
    agent, brings = Agent(model=model()), {"extra_processors": [shared]}
    owner = Agent(model=model(), processors=[shared])
    slow = agent.generate("wait", **brings) if "call" in elsewhere else owner.generate("wait")  # type: ignore[arg-type]
    run = asyncio.create_task(slow)
    await shared.opened.wait()
    await agent.generate("hi", **brings)  # type: ignore[arg-type]
    assert shared.closed == 0
    shared.gate.set()
    await run
    assert shared.closed == (1 if "call" in elsewhere else 0)
    await owner.close()
    assert not shared.is_open


@pytest.mark.parametrize("how", ["blocked", "failed", "cancelled", "left", "never read"])
async def test_however_the_call_ends(how: str) -> None:
    brought = Holds()

    class Ends(Processor[Any]):
        async def process_input_step(self, args: Any) -> None:
            if how == "blocked":
                args.abort("no")
            if how == "failed":
                raise ValueError("bug")
            if how == "cancelled":
                args.cancel.cancel()
                await asyncio.Event().wait()

    agent = Agent(model=model(), processors=[Ends()])
    stream: AgentStream[Any] = agent.stream("hi", extra_processors=[brought])
    async with stream:
        if how == "left":
            await anext(aiter(stream))
        elif how != "never read":
            await collect(stream)
    assert brought.closed == 1


async def test_closing_is_over_before_the_last_chunk() -> None:
    brought = Holds()
    async for chunk in Agent(model=model()).stream("hi", extra_processors=[brought]):
        assert chunk.type != "finish" or brought.closed == 1
    assert brought.closed == 1


@pytest.mark.parametrize("error", [OSError("gone"), asyncio.CancelledError("gone")], ids=repr)
async def test_what_cannot_be_closed_is_logged_and_the_result_stays(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    fails = Fails()
    fails.error = error
    result = await Agent(model=model()).generate("hi", extra_processors=[fails])
    assert result.text == "ok"
    assert "processor 'holds' could not be closed" in caplog.text


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
