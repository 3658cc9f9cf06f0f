"""Tokens: what the Observer is asked to read, and how much of each prompt a provider's cache has already."""

from __future__ import annotations

from itertools import pairwise
from os.path import commonprefix
from pathlib import Path

from _conversation import Actor, Keepers, observational, question, text, tokens_of

from diarist import Agent, Tool
from diarist.models.base import ModelRequest
from diarist.storage.sqlite import SQLiteStorage


async def show_tokens(folder: Path, quick: bool) -> None:
    turns = 60 if quick else 300
    print(f"{turns} turns of 500 tokens; what is shared with the prompt before is counted in characters")
    await _conversation(folder, "default thresholds", turns, 40_000)
    await _conversation(folder, "observation_tokens=8,000", turns, 8_000)
    await _loop(folder)
    print()


async def _conversation(folder: Path, name: str, turns: int, observation_tokens: int) -> None:
    keepers, actor = Keepers(), Actor(keep=True)
    storage = SQLiteStorage(folder / f"{observation_tokens}.db")
    memory = observational(storage, keepers, observation_tokens=observation_tokens)
    async with memory, Agent(model=actor, instructions="Be brief.", memory=memory) as agent:
        for number in range(turns):
            await agent.generate(question(number), thread="t")
            await memory.settled()
    _report(name, keepers, actor)


async def _loop(folder: Path) -> None:
    keepers, actor = Keepers(), Actor(keep=True, steps=100)
    memory = observational(SQLiteStorage(folder / "loop.db"), keepers)
    tool = Tool(name="look", description="Look.", function=lambda at: text(2_000, at))
    async with memory, Agent(model=actor, memory=memory, tools=[tool], max_steps=200) as agent:
        await agent.generate(question(0), thread="t")
        await memory.settled()
    _report("tool loop, 100 results of 2,000 tokens", keepers, actor)


def _report(name: str, keepers: Keepers, actor: Actor) -> None:
    observed, reflected = keepers.observer.requests or [], keepers.reflector.requests or []
    print(
        f"{name:40}Observer {len(observed):>3} calls, {tokens_of(observed):>9,} tokens in;"
        f" Reflector {len(reflected):>3}, {tokens_of(reflected):>9,};"
        f" prompts {tokens_of(actor.requests or []):>10,}, shared {shared(actor.requests or []):.1%}"
    )


def shared(requests: list[ModelRequest]) -> float:
    """The share of all prompts that repeats the beginning of the prompt before."""
    texts = [request.text for request in requests]
    same = sum(len(commonprefix([before, after])) for before, after in pairwise(texts))  # noqa: RUF071
    return same / sum(map(len, texts))
