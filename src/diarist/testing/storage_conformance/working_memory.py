"""Working memories: saved by compare-and-set, gone with their thread."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from diarist.exceptions import ConflictError
from diarist.messages import Message
from diarist.storage import Storage, Thread, WorkingMemory, WorkingMemoryUpdate

KEY = "resource:ada"
TRIP = Thread(id="trip", resource_id="ada")


class WorkingMemoryConformance:
    async def test_unknown_working_memory_is_empty(self, storage: Storage) -> None:
        assert await storage.get_working_memory(KEY) == WorkingMemory(key=KEY)

    async def test_working_memory_comes_back_with_its_version(self, storage: Storage) -> None:
        updates = (
            WorkingMemoryUpdate(run_id="one", text="# Ada \ud83d \0", base="# \ud83d"),
            WorkingMemoryUpdate(run_id="two", patch={"a": {"b": None, "c": [1]}}),
        )
        given = WorkingMemory(key=KEY, text="Ada \ud83d \0", updates=updates)
        saved = await storage.save_working_memory(given)
        assert saved == replace(given, version=1)
        assert await storage.get_working_memory(KEY) == saved
        changed = await storage.save_working_memory(replace(saved, text="", updates=()))
        assert changed == WorkingMemory(key=KEY, version=2)
        assert await storage.get_working_memory(KEY) == changed

    async def test_working_memories_of_a_thread_and_a_resource_are_two(self, storage: Storage) -> None:
        await storage.save_working_memory(WorkingMemory(key="resource:x", text="of the resource"))
        await storage.save_working_memory(WorkingMemory(key="thread:x", text="of the thread"))
        assert (await storage.get_working_memory("resource:x")).text == "of the resource"
        assert (await storage.get_working_memory("thread:x")).text == "of the thread"

    @pytest.mark.parametrize("version", [0, 1, 3])
    async def test_only_the_stored_version_of_a_working_memory_is_replaced(
        self, storage: Storage, version: int
    ) -> None:
        first = await storage.save_working_memory(WorkingMemory(key=KEY))
        second = await storage.save_working_memory(replace(first, text="kept"))
        with pytest.raises(ConflictError, match="ada"):
            await storage.save_working_memory(replace(second, version=version, text="lost"))
        assert await storage.get_working_memory(KEY) == second

    async def test_working_memory_that_is_not_stored_has_no_later_version(self, storage: Storage) -> None:
        with pytest.raises(ConflictError):
            await storage.save_working_memory(WorkingMemory(key=KEY, version=4))

    async def test_of_many_savers_of_a_working_memory_one_wins(self, storage: Storage, second_storage: Storage) -> None:
        stores = (storage, second_storage)
        for version in (0, 1):
            memories = [WorkingMemory(key=KEY, version=version, text=str(n)) for n in range(8)]
            outcomes = await asyncio.gather(
                *(stores[n % 2].save_working_memory(memory) for n, memory in enumerate(memories)),
                return_exceptions=True,
            )
            winners = [outcome for outcome in outcomes if isinstance(outcome, WorkingMemory)]
            assert sum(isinstance(outcome, ConflictError) for outcome in outcomes) == 7
            assert [await storage.get_working_memory(KEY)] == winners

    async def test_deleting_a_thread_removes_its_working_memory_alone(self, storage: Storage) -> None:
        await storage.create_thread(TRIP)
        for key in ("thread:trip", "thread:other", KEY):
            await storage.save_working_memory(WorkingMemory(key=key, text="kept"))
        await storage.delete_thread("trip")
        assert await storage.get_working_memory("thread:trip") == WorkingMemory(key="thread:trip")
        assert (await storage.get_working_memory("thread:other")).text == "kept"
        assert (await storage.get_working_memory(KEY)).text == "kept"

    async def test_discarding_the_run_that_made_the_thread_removes_its_working_memory(self, storage: Storage) -> None:
        run = await storage.begin_run("run", TRIP)
        await storage.append_messages(run, [Message.user("hello")], source="input")
        await storage.save_working_memory(WorkingMemory(key="thread:trip", text="gone"))
        await storage.finish_run(run, "discarded")
        assert await storage.get_working_memory("thread:trip") == WorkingMemory(key="thread:trip")
