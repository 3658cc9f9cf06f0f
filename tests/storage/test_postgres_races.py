"""If another process has an open transaction on the same row, a call waits for it and then sees its result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from diarist.exceptions import ConflictError, NotFoundError, ThreadBusyError
from diarist.messages import Message
from diarist.storage import ObservationLog, Thread
from diarist.storage.postgres import PostgresStorage
from tests.postgres import Rival

TRIP = Thread(id="trip", resource_id="ada")
LOG = ObservationLog(key="thread:trip", scope="thread", resource_id="ada")


@pytest.fixture
async def storage(postgres_url: str) -> AsyncIterator[PostgresStorage]:
    async with PostgresStorage(postgres_url) as storage:
        yield storage


@pytest.fixture
async def rival(storage: PostgresStorage, postgres_url: str) -> AsyncIterator[Rival]:
    async with Rival(postgres_url) as rival:
        yield rival


async def test_a_heartbeat_in_time_keeps_the_run(storage: PostgresStorage, rival: Rival) -> None:
    await storage.begin_run("slow", TRIP, ttl=0)
    await rival.begins("UPDATE diarist_runs SET expires_at = expires_at + 60000000")
    with pytest.raises(ThreadBusyError, match="slow"):
        await rival.commits_when_waited_for(storage.begin_run("next", TRIP))


async def test_the_first_run_of_a_concurrently_created_thread(storage: PostgresStorage, rival: Rival) -> None:
    await rival.begins(
        "INSERT INTO diarist_threads VALUES ('trip', 'ada', 'Rome', '{}', 0, 0, 4, NULL)",
    )
    run = await rival.commits_when_waited_for(storage.begin_run("run", TRIP))
    assert await storage.append_messages(run, [Message.user("hello")]) == [5]


async def test_a_run_id_taken_by_another_process(storage: PostgresStorage, rival: Rival) -> None:
    await rival.begins("INSERT INTO diarist_runs VALUES ('run', 'other', 'ada', 'live', 1, false, 0, 0)")
    with pytest.raises(ConflictError, match="exists already"):
        await rival.commits_when_waited_for(storage.begin_run("run", TRIP))
    assert await storage.get_thread("trip") is None


async def test_the_first_event_of_a_key(storage: PostgresStorage, rival: Rival) -> None:
    await rival.begins(
        "INSERT INTO diarist_event_logs VALUES ('k', 1)", "INSERT INTO diarist_events VALUES ('k', 1, 'x', '{}', 0)"
    )
    event = await rival.commits_when_waited_for(storage.append_event("k", "data-x", {}))
    assert event.seq == 2


async def test_the_first_version_of_a_log(storage: PostgresStorage, rival: Rival) -> None:
    await rival.begins("INSERT INTO diarist_logs VALUES ('thread:trip', 1, 0, '{}')")
    with pytest.raises(ConflictError, match="version 1, not 0"):
        await rival.commits_when_waited_for(storage.save_log(LOG, expected_version=0))


async def test_a_lease_taken_by_another_owner(storage: PostgresStorage, rival: Rival) -> None:
    await rival.begins("INSERT INTO diarist_leases VALUES ('work', 'them', 1, 9000000000000000)")
    assert await rival.commits_when_waited_for(storage.acquire_lease("work", "us", ttl=60)) is None


async def test_metadata_is_merged_into_what_others_have_saved(storage: PostgresStorage, rival: Rival) -> None:
    await storage.create_thread(TRIP)
    await rival.begins(
        """UPDATE diarist_threads SET metadata = '{"theirs":1}'""",
        """INSERT INTO diarist_thread_metadata VALUES ('trip', '"theirs"', '1')""",
    )
    thread = await rival.commits_when_waited_for(storage.update_thread("trip", metadata={"ours": 2}))
    assert thread.metadata == {"theirs": 1, "ours": 2}
    assert len((await storage.list_threads(metadata={"theirs": 1, "ours": 2})).items) == 1


async def test_metadata_of_a_concurrently_deleted_thread(storage: PostgresStorage, rival: Rival) -> None:
    await storage.create_thread(TRIP)
    await rival.begins("DELETE FROM diarist_threads")
    with pytest.raises(NotFoundError, match="trip"):
        await rival.commits_when_waited_for(storage.update_thread("trip", metadata={"ours": 2}))


async def test_a_deleted_message_is_counted_once(storage: PostgresStorage, rival: Rival) -> None:
    run = await storage.begin_run("run", TRIP)
    await storage.append_messages(run, [Message.user("hello", id="m")])
    await storage.finish_run(run, "committed")
    await rival.begins(
        "SELECT FROM diarist_threads WHERE id = 'trip' FOR UPDATE", "DELETE FROM diarist_messages WHERE id = 'm'"
    )
    assert await rival.commits_when_waited_for(storage.delete_messages("trip", ["m"])) == 0


async def test_no_earlier_generation_outlives_its_log(storage: PostgresStorage, rival: Rival) -> None:
    saved = await storage.save_log(LOG, expected_version=0)
    await rival.begins(
        "SELECT FROM diarist_logs FOR UPDATE",
        "INSERT INTO diarist_log_history SELECT key, generation, body FROM diarist_logs",
        "UPDATE diarist_logs SET version = 2, generation = 1",
    )
    assert await rival.commits_when_waited_for(storage.delete_log(LOG.key))
    assert await storage.list_generations(LOG.key) == []
    assert await storage.save_log(replace(saved, version=0), expected_version=0) == saved


async def test_deadlocks_are_resolved_by_beginning_again(storage: PostgresStorage, rival: Rival) -> None:
    await storage.create_thread(TRIP)
    await storage.save_log(LOG, expected_version=0)
    # The other way round than we do it: the log first.
    await rival.begins("SET LOCAL deadlock_timeout = '1h'", "SELECT FROM diarist_logs FOR UPDATE")
    deleting = asyncio.create_task(storage.delete_thread("trip"))
    await rival.is_waited_for(deleting)
    await rival.connection.execute("SELECT FROM diarist_threads FOR UPDATE")
    await rival.connection.execute("COMMIT")
    assert await deleting
