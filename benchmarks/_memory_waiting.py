"""Turns that wait: an Observer that is slow, and a user who is not. In virtual time, where only the models take any."""

from __future__ import annotations

import asyncio
from pathlib import Path

from _conversation import Actor, Keepers, observational, question

from diarist import Agent
from diarist.storage import InMemoryStorage

OBSERVER = 3.0
"""Seconds that each call of the Observer takes."""


async def show_waiting(_: Path, quick: bool) -> None:
    """Turns one right after the other, each of about 500 tokens."""
    turns = 60 if quick else 120
    print(f"{turns} turns in a row, Observer {OBSERVER:.0f} s")
    for actor in (0.5, 0.05):
        keepers = Keepers()
        memory = observational(InMemoryStorage(), keepers, latency=OBSERVER)
        waited = await _waits(turns, actor, Agent(model=Actor(latency=actor), instructions="Be brief.", memory=memory))
        waits = ", ".join(f"{seconds:.2f} s in turn {number}" for number, seconds in waited.items()) or "none"
        print(f"agent {actor * 1e3:.0f} ms: {keepers.observer.calls} calls of the Observer; waits: {waits}")
        await memory.close()
    print()


async def _waits(turns: int, actor: float, agent: Agent) -> dict[int, float]:
    """Return the seconds that each turn took beyond the agent's, where there are any."""
    clock, taken = asyncio.get_running_loop().time, dict[int, float]()
    async with agent:
        for number in range(turns):
            began = clock()
            await agent.generate(question(number), thread="t")
            taken[number] = clock() - began - actor
    return {number: seconds for number, seconds in taken.items() if seconds > 0.001}
