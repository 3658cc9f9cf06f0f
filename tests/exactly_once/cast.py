"""Who plays along: an Observer and a Reflector that work, fail, say nothing, or answer late; and words to trace.

Every message has a word of its own (``w0000017``), and whoever reads it repeats that word. So wherever a word turns up,
one knows what was read.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from diarist.chunks import Usage
from diarist.exceptions import ModelConnectionError
from diarist.memory.observational.roles.base import Observed, Reflected, RoleError
from diarist.messages import Message, ToolPart, as_text
from diarist.storage import Observation

MARK = re.compile(r"w\d{7}")

Mood = str
Moods = dict[Mood, float]
"""How often a role has each mood."""

CALM: Moods = {"works": 16, "fails": 2, "is empty": 1, "talks rubbish": 1, "is slow": 3, "hangs": 1}
SLOW: Moods = {"works": 2, "fails": 1, "talks rubbish": 1, "is slow": 16}
ANGRY: Moods = {"works": 5, "fails": 8, "is empty": 3, "talks rubbish": 2, "is slow": 1}


def marks_of(text: str) -> list[str]:
    return MARK.findall(text)


def said_by(message: Message) -> str:
    """All that a message says, tool results too."""
    results = [as_text(part.result) for part in message.tool_parts if part.result is not None]
    return " ".join([message.text, *results])


def say(mark: str, words: int) -> str:
    return " ".join([mark, *["and"] * (words - 1)])


def call(call_id: str, mark: str | None = None, words: int = 2) -> ToolPart:
    """A tool call; with a mark, with its result."""
    if mark is None:
        return ToolPart(call_id=call_id, name="look", args={})
    return ToolPart(call_id=call_id, name="look", args={}, state="result", result=say(mark, words))


class WordCounter:
    """One token per word."""

    name = "words"

    def count(self, text: str) -> int:
        return len(text.split())


@dataclass
class Temper:
    """How a role is disposed at each call, by chance; ``settled`` lets it work from now on.

    ``pace`` is how long a second of it takes.
    """

    chance: random.Random
    pace: float = 1.0
    moods: Moods = field(default_factory=lambda: CALM)
    settled: bool = False

    async def act(self) -> Mood:
        """Wait as the mood has it, and say what it is. Raises what a model call may raise."""
        mood = "works" if self.settled else self.chance.choices(list(self.moods), list(self.moods.values()))[0]
        if mood == "fails":
            raise self.chance.choice((ModelConnectionError("down"), RoleError("no notes"), RuntimeError("a bug")))
        delays = {"is slow": self.chance.choice((0.05, 0.4, 1.5, 6.0, 25.0)), "hangs": 1_000.0}
        for _ in range(self.chance.choice((0, 1, 3, 10))):
            await asyncio.sleep(0)
        if mood in delays:
            await asyncio.sleep(delays[mood] * self.pace)
        return mood


@dataclass
class FakeObserver:
    """One line for each message: its words to trace, and one or two more."""

    temper: Temper

    async def observe(self, messages: Sequence[Message], *, earlier: Sequence[Observation]) -> Observed:
        seen = [marks_of(said_by(message)) for message in messages]  # now: the caller may change them meanwhile
        mood = await self.temper.act()
        text = "\n".join(f"- {' '.join(marks)} noted" for marks in seen)
        if mood == "is empty":
            text = " \n"
        elif mood == "talks rubbish":
            text = "nothing of use"
        newest = next((marks[-1] for marks in reversed(seen) if marks), None)
        hint = newest if self.temper.chance.random() < 0.3 else None
        return Observed(
            text=text,
            current_task=hint and f"see to {hint}",
            suggested_response=None,
            thread_title=hint and f"about {hint}",
            usage=Usage(input_tokens=3, output_tokens=1),
            model="fake",
        )


@dataclass
class FakeReflector:
    """Keeps the words to trace, in as much room as it is given; sometimes it does not shrink at all."""

    temper: Temper

    async def reflect(
        self, entries: Sequence[Observation], *, target_tokens: int, guidance: str | None = None
    ) -> Reflected:
        text = " ".join(entry.text for entry in entries)
        mood = await self.temper.act()
        kept = marks_of(text)[-max(1, target_tokens - 1) :] or ["nothing"]
        if mood == "is empty":
            kept = []
        elif mood == "talks rubbish":
            kept = text.split()
        return Reflected(text=" ".join(kept), usage=Usage(input_tokens=2), model="fake")
