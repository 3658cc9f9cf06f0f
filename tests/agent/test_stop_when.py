"""``stop_when``: ends the run after a step, as an ordinary end."""

from __future__ import annotations

from typing import Any

import pytest

from diarist import Agent, Processor
from diarist.exceptions import ProcessorError
from diarist.testing import ScriptedModel, ToolCall
from tests.agent.kit import RecordingMemory, run_both, types


def work(n: int = 0) -> str:
    """Work."""
    return f"done {n}"


def calling() -> ScriptedModel:
    numbers = iter(range(100))
    return ScriptedModel(lambda request: ["Working.", ToolCall("work", {"n": next(numbers)})])


async def test_the_run_ends_after_the_tools_of_its_step_ran() -> None:
    def make() -> Agent:
        return Agent(model=calling(), tools=[work])

    result, chunks = await run_both(make, stop_when=lambda steps: len(steps) == 2)
    assert (result.stopped_by, len(result.steps), result.text) == ("stop_when", 2, "Working.")
    assert [part.result for part in result.messages[-1].tool_parts] == ["done 1"]
    assert types(chunks)[-1] == "finish"
    assert chunks[-1].to_dict()["payload"]["stoppedBy"] == "stop_when"


@pytest.mark.parametrize("holds", [0, 1])
async def test_any_of_several(holds: int) -> None:
    conditions = [lambda steps: False, lambda steps: False]
    conditions[holds] = lambda steps: steps[-1].tool_calls[0].result == "done 1"
    result = await Agent(model=calling(), tools=[work]).generate("hi", stop_when=conditions)
    assert (result.stopped_by, len(result.steps)) == ("stop_when", 2)


async def test_a_condition_may_be_async() -> None:
    async def two(steps: Any) -> bool:
        return len(steps) == 2

    for condition in (two, lambda steps: two(steps)):
        result = await Agent(model=calling(), tools=[work]).generate("hi", stop_when=condition)
        assert (result.stopped_by, len(result.steps)) == ("stop_when", 2)


async def test_after_a_condition_holds_the_others_are_not_asked() -> None:
    async def fails(steps: Any) -> bool:
        raise RuntimeError("asked")

    result = await Agent(model=calling(), tools=[work]).generate("hi", stop_when=[lambda steps: True, fails])
    assert result.stopped_by == "stop_when"


async def test_an_answer_is_an_answer() -> None:
    asked: list[int] = []

    def condition(steps: Any) -> bool:
        asked.append(len(steps))
        return True

    result = await Agent(model=ScriptedModel("done")).generate("hi", stop_when=condition)
    assert (result.stopped_by, asked) == ("answer", [])


async def test_it_may_stand_among_the_agents_defaults_and_a_call_beats_it() -> None:
    agent = Agent(model=calling(), tools=[work], default_options={"stop_when": lambda steps: len(steps) == 1})
    assert len((await agent.generate("hi")).steps) == 1
    assert len((await agent.generate("hi", stop_when=lambda steps: len(steps) == 3)).steps) == 3


async def test_the_last_hooks_run_and_may_block() -> None:
    memory = RecordingMemory()

    class Judge(Processor[Any]):
        def process_output_result(self, args: Any) -> None:
            args.abort("no", retry=True)

    agent = Agent(model=calling(), tools=[work], memory=memory, output_processors=[Judge()], max_processor_retries=3)
    result = await agent.generate("hi", thread="t", stop_when=lambda steps: True)
    assert (result.stopped_by, memory.outcomes) == ("tripwire", ["discarded"])


async def test_a_condition_that_fails_ends_the_run_with_its_error() -> None:
    def broken(steps: Any) -> bool:
        raise ValueError("cannot tell")

    with pytest.raises(ProcessorError, match=r"processor 'stop-when' failed in stop_when at step 0: .*cannot tell"):
        await Agent(model=calling(), tools=[work]).generate("hi", stop_when=broken)
