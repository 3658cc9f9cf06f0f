"""What a processor knows of a run lives on while a tool call waits for approval, where it says how."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, AgentResult, Memory, Processor, tool
from diarist.exceptions import ConfigError, ProcessorError, ProcessorResultError
from diarist.processors import Branch, Parallel, ProcessInputArgs, ProcessInputStepArgs, Sequence
from diarist.storage import SQLiteStorage
from diarist.testing import ScriptedModel, ToolCall


@tool(needs_approval=True)
def send(to: str) -> str:
    """Send a letter."""
    return f"sent to {to}"


def calls(*ids: str) -> list[ToolCall]:
    return [ToolCall("send", {"to": "ada"}, id=call_id) for call_id in ids]


@dataclass
class Seen:
    """How often each hook was asked, over all parts of the run."""

    hooks: list[str] = field(default_factory=list[str])


class Counts(Processor[Any]):
    def __init__(self, id: str = "counts") -> None:
        self.id = id
        self.made = 0
        self.end: list[str] = []

    def create_state(self) -> Seen:
        self.made += 1
        return Seen()

    def dump_state(self, state: Seen) -> list[str]:
        return state.hooks

    def load_state(self, data: Any) -> Seen:
        return Seen(data)

    def process_input(self, args: ProcessInputArgs[Any]) -> None:
        args.state.hooks.append("input")

    def process_input_step(self, args: ProcessInputStepArgs[Any]) -> None:
        args.state.hooks.append("step")

    def process_tool_result(self, args: Any) -> None:
        args.state.hooks.append("result")

    def process_output_result(self, args: Any) -> None:
        args.state.hooks.append("end")
        self.end = list(args.state.hooks)


WHOLE = ["input", "step", "end", "result", "step", "end"]


async def test_the_state_lives_on_in_another_agent_on_the_same_storage(tmp_path: Path) -> None:
    def make(*replies: Any) -> tuple[Agent, Counts]:
        counts, memory = Counts(), Memory(storage=SQLiteStorage(tmp_path / "memory.db"))
        return Agent(model=ScriptedModel(*replies), tools=[send], memory=memory, processors=[counts]), counts

    first, before = make(calls("s1"))
    assert (await first.generate("send it", thread="t")).stopped_by == "approval"
    second, after = make("done")
    assert (await second.resume({"s1": True}, thread="t")).text == "done"
    assert (before.made, after.made, after.end) == (1, 0, WHOLE)


SCRIPT = """
import asyncio, sys
from diarist import Agent, Memory
from diarist.storage import SQLiteStorage
from diarist.testing import ScriptedModel
from tests.agent.test_state_across_approvals import Counts, calls, send

async def main():
    counts, ask = Counts(), sys.argv[2] == "ask"
    model = ScriptedModel(calls("s1") if ask else "done")
    memory = Memory(storage=SQLiteStorage(sys.argv[1]))
    agent = Agent(model=model, tools=[send], memory=memory, processors=[counts])
    await (agent.generate("send it", thread="t") if ask else agent.resume({"s1": True}, thread="t"))
    print(*counts.end)
    await memory.close()

