"""Opening, closing, cancelling, and use from several event loops."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from diarist.storage import Storage
from diarist.testing.storage_conformance.helpers import begin, committed, numbers, texts, thread, user


class LifecycleConformance:
    async def test_location_is_for_people(self, storage: Storage) -> None:
        assert storage.location

    async def test_opening_and_closing_twice_does_nothing(self, storage: Storage) -> None:
        await storage.open()
        await storage.open()
        await storage.close()
        await storage.close()

    async def test_closed_storage_opens_again(self, storage: Storage) -> None:
        async with storage:
            await committed(storage, "hello")
        assert await texts(storage) == ["hello"]

    async def test_closing_disturbs_nobody_who_still_writes(self, storage: Storage) -> None:
        for _ in range(5):
            writes = (storage.append_event("k", "data-x", {}) for _ in range(4))
            await asyncio.gather(storage.close(), *writes, storage.close(), storage.open(), storage.close())
        assert [event.seq for event in await storage.list_events("k")] == list(range(1, 21))

    async def test_what_one_object_wrote_the_other_reads(self, storage: Storage, second_storage: Storage) -> None:
        await committed(storage, "one")
        await committed(second_storage, "two")
        assert await texts(storage) == await texts(second_storage) == ["one", "two"]

    async def test_several_event_loops_at_once(self, storage: Storage) -> None:
        failures: list[BaseException] = []

        async def turns(name: str) -> None:
            for number in range(5):
                await committed(storage, f"{name}.{number}", of=thread(name))
                await storage.append_event("all", "data-x", {})

        def loop_of_its_own(name: str) -> None:
            try:
                asyncio.run(turns(name))
            except BaseException as error:
                failures.append(error)

        workers = [threading.Thread(target=loop_of_its_own, args=(name,)) for name in "abc"]
        for worker in workers:
            worker.start()
        await turns("here")
        for worker in workers:
            await asyncio.to_thread(worker.join)
        assert failures == []
        for name in ("a", "b", "c", "here"):
            assert await texts(storage, name) == [f"{name}.{number}" for number in range(5)]
        assert len(await storage.list_events("all")) == 20

    async def test_cancelled_writes_happen_whole_or_not_at_all(self, storage: Storage) -> None:
        run = await begin(storage)
        for pause in range(12):
            job = asyncio.create_task(storage.append_messages(run, [user("a"), user("b")]))
            for _ in range(pause % 4):
                await asyncio.sleep(0)
            job.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await job
        await storage.append_messages(run, [user("a"), user("b")])
        stored = await storage.list_messages("trip", run_id=run.id)
        assert "".join(message.text for message in stored) == "ab" * (len(stored) // 2)
        assert numbers(stored) == sorted(set(numbers(stored)), key=lambda seq: seq or 0)
