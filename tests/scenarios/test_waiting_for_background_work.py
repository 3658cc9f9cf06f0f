"""``await_background=True``: who waits at the end of a run for the notes to be made, and who does not."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from diarist import Agent, CancelSignal, Memory, Processor
from diarist.models.base import ModelRequest
from diarist.processors import ProcessOutputResultArgs
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel
from tests.scenarios.kit import answering, observational, words

QUESTION = words("asked", 50)


class HeldUp(ScriptedModel):
    """An Observer that notes nothing before it is let."""

    def __init__(self) -> None:
        super().__init__(self._write, name="observer")
        self.asked, self.gate = asyncio.Event(), asyncio.Event()

    async def _write(self, request: ModelRequest) -> str:
        self.asked.set()
        await self.gate.wait()
        return "- 🟡 it was asked"


@pytest.fixture
def observer_model() -> HeldUp:
    return HeldUp()


@pytest.fixture
def memory(observer_model: HeldUp) -> Memory:
    return observational(
        InMemoryStorage(), observer_model=observer_model, buffer_tokens=20, block_after=1_000, await_background=True
    )


async def stored(memory: Memory) -> list[str]:
    return [row.role for row in await memory.storage.list_messages("t")]


async def waits(memory: Memory, observer_model: HeldUp) -> None:
    """Until the run has ended in storage, and the Observer is at work."""
    await observer_model.asked.wait()
    while await stored(memory) != ["user", "assistant"]:  # noqa: ASYNC110 - the run's end has no event
        await asyncio.sleep(0)


async def noted(memory: Memory, observer_model: HeldUp) -> bool:
    """Whether the notes are made once the Observer is let."""
    assert (await memory.diary.get(thread="t")).entries == ()
    observer_model.gate.set()
    await memory.settled()
    return bool((await memory.diary.get(thread="t")).entries)


async def test_a_call_waits_for_the_notes(memory: Memory, observer_model: HeldUp) -> None:
    call = asyncio.create_task(Agent(model=answering(), memory=memory).generate(QUESTION, thread="t"))
    await observer_model.asked.wait()
    observer_model.gate.set()
    await call
    assert (await memory.diary.get(thread="t")).entries


async def test_a_waiting_call_can_be_cancelled(
    memory: Memory, observer_model: HeldUp, caplog: pytest.LogCaptureFixture
) -> None:
    call = asyncio.create_task(Agent(model=answering(), memory=memory).generate(QUESTION, thread="t"))
    await waits(memory, observer_model)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await stored(memory) == ["user", "assistant"]
    assert await noted(memory, observer_model)
    assert caplog.messages == []


async def test_a_signal_ends_the_wait_and_leaves_the_result(memory: Memory, observer_model: HeldUp) -> None:
    cancel = CancelSignal()
    call = asyncio.create_task(Agent(model=answering(), memory=memory).generate(QUESTION, thread="t", cancel=cancel))
    await waits(memory, observer_model)
    cancel.cancel()
    result = await call
    assert (result.text, result.stopped_by) == ("Understood, noted.", "answer")
    assert await noted(memory, observer_model)


class Refuses(Processor[Any]):
    id = "refuses"

    async def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
        args.abort("no")


async def test_a_blocked_call_does_not_wait_for_background_work(memory: Memory, observer_model: HeldUp) -> None:
    await memory.messages.save(QUESTION, thread="t")
    agent = Agent(model=_once_asked(observer_model, "Refused."), memory=memory, output_processors=[Refuses()])
    assert (await agent.generate("go on", thread="t")).tripwire is not None
    assert await noted(memory, observer_model)


async def test_a_failing_call_does_not_wait_for_background_work(memory: Memory, observer_model: HeldUp) -> None:
    await memory.messages.save(QUESTION, thread="t")
    agent = Agent(model=_once_asked(observer_model, RuntimeError("the model is down")), memory=memory)
    with pytest.raises(RuntimeError, match="is down"):
        await agent.generate("go on", thread="t")
    assert await noted(memory, observer_model)


async def test_a_cancelled_call_does_not_wait_for_background_work(memory: Memory, observer_model: HeldUp) -> None:
    await memory.messages.save(QUESTION, thread="t")
    cancel = CancelSignal()

    async def stop(request: ModelRequest) -> str:
        await observer_model.asked.wait()
        cancel.cancel()
        return "too late"

    result = await Agent(model=ScriptedModel(stop), memory=memory).generate("go on", thread="t", cancel=cancel)
    assert result.stopped_by == "cancelled"
    assert await noted(memory, observer_model)


def _once_asked(observer_model: HeldUp, answer: str | Exception) -> ScriptedModel:
    """An actor that answers when the Observer is at work."""

    async def write(request: ModelRequest) -> str | Exception:
        await observer_model.asked.wait()
        return answer

    return ScriptedModel(write, name="actor")


async def test_no_call_waits_for_a_stopped_loop() -> None:
    """As that of a synchronous server's worker, which stands still between two requests."""
    loop, answered, enough = asyncio.new_event_loop(), threading.Event(), threading.Event()
    observer_model = HeldUp()
    memory = observational(InMemoryStorage(), observer_model=observer_model, buffer_tokens=20, block_after=1_000)

    async def request() -> None:
        await Agent(model=answering(), memory=memory).generate(QUESTION, thread="t")
        await observer_model.asked.wait()
        answered.set()
        await asyncio.to_thread(enough.wait)

    async def finish() -> None:
        observer_model.gate.set()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    worker = asyncio.create_task(asyncio.to_thread(loop.run_until_complete, request()))
    await asyncio.to_thread(answered.wait)
    waiting = asyncio.create_task(memory.settled())
    await asyncio.sleep(0)
    assert not waiting.done()
    enough.set()
    await worker
    async with asyncio.timeout(20):
        await waiting
    await asyncio.to_thread(loop.run_until_complete, finish())
    loop.close()
