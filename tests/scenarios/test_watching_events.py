"""What memory has done can be read and watched, from any process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from diarist import Memory, Message
from diarist.exceptions import InputError, NotFoundError
from diarist.storage import SQLiteStorage, Storage
from tests.processes import run_at_once
from tests.scenarios.kit import configured, words

WRITING = """
import asyncio
from diarist.storage import SQLiteStorage
path, name = sys.argv[1:]

async def main():
    async with SQLiteStorage(path) as storage:
        go()
        for number in range(50):
            await storage.append_event("thread:t", "data-om-status", {"from": name, "number": number})

asyncio.run(main())
"""


async def told(storage: Storage, *texts: str) -> Memory:
    """A memory that has observed these words, one by one."""
    memory = configured(storage)
    for text in texts:
        await memory.messages.save([Message.user(words(text, 20))], thread="t", resource="ada")
        await memory.diary.observe(thread="t")
    return memory


async def test_events_are_read_in_order_and_from_a_place_on(storage: Storage) -> None:
    memory = await told(storage, "one", "two")
    events = await memory.diary.events(thread="t", resource="ada")
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.type for event in events].count("data-om-observation-end") == 2
    assert await memory.diary.events(thread="t", after=1, limit=2) == events[1:3]


async def test_events_are_watched_as_they_come(storage: Storage) -> None:
    memory = await told(storage, "one")
    before = await memory.diary.events(thread="t")
    watched = memory.diary.watch(thread="t", every=0.001)
    assert [(await anext(watched)).seq for _ in before] == [event.seq for event in before]
    waiting = asyncio.ensure_future(anext(watched))
    await memory.messages.save([Message.user(words("two", 20))], thread="t", resource="ada")
    await memory.diary.observe(thread="t")
    assert (await waiting).seq == len(before) + 1
    await watched.aclose()


async def test_watching_ends_with_the_thread(storage: Storage) -> None:
    memory = await told(storage, "one")
    before = await memory.diary.events(thread="t")
    watched = memory.diary.watch(thread="t", after=len(before), every=0.001)
    waiting = asyncio.ensure_future(anext(watched))
    await asyncio.sleep(0.01)
    await memory.threads.delete("t")
    with pytest.raises(NotFoundError, match="there is no thread 't'"):
        await asyncio.wait_for(waiting, 5)


async def test_a_new_thread_with_the_id_is_not_taken_for_the_watched_one(storage: Storage) -> None:
    memory = await told(storage, "one")
    watched = memory.diary.watch(thread="t", every=0.001)
    for _ in await memory.diary.events(thread="t"):
        await anext(watched)
    await memory.threads.delete("t")
    await told(storage, "two", "three")
    with pytest.raises(NotFoundError, match="thread 't' was deleted; a new thread has its id"):
        await asyncio.wait_for(anext(watched), 5)


async def test_no_event_of_another_process_is_lost_or_told_twice(tmp_path: Path) -> None:
    path = str(tmp_path / "memory.db")
    async with SQLiteStorage(path) as storage:
        memory = await told(storage, "one")
        before = len(await memory.diary.events(thread="t"))
        writers = asyncio.get_running_loop().run_in_executor(None, run_at_once, WRITING, [[path, "a"], [path, "b"]])
        seen: dict[str, list[int]] = {"a": [], "b": []}
        async for event in memory.diary.watch(thread="t", after=before, every=0.001):
            seen[event.data["from"]].append(event.data["number"])
            if len(seen["a"]) + len(seen["b"]) == 100:
                break
        await writers
        assert seen == {"a": list(range(50)), "b": list(range(50))}


async def test_bad_requests_are_refused_by_name(storage: Storage) -> None:
    memory = await told(storage, "one")
    with pytest.raises(NotFoundError, match="nowhere"):
        await memory.diary.events(thread="nowhere")
    with pytest.raises(InputError, match="does not belong to resource 'bob'"):
        await memory.diary.events(thread="t", resource="bob")
    with pytest.raises(InputError, match="limit must be a whole number from 1 on, not 0"):
        await memory.diary.events(thread="t", limit=0)
    with pytest.raises(InputError, match="every must be positive, not 0"):
        await anext(memory.diary.watch(thread="t", every=0))