asyncio.run(main())
"""


@pytest.mark.slow
def test_the_state_lives_on_in_another_process(tmp_path: Path) -> None:
    def play(what: str) -> list[str]:
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "memory.db"), what]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert (play("ask"), play("answer")) == (WHOLE[:3], WHOLE)


@pytest.mark.parametrize("composed", ["list", "sequence", "parallel", "branch"])
async def test_the_states_of_parts_live_on_too(composed: str) -> None:
    made: list[tuple[Counts, Counts]] = []

    def make(*replies: Any) -> Agent:
        a, b = Counts("a"), Counts("b")
        listed: dict[str, list[Processor[Any]]] = {
            "list": [a, b],
            "sequence": [Sequence(a, Sequence(b))],
            "parallel": [Parallel(a, b)],
            "branch": [Branch((lambda args: True, a)), Branch((lambda args: False, Plain()), default=b)],
        }
        made.append((a, b))
        return Agent(model=ScriptedModel(*replies), tools=[send], processors=listed[composed])

    waiting = await make(calls("s1")).generate("send it")
    await make("done").resume({"s1": True}, of=waiting)
    assert [counts.end for counts in made[-1]] == [WHOLE, WHOLE]


async def test_a_message_beside_an_approval_is_judged_with_the_loaded_state(tmp_path: Path) -> None:
    counts, memory = Counts(), Memory(storage=SQLiteStorage(tmp_path / "memory.db"))
    agent = Agent(model=ScriptedModel(calls("s1"), "done"), tools=[send], memory=memory, processors=[counts])
    await agent.generate("send it", thread="t")
    await agent.resume({"s1": True}, input="And hurry.", thread="t")
    assert counts.end == ["input", "step", "end", "input", "result", "step", "end"]


async def test_the_state_lives_on_over_several_approvals(tmp_path: Path) -> None:
    counts, memory = Counts(), Memory(storage=SQLiteStorage(tmp_path / "memory.db"))
    model = ScriptedModel(calls("s1", "s2"), calls("s3"), "done")
    agent = Agent(model=model, tools=[send], memory=memory, processors=[counts])
    await agent.generate("send it", thread="t")
    await agent.resume({"s1": True}, thread="t")
    await agent.resume({"s2": True}, thread="t")
    await agent.resume({"s3": "no"}, thread="t")
    first, partly, second = ["input", "step", "end"], ["result", "end"], ["result", "step", "end"]
    assert counts.end == [*first, *partly, *second, *second]


async def test_state_is_loaded_at_each_resume_of_a_run() -> None:
    waiting = await Agent(model=ScriptedModel(calls("s1")), tools=[send], processors=[Counts()]).generate("send it")
    for _ in range(2):
        counts = Counts()
        await Agent(model=ScriptedModel("x"), tools=[send], processors=[counts]).resume({"s1": True}, of=waiting)
        assert counts.end == WHOLE


class Plain(Processor[Any]):
    def __init__(self) -> None:
        self.end: list[str] = []

    def process_tool_result(self, args: Any) -> None:
        args.state["result"] = True

    def process_output_result(self, args: Any) -> None:
        self.end = sorted(args.state)
        args.state["end"] = True


async def test_state_that_is_not_dumped_is_created_again() -> None:
    plain = Plain()
    agent = Agent(model=ScriptedModel(calls("s1"), "done"), tools=[send], processors=[plain])
    waiting = await agent.generate("send it")
    assert plain.end == []
    await agent.resume({"s1": True}, of=waiting)
    assert plain.end == ["result"]


def run_with(processor: Processor[Any]) -> Agent:
    return Agent(model=ScriptedModel(calls("s1"), "done"), tools=[send], processors=[processor])


async def test_a_state_without_a_json_form_is_an_error_that_names_the_processor() -> None:
    class Odd(Counts):
        def dump_state(self, state: Any) -> Any:
            return {"lock": object()}

    with pytest.raises(ProcessorResultError, match="'counts' returned from dump_state: dict that has no JSON form"):
        await run_with(Odd()).generate("send it")


@pytest.mark.parametrize("method", ["create_state", "dump_state", "load_state"])
async def test_what_these_methods_raise_names_processor_and_method(method: str) -> None:
    def broken(self: Any, *given: Any) -> Any:
        raise ValueError("broken")

    async def play(processor: Processor[Any]) -> None:
        waiting: AgentResult[Any] = await run_with(processor).generate("send it")
        await run_with(processor).resume({"s1": True}, of=waiting)

    with pytest.raises(ProcessorError, match=f"'counts' failed in {method}: ValueError: broken") as raised:
        await play(type("Odd", (Counts,), {method: broken})())
    assert (raised.value.processor_id, raised.value.hook) == ("counts", method)


@pytest.mark.parametrize("inside", [False, True])
def test_one_without_the_other_is_refused_when_the_agent_is_made(inside: bool) -> None:
    class Idle(Processor[Any]):
        def process_input(self, args: Any) -> None: ...

    class Dumps(Idle):
        def dump_state(self, state: Any) -> Any:
            return state

    class Loads(Idle):
        def load_state(self, data: Any) -> Any:
            return data

    for wrong, named in ((Dumps(), "'dumps' has dump_state without load_state"), (Loads(), "load_state without dump")):
        with pytest.raises(ConfigError, match=named):
            run_with(Sequence(wrong) if inside else wrong)
