"""``on_step_finish``, and exactly one of ``on_finish``, ``on_error`` and ``on_abort``."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, CancelSignal, Memory, Processor
from diarist.storage import SQLiteStorage
from diarist.testing import ScriptedModel, ToolCall
from tests.agent.kit import collect, types


def work() -> str:
    """Work."""
    return "done"


class Calls:
    """Notes the callbacks of a run."""

    def __init__(self, *, is_async: bool = False) -> None:
        self.log: list[str] = []
        self.values: list[Any] = []
        self._is_async = is_async

    @property
    def options(self) -> dict[str, Any]:
        return {name: self._noting(name) for name in ("on_step_finish", "on_finish", "on_error", "on_abort")}

    def _noting(self, name: str) -> Any:
        def note(value: Any) -> None:
            self.log.append(name)
            self.values.append(value)

        async def note_later(value: Any) -> None:
            await asyncio.sleep(0)
            note(value)

        return note_later if self._is_async else note


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
async def test_each_step_then_the_end(is_async: bool, streamed: bool) -> None:
    calls = Calls(is_async=is_async)
    agent = Agent(model=ScriptedModel(ToolCall("work"), "said"), tools=[work])
    if streamed:
        await collect(agent.stream("hi", **calls.options))
    else:
        await agent.generate("hi", **calls.options)
    assert calls.log == ["on_step_finish", "on_step_finish", "on_finish"]
    first, second, result = calls.values
    assert (first.step_number, first.tool_calls[0].result) == (0, "done")
    assert (second.text, result.text, result.stopped_by) == ("said", "said", "answer")


async def test_an_error_a_block_and_a_cancellation() -> None:
    class Blocks(Processor[Any]):
        def process_output_step(self, args: Any) -> None:
            args.abort("no")

    error = RuntimeError("down")
    calls = Calls()
    with pytest.raises(RuntimeError):
        await Agent(model=ScriptedModel(error)).generate("hi", **calls.options)
    assert (calls.log, calls.values) == (["on_error"], [error])

    calls = Calls()
    await Agent(model=ScriptedModel("x"), processors=[Blocks()]).generate("hi", **calls.options)
    assert calls.log == ["on_finish"]
    assert calls.values[0].tripwire is not None

    calls, cancel = Calls(), CancelSignal()

    def stop(request: Any) -> str:
        cancel.cancel("enough")
        return "never"

    await Agent(model=ScriptedModel(stop)).generate("hi", cancel=cancel, **calls.options)
    assert calls.log == ["on_abort"]
    assert calls.values[0].stopped_by == "cancelled"


async def test_a_stream_that_is_left_early_is_told_to_on_abort() -> None:
    calls = Calls()
    async with Agent(model=ScriptedModel(["a", "b", "c"])).stream("hi", **calls.options) as stream:
        async for chunk in stream:
            if chunk.type == "text-delta":
                break
    assert calls.log == ["on_abort"]


async def test_rejected_attempts_are_no_steps() -> None:
    class Judge(Processor[Any]):
        def process_output_step(self, args: Any) -> None:
            if args.retry_count == 0:
                args.abort("again", retry=True)

    calls = Calls()
    agent = Agent(model=ScriptedModel("BAD", "GOOD"), processors=[Judge()], max_processor_retries=1)
    await agent.generate("hi", **calls.options)
    assert [getattr(value, "text", None) for value in calls.values] == ["GOOD", "GOOD"]


async def test_on_finish_comes_when_all_is_stored_and_before_the_last_chunk(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "memory.db")
    seen: list[str] = []

    async def on_finish(result: Any) -> None:
        seen.extend(row.text for row in await storage.list_messages("t"))
        seen.append("on_finish")

    agent = Agent(model=ScriptedModel("said"), memory=Memory(storage=storage))
    async with agent.stream("hi", thread="t", on_finish=on_finish) as stream:
        async for chunk in stream:
            if chunk.type == "finish":
                seen.append("finish")
    assert seen == ["hi", "said", "on_finish", "finish"]
    await storage.close()


async def test_a_callback_that_fails_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(value: Any) -> None:
        raise ValueError("broken")

    with caplog.at_level(logging.ERROR, logger="diarist"):
        chunks = await collect(Agent(model=ScriptedModel("said")).stream("hi", on_step_finish=broken, on_finish=broken))
    assert types(chunks)[-1] == "finish"
    assert "on_step_finish" in caplog.text
    assert "on_finish" in caplog.text


async def test_a_callback_that_waits_for_something_cancelled_fails_by_itself() -> None:
    async def waits(value: Any) -> None:
        lost = asyncio.get_running_loop().create_future()
        lost.cancel()
        await lost

    result = await Agent(model=ScriptedModel("said")).generate("hi", on_step_finish=waits, on_finish=waits)
    assert result.text == "said"
