"""A ``BaseException``, such as ``KeyboardInterrupt``, ends the run in storage first and then reaches the caller."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import Any

import pytest

from diarist import Agent, Memory, Processor
from diarist.chunks import ErrorChunk
from diarist.exceptions import DiaristError
from diarist.models.base import ModelRequest
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel
from tests.agent.kit import RecordingMemory


class Skipped(BaseException):
    """As testing tools raise it."""


def breaking(hook: str, error: BaseException) -> Processor[Any]:
    errors = [error]

    def breaks(self: Any, args: Any) -> None:
        if errors:
            raise errors.pop()

    return type("Breaks", (Processor,), {hook: breaks})()


HOOKS = ["process_input", "process_input_step", "process_output_step", "process_output_result"]


@pytest.mark.parametrize("hook", HOOKS)
async def test_memory_hears_of_the_end_and_the_caller_gets_what_was_raised(hook: str) -> None:
    memory, told = RecordingMemory(), list[Exception]()
    agent = Agent(model=ScriptedModel("ok", "ok"), processors=[breaking(hook, Skipped("enough"))], memory=memory)
    with pytest.raises(Skipped, match="enough"):
        await agent.generate("hi", thread="t", on_error=told.append)
    assert memory.outcomes == ["interrupted"]
    assert [(type(error), str(error)) for error in told] == [
        (DiaristError, "the run was broken off by Skipped: enough"),
    ]
    assert (await agent.generate("hi", thread="t")).text == "ok"


@pytest.mark.parametrize("hook", HOOKS)
async def test_a_stream_ends_and_its_result_raises_it(hook: str) -> None:
    agent = Agent(model=ScriptedModel("ok"), processors=[breaking(hook, Skipped("enough"))])
    async with agent.stream("hi") as stream:
        last = [chunk async for chunk in stream][-1]
        assert isinstance(last, ErrorChunk)
        with pytest.raises(Skipped, match="enough"):
            await stream.result()


@pytest.mark.parametrize("where", ["model", *HOOKS])
async def test_its_thread_is_free_for_the_next_run(where: str) -> None:
    memory = Memory(storage=InMemoryStorage(), thread_wait=0)
    first = Skipped("enough") if where == "model" else "ok"
    hooks = [] if where == "model" else [breaking(where, Skipped("enough"))]
    agent = Agent(model=ScriptedModel(first, "ok", "ok"), memory=memory, processors=hooks)
    with pytest.raises(Skipped):
        await agent.generate("hi", thread="t")
    assert (await agent.generate("hi", thread="t")).text == "ok"


@pytest.mark.parametrize("hook", HOOKS)
def test_generate_sync_raises_it_and_serves_the_next_call(hook: str) -> None:
    agent = Agent(model=ScriptedModel("ok", "ok"), processors=[breaking(hook, SystemExit(2))])
    with pytest.raises(SystemExit):
        agent.generate_sync("hi")
    assert agent.generate_sync("hi").text == "ok"


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals cannot be sent to a thread here")
def test_ctrl_c_waits_until_the_run_has_ended() -> None:
    outcomes: list[str] = []

    class Storing(Processor[Any]):
        def process_input(self, args: Any) -> None:
            async def end(outcome: str) -> None:
                for _ in range(1000):
                    await asyncio.sleep(0)
                outcomes.append(outcome)

            args.context.on_end(end)

    async def answer(request: ModelRequest) -> str:
        signal.pthread_kill(caller, signal.SIGINT)
        await asyncio.Event().wait()
        return "never"

    caller = threading.get_ident()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Agent(model=ScriptedModel(answer), processors=[Storing()]).generate_sync("hi")
    finally:
        signal.signal(signal.SIGINT, before)
    assert outcomes == ["interrupted"]
