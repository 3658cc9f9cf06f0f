"""After runs that ended in every possible way, the event loop has nothing left and nothing to complain about."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import pytest

from diarist import Agent, AgentStream, CancelSignal, Processor
from diarist.models.base import ModelRequest
from diarist.testing import Reply, ScriptedModel, ToolCall
from tests.agent.kit import collect


async def never() -> str:
    """Never come back."""
    await asyncio.Event().wait()
    return "never"


def fail() -> str:
    """Fail."""
    raise KeyError("x")


class Guard(Processor[Any]):
    """Blocks, fails or asks for a retry where the input says so."""

    hold_output = True

    async def process_output_stream(self, args: Any) -> Any:
        if args.part.type == "text-delta" and args.part.payload.text in ("block", "raise", "retry"):
            if args.part.payload.text == "raise":
                raise KeyError("x")
            args.abort("no", retry=args.part.payload.text == "retry")
        return args.part


async def every_ending() -> None:
    def agent(*script: Any) -> Agent:
        return Agent(
            model=ScriptedModel(*script), tools=[never, fail], output_processors=[Guard()], max_processor_retries=1
        )

    await agent("ok").generate("hi")
    await agent([ToolCall("fail")] * 3, "ok").generate("hi")
    await collect(agent("ok").stream("hi"))
    for word in ("block", "retry", "raise"):
        await asyncio.gather(agent(["x", word, "y"], ["x", word]).generate("hi"), return_exceptions=True)
        await collect(agent(["x", word, "y"], ["x", word]).stream("hi"))
    await asyncio.gather(agent(OSError("x")).generate("hi"), return_exceptions=True)
    await collect(agent(Reply(text="x", error_after=OSError("x"))).stream("hi"))
    await leave_early(agent)
    await cancel(agent)


async def leave_early(agent: Any) -> None:
    async with agent("x", "y").stream("hi") as stream:
        await anext(stream)
    async with agent([ToolCall("never")] * 3).stream("hi") as stream:
        async for chunk in stream:
            if chunk.type == "tool-call":
                break
    abandoned: AgentStream[Any] | None = agent(["x"] * 500).stream("hi")
    assert abandoned is not None
    await anext(abandoned)
    abandoned = None
    gc.collect()
    agent("never read").stream("hi")


async def cancel(agent: Any) -> None:
    begun = asyncio.Event()

    async def answer(request: ModelRequest) -> list[ToolCall]:
        begun.set()
        return [ToolCall("never")] * 3

    signal = CancelSignal()
    run = asyncio.create_task(agent(answer).generate("hi", cancel=signal))
    await begun.wait()
    signal.cancel()
    await run
    begun.clear()
    run = asyncio.create_task(agent(answer).generate("hi"))
    await begun.wait()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)


@pytest.mark.filterwarnings("error")
def test_nothing_is_left(caplog: pytest.LogCaptureFixture) -> None:
    complaints: list[Any] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.slow_callback_duration = 60  # a slow machine is no complaint
        loop.set_exception_handler(lambda _, details: complaints.append(details))
        await every_ending()
        for _ in range(10):
            await asyncio.sleep(0)
        gc.collect()
        await asyncio.sleep(0)
        complaints.extend(asyncio.all_tasks() - {asyncio.current_task()})

    caplog.set_level(logging.WARNING, logger="asyncio")
    asyncio.run(main(), debug=True)
    gc.collect()
    assert complaints == []
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
