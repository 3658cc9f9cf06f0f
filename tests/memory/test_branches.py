"""Histories that branch: what a client that keeps no ids means when it regenerates, edits, cuts or compacts."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

import pytest

from diarist import Agent, Memory
from diarist.storage import Storage
from diarist.testing import ScriptedModel
from tests.memory.stores import made_storage, storage
from tests.scenarios.kit import observational, words

__all__ = ["made_storage", "storage"]

Given = list[dict[str, Any]]
LENGTH = 12


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": words(text, LENGTH)}


def numbered_answers() -> ScriptedModel:
    numbers = count(1)
    return ScriptedModel(lambda _: words(f"answer-{next(numbers)}", LENGTH))


class Client:
    """Five exchanges with an agent, and a copy of them without ids.

    Attributes:
        copy: The client's messages.
    """

    def __init__(self, storage: Storage, *, observing: bool) -> None:
        self.model = numbered_answers()
        self.memory = observational(storage) if observing else Memory(storage=storage, last_messages=100)
        self.agent = Agent(model=self.model, memory=self.memory)
        self.copy: Given = []

    async def talk(self) -> None:
        for number in range(1, 6):
            await self.send([*self.copy, user(f"question-{number}")])
        await self.memory.settled()

    async def send(self, given: Given) -> None:
        """Send a history; the client then shows it, and the answer."""
        result = await self.agent.generate(given, thread="t")
        self.copy = [*given, {"role": "assistant", "content": result.text}]

    @property
    def prompt(self) -> list[str]:
        """The first words of the messages of the last prompt, without memory's notes."""
        return [
            message.text.split("</memory-note>")[-1].split()[0]
            for message in self.model.requests[-1].prompt.messages
            if message.role != "system"
        ]

    async def rows(self) -> list[str]:
        return [row.text.split()[0] for row in await self.memory.messages.list(thread="t")]


SAID = [f"{kind}-{number}" for number in range(1, 6) for kind in ("question", "answer")]


@pytest.fixture(params=[False, True], ids=["history", "diary"])
async def client(request: pytest.FixtureRequest, storage: Storage) -> Client:
    made = Client(storage, observing=request.param)
    await made.talk()
    assert await made.rows() == SAID
    return made


ROWS: list[tuple[str, Any, list[str]]] = [
    ("whole history", lambda copy: [*copy, user("question-6")], [*SAID, "question-6", "answer-6"]),
    ("regenerate", lambda copy: copy[:-1], [*SAID[:-1], "answer-6"]),
    ("edit the last", lambda copy: [*copy[:-2], user("edited-5")], [*SAID[:-2], "edited-5", "answer-6"]),
    ("edit the second", lambda copy: [*copy[:2], user("edited-2")], [*SAID[:2], "edited-2", "answer-6"]),
    ("compacted", lambda copy: [user("summary"), *copy[-2:], user("question-6")], [*SAID, "question-6", "answer-6"]),
    ("cut", lambda copy: [*copy[-4:], user("question-6")], [*SAID, "question-6", "answer-6"]),
    ("only the new", lambda copy: [user("question-6")], [*SAID, "question-6", "answer-6"]),
]


@pytest.mark.parametrize(("change", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
async def test_one_more_call(client: Client, change: Any, expected: list[str]) -> None:
    await client.send(change(client.copy))
    assert await client.rows() == expected
    assert max(Counter(client.prompt).values()) == 1
    assert client.prompt[-1] == expected[-2]
    await client.memory.settled()
    gone = set(SAID) - set(expected)
    shown = "".join(message.text for message in client.model.requests[-1].prompt.messages)
    assert not any(f"{text} " in shown for text in gone)
    superseded = {one.messages[-1].text.split()[0] for one in await client.memory.threads.branches("t")}
    assert superseded == ({SAID[-1]} if gone else set())


async def test_after_a_message_was_forgotten(client: Client) -> None:
    rows = await client.memory.messages.list(thread="t")
    await client.memory.forget(message_ids=[rows[2].id], thread="t")
    await client.send([*client.copy, user("question-6")])
    expected = [*SAID[:2], *SAID[3:], "question-6", "answer-6"]
    assert await client.rows() == expected
    assert max(Counter(client.prompt).values()) == 1
    await client.send(client.copy[:-1])
    assert await client.rows() == [*expected[:-1], "answer-7"]
