"""Claims that a killed process has left behind cost a call one wait, not one for each of them or for each step.

Time is simulated: it passes only where everybody waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from diarist import Memory, Message
from diarist.exceptions import ThreadBusyError
from diarist.storage import InMemoryStorage, Storage
from tests.exactly_once.simulation import simulated
from tests.memory.diary_kit import keeping_diary
from tests.scenarios.kit import observational, words
from tests.scenarios.test_waits_that_run_out import looking_up

CLAIMED = 5.0
"""Seconds that a call waits for what others are at."""


def seconds_of(story: Callable[[Storage], Awaitable[Any]]) -> float:
    with simulated(1) as (loop, clock, _):
        began = clock.now
        loop.run_until_complete(story(InMemoryStorage()))
        return clock.now - began


async def die_at(storage: Storage, *names: str) -> None:
    """A process dies while it is at this work."""
    for name in names:
        assert await storage.acquire_lease(name, "dead", ttl=3_600)


async def told(memory: Memory, thread: str = "t", resource: str | None = None) -> None:
    messages = [Message.user(words(f"said-{n}", 30)) for n in range(8)]
    await memory.messages.save(messages, thread=thread, resource=resource)


def test_a_turn_of_several_steps() -> None:
    async def story(storage: Storage) -> None:
        memory = observational(storage)
        await told(memory)
        await die_at(storage, "thread:t:t:observation")
        result = await looking_up(storage, memory).generate(words("turn", 60), thread="t")
        assert len(result.steps) == 4
        events = await memory.diary.events(thread="t")
        (failed,) = [event.data for event in events if event.type == "data-om-observation-failed"]
        assert "did not wait longer than 5 s for another process" in str(failed["error"])

    assert seconds_of(story) < CLAIMED + 1


def test_a_turn_of_a_loop_of_its_own_keeps_its_memory() -> None:
    async def story(storage: Storage) -> None:
        memory = observational(storage)
        await told(memory)
        await die_at(storage, "thread:t:t:observation")
        async with memory.turn(thread="t") as turn:
            view = await turn.prompt([Message.user(words("turn", 60))])
        assert (view.degraded, len(view.brought)) == ("", 8)
        assert "did not wait longer than 5 s for another process" in view.warning

    assert seconds_of(story) < CLAIMED + 1


@pytest.mark.parametrize("threads", [1, 4])
def test_observing_a_resource(threads: int) -> None:
    async def story(storage: Storage) -> None:
        memory = keeping_diary(storage, scope="resource")
        for number in range(threads):
            await told(memory, f"t{number}", "ada")
            await die_at(storage, f"resource:ada:t{number}:observation")
        with pytest.raises(ThreadBusyError, match="being observed by another process"):
            await memory.diary.observe(resource="ada")

    assert seconds_of(story) < CLAIMED + 1
