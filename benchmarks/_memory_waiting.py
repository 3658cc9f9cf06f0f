"""Turns that wait: an Observer that is slow, and a user who is not."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

from _conversation import ANSWER, QUESTION, Actor, Keepers, observational, question

from diarist import Agent
from diarist.storage.sqlite import SQLiteStorage

OBSERVER, ACTOR, SLOW = 3.0, 0.05, 1.0
"""Seconds: the latencies of both models, and what counts as waiting."""


async def show_waiting(folder: Path, quick: bool) -> None:
    """120 turns one right after the other, each of about 500 tokens."""
    turns, keepers = 60 if quick else 120, Keepers()
    memory = observational(SQLiteStorage(folder / "waiting.db"), keepers, latency=OBSERVER)
    assert memory.config is not None
    block = memory.config.observation.block_tokens
    taken: list[float] = []
    async with Agent(model=Actor(latency=ACTOR), instructions="Be brief.", memory=memory) as agent:
        for number in range(turns):
            began = time.perf_counter()
            await agent.generate(question(number), thread="t")
            taken.append(time.perf_counter() - began)
        await memory.settled()
    sizes = await _sizes(memory)
    waited = [number for number, seconds in enumerate(taken) if seconds > SLOW]
    early = [number for number in waited if sizes[number - 1] + QUESTION + ANSWER + 20 < block]
    calls = keepers.observer.calls
    print(f"{turns} turns in a row, actor {ACTOR * 1e3:.0f} ms, Observer {OBSERVER:.0f} s, {calls} calls of it")
    print(f"a turn, ms: median {median(taken) * 1e3:.0f}, most {max(taken) * 1e3:.0f}")
    print(f"turns of more than {SLOW:.0f} s: {len(waited)}; below block_after ({block:,} tokens): {len(early)}\n")
    await memory.close()


async def _sizes(memory: object) -> list[int]:
    """Tokens of the raw messages that each turn's prompt had."""
    events = await memory.storage.list_events("thread:t")  # type: ignore[attr-defined]
    windows = [event.data["windows"]["active"] for event in events if event.type == "data-om-status"]
    return [window["messages"]["tokens"] for window in windows]
