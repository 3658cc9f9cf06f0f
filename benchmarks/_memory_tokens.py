"""Tokens: what the Observer is asked to read, and what a provider that caches prompts has to read.

The provider remembers the last prompt. Of the next one it reads everything behind the longest common beginning. That is
what is new anyway (messages and notes that were never sent before) and what it reads *again*: old text behind a change.
"""

from __future__ import annotations

from itertools import pairwise
from os.path import commonprefix
from pathlib import Path
from typing import Any, NamedTuple

from _conversation import Actor, Keepers, count, observational, question, text, tokens_of

from diarist import Agent, Tool
from diarist.models.base import ModelRequest
from diarist.storage import InMemoryStorage

Text = tuple[str, str]
"""Role and text of a message in a prompt."""


async def show_tokens(_: Path, quick: bool) -> None:
    turns, steps = (60, 30) if quick else (300, 100)
    print(f"{turns} turns of 500 tokens, or a loop of {steps} steps with tool results of 2,000. The provider reads")
    print(
        "new messages and notes, and some old text again; last comes the sum by what is new, and by new messages alone"
    )
    print(
        f"{'':38}{'Observer':>14}{'Reflector':>13}"
        f"{'prompts':>12}{'messages':>10}{'notes':>8}{'again':>9}{'by new':>8}{'by messages':>13}"
    )
    await _conversation("chat", turns)
    await _conversation("chat, observation_tokens=8,000", turns, observation_tokens=8_000)
    await _conversation("chat, buffer_tokens=False", turns, observation={"buffer_tokens": False})
    await _conversation("chat, Observer 3 s, agent 500 ms", turns, observer=3.0, actor=0.5)
    await _conversation("120 turns, Observer 3 s, agent 50 ms", min(turns, 120), observer=3.0, actor=0.05)
    await _loop("tool loop", steps)
    await _loop("tool loop, Observer 3 s, agent 500 ms", steps, observer=3.0, actor=0.5)
    print()


async def _conversation(
    name: str,
    turns: int,
    *,
    observer: float = 0.0,
    actor: float = 0.0,
    observation: dict[str, Any] | None = None,
    **reflection: Any,
) -> None:
    keepers, model = Keepers(), Actor(latency=actor, keep=True)
    memory = observational(InMemoryStorage(), keepers, latency=observer, observation=observation, **reflection)
    async with memory, Agent(model=model, instructions="Be brief.", memory=memory) as agent:
        for number in range(turns):
            await agent.generate(question(number), thread="t")
            if not actor:
                await memory.settled()
        await memory.settled()
    _report(name, keepers, model)


async def _loop(name: str, steps: int, *, observer: float = 0.0, actor: float = 0.0) -> None:
    keepers, model = Keepers(), Actor(latency=actor, keep=True, steps=steps)
    memory = observational(InMemoryStorage(), keepers, latency=observer)
    tool = Tool(name="look", description="Look.", function=lambda at: text(2_000, at))
    async with memory, Agent(model=model, memory=memory, tools=[tool], max_steps=2 * steps) as agent:
        await agent.generate(question(0), thread="t")
        await memory.settled()
    _report(name, keepers, model)


def _report(name: str, keepers: Keepers, actor: Actor) -> None:
    observed, reflected = keepers.observer.requests or [], keepers.reflector.requests or []
    prompts = actor.requests or []
    read = what_is_read(prompts)
    print(
        f"{name:38}{len(observed):>4}{tokens_of(observed):>10,}{len(reflected):>4}{tokens_of(reflected):>9,}"
        f"{tokens_of(prompts):>12,}{read.messages:>10,}{read.notes:>8,}{read.again:>9,}"
        f"{sum(read) / (read.messages + read.notes):>8.3f}{sum(read) / read.messages:>13.3f}"
    )


class Read(NamedTuple):
    """Tokens that a provider reads although it remembers the prompt before: new ones, and old ones ``again``."""

    messages: int
    notes: int
    again: int


def what_is_read(requests: list[ModelRequest]) -> Read:
    prompts = [[(message.role, message.text) for message in request.prompt.messages] for request in requests]
    known = set[Text]()
    messages = notes = uncached = 0
    for before, prompt in pairwise([[], *prompts]):
        uncached += _uncached(before, prompt)
        fresh = [each for each in prompt if each not in known]
        notes += sum(count(said) for role, said in fresh if role == "system")
        messages += sum(count(said) for role, said in fresh if role != "system")
        known.update(fresh)
    return Read(messages, notes, uncached - messages - notes)


def _uncached(before: list[Text], prompt: list[Text]) -> int:
    same = 0
    while same < min(len(before), len(prompt)) and before[same] == prompt[same]:
        same += 1
    begun = 0
    if same < min(len(before), len(prompt)) and before[same][0] == prompt[same][0]:
        begun = count(commonprefix([before[same][1], prompt[same][1]]))  # noqa: RUF071
    return sum(count(said) for _, said in prompt[same:]) - begun
