"""An embedder whose vectors a reader can follow, and one way to hold conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from diarist import Agent, Memory
from diarist.models.embedders import Embedder, Purpose
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel

OUT_OF_ORDER: list[BaseException] = [RuntimeError("out of order"), asyncio.CancelledError("out of order")]
"""Errors that an embedder may raise. It raises the second if its client waits for a connection that was closed."""

TOPICS = ("rome", "pizza", "compiler", "garden")
MEANS = {"italy": "rome", "flight": "rome", "dinner": "pizza", "python": "compiler", "roses": "garden"}


class TopicEmbedder(Embedder):
    """One number for each topic: how often a text speaks of it. Zeros for a text that speaks of none.

    Attributes:
        texts: What was embedded to be found, in order; ``queries``: what was looked for.
        failing: While it is set, calls raise it.
        gate: Calls wait for it.
    """

    name, dimension, max_batch = "topics", len(TOPICS), 3

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.queries: list[str] = []
        self.failing: BaseException | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.waited_for = asyncio.Event()

    async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> list[list[float]]:
        if purpose == "document":
            self.waited_for.set()
            await self.gate.wait()
        if self.failing is not None:
            raise self.failing
        (self.queries if purpose == "query" else self.texts).extend(texts)
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        words = [MEANS.get(word, word) for word in "".join(c if c.isalnum() else " " for c in text.lower()).split()]
        return [float(words.count(topic)) for topic in TOPICS]


def memory_with(embedder: Embedder, **more: Any) -> Memory:
    more = {"storage": InMemoryStorage(), "semantic_recall": True, **more}
    return Memory(embedder=embedder, **more)


async def say(memory: Memory, text: str, *, thread: str, resource: str = "ada", answer: str = "ok") -> str:
    """One turn; returns the prompt as text, once all background work is done."""
    model = ScriptedModel(answer)
    await Agent(name="a", model=model, memory=memory).generate(text, thread=thread, resource=resource)
    await memory.settled()
    return model.requests[-1].text
