"""Clients often send their whole history with each call: only what storage does not have yet is new."""

from __future__ import annotations

import pytest

from diarist import Agent, Memory, Message
from diarist.storage import Storage
from tests.scenarios.kit import answering, observational, raw_rows, words


def history(size: int, *texts: str) -> list[Message]:
    """A client's copy of the conversation: user and assistant in turns, with the client's ids."""
    return [
        Message(**{**vars_of(text, size), "id": f"m-{number}", "role": "user" if number % 2 == 0 else "assistant"})
        for number, text in enumerate(texts)
    ]


def vars_of(text: str, size: int) -> dict[str, object]:
    message = Message.user(words(text, size))
    return {"parts": message.parts, "created_at": message.created_at}


async def test_a_whole_history_adds_its_last_message_only(storage: Storage) -> None:
    model = answering()
    memory = Memory(storage=storage)
    agent = Agent(model=model, memory=memory)
    await memory.save_messages(history(3, "one", "two"), thread="t")
    await agent.generate(history(3, "one", "two", "three"), thread="t")
    assert [row.text.split()[0] for row in await memory.messages(thread="t")] == ["one", "two", "three", "Understood,"]
    assert [message.text.split()[0] for message in model.requests[-1].prompt] == ["one", "two", "three"]


async def test_what_the_diary_covers_does_not_come_back(storage: Storage) -> None:
    model = answering()
    memory = observational(storage)
    agent = Agent(model=model, memory=memory)
    copy: list[Message] = []
    for number in range(8):
        copy.append(Message.user(words(f"turn-{number}", 30), id=f"u-{number}"))
        result = await agent.generate([Message.from_dict(m.to_dict()) for m in copy], thread="t")
        copy += result.messages
        asked = [message for message in model.requests[-1].prompt if message.text.endswith(words(f"turn-{number}", 30))]
        assert len(asked) == 1
    assert len(await memory.messages(thread="t")) == 16
    assert "turn-0" not in model.requests[-1].text
    await raw_rows(storage)


async def test_the_stored_message_is_shown_not_the_clients_copy(storage: Storage) -> None:
    """The client's copy lacks what memory sent along, and may have been changed: prompts must not change."""
    model = answering()
    memory = observational(storage)
    agent = Agent(model=model, memory=memory)
    await agent.generate(Message.user("one", id="u-1"), thread="t")
    await agent.generate([Message.user("forged", id="u-1"), Message.user("two", id="u-2")], thread="t")
    assert model.requests[1].text.startswith(model.requests[0].text)
    assert "forged" not in model.requests[1].text
    assert [row.text for row in await memory.messages(thread="t")][::2] == ["one", "two"]


@pytest.mark.parametrize("observing", [True, False])
async def test_the_same_message_twice_in_one_call(storage: Storage, observing: bool) -> None:
    memory = observational(storage) if observing else Memory(storage=storage)
    agent = Agent(model=answering(), memory=memory)
    await agent.generate([Message.user("one", id="u-1"), Message.user("one", id="u-1")], thread="t")
    assert len(await memory.messages(thread="t")) == 2
