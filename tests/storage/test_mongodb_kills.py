"""A process that is killed between any two changes of MongoDB's documents leaves nothing in part, and one that
comes in between notes nothing of what is gone.

The server of the test suite takes only so many writes from a call, and then none: the rest of it, tidying up
included, does not happen. Another process comes after it. That is played for every number of writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

from diarist.exceptions import ConflictError, StorageError
from diarist.messages import Message
from diarist.storage import ObservationLog, RowRef, Storage, Thread
from diarist.storage.mongodb import MongoDBStorage
from tests.loopback.mongodb_server import MongoDBServer

TRIP = Thread(id="trip", resource_id="ada")
LOG = ObservationLog(key="thread:trip", scope="thread", resource_id="ada")
Call = Callable[[Storage], Awaitable[object]]


@pytest.fixture
def server() -> Iterator[MongoDBServer]:
    with MongoDBServer() as server:
        yield server


async def killed_everywhere(server: MongoDBServer, prepare: Call, call: Call) -> AsyncIterator[Storage]:
    """For each number of writes: prepare, be killed after so many in the call, and what another process finds."""
    for writes in range(100):
        server.collections.clear()
        async with MongoDBStorage(server.url) as before:
            await prepare(before)
            server.writes_left = writes
            try:
                await call(before)
            except StorageError:
                was_killed = True
            else:
                was_killed = False
            server.writes_left = None
        async with MongoDBStorage(server.url) as after:
            yield after
        if not was_killed:
            assert writes > 1
            return
    raise AssertionError("the call has no end")


async def texts(storage: Storage) -> list[str]:
    return [message.text for message in await storage.list_messages("trip")]


async def settled(storage: Storage) -> None:
    run = await storage.begin_run("settled", TRIP, ttl=0)
    await storage.append_messages(run, [Message.user("earlier", id="m1"), Message.user("more", id="m2")])
    await storage.finish_run(run, "committed")


async def whole_run(storage: Storage) -> None:
    run = await storage.begin_run("run", TRIP, ttl=0)
    await storage.append_messages(run, [Message.user("a", id="a"), Message.user("b", id="b")], source="input")
    await storage.append_messages(run, [Message.user("c", id="c")])
    await storage.finish_run(run, "committed")


async def test_a_run(server: MongoDBServer) -> None:
    seen: set[tuple[str, ...]] = set()
    async for storage in killed_everywhere(server, settled, whole_run):
        found = await texts(storage)
        assert found in (["earlier", "more"], ["earlier", "more", "a", "b", "c"])
        next_run = await storage.begin_run("next", TRIP)
        found = await texts(storage)
        seen.add(tuple(found[2:]))
        ended = await storage.get_run("run")
        assert ended is None or ended.state in ("committed", "interrupted")
        # Whatever is left of the dead is in nobody's way, not even under the same ids.
        free = [id for id in ("a", "b", "c") if id not in await storage.existing_ids("trip", ["a", "b", "c"])]
        if free:
            await storage.append_messages(next_run, [Message.user(id, id=id) for id in free])
        await storage.finish_run(next_run, "committed")
        numbers = [message.seq or 0 for message in await storage.list_messages("trip")]
        assert len(numbers) == 5
        assert numbers == sorted(set(numbers))
    assert seen == {(), ("a", "b"), ("a", "b", "c")}


async def test_the_first_run_of_a_thread(server: MongoDBServer) -> None:
    async def nothing(_: Storage) -> None:
        return

    async for storage in killed_everywhere(server, nothing, whole_run):
        assert await texts(storage) in ([], ["a", "b", "c"])
        run = await storage.begin_run("next", TRIP)
        await storage.append_messages(run, [Message.user("new")])
        await storage.finish_run(run, "committed")
        assert (await texts(storage))[-1] == "new"
        assert await storage.get_thread("trip") is not None


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_discarded_run(server: MongoDBServer, is_new: bool) -> None:
    async def prepare(storage: Storage) -> None:
        if not is_new:
            await settled(storage)
        run = await storage.begin_run("run", TRIP, ttl=0, guarded=True)
        await storage.append_messages(run, [Message.user("secret", id="s")])
        await storage.save_log(LOG, expected_version=0, rows=[RowRef("trip", 1 if is_new else 3, "s")])

    async def discard(storage: Storage) -> None:
        run = await storage.get_run("run")
        assert run is not None
        await storage.finish_run(run, "discarded")

    kept = [] if is_new else ["earlier", "more"]
    async for storage in killed_everywhere(server, prepare, discard):
        assert await texts(storage) == kept
        run = await storage.begin_run("next", TRIP)
        ended = await storage.get_run("run")
        assert ended is not None
        assert ended.state in ("discarded", "interrupted")
        row = RowRef("trip", 1 if is_new else 3, "s")
        with pytest.raises(ConflictError, match="'s' of thread 'trip' is gone"):
            await storage.save_log(LOG, expected_version=0 if is_new else 1, rows=[row])
        await storage.append_messages(run, [Message.user("new", id="s")])
        await storage.finish_run(run, "committed")
        assert await texts(storage) == [*kept, "new"]
        assert "secret" not in repr(server.collections)


async def test_a_deleted_thread(server: MongoDBServer) -> None:
    async def prepare(storage: Storage) -> None:
        await settled(storage)
        await storage.save_log(LOG, expected_version=0)
        await storage.append_event("thread:trip", "data-x", {})

    async for storage in killed_everywhere(server, prepare, lambda storage: storage.delete_thread("trip")):
        if await storage.get_thread("trip") is not None:
            assert await texts(storage) == ["earlier", "more"]
            await storage.delete_thread("trip")
        await storage.create_thread(TRIP)
        assert await texts(storage) == []
        assert await storage.get_log("thread:trip") is None
        assert await storage.list_events("thread:trip") == []
        assert await storage.get_run("settled") is None
        assert "earlier" not in repr(server.collections)
        assert (await storage.save_log(LOG, expected_version=0)).version == 1


async def test_a_rewrite(server: MongoDBServer) -> None:
    async def prepare(storage: Storage) -> None:
        await settled(storage)
        run = await storage.begin_run("run", TRIP, ttl=0)
        await storage.append_messages(run, [Message.user("a", id="a"), Message.user("b", id="b")])

    async def rewrite(storage: Storage) -> None:
        run = await storage.get_run("run")
        assert run is not None
        new = [Message.user("new earlier", id="m1"), Message.user("new more", id="m2"), Message.user("new a", id="a")]
        await storage.rewrite_messages(run, new, remove=["b"])

    seen: set[str] = set()
    async for storage in killed_everywhere(server, prepare, rewrite):
        await storage.begin_run("next", TRIP)
        found = await texts(storage)
        assert found in (["earlier", "more", "a", "b"], ["new earlier", "new more", "new a"])
        seen.add(found[0])
    assert seen == {"earlier", "new earlier"}


async def test_a_new_generation(server: MongoDBServer) -> None:
    async def prepare(storage: Storage) -> None:
        await storage.save_log(LOG, expected_version=0)

    async def rise(storage: Storage) -> None:
        await storage.save_log(replace(LOG, generation=1, actor="x"), expected_version=1)

    async for storage in killed_everywhere(server, prepare, rise):
        log = await storage.get_log("thread:trip")
        assert log is not None
        earlier = [past.generation for past in await storage.list_generations("thread:trip")]
        assert earlier == list(range(log.generation))
        await storage.save_log(replace(log, generation=2), expected_version=log.version)
        past = [one.generation for one in await storage.list_generations("thread:trip")]
        assert past == [*earlier, log.generation]
        assert await storage.delete_generations("thread:trip") == len(past)


async def test_events(server: MongoDBServer) -> None:
    async def append(storage: Storage) -> None:
        for number in range(3):
            await storage.append_event("k", "data-x", {"n": number})

    async def prepare(storage: Storage) -> None:
        storage.events_kept = 2
        await append(storage)

    async for storage in killed_everywhere(server, prepare, append):
        storage.events_kept = 2
        await storage.append_event("k", "data-x", {"n": "last"})
        events = await storage.list_events("k")
        assert [event.seq for event in events] == [events[-1].seq - 1, events[-1].seq]
        assert events[-1].data == {"n": "last"}


# --- in between -----------------------------------------------------------------------------------------------


async def _discard(storage: Storage) -> object:
    run = await storage.get_run("run")
    assert run is not None
    return await storage.finish_run(run, "discarded")


REMOVALS: dict[str, tuple[RowRef, Call]] = {
    "message": (RowRef("trip", 1, "m1"), lambda storage: storage.delete_messages("trip", ["m1"])),
    "thread": (RowRef("trip", 1, "m1"), lambda storage: storage.delete_thread("trip")),
    "run": (RowRef("trip", 3, "s"), _discard),
    "run with its thread": (RowRef("new", 1, "s"), _discard),
}


@pytest.mark.slow
@pytest.mark.parametrize("key", ["thread:trip", "resource:ada"])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("removal", REMOVALS)
async def test_nothing_is_noted_of_what_was_removed_after_it_was_looked_for(
    server: MongoDBServer, removal: str, is_first: bool, key: str
) -> None:
    row, remove = REMOVALS[removal]
    log = replace(LOG, key=key.replace("trip", row.thread_id))

    async def remove_elsewhere() -> None:
        async with MongoDBStorage(server.url) as other:
            await remove(other)

    async with MongoDBStorage(server.url) as storage:
        await settled(storage)
        run = await storage.begin_run("run", Thread(id=row.thread_id, resource_id="ada"))
        await storage.append_messages(run, [Message.user("secret", id="s")])
        if not is_first:
            await storage.save_log(log, expected_version=0)
        server.before_writes_to["diarist.diarist_logs"] = lambda: asyncio.run(remove_elsewhere())
        with pytest.raises(ConflictError, match="is gone"):
            await storage.save_log(log, expected_version=0 if is_first else 1, rows=[row])
        assert server.before_writes_to == {}
        stored = await storage.get_log(log.key)
        assert (stored.version if stored else 0) <= (not is_first)
