"""``save_messages`` takes its turn: it waits for what is live in the thread, as a call of the agent does."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from diarist import Agent, Memory, Message
from diarist.exceptions import InputError, ThreadBusyError
from diarist.messages import SentBlock
from diarist.models.base import ModelRequest
from diarist.storage import InMemoryStorage, Storage
from diarist.testing import ScriptedModel
from tests.memory.stores import made_storage, storage

__all__ = ["made_storage", "storage"]


class Turn:
    """A turn of thread ``t`` that is live until ``go_on``."""

    def __init__(self, memory: Memory) -> None:
        self._called, self.go_on = asyncio.Event(), asyncio.Event()
        agent = Agent(model=ScriptedModel(self._answer), memory=memory)
        self._turn = asyncio.create_task(agent.generate([Message.user("hi", id="m-hi")], thread="t"))

    async def _answer(self, _: ModelRequest) -> str:
        self._called.set()
        await self.go_on.wait()
        return "ok"

    async def begun(self) -> Turn:
        await self._called.wait()
        return self

    async def ended(self) -> None:
        self.go_on.set()
        await self._turn


async def texts(memory: Memory) -> list[str]:
    return [row.text for row in await memory.messages.list(thread="t")]


async def test_it_waits_for_a_live_turn(storage: Storage) -> None:
    memory = Memory(storage=storage)
    turn = await Turn(memory).begun()
    saving = asyncio.create_task(memory.messages.save("a message of a webhook", thread="t"))
    await asyncio.wait({saving}, timeout=0.05)
    assert not saving.done()
    await turn.ended()
    assert await saving == 1
    assert await texts(memory) == ["hi", "ok", "a message of a webhook"]


async def test_of_many_at_once_all_come_in(storage: Storage) -> None:
    memory = Memory(storage=storage)
    saved = await asyncio.gather(*[memory.messages.save(f"{n}", thread="t") for n in range(8)])
    assert saved == [1] * 8
    assert sorted(await texts(memory)) == [f"{n}" for n in range(8)]


async def test_messages_stored_during_the_wait_are_not_saved_twice(storage: Storage) -> None:
    memory = Memory(storage=storage)
    turn = await Turn(memory).begun()
    both = [Message.user("hi", id="m-hi"), Message.user("more", id="m-more")]
    saving = [asyncio.create_task(memory.messages.save(both, thread="t")) for _ in range(3)]
    await turn.ended()
    assert sorted(await asyncio.gather(*saving)) == [0, 0, 1]
    assert await texts(memory) == ["hi", "ok", "more"]


async def test_superseded_messages_are_not_saved_again(storage: Storage) -> None:
    memory = Memory(storage=storage)
    said = [Message.user("hi", id="m-hi"), Message.user("more", id="m-more")]
    await memory.messages.save(said, thread="t")
    await memory.threads.rewind("t", to="m-hi")
    assert await memory.messages.save([*said, Message.user("other")], thread="t") == 1
    assert await texts(memory) == ["hi", "other"]


async def test_it_waits_no_longer_than_thread_wait(storage: Storage) -> None:
    memory = Memory(storage=storage, thread_wait=0.01)
    turn = await Turn(memory).begun()
    died = "died .* 60 s after its last heartbeat"
    with pytest.raises(ThreadBusyError, match=rf"'t'.*0\.01 s of thread_wait.*{died}.*as in a tool.*read_only=True"):
        await memory.messages.save("a message of a webhook", thread="t")
    await turn.ended()
    assert await texts(memory) == ["hi", "ok"]


async def test_a_save_that_is_cancelled_while_it_waits_leaves_nothing(storage: Storage) -> None:
    memory = Memory(storage=storage)
    turn = await Turn(memory).begun()
    saving = asyncio.create_task(memory.messages.save("late", thread="t"))
    await asyncio.wait({saving}, timeout=0.05)
    saving.cancel()
    await turn.ended()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert await memory.messages.save("next", thread="t") == 1
    assert await texts(memory) == ["hi", "ok", "next"]


async def test_messages_saved_in_another_thread_keep_only_their_words(storage: Storage) -> None:
    """A message has the note that was sent with it, which may quote a diary."""
    memory = Memory(storage=storage)
    noted = Message.user("hi", sent=SentBlock(text="In your diary: Ada is ill.", tokens=8), seq=7, run_id="r")
    assert await memory.messages.save([noted], thread="u", resource="bob") == 1
    [row] = await storage.list_messages("u")
    assert (row.text, row.sent, row.part_tokens) == ("hi", None, (1,))
    assert (noted.seq, noted.part_tokens) == (7, None), "the caller's stays as it is"


@pytest.mark.parametrize("way", ["save_messages", "generate"])
async def test_of_two_messages_with_one_id_the_later_one_counts(storage: Storage, way: str) -> None:
    memory = Memory(storage=storage)
    given = [Message.user("draft", id="m1"), Message.user("between", id="m2"), Message.user("final", id="m1")]
    if way == "save_messages":
        assert await memory.messages.save(given, thread="t") == 2
    else:
        await Agent(model=ScriptedModel("ok"), memory=memory).generate(given, thread="t")
    assert (await texts(memory))[:2] == ["final", "between"]


NINE = datetime(2024, 3, 5, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    "time",
    [
        "2024-03-05T09:00:00Z",
        "2024-03-05 10:00+01:00",
        datetime(2024, 3, 5, 10, tzinfo=timezone(timedelta(hours=1))),
        NINE.timestamp(),
    ],
)
@pytest.mark.parametrize(
    "said",
    [
        {"role": "user", "content": "Yesterday I booked"},
        {"role": "user", "parts": [{"type": "text", "text": "Yesterday I booked"}]},
        {"role": "tool", "tool_call_id": "c", "content": "booked"},
    ],
)
async def test_a_dictionary_keeps_its_time(said: dict[str, Any], time: Any) -> None:
    memory = Memory(storage=InMemoryStorage())
    await memory.messages.save([{**said, "created_at": time}], thread="t")
    assert [row.created_at for row in await memory.messages.list(thread="t")] == [NINE]


@pytest.mark.parametrize(
    ("time", "says"),
    [
        ("yesterday", "message 1: created_at must be a time in ISO 8601.*not 'yesterday'"),
        (12, "message 1: created_at must be a time in ISO 8601.*not 12"),
        ("2024-03-05T09:00:00", "created_at of message 1 needs a time zone: '2024-03-05T09:00:00'"),
        (datetime(2024, 3, 5, 9), "created_at of message 1 needs a time zone"),
    ],
)
async def test_a_time_that_is_not_certain_is_refused(time: Any, says: str) -> None:
    memory = Memory(storage=InMemoryStorage())
    with pytest.raises(InputError, match=says):
        await memory.messages.save(
            [Message.user("hi"), {"role": "user", "content": "a", "created_at": time}], thread="t"
        )
    assert await memory.messages.list(thread="t") == []


async def test_the_beginning_of_a_new_thread_needs_a_time_zone() -> None:
    memory = Memory(storage=InMemoryStorage())
    with pytest.raises(InputError, match="created_at needs a datetime with a time zone"):
        await memory.messages.save("hi", thread="t", created_at=datetime(2026, 3, 2))
    await memory.messages.save("hi", thread="t", created_at=datetime(2026, 3, 2, tzinfo=UTC))
    await memory.messages.save("more", thread="t", created_at=datetime(2026, 3, 1, tzinfo=UTC))
    assert (await memory.threads.get("t")).created_at == datetime(2026, 3, 2, tzinfo=UTC)
