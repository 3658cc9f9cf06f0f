"""A text that the embedder refuses costs that message its vector, and no other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pytest

from diarist import Memory, Message
from diarist.exceptions import BadRequestError, ModelConnectionError, RateLimitError
from diarist.models.embedders import Purpose
from tests.memory.semantic.kit import TopicEmbedder, memory_with

NAN = float("nan")


class Picky(TopicEmbedder):
    """Does with texts about poison what it is told to; counts the calls that had one."""

    def __init__(self, answer: Callable[[], list[float]]) -> None:
        super().__init__()
        self.answer: Callable[[], list[float]] | None = answer
        self.poisoned = 0

    async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> list[list[float]]:
        found = await super().embed(texts, purpose=purpose)
        for number, text in enumerate(texts):
            if "poison" in text and self.answer is not None:
                self.poisoned += 1
                found[number] = self.answer()
        return found


def refusing(error: Exception) -> Callable[[], list[float]]:
    def answer() -> list[float]:
        raise error

    return answer


async def save(memory: Memory, *texts: str) -> list[Message]:
    rows = [Message.user(text) for text in texts]
    await memory.messages.save(rows, thread="t", resource="ada")
    await memory.settled()
    return rows


async def found(memory: Memory, query: str) -> list[str]:
    assert memory.semantic is not None
    near = await memory.semantic.near(query, resource_id="ada", limit=9)
    return [one.message_id for one in near if one.score > 0]


@pytest.mark.parametrize(
    "answer",
    [
        refusing(ValueError("400: input was refused")),
        refusing(BadRequestError("input was refused", provider="p", status=400)),
        lambda: [NAN, 0, 0, 0],
        lambda: [1e300, 0, 0, 0],
        lambda: [1.0],
    ],
)
async def test_a_refused_message_is_left_out_and_the_others_go_on(
    answer: Callable[[], list[float]], caplog: pytest.LogCaptureFixture
) -> None:
    embedder = Picky(answer)
    memory = memory_with(embedder)
    with caplog.at_level(logging.WARNING, "diarist"):
        before, poison, after = await save(memory, "Rome is warm.", "Rome is poison.", "Rome is old.")
        refused = embedder.poisoned
        (later,) = await save(memory, "Rome is far.")
    assert set(await found(memory, "Italy")) == {before.id, after.id, later.id}
    assert embedder.poisoned == refused
    assert [poison.id in record.message and "'t'" in record.message for record in caplog.records] == [True]
    assert await memory.messages.embed(thread="t") == 0


@pytest.mark.parametrize(
    "error",
    [
        ModelConnectionError("cut", provider="p"),
        RateLimitError("slow down", provider="p", status=429),
        TimeoutError("too slow"),
    ],
)
async def test_what_may_pass_is_tried_again(error: Exception) -> None:
    embedder = Picky(refusing(error))
    memory = memory_with(embedder)
    (poison,) = await save(memory, "Rome is poison.")
    assert await found(memory, "Italy") == []
    embedder.answer = None
    (other,) = await save(memory, "Rome is old.")
    assert set(await found(memory, "Italy")) == {poison.id, other.id}


async def test_an_embedder_that_refuses_everything_is_tried_again() -> None:
    embedder = TopicEmbedder()
    memory = memory_with(embedder)
    embedder.failing = BadRequestError("no such model", provider="p", status=404)
    (one,) = await save(memory, "Rome is warm.")
    embedder.failing = None
    (two,) = await save(memory, "Rome is old.")
    assert set(await found(memory, "Italy")) == {one.id, two.id}


async def test_of_a_long_message_no_part_is_kept_if_one_is_refused() -> None:
    memory = memory_with(Picky(refusing(ValueError("no"))))
    await save(memory, "Rome is warm. " * 100 + "\n\n" + "poison " * 200)
    assert await found(memory, "Italy") == []
    assert await memory.messages.embed(thread="t") == 0
