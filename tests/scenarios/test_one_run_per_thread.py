"""At most one run of a thread is live, in however many tasks, threads and processes; others wait."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Memory, Message, Tool
from diarist.exceptions import ThreadBusyError
from diarist.models.base import ModelRequest
from diarist.storage import InMemoryStorage, SQLiteStorage, Storage
from diarist.testing import ScriptedModel, ToolCall
from tests.scenarios.kit import Recount, answering, observational, raw_rows, words

MakeMemory = Callable[..., Memory]


def history(storage: Storage, **more: Any) -> Memory:
    return Memory(storage=storage, **more)


both = pytest.mark.parametrize("make", [history, observational], ids=["history", "om"])


class Overlap:
    """A model that notices whether two calls of it are under way at once, and holds each up a little."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.model = ScriptedModel(self._answer)

    async def _answer(self, request: ModelRequest) -> str:
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(20):
            await asyncio.sleep(0)
        self.now -= 1
        return "Noted."


@both
async def test_concurrent_calls_of_a_thread_take_turns(storage: Storage, make: MakeMemory) -> None:
    overlap = Overlap()
    memory = make(storage)
    agent = Agent(model=overlap.model, memory=memory)
    await asyncio.gather(*[agent.generate(words(f"turn-{n}", 30), thread="t") for n in range(5)])
    assert overlap.most == 1
    rows = await memory.messages.list(thread="t")
    assert [row.role for row in rows] == ["user", "assistant"] * 5
    assert [row.run_id for row in rows[::2]] == [row.run_id for row in rows[1::2]]
    await raw_rows(storage)


@both
async def test_calls_that_wait_are_answered_in_the_order_in_which_they_came(storage: Storage, make: MakeMemory) -> None:
    memory = make(storage)
    agent = Agent(model=answering(), memory=memory)
    said = [f"message {number}" for number in range(8)]
    await asyncio.gather(*[agent.generate(text, thread="t") for text in said])
    assert [row.text for row in await memory.messages.list(thread="t") if row.role == "user"] == said


async def test_a_call_that_gives_up_does_not_hold_up_those_behind_it(storage: Storage) -> None:
    called, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: ModelRequest) -> str:
        called.set()
        await go_on.wait()
        return "Noted."

    agent = Agent(model=ScriptedModel(slow), memory=Memory(storage=storage))
    first = asyncio.create_task(agent.generate("one", thread="t"))
    await called.wait()
    second = asyncio.create_task(agent.generate("two", thread="t"))
    third = asyncio.create_task(agent.generate("three", thread="t"))
    hasty = Agent(model=answering(), memory=Memory(storage=storage, thread_wait=0.01))
    with pytest.raises(ThreadBusyError, match="thread_wait"):
        await hasty.generate("four", thread="t")
    second.cancel()
    go_on.set()
    assert (await first).text == (await third).text == "Noted."


async def test_a_stream_that_was_left_open_is_named_as_a_reason(storage: Storage) -> None:
    agent = Agent(model=ScriptedModel(["word "] * 50, "Next."), memory=Memory(storage=storage, thread_wait=0))
    stream = agent.stream("one", thread="t")
    async for chunk in stream:
        if chunk.type == "text-delta":
            break
    with pytest.raises(ThreadBusyError, match="not read to its end runs until you close it"):
        await agent.generate("two", thread="t")
    await stream.close()
    assert (await agent.generate("two", thread="t")).text == "Next."


@both
async def test_different_threads_do_not_wait_for_each_other(storage: Storage, make: MakeMemory) -> None:
    arrived = asyncio.Barrier(3)

    async def together(_: ModelRequest) -> str:
        await arrived.wait()
        return "Noted."

    agent = Agent(model=ScriptedModel(together), memory=make(storage))
    await asyncio.gather(*[agent.generate("go", thread=f"t-{n}") for n in range(3)])


@both
async def test_with_thread_wait_0_a_busy_thread_raises_at_once(storage: Storage, make: MakeMemory) -> None:
    called, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: ModelRequest) -> str:
        called.set()
        await go_on.wait()
        return "Noted."

    memory = make(storage, thread_wait=0)
    agent = Agent(model=ScriptedModel(slow), memory=memory)
    first = asyncio.create_task(agent.generate("one", thread="t"))
    await called.wait()
    with pytest.raises(ThreadBusyError, match="'t'"):
        await agent.generate("two", thread="t")
    with pytest.raises(ThreadBusyError):
        await memory.messages.save([Message.user("three")], thread="t")
    go_on.set()
    await first
    assert [row.text for row in await memory.messages.list(thread="t")] == ["one", "Noted."]


