"""A fake Observer and Reflector that work, fail, answer nothing or answer late; and marks to trace messages by.

Every message has a mark of its own (``w00000017``). Each fake model repeats the marks that it reads, so a mark in a
text shows which message the text was made from.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from diarist.chunks import Usage
from diarist.exceptions import ModelConnectionError, RoleError
from diarist.memory.observational.message_units import whole_units
from diarist.memory.observational.roles.base import Observed, Reflected
from diarist.messages import Message, ToolPart, as_text
from diarist.storage import Observation

MARK = re.compile(r"w\d{8}")

Behaviour = str
Behaviours = dict[Behaviour, float]
"""The weight of each behaviour."""

MOSTLY_WORKING: Behaviours = {
    "works": 14,
    "breaks off": 3,
    "fails": 2,
    "is empty": 1,
    "answers nonsense": 1,
    "is slow": 3,
    "hangs": 1,
}
MOSTLY_SLOW: Behaviours = {"works": 2, "fails": 1, "answers nonsense": 1, "is slow": 16}
MOSTLY_FAILING: Behaviours = {
    "works": 4,
    "breaks off": 2,
    "fails": 8,
    "is empty": 3,
    "answers nonsense": 2,
    "is slow": 1,
}


def marks_of(text: str) -> list[str]:
    return MARK.findall(text)


def said_by(message: Message) -> str:
    """Return the text of a message with its tool results."""
    results = [as_text(part.result) for part in message.tool_parts if part.result is not None]
    return " ".join([message.text, *results])


def say(mark: str, words: int) -> str:
    return " ".join([mark, *["and"] * (words - 1)])


def call(call_id: str, mark: str | None = None, words: int = 2) -> ToolPart:
    """Return a tool call; with a mark, one that has its result."""
    if mark is None:
        return ToolPart(call_id=call_id, name="look", args={})
    return ToolPart(call_id=call_id, name="look", args={}, state="result", result=say(mark, words))


class WordCounter:
    """One token per word."""

    name = "words"

    def count(self, text: str) -> int:
        return len(text.split())


@dataclass
class FakeBehaviour:
    """Picks a behaviour for each call at random.

    Attributes:
        pace: Real seconds for each second of delay.
        settled: Every further call works.
    """

    chance: random.Random
    pace: float = 1.0
    behaviours: Behaviours = field(default_factory=lambda: MOSTLY_WORKING)
    settled: bool = False

    async def act(self) -> Behaviour:
        """Pick a behaviour, wait as long as it takes, and return it. Raise the error of a failing one."""
        behaviour = (
            "works" if self.settled else self.chance.choices(list(self.behaviours), list(self.behaviours.values()))[0]
        )
        if behaviour == "fails":
            raise self.chance.choice((ModelConnectionError("down"), RoleError("no notes"), RuntimeError("a bug")))
        delays = {"is slow": self.chance.choice((0.05, 0.4, 1.5, 6.0, 25.0)), "hangs": 1_000.0}
        for _ in range(self.chance.choice((0, 1, 3, 10))):
            await asyncio.sleep(0)
        if behaviour in delays:
            await asyncio.sleep(delays[behaviour] * self.pace)
        return behaviour


@dataclass
class FakeObserver:
    """Writes one line with the marks of each message. Leaves out the newest messages when it breaks off."""

    behaviour: FakeBehaviour

    async def observe(self, messages: Sequence[Message], *, earlier: Sequence[Observation]) -> Observed:
        seen = [marks_of(said_by(message)) for message in messages]  # read before the wait: the caller may change them
        ids = tuple(message.id for message in messages)
        done = whole_units(messages, self.behaviour.chance.randint(1, len(messages))) or len(messages)
        behaviour = await self.behaviour.act()
        if behaviour != "breaks off":
            done = len(messages)
        seen = seen[:done]
        text = "\n".join(f"- {' '.join(marks)} noted" for marks in seen)
        if behaviour == "is empty":
            text = " \n"
        elif behaviour == "answers nonsense":
            text = "nothing of use"
        newest = next((marks[-1] for marks in reversed(seen) if marks), None)
        hint = newest if self.behaviour.chance.random() < 0.3 else None
        return Observed(
            text=text,
            current_task=hint and f"see to {hint}",
            suggested_response=None,
            thread_title=hint and f"about {hint}",
            unnoted=ids[done:],
            usage=Usage(input_tokens=3, output_tokens=1),
            model="fake",
        )


@dataclass
class FakeReflector:
    """Keeps as many marks as its target allows; sometimes it does not shrink the notes."""

    behaviour: FakeBehaviour

    async def reflect(
        self, entries: Sequence[Observation], *, target_tokens: int, guidance: str | None = None
    ) -> Reflected:
        text = " ".join(entry.text for entry in entries)
        behaviour = await self.behaviour.act()
        kept = marks_of(text)[-max(1, target_tokens - 1) :] or ["nothing"]
        if behaviour == "is empty":
            kept = []
        elif behaviour == "answers nonsense":
            kept = text.split()
        return Reflected(text=" ".join(kept), usage=Usage(input_tokens=2), model="fake")
