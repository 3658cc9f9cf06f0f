"""``on_error``: a processor that fails ends the run, or fails open."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from diarist import Agent, DataChunk, Processor
from diarist.exceptions import ProcessorError, ThreadBusyError
from diarist.processors.compose import Branch, Sequence
from diarist.testing import ScriptedModel, ToolCall
from tests.agent.kit import run_both
from tests.processors.test_compositions import HOOKS, acts, agent


def broken(args: Any) -> None:
    raise ValueError("broken")


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("hook", list(HOOKS))
async def test_failing_open(hook: str, nested: bool, caplog: pytest.LogCaptureFixture) -> None:
    def make() -> Agent:
        fails = acts("fails", hook, broken, on_error="continue")
        whole = Sequence(Branch((lambda args: True, fails))) if nested else fails
        repair = acts("repair", hook, lambda args: {"retry": True} if hook == "process_api_error" else None)
        return agent(whole, repair, hook=hook)

    with caplog.at_level(logging.WARNING, logger="diarist"):
        result, chunks = await run_both(make)
    assert (result.text, result.stopped_by) == ("said", "answer")
    assert "processor 'fails' failed" in caplog.text
    events = [chunk for chunk in chunks if isinstance(chunk, DataChunk)]
    assert {event.type for event in events} == {"data-processor-error"}
    assert all(event.transient for event in events)
    assert all(event.data["processorId"] == "fails" and event.data["hook"] == hook for event in events)


@pytest.mark.parametrize("hook", list(HOOKS))
async def test_failing_closed_is_the_default_and_names_everything(hook: str) -> None:
    with pytest.raises(ProcessorError, match=rf"'fails' failed in {hook}.*ValueError: broken") as caught:
        await agent(acts("fails", hook, broken), hook=hook).generate("hello")
    assert (caught.value.processor_id, caught.value.hook) == ("fails", hook)
    assert isinstance(caught.value.__cause__, ValueError)


async def test_an_error_in_process_api_error_names_the_models_error_too() -> None:
    with pytest.raises(ProcessorError, match=r"ValueError: broken; it was asked about ModelError: RuntimeError: down"):
        await agent(acts("fails", "process_api_error", broken), hook="process_api_error").generate("hello")


async def test_a_tripwire_blocks_all_the_same() -> None:
    guard = acts("guard", "process_input", lambda args: args.abort("no"), on_error="continue")
    assert (await agent(guard, hook="process_input").generate("hello")).stopped_by == "tripwire"


async def test_a_result_that_makes_no_sense_is_no_failure_to_overlook() -> None:
    nonsense = acts("nonsense", "process_input", lambda args: 42, on_error="continue")
    with pytest.raises(ProcessorError, match="nonsense"):
        await agent(nonsense, hook="process_input").generate("hello")


async def test_errors_that_callers_tell_apart_stay_what_they_are() -> None:
    def busy(args: Any) -> None:
        raise ThreadBusyError("busy")

    with pytest.raises(ThreadBusyError) as caught:
        await agent(acts("fails", "process_input", busy), hook="process_input").generate("hello")
    assert "processor 'fails'" in "".join(caught.value.__notes__)


async def test_in_the_stream_the_chunk_passes_a_processor_that_fails_open() -> None:
    class Fails(Processor[Any]):
        on_error = "continue"

        def process_output_stream(self, args: Any) -> Any:
            raise ValueError("broken")

    def work() -> str:
        """Work."""
        return "done"

    result, chunks = await run_both(
        lambda: Agent(
            model=ScriptedModel(["a", ToolCall("work")], ["b", "c"]), tools=[work], output_processors=[Fails()]
        )
    )
    assert (result.text, result.steps[0].text) == ("bc", "a")
    assert chunks[-1].type == "finish"