@both
async def test_generate_sync_from_several_threads(tmp_path: Path, make: MakeMemory) -> None:
    """All of them share one event loop; the storage serves that loop and this one alike."""
    async with SQLiteStorage(tmp_path / "memory.db") as storage:
        memory = make(storage)
        agent = Agent(
            model=ScriptedModel(lambda r: "Done." if r.prompt.messages[-1].role == "tool" else ToolCall("look")),
            tools=[Tool(name="look", function=lambda: words("seen", 10))],
            memory=memory,
        )
        errors: list[BaseException] = []

        def work(name: str) -> None:
            try:
                for number in range(3):
                    agent.generate_sync(words(f"{name}-{number}", 20), thread=f"t-{name[0]}")
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(name,)) for name in ("a1", "a2", "b1", "b2")]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert errors == []
        for thread_id in ("t-a", "t-b"):
            rows = await memory.messages.list(thread=thread_id)
            assert [row.role for row in rows] == ["user", "assistant", "assistant"] * 6
            await raw_rows(storage, thread_id)


CHILD = """
import asyncio, sys
from diarist import Agent
from diarist.storage import SQLiteStorage
from tests.scenarios.kit import Recount, answering, observational, words

async def main(path, name):
    async with SQLiteStorage(path) as storage:
        agent = Agent(
            model=answering(f"answer to {name}"), memory=observational(storage), input_processors=[Recount(storage)]
        )
        for number in range(6):
            await agent.generate(words(f"{name}-{number}", 30), thread="t")

asyncio.run(main(*sys.argv[1:]))
"""


async def test_two_processes_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"

    def run(name: str) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, "-c", CHILD, str(path), name]
        return subprocess.run(
            arguments, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2], timeout=600
        )

    done = await asyncio.gather(asyncio.to_thread(run, "one"), asyncio.to_thread(run, "two"))
    for process in done:
        assert process.returncode == 0, process.stderr
    async with SQLiteStorage(path) as storage:
        rows = await storage.list_messages("t")
        assert len(rows) == 24
        for asked, answered in zip(rows[::2], rows[1::2], strict=True):
            assert answered.text == f"answer to {asked.text.split('-')[0]}"
        await raw_rows(storage)
        model = answering()
        agent = Agent(model=model, memory=observational(storage), input_processors=[Recount(storage)])
        await agent.generate("and?", thread="t")


@pytest.mark.parametrize("way", ["generate", "turn"])
def test_an_event_loop_that_ends_during_a_cancelled_run_leaves_no_run(way: str) -> None:
    async def reply(_: object) -> str:
        for _ in range(9):
            await asyncio.sleep(0)
        return "ok"

    async def talk(memory: Memory) -> None:
        if way == "generate":
            await Agent(model=ScriptedModel(reply), memory=memory).generate("Hello", thread="t")
        else:
            async with memory.turn(thread="t") as turn:
                await turn.prompt("Hello")
                await reply(None)

    async def begin(memory: Memory, steps: int) -> None:
        task = asyncio.create_task(talk(memory))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()

    for steps in range(40):  # wherever it is
        memory = Memory(storage=InMemoryStorage(), thread_wait=0)
        asyncio.run(begin(memory, steps))
        asyncio.run(Agent(model=ScriptedModel("ok"), memory=memory).generate("Again", thread="t"))  # pyright: ignore


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_run_whose_event_loop_is_closed_under_it_ends() -> None:
    """Python closes the coroutine of the lost task; code that awaits then must not try again and again."""
    called = asyncio.Event()

    async def reply(_: object) -> str:
        called.set()
        await asyncio.Event().wait()
        return "late"

    memory = Memory(storage=InMemoryStorage())
    loop = asyncio.new_event_loop()
    task = loop.create_task(Agent(model=ScriptedModel(reply), memory=memory).generate("Hello", thread="t"))
    loop.run_until_complete(called.wait())
    loop.close()
    del task, loop
    gc.collect()
