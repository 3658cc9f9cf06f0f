"""What was approved runs once at most, whatever becomes of the run that it was approved in."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, CancelSignal, Memory, ObservationalMemoryConfig, Processor, tool
from diarist.exceptions import InputError, ModelConnectionError, ModelError
from diarist.storage import InMemoryStorage, SQLiteStorage, Storage
from diarist.testing import ScriptedModel, ToolCall
from tests.scenarios.kit import assert_all_well_formed


class Judge(Processor[Any]):
    """Judges the whole answer at its end, so that a run that breaks off keeps its input alone."""

    def process_output_result(self, args: Any) -> None:
        if "BAD" in args.result.text:
            args.abort("no")


class Till:
    """An agent whose only tool pays, and what was paid."""

    def __init__(
        self,
        memory: Memory,
        *replies: Any,
        processors: list[Processor[Any]] | None = None,
        calls: list[Any] | None = None,
    ) -> None:
        self.paid: list[str] = []
        self.model = ScriptedModel(calls or ToolCall("pay", {"to": "ada"}, id="p1"), *replies)

        @tool(needs_approval=True)
        def pay(to: str) -> str:
            """Pay a bill."""
            self.paid.append(to)
            return f"paid {to}"

        judges = [Judge()] if processors is None else processors
        self.agent = Agent(model=self.model, tools=[pay], memory=memory, processors=judges)

    async def refuses(self) -> None:
        """The call cannot be approved again, and the model sees that it was begun."""
        with pytest.raises(InputError, match=r"no tool call \['p1'\] waits for approval"):
            await self.agent.resume({"p1": True}, thread="t")
        assert self.paid == ["ada"]
        assert (await self.agent.generate("And?", thread="t")).stopped_by == "answer"
        shown = self.model.requests[-1].prompt.messages
        assert [message.role for message in shown] == ["user", "assistant", "tool", "user"]
        assert "approved" in shown[2].text
        assert_all_well_formed([self.model])


@pytest.fixture(params=["sqlite", "in memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return SQLiteStorage(tmp_path / "memory.db") if request.param == "sqlite" else InMemoryStorage()


@pytest.fixture(params=[False, ObservationalMemoryConfig(model="extractive")], ids=["history", "om"])
def memory(request: pytest.FixtureRequest, storage: Storage) -> Memory:
    return Memory(storage=storage, observational_memory=request.param)


@pytest.mark.parametrize("by", ["signal", "task"])
async def test_cancelled_after_the_tool_ran(memory: Memory, by: str) -> None:
    asked, stop = asyncio.Event(), CancelSignal()

    async def hang(_: Any) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    till = Till(memory, hang, "Going on.")
    await till.agent.generate("Pay.", thread="t")
    run = asyncio.create_task(till.agent.resume({"p1": True}, thread="t", cancel=stop))
    await asked.wait()
    if by == "signal":
        stop.cancel()
        assert (await run).stopped_by == "cancelled"
    else:
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    await till.refuses()
    await memory.close()


async def test_the_model_failed_after_the_tool_ran(memory: Memory) -> None:
    till = Till(memory, ModelConnectionError("cut"), "Going on.")
    await till.agent.generate("Pay.", thread="t")
    with pytest.raises(ModelError):
        await till.agent.resume({"p1": True}, thread="t")
    await till.refuses()
    await memory.close()


async def test_blocked_after_the_tool_ran(memory: Memory) -> None:
    till = Till(memory, "BAD", "Going on.")
    await till.agent.generate("Pay.", thread="t")
    assert (await till.agent.resume({"p1": True}, thread="t")).stopped_by == "tripwire"
    await till.refuses()
    await memory.close()


async def test_blocked_before_the_tool_ran_it_still_waits(memory: Memory) -> None:
    class Input(Judge):
        def process_input(self, args: Any) -> None:
            if "BAD" in args.messages[-1].text:
                args.abort("no")

    till = Till(memory, "Paid.", processors=[Input()])
    await till.agent.generate("Pay.", thread="t")
    assert (await till.agent.resume({"p1": True}, input="BAD", thread="t")).tripwire is not None
    assert till.paid == []
    assert (await till.agent.resume({"p1": True}, thread="t")).text == "Paid."
    assert till.paid == ["ada"]
    await memory.close()


async def test_where_it_goes_well_the_model_sees_the_result_alone(memory: Memory) -> None:
    till = Till(memory, "Paid.", "Yes.")
    await till.agent.generate("Pay.", thread="t")
    assert (await till.agent.resume({"p1": True}, thread="t")).text == "Paid."
    await till.agent.generate("Sure?", thread="t")
    for request in till.model.requests[1:]:
        assert [m.text for m in request.prompt.messages if m.role == "tool"] == ["paid ada"]
    await memory.close()


async def test_of_two_calls_the_other_still_waits(memory: Memory) -> None:
    block = Block()
    calls: list[Any] = [ToolCall("pay", {"to": to}, id=to) for to in ("ada", "bob")]
    till = Till(memory, "Both paid.", processors=[block], calls=calls)
    await till.agent.generate("Pay.", thread="t")
    block.on = True
    assert (await till.agent.resume({"ada": True}, thread="t")).stopped_by == "tripwire"
    block.on = False
    with pytest.raises(InputError, match="waiting: bob"):
        await till.agent.resume({"ada": True}, thread="t")
    assert (await till.agent.resume({"bob": True}, thread="t")).text == "Both paid."
    assert till.paid == ["ada", "bob"]
    assert_all_well_formed([till.model])
    await memory.close()


class Block(Processor[Any]):
    on = False

    def process_output_result(self, args: Any) -> None:
        if self.on:
            args.abort("no")


CHILD = """
import asyncio, sys
from diarist import Agent, Memory, tool
from diarist.storage import SQLiteStorage
from diarist.testing import ScriptedModel, ToolCall

@tool(needs_approval=True)
async def pay(to: str) -> str:
    "Pay a bill."
    print("paying", flush=True)
    await asyncio.Event().wait()

async def main():
    model = ScriptedModel(ToolCall("pay", {"to": "ada"}, id="p1"))
    agent = Agent(model=model, tools=[pay], memory=Memory(storage=SQLiteStorage(sys.argv[1])))
    await agent.generate("Pay.", thread="t")
    await agent.resume({"p1": True}, thread="t")

asyncio.run(main())
"""


async def test_the_process_was_killed_while_the_tool_ran(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    child = await asyncio.to_thread(start, path)
    assert child.stdout is not None
    assert await asyncio.to_thread(child.stdout.readline) == "paying\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with sqlite3.connect(path) as database:  # what the clock does within a minute
        database.execute("UPDATE diarist_runs SET expires_at = 0 WHERE state = 'live'")
    database.close()
    till = Till(Memory(storage=SQLiteStorage(path)), processors=[])
    with pytest.raises(InputError, match=r"no tool call \['p1'\] waits for approval"):
        await till.agent.resume({"p1": True}, thread="t")
    assert till.paid == []


def start(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True)
