"""A call of memory's own that is cancelled leaves its thread free for the next one at once."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from diarist import Agent, CancelSignal, Memory, Message, concurrency
from diarist.exceptions import StorageError
from diarist.memory import run_lifecycle
from diarist.storage import Storage
from diarist.testing import ScriptedModel
from tests.exactly_once.simulation import simulated
from tests.memory.diary_kit import keeping_diary
from tests.memory.semantic.kit import TopicEmbedder, memory_with
from tests.scenarios.kit import WatchedStorage, answering, observational, words


class Halting(WatchedStorage):
    """The ``halt_call``-th call of ``halt_at`` from now on waits to be let go, before or ``after`` it was done."""

    halt_at, halt_call, after = "", 1, False

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.let_go = asyncio.Event(), asyncio.Event()

    async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        self.halt_call -= name == self.halt_at
        if name != self.halt_at or self.halt_call:
            return await call()
        done = await call() if self.after else None
        self.reached.set()
        await self.let_go.wait()
        return done if self.after else await call()


async def cancelled_if_reached(storage: Halting, method: str, after: bool, work: Awaitable[Any]) -> bool:
    """Whether the work was cancelled, and had not ended before it came there."""
    storage.halt_at, storage.after = method, after
    task = asyncio.ensure_future(work)
    reached = asyncio.ensure_future(storage.reached.wait())
    await asyncio.wait([task, reached], return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()
    task.cancel()
    await asyncio.sleep(0)
    storage.let_go.set()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


async def cancelled_at(storage: Halting, method: str, after: bool, work: Awaitable[Any]) -> None:
    assert await cancelled_if_reached(storage, method, after, work)


when = pytest.mark.parametrize("after", [False, True], ids=["before", "after"])


async def texts(memory: Memory) -> list[str]:
    return [row.text for row in await memory.messages.list(thread="t")]


@when
@pytest.mark.parametrize("method", ["begin_run", "append_messages", "finish_run"])
async def test_saving(method: str, after: bool) -> None:
    storage = Halting()
    memory = Memory(storage=storage, thread_wait=0)
    await cancelled_at(storage, method, after, memory.messages.save([Message.user("a"), Message.user("b")], thread="t"))
    await memory.messages.save("next", thread="t")
    assert await texts(memory) == (["a", "b", "next"] if method == "finish_run" else ["next"])


@when
@pytest.mark.parametrize("method", ["begin_run", "rewrite_messages", "finish_run"])
async def test_updating_a_message(method: str, after: bool) -> None:
    storage = Halting()
    memory = Memory(storage=storage, thread_wait=0)
    await memory.messages.save([Message.user("old", id="a")], thread="t")
    await cancelled_at(storage, method, after, memory.messages.update("a", thread="t", text="new"))
    await memory.messages.save("next", thread="t")
    rows = await texts(memory)
    assert rows in (["old", "next"], ["new", "next"])
    assert rows[0] == "new" or method != "finish_run"


@when
@pytest.mark.parametrize("method", ["acquire_lease", "save_log", "release_lease"])
@pytest.mark.parametrize("work", ["observe", "reflect"])
async def test_observing_and_reflecting(work: str, method: str, after: bool) -> None:
    storage = Halting()
    memory = observational(storage, thread_wait=0)
    await memory.messages.save([Message.user(words(f"said-{n}", 30)) for n in range(6)], thread="t")
    if work == "reflect":
        await memory.diary.observe(thread="t")
    await cancelled_at(storage, method, after, getattr(memory.diary, work)(thread="t"))
    await memory.messages.save([Message.user(words(f"more-{n}", 30)) for n in range(6)], thread="t")
    await memory.diary.observe(thread="t")
    await memory.diary.reflect(thread="t")


async def test_all_threads_of_a_resource_are_given_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the database does not answer, the releases are awaited together, not one after the other."""
    monkeypatch.setattr(concurrency, "CLEANUP_GRACE", 600)
    observing, all_asked, answers = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Silent(WatchedStorage):
        async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
            if name == "release_lease":
                if self.calls[name] == 4:
                    all_asked.set()
                await answers.wait()
            return await call()

    async def observe(_: object) -> str:
        observing.set()
        await asyncio.Event().wait()
        return "unused"

    storage = Silent()
    memory = keeping_diary(storage, scope="resource", observer_model=ScriptedModel(observe))
    for number in range(4):
        await memory.messages.save(words(f"said-{number}", 30), thread=f"t{number}", resource="ada")
    task = asyncio.create_task(memory.diary.observe(resource="ada"))
    await observing.wait()
    task.cancel()
    async with asyncio.timeout(60):
        await all_asked.wait()
    answers.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await keeping_diary(storage, scope="resource").diary.observe(resource="ada")


