"""The conversation and the scripted models of ``beside_frameworks.py``, the same for all frameworks."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol, TypeAlias

from _conversation import FakeModel, count, text

from diarist.chunks import Chunk
from diarist.memory import Memory, ObservationalMemoryConfig, ObservationConfig
from diarist.models.base import ModelRequest
from diarist.storage import InMemoryStorage
from diarist.testing.adapter_conformance import SentMessage, SentRequest

INSTRUCTIONS = "You plan trips, and look things up before you answer."
TOOLS = ("weather", "hotels", "trains")
CITIES = ("Rome", "Oslo", "Porto", "Ghent", "Krakow", "Bilbao", "Graz", "Tartu")
FACTS = (
    "My mother Ruth travels with me and uses a wheelchair",
    "I am allergic to shellfish and carry an injector",
    "Our budget is 2,340 euros for everything",
    "We must be back on the 19th of May for a wedding",
    "Send bookings to ada@example.org under the name Lovelace",
)
QUESTION, RESULT, ANSWER = 60, 200, 150
"""Tokens of a question, of a tool's result and of an answer, beside their first sentences."""

RECENT = 0.2
"""What is left of the threshold after a compaction, where that is set: the default of observational memory."""


@dataclass(frozen=True)
class Call:
    id: str
    tool: str
    city: str


@dataclass(frozen=True)
class ScriptedTurn:
    """A question, up to two calls at once, and an answer."""

    gist: str
    question: str
    calls: Sequence[Call]
    answer: str


Step: TypeAlias = str | Sequence[Call]


def look_up(tool: str, city: str) -> str:
    """Return a tool's result: one sentence that notes keep, and much text."""
    seed = TOOLS.index(tool) * 1000 + int(city.rpartition("-")[2])
    return f"The {tool} in {city} are number {seed}. {text(RESULT, seed)}"


@cache
def turns(number: int) -> list[ScriptedTurn]:
    """Return the conversation. Its first five questions state a fact each."""
    out: list[ScriptedTurn] = []
    for at in range(number):
        city = f"{CITIES[at % len(CITIES)]}-{at}"
        gist = FACTS[at] if at < len(FACTS) else f"What can we do in {city} on day {at} of our trip"
        calls = [Call(f"call-{at}-{n}", TOOLS[(at + n) % len(TOOLS)], city) for n in range(at % 3)]
        answer = f"In {city} you can go to place {at * 7}. {text(ANSWER, at + 5000)}"
        out.append(ScriptedTurn(gist, f"{gist}. {text(QUESTION, at + 9000)}", calls, answer))
    return out


@cache
def _gists() -> list[str]:
    """First sentences of all that can be said, in order."""
    said = [
        each
        for turn in turns(400)
        for each in (turn.question, *(look_up(call.tool, call.city) for call in turn.calls), turn.answer)
    ]
    return [each.partition(". ")[0] for each in said]


def notes(read: str) -> list[str]:
    """Return one line for each message in a text, or for each line of earlier notes in it: its first sentence."""
    return [f"{gist}." for gist in _gists() if gist in read]


@dataclass
class Recorder:
    """Answers as the conversation says, and keeps what was sent.

    Attributes:
        requests: The requests to the agent's model.
        read: The requests to a model that takes notes or summarizes, as text.
    """

    requests: list[SentRequest] = field(default_factory=list[SentRequest])
    read: list[str] = field(default_factory=list[str])
    _steps: deque[Step] = field(default_factory=deque[Step])

    def begin(self, turn: ScriptedTurn) -> None:
        self._steps.extend([turn.calls, turn.answer] if turn.calls else [turn.answer])

    def step(self, system: Sequence[str], messages: Sequence[SentMessage]) -> Step:
        self.requests.append(SentRequest(system=system, messages=messages))
        return self._steps.popleft()

    def summary(self, prompt: str) -> str:
        """Answer a request for a summary."""
        self.read.append(prompt)
        return "\n".join(f"- {line}" for line in notes(prompt))


class Program(Protocol):
    """A conversation with an agent of a framework."""

    async def ask(self, text: str) -> str: ...

    async def stored(self) -> list[SentMessage]:
        """Return the framework's own history."""
        ...


Build: TypeAlias = Callable[[Recorder, int], Program]
"""Starts a conversation, with the threshold in tokens."""


class _Observer(FakeModel):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__("observer")
        self._recorder = recorder

    def answer(self, request: ModelRequest) -> list[Chunk]:
        self._recorder.read.append("\n".join(message.text for message in request.prompt.messages))
        found = re.search(r"<transcript[^>]*>(.*)</transcript>", request.prompt.messages[-1].text, re.DOTALL)
        lines = [f"- 🟡 10:15 {line}" for line in notes(found[1] if found else "")]
        return self.say("\n".join(["<diary>", "Date: 2026-03-02", *lines, "</diary>"]))


def observational_memory(recorder: Recorder, tokens: int) -> Memory:
    """Return observational memory with default settings, but for the threshold. It waits for its Observer."""
    config = ObservationalMemoryConfig(model=_Observer(recorder), observation=ObservationConfig(message_tokens=tokens))
    return Memory(storage=InMemoryStorage(), observational_memory=config, await_background=True)


def newest(tokens: int, per_turn: float) -> int:
    """Return how many of the newest messages have about so many tokens, with so many messages in a turn."""
    sample = turns(60)
    size = sum(
        count(turn.question) + count(turn.answer) + sum(count(look_up(call.tool, call.city)) for call in turn.calls)
        for turn in sample
    ) / len(sample)
    return max(1, round(tokens / size * per_turn))
