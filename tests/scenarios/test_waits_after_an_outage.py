"""If the database fails when a run begins or ends, the next turn begins once the database is back.

Time is simulated: it passes only where everybody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from diarist import Agent, Memory, Message, Processor
from diarist.exceptions import StorageError
from diarist.processors import ProcessOutputResultArgs
from diarist.storage import InMemoryStorage, Thread
from diarist.storage.records import own_resource
from tests.exactly_once.simulation import simulated
from tests.memory.diary_kit import keeping_diary
from tests.memory.semantic.kit import TopicEmbedder, memory_with
from tests.scenarios.kit import WatchedStorage, answering, observational
from tests.scenarios.test_waits_for_a_dead_process import told

RETRY = 3.0
"""Seconds between two attempts to end a run, at most."""


class Away(WatchedStorage):
    """Fails from the first call of ``since`` on, until it is back. ``done``: only the reply to that call is lost."""

    def __init__(self, since: str, *, done: bool = False) -> None:
        super().__init__()
        self.since, self.done, self.away = since, done, False

    async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if name == self.since:
            if self.done and not self.away:
                await call()
            self.away = True
        if self.away:
            raise StorageError("the server is starting up")
        return await call()

    def is_back(self) -> None:
        self.since, self.away = "", False


class BackAtTheFirstRepeat(Away):
    """Is back once the run could end neither with its last messages nor without them."""

    async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if self.calls["finish_run"] == 3 and name == "get_run":
            self.is_back()
        return await super().around(name, call)


class Refuses(Processor[Any]):
    def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
        args.abort("no")


async def ask(memory: Memory) -> None:
    await Agent(model=answering(), memory=memory).generate("go", thread="t")


async def be_refused(memory: Memory) -> None:
    await Agent(model=answering(), memory=memory, output_processors=[Refuses()]).generate("go", thread="t")


async def save(memory: Memory) -> None:
    await memory.messages.save([Message.user("go")], thread="t")


def after_an_outage(
    storage: Away, first: Callable[[Memory], Awaitable[None]], *, diary: bool = False, seconds: float = 0
) -> tuple[list[str], float]:
    """Return the thread's texts after a second turn, and the seconds it waited once the database was back."""

    async def story() -> list[str]:
        memory = observational(storage) if diary else Memory(storage=storage)
        with pytest.raises(StorageError, match="starting up"):
            await first(memory)
        await asyncio.sleep(seconds)
        storage.is_back()
        began = clock.now
        await Agent(model=answering(), memory=memory).generate("next", thread="t")
        waited.append(clock.now - began)
        return [row.text for row in await memory.messages.list(thread="t")]

    with simulated(1) as (loop, clock, _):
        waited: list[float] = []
        return loop.run_until_complete(story()), waited[0]


@pytest.mark.parametrize("diary", [False, True])
@pytest.mark.parametrize("seconds", [0, 20])
def test_when_a_run_ends(diary: bool, seconds: float) -> None:
    texts, waited = after_an_outage(Away("finish_run"), ask, diary=diary, seconds=seconds)
    assert texts == ["go", "Understood, noted.", "next", "Understood, noted."]
    assert waited < RETRY


def test_when_a_run_ends_at_the_first_repeat() -> None:
    texts, waited = after_an_outage(BackAtTheFirstRepeat("finish_run"), ask)
    assert texts == ["go", "Understood, noted.", "next", "Understood, noted."]
    assert waited < RETRY


@pytest.mark.parametrize("done", [False, True])
def test_when_a_blocked_run_ends(done: bool) -> None:
    texts, waited = after_an_outage(Away("finish_run", done=done), be_refused)
    assert texts == ["next", "Understood, noted."]
    assert waited < RETRY


@pytest.mark.parametrize("done", [False, True])
def test_when_messages_are_saved(done: bool) -> None:
    texts, waited = after_an_outage(Away("finish_run", done=done), save)
    assert texts == ["go", "next", "Understood, noted."]
    assert waited < RETRY


@pytest.mark.parametrize("done", [False, True])
def test_when_a_run_begins(done: bool) -> None:
    texts, waited = after_an_outage(Away("begin_run", done=done), ask)
    assert texts == ["next", "Understood, noted."]
    assert waited < RETRY


def test_a_run_that_another_process_has_taken_over() -> None:
    """It is not ended again, and the other run goes on."""

    async def story() -> None:
        memory = Memory(storage=storage)
        with pytest.raises(StorageError):
            await ask(memory)
        await InMemoryStorage.heartbeat(storage, storage.runs[0], ttl=0)
        other = await InMemoryStorage.begin_run(storage, "other", Thread(id="t", resource_id=own_resource("t")))
        storage.is_back()
        await asyncio.sleep(60)
        await storage.finish_run(other, "committed", messages=[Message.user("from elsewhere")])
        assert [row.text for row in await memory.messages.list(thread="t")] == ["go", "from elsewhere"]

    storage = Away("finish_run")
    with simulated(1) as (loop, *_):
        loop.run_until_complete(story())


def test_when_an_observation_ends() -> None:
    """Its lease is released, so that the thread can be observed."""

    async def story() -> None:
        memory = keeping_diary(storage)
        await told(memory)
        with pytest.raises(StorageError):
            await memory.diary.observe(thread="t")
        await asyncio.sleep(1)
        storage.is_back()
        await asyncio.sleep(RETRY)
        await told(memory)
        await memory.diary.observe(thread="t")

    storage = Away("release_lease")
    with simulated(1) as (loop, *_):
        loop.run_until_complete(story())


def test_when_an_embedding_ends() -> None:
    """Its lease is released, so that another process can embed the thread."""

    async def embed() -> int:
        return await memory_with(TopicEmbedder(), storage=storage).messages.embed(thread="t")

    async def story() -> None:
        await Memory(storage=storage).messages.save("Rome is warm.", thread="t")
        assert await embed() == 1
        await asyncio.sleep(1)
        storage.is_back()
        await asyncio.sleep(RETRY)
        assert await embed() == 1

    storage = Away("release_lease")
    with simulated(1) as (loop, *_):
        loop.run_until_complete(story())