@when
@pytest.mark.parametrize("method", ["acquire_lease", "release_lease"])
async def test_embedding(method: str, after: bool) -> None:
    storage = Halting()
    await Memory(storage=storage).messages.save("Rome", thread="t")
    await cancelled_at(storage, method, after, memory_with(TopicEmbedder(), storage=storage).messages.embed(thread="t"))
    another = memory_with(TopicEmbedder(), storage=storage)
    assert await another.messages.embed(thread="t") == 1


STEPS = ["begin_run", "append_messages", "save_log", "finish_run", "get_log", "list_messages", "get_thread"]


@when
@pytest.mark.parametrize("call", [1, 2, 3, 4])
@pytest.mark.parametrize("method", STEPS)
async def test_copying_a_thread(method: str, call: int, after: bool) -> None:
    """Nothing is left of the copy, and it can be made at once. A copy that is there is whole."""
    storage = Halting()
    memory = observational(storage, thread_wait=0)
    await memory.messages.save([Message.user(words(f"said-{n}", 30)) for n in range(6)], thread="t")
    await memory.diary.observe(thread="t")
    storage.halt_call = call
    if await cancelled_if_reached(storage, method, after, memory.threads.clone("t", new_thread="copy")):
        assert [thread.id for thread in (await memory.threads.list()).items] == ["t"]
        await memory.threads.clone("t", new_thread="copy")
    assert await memory.messages.list(thread="copy")
    copied, given = await memory.diary.get(thread="copy"), await memory.diary.get(thread="t")
    assert copied.text == given.text
    assert len(copied.active) == len(given.active)


def test_a_storage_is_kept_alive_no_longer_than_a_run_that_could_not_be_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(WatchedStorage):
        async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
            if name == "finish_run":
                raise StorageError("nobody answers")
            return await call()

    async def fails() -> weakref.ref[Storage]:
        storage = Failing()
        with pytest.raises(StorageError, match="nobody answers"):
            await Memory(storage=storage).messages.save("lost", thread="t")
        there: weakref.ref[Storage] = weakref.ref(storage)
        del storage
        await asyncio.sleep(2 * run_lifecycle.RUN_TTL)
        return there

    caplog.set_level(logging.ERROR, "diarist")  # a record of the error would keep the storage by its traceback
    with simulated(1) as (loop, *_):
        there = loop.run_until_complete(fails())
        gc.collect()
        assert there() is None


async def test_an_old_swallowed_cancellation_does_not_shorten_later_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "CLEANUP_GRACE", 0)
    storage = Halting()
    storage.halt_at = "finish_run"
    agent = Agent(model=answering("bye"), memory=Memory(storage=storage))

    async def last_words() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return (await agent.generate("good-bye", thread="t")).text

    task = asyncio.create_task(last_words())
    await asyncio.sleep(0)
    task.cancel()
    await storage.reached.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not task.done()
    storage.let_go.set()
    assert await task == "bye"
    assert [row.text for row in await storage.list_messages("t")] == ["good-bye", "bye"]


async def test_what_may_yet_not_be_stored_is_not_reported_as_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user stops the run while its answer is being stored, and storing takes longer than the grace period."""
    monkeypatch.setattr(concurrency, "CLEANUP_GRACE", 0)
    storage, signal = Halting(), CancelSignal()
    storage.halt_at = "finish_run"
    agent = Agent(model=answering("the answer"), memory=Memory(storage=storage))
    stream = agent.stream("q", thread="t", cancel=signal)

    async def kinds() -> list[str]:
        return [chunk.type async for chunk in stream]

    reading = asyncio.create_task(kinds())
    await storage.reached.wait()
    signal.cancel("stop")
    assert (await reading)[-1] == "abort"
    assert (await stream.result()).stopped_by == "cancelled"
    storage.let_go.set()
