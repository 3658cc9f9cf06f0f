"""A conversation without a network: texts of known size, a model that answers, models that keep the diary.

The models do as little as they can, so that what is measured is the library. Their latency is a sleep.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle, islice
from typing import Any, ClassVar

from diarist.chunks import (
    Chunk,
    IdPayload,
    ModelFinish,
    ModelFinishPayload,
    TextDelta,
    TextEnd,
    TextPayload,
    TextStart,
    ToolCallChunk,
    ToolCallPayload,
    Usage,
)
from diarist.memory import Memory, ObservationalMemoryConfig, ObservationConfig, ReflectionConfig
from diarist.models.base import Model, ModelRequest
from diarist.storage import Storage
from diarist.tokens import default_counter

QUESTION, ANSWER = 120, 380
"""Tokens of a user's message and of an answer: a turn of about 500."""

NOTES_SHARE = 0.2
"""What the notes have of what they note, by length."""

_TEXT = (
    "the train to Rome leaves at nine from platform four and costs less than a flight if it is booked early so "
    "please keep a seat by the window for my mother who cannot walk far and tell the hotel that we arrive late "
    "because the meeting with the council about the new library was moved to Thursday afternoon at half past two"
)
_WORDS = _TEXT.split()


def text(tokens: int, seed: int) -> str:
    """A text of about so many tokens, another one for each ``seed``."""
    chosen = random.Random(seed).choices(_WORDS, k=int(tokens / 1.04))
    return f"({seed}) {' '.join(chosen)}."


def question(turn: int) -> str:
    return text(QUESTION, turn)


def cpu_time() -> float:
    """CPU seconds of this process, but for what the models take to make up their answers."""
    return time.process_time() - FakeModel.thought


class FakeModel(Model):
    """Answers after ``latency`` seconds, and keeps its requests if it is told to.

    Attributes:
        thought: CPU seconds that all of them took for their answers.
    """

    thought: ClassVar[float] = 0.0

    provider = "fake"

    def __init__(self, name: str, *, latency: float = 0.0, keep: bool = False) -> None:
        self.name = name
        self.latency = latency
        self.calls = 0
        self.requests: list[ModelRequest] | None = [] if keep else None

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        self.calls += 1
        if self.requests is not None:
            self.requests.append(request)
        await asyncio.sleep(self.latency)
        began = time.thread_time()
        answer = self.answer(request)
        FakeModel.thought += time.thread_time() - began
        for chunk in answer:
            yield chunk

    def answer(self, request: ModelRequest) -> list[Chunk]:
        raise NotImplementedError

    def say(self, said: str) -> list[Chunk]:
        return [
            TextStart(payload=IdPayload(id="1")),
            TextDelta(payload=TextPayload(text=said, id="1")),
            TextEnd(payload=IdPayload(id="1")),
            ModelFinish(payload=ModelFinishPayload(reason="stop", usage=Usage())),
        ]


@cache
def _answers() -> list[str]:
    return [text(ANSWER, -number) for number in range(1, 200)]


class Actor(FakeModel):
    """Says something new each time; ``steps`` tool calls come before each answer."""

    def __init__(self, *, latency: float = 0.0, keep: bool = False, steps: int = 0) -> None:
        super().__init__("actor", latency=latency, keep=keep)
        self.steps = steps
        self._answers = cycle(_answers())

    def answer(self, request: ModelRequest) -> list[Chunk]:
        if self.calls % (self.steps + 1) == 0:
            return self.say(f"({self.calls}) {next(self._answers)}")
        call = ToolCallPayload(tool_call_id=f"call_{self.calls}", tool_name="look", args={"at": self.calls})
        return [
            ToolCallChunk(payload=call),
            ModelFinish(payload=ModelFinishPayload(reason="tool-calls", usage=Usage())),
        ]


class NoteTaker(FakeModel):
    """Writes as many lines as ``share`` of the text it is shown between tags ``shown``."""

    def __init__(self, name: str, shown: str, *, share: float, latency: float = 0.0, keep: bool = False) -> None:
        super().__init__(name, latency=latency, keep=keep)
        self._shown = re.compile(rf"<{shown}[^>]*>(.*)</{shown}>", re.DOTALL)
        self._share = share
        self._lines = 0

    def answer(self, request: ModelRequest) -> list[Chunk]:
        found = self._shown.search(request.prompt.messages[-1].text)
        room, lines = self._share * len(found[1] if found else ""), list[str]()
        while room > 0:
            self._lines += 1
            words = " ".join(islice(cycle(_WORDS), self._lines % 40, self._lines % 40 + 25))
            day = 1 + self._lines % 28
            meant = f" (meaning {day} January 2026)" if self._lines % 5 == 0 else ""
            lines.append(f"- 🟡 {self._lines % 24:02}:15 note {self._lines}: {words}{meant}")
            room -= len(lines[-1]) + 1
        heading = f"Date: 2025-12-{1 + self._lines % 28:02}\n"
        dated = "\n".join(heading * (n % 12 == 0) + line for n, line in enumerate(lines))
        task = f"<current-task>find train {self.calls}</current-task>"
        return self.say(f"<diary>\n{dated}\n</diary>\n{task}")


@dataclass
class Keepers:
    """The models behind a diary."""

    observer: NoteTaker = field(
        default_factory=lambda: NoteTaker("observer", "transcript", share=NOTES_SHARE, keep=True)
    )
    reflector: NoteTaker = field(default_factory=lambda: NoteTaker("reflector", "old-notes", share=0.4, keep=True))


def observational(
    storage: Storage,
    keepers: Keepers,
    *,
    latency: float = 0.0,
    observation: dict[str, Any] | None = None,
    **reflection: Any,
) -> Memory:
    """Observational memory with its default thresholds. ``observation``: options of the Observer."""
    keepers.observer.latency = keepers.reflector.latency = latency
    config = ObservationalMemoryConfig(
        observation=ObservationConfig(model=keepers.observer, **(observation or {})),
        reflection=ReflectionConfig(model=keepers.reflector, **reflection),
    )
    return Memory(storage=storage, observational_memory=config)


def tokens_of(requests: list[ModelRequest]) -> int:
    return sum(count(message.text) for request in requests for message in request.prompt.messages)


@cache
def count(said: str) -> int:
    return default_counter().count(said)
