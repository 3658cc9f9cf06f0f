"""A turn that waits for background work of memory does so for ``observe_timeout``, says so once, and goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from diarist import Agent, Memory, Message, Tool
from diarist.models.base import Model, ModelRequest
from diarist.storage import Storage
from diarist.testing import ScriptedModel, ToolCall
from tests.scenarios.kit import (
    Played,
    Recount,
    WatchedStorage,
    answering,
    log_of,
    observational,
    observer,
    play,
    talk,
    words,
)
from tests.scenarios.test_events import check_all, check_streamed

FAILED = "data-om-observation-failed"


class Held:
    """A model that plays a role of memory, and answers once it is let go."""

    def __init__(self) -> None:
        self.gate, self.asked = asyncio.Event(), asyncio.Event()
        self.model = ScriptedModel(self._answer, name="held")

    async def _answer(self, _: ModelRequest) -> str:
        self.asked.set()
        await self.gate.wait()
        return "- 🟡 noted at last"


@pytest.fixture
async def held() -> AsyncIterator[Held]:
    held = Held()
    yield held
    held.gate.set()


def memory_of(storage: Storage, model: Model, **options: Any) -> Memory:
    return observational(storage, observer_model=model, observe_timeout=0.05, **options)


def looking_up(storage: Storage, memory: Memory) -> Agent:
    """An agent that looks three times for thirty words, and answers."""

    def answer(request: ModelRequest) -> Any:
        looked = 0
        for message in reversed(request.prompt.messages):
            if message.role == "user":
                break
            looked += message.role == "tool"
        return ToolCall("look") if looked < 3 else "Done."

    return Agent(
        model=ScriptedModel(answer, name="actor"),
        tools=[Tool(name="look", function=lambda: words("found", 30))],
        memory=memory,
        input_processors=[Recount(storage)],
    )


async def failures_of(storage: Storage, played: Played, operation: str) -> list[dict[str, Any]]:
    """What the stream told of failures: true in form, and each in the event log, too."""
    failures = played.data("observation-failed")
    check_streamed([{"type": FAILED, **data} for data in failures])
    events = await storage.list_events("thread:t")
    check_all(events)
    kept = [event.data for event in events if event.type == FAILED]
    assert all(data in kept for data in failures)
    assert {data["operationType"] for data in failures} <= {operation}
    return failures


def assert_it_says_what_happened(failures: list[dict[str, Any]]) -> None:
    (failed,) = failures
    assert "0.05 s of observe_timeout" in failed["error"]
    assert "goes on in the background" in failed["error"]
    assert failed["willRetry"] is True
    assert failed["durationMs"] >= 40
    assert failed["tokensAttempted"] > 0


async def test_for_the_observer(storage: Storage, held: Held) -> None:
    memory = memory_of(storage, held.model)
    played = await play(Agent(model=answering(), memory=memory), words("turn-1", 30), thread="t")
    assert played.data("observation-failed") == [], "nobody waited yet"
    await held.asked.wait()
    played = await play(looking_up(storage, memory), words("turn-2", 60), thread="t")
    assert played.result is not None
    assert played.result.text == "Done."
    assert_it_says_what_happened(await failures_of(storage, played, "observation"))
    held.gate.set()
    await memory.settled()
    log = await memory.diary.get(thread="t")
    assert log.buffered, "it went on"
    assert log.observer_failures.count == 0, "it has not failed: nobody backs off"


async def test_for_the_reflector(storage: Storage, held: Held) -> None:
    said = [Message.user(words(f"said-{n}", 30)) for n in range(20)]
    first = memory_of(storage, observer())
    await first.messages.save(said[:8], thread="t")
    tokens = (await first.diary.observe(thread="t")).tokens
    memory = memory_of(storage, observer(), reflector_model=held.model, observation_tokens=tokens + 1)
    played = await play(Agent(model=answering(), memory=memory), "hello", thread="t")
    assert played.data("observation-failed") == [], "nobody waited yet"
    await held.asked.wait()
    await memory.messages.save(said[8:], thread="t")
    assert (await first.diary.observe(thread="t")).tokens > 1.2 * (tokens + 1), "a turn waits for the Reflector"
    played = await play(looking_up(storage, memory), "and now?", thread="t")
    assert played.result is not None
    assert_it_says_what_happened(await failures_of(storage, played, "reflection"))
    held.gate.set()
    await memory.settled()
    log = await memory.diary.get(thread="t")
    assert log.reflection is not None, "it went on"
    assert log.reflector_failures.count == 0


async def test_for_another_process(storage: Storage, held: Held) -> None:
    first, second = memory_of(storage, held.model), memory_of(storage, observer())
    await talk(Agent(model=answering(), memory=first), 1)
    await held.asked.wait()
    played = await play(looking_up(storage, second), words("turn-2", 60), thread="t")
    assert played.result is not None
    assert_it_says_what_happened(await failures_of(storage, played, "observation"))
    held.gate.set()
    await first.settled()
    assert (await first.diary.get(thread="t")).observer_failures.count == 0
    await second.settled()


async def test_a_turn_that_used_up_its_wait_does_not_start_to_observe() -> None:
    """The Observer would be paid for, cancelled, and counted as failing."""

    class LetGoAtTheEnd(WatchedStorage):
        since = 0.0

        async def around(self, name: str, call: Any) -> Any:
            now = asyncio.get_running_loop().time()
            if name == "acquire_lease":
                self.since = self.since or now
                if now < self.since + 0.05:
                    return None
            return await call()

    storage, notes = LetGoAtTheEnd(), observer()
    memory = memory_of(storage, notes)
    agent = Agent(model=answering(), memory=memory, input_processors=[Recount(storage)])
    await memory.messages.save([Message.user(words(f"said-{n}", 40)) for n in range(10)], thread="t")
    played = await play(agent, "go on", thread="t")
    assert storage.calls["acquire_lease"] > 1
    failed = played.data("observation-failed")  # on a slow machine, the background has begun before the wait is over
    assert all("goes on in the background" in one["error"] for one in failed)
    await memory.settled()
    await play(agent, "and on", thread="t")  # on a slow machine, the background had no lease either
    await memory.settled()
    log = await log_of(storage)
    assert log.observer_failures.count == 0
    assert log.entries, "the background has the time"
