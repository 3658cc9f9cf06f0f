"""If a PostgreSQL server stops answering without closing its connections, no call waits for it forever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from diarist import Agent, Memory, ObservationalMemoryConfig
from diarist.exceptions import ConfigError, DiaristError, StorageError
from diarist.memory import run_lifecycle
from diarist.memory.observational.jobs import Job
from diarist.memory.queue import PostgresQueue
from diarist.messages import TextPart
from diarist.models import ModelRequest
from diarist.storage import Thread
from diarist.storage.postgres import PostgresStorage
from diarist.testing import ScriptedModel
from diarist.vectors.postgres import PgVectorStore
from tests.postgres import fetch
from tests.silent_proxy import SilentProxy

pytestmark = pytest.mark.slow  # each test waits until a time limit has passed

BOUND = 60
"""Seconds in which what is bounded has ended, on however busy a machine."""
SHORT: dict[str, Any] = {"busy_timeout": 0.25, "statement_timeout": 0.75}

JOB = Job(name="job", operation="observation", thread_id="trip", resource_id="ada")


@pytest.fixture
async def proxy(postgres_url: str) -> AsyncIterator[SilentProxy]:
    async with SilentProxy(postgres_url) as proxy:
        yield proxy


def agent_of(storage: PostgresStorage, *, diary: bool = False) -> Agent:
    observer = ScriptedModel(lambda _: "unused", name="observer")
    config = ObservationalMemoryConfig(model=observer) if diary else False
    return Agent(
        model=ScriptedModel(lambda request: f"about {asked(request)}"),
        memory=Memory(storage=storage, observational_memory=config),
    )


def asked(request: ModelRequest) -> str:
    last = request.prompt.messages[-1].parts[-1]
    assert isinstance(last, TextPart)
    return last.text.split()[-1]


async def texts(url: str, thread: str = "trip") -> list[str]:
    async with PostgresStorage(url) as storage:
        return [message.text for message in await storage.list_messages(thread)]


# --- turns -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("diary", [False, True])
async def test_a_turn_ends(proxy: SilentProxy, postgres_url: str, diary: bool) -> None:
    async with PostgresStorage(proxy.url, **SHORT) as storage:
        agent = agent_of(storage, diary=diary)
        await agent.generate("Rome", thread="trip")
        proxy.go_silent()
        async with asyncio.timeout(BOUND):
            with pytest.raises(DiaristError, match=r"postgresql://.* no answer to a statement within 1 seconds"):
                await agent.generate("Oslo", thread="trip")
        proxy.resume()
        await agent.generate("Bonn", thread="trip")
    assert await texts(postgres_url) == ["Rome", "about Rome", "Bonn", "about Bonn"]


@pytest.mark.parametrize("commits", range(1, 5))
async def test_a_turn_with_lost_replies_is_stored_once_or_not_at_all(
    proxy: SilentProxy, postgres_url: str, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifecycle, "RUN_TTL", 3.0)  # after which the next call takes the thread over
    async with PostgresStorage(proxy.url, **SHORT) as storage:
        agent = agent_of(storage)
        await agent.generate("Rome", thread="trip")
        proxy.go_silent_after(b"COMMIT", commits)
        async with asyncio.timeout(BOUND):
            with pytest.raises(DiaristError):
                await agent.generate("Oslo", thread="trip")
        proxy.resume()
        await agent.generate("Bonn", thread="trip")
    said = await texts(postgres_url)
    assert [text for text in said if "Oslo" not in text] == ["Rome", "about Rome", "Bonn", "about Bonn"]
    assert [text for text in said if "Oslo" in text] in ([], ["Oslo"], ["Oslo", "about Oslo"])


@pytest.mark.parametrize("moment", ["at its beginning", "at its end"])
async def test_a_cancelled_turn_ends_at_once(proxy: SilentProxy, postgres_url: str, moment: str) -> None:
    storage = PostgresStorage(proxy.url)  # which would wait for a minute

    def reply(_: object) -> str:
        if moment == "at its end":
            proxy.go_silent()
        return "well"

    agent = Agent(model=ScriptedModel(reply), memory=Memory(storage=storage))
    await agent_of(storage).generate("Rome", thread="trip")
    if moment == "at its beginning":
        proxy.go_silent()
    turn = asyncio.create_task(agent.generate("Oslo", thread="trip"))
    async with asyncio.timeout(30):
        await proxy.waited_for.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
    proxy.resume()
    async with asyncio.timeout(BOUND):
        await agent_of(storage).generate("Bonn", thread="trip")
        await storage.close()
    said = await texts(postgres_url)
    assert [text for text in said if text not in ("Oslo", "well")] == ["Rome", "about Rome", "Bonn", "about Bonn"]
    assert len(said) == len(set(said))


# --- storage -----------------------------------------------------------------------------------------------


async def test_storage_closes_and_opens_again(proxy: SilentProxy) -> None:
    storage = PostgresStorage(proxy.url, **SHORT)
    await asyncio.gather(*(storage.append_event(key, "data-x", {}) for key in "abc"))  # several connections
    proxy.go_silent()
    stuck = asyncio.create_task(storage.append_event("a", "data-x", {}))
    async with asyncio.timeout(BOUND):
        await proxy.waited_for.wait()
        await storage.close()
        with pytest.raises(StorageError, match=r"cannot append event in postgresql://.*statement_timeout"):
            await stuck
    proxy.resume()
    assert (await storage.append_event("b", "data-x", {})).seq == 2
    await storage.close()


async def test_many_connections_that_were_lost_unnoticed(proxy: SilentProxy) -> None:
    async with PostgresStorage(proxy.url, pool_size=20) as storage:
        await asyncio.gather(*(storage.append_event(str(number), "data-x", {}) for number in range(20)))
        proxy.forget_connections()
        assert (await storage.append_event("0", "data-x", {})).seq == 2


async def test_many_first_calls_wait_no_longer_than_one(proxy: SilentProxy) -> None:
    proxy.go_silent()
    storage = PostgresStorage(proxy.url, **SHORT)
    async with asyncio.timeout(BOUND):
        outcomes = await asyncio.gather(*(storage.get_thread("trip") for _ in range(200)), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {StorageError}
    proxy.resume()
    assert await storage.get_thread("trip") is None
    await storage.close()


async def test_a_statement_that_takes_too_long_is_ended_on_the_server_too(postgres_url: str) -> None:
    async with PostgresStorage(postgres_url, **SHORT) as storage:
        await storage.create_thread(Thread(id="trip", resource_id="ada"))
        await slow_down(postgres_url, "TRIGGER slow BEFORE UPDATE ON diarist_threads", "1 hour", result="OLD")
        async with asyncio.timeout(BOUND):
            with pytest.raises(StorageError, match="no answer to a statement"):
                await storage.update_thread("trip", title="new")
            while await fetch(postgres_url, "SELECT FROM pg_stat_activity WHERE query LIKE 'UPDATE diarist_threads%'"):
                pass
        assert await storage.get_thread("trip")


async def test_creating_and_indexing_may_take_long(postgres_url: str) -> None:
    vectors = PgVectorStore(postgres_url, **SHORT)
    await vectors.create_index("notes", dimension=2)
    await slow_down(
        postgres_url,
        "EVENT TRIGGER slow ON ddl_command_start WHEN TAG IN ('CREATE SCHEMA', 'CREATE INDEX')",
        "1500 milliseconds",
    )
    await vectors.rebuild_index("notes")
    await fetch(postgres_url, "ALTER EVENT TRIGGER slow DISABLE")
    await vectors.close()


async def test_waiting_for_the_tables_does_not_count_towards_a_timeout(postgres_url: str) -> None:
    await slow_down(
        postgres_url, "EVENT TRIGGER slow ON ddl_command_start WHEN TAG IN ('CREATE SCHEMA')", "1500 milliseconds"
    )
    storage = PostgresStorage(postgres_url, schema="elsewhere", pool_size=1, **SHORT)
    assert await asyncio.gather(*(storage.get_thread("trip") for _ in range(5))) == [None] * 5
    await storage.close()


async def slow_down(url: str, trigger: str, time: str, *, result: str = "") -> None:
    """Let the server take its time for what the trigger is of."""
    kind = "trigger" if result else "event_trigger"
    await fetch(
        url,
        f"CREATE FUNCTION slow() RETURNS {kind} LANGUAGE plpgsql AS"
        f" $$ BEGIN PERFORM pg_sleep_for('{time}'); RETURN {result}; END $$",
    )
    each = " FOR EACH ROW" if result else ""
    await fetch(url, f"CREATE {trigger}{each} EXECUTE FUNCTION slow()")


# --- queue -------------------------------------------------------------------------------------------------


async def test_handing_over_a_job_ends(proxy: SilentProxy, postgres_url: str) -> None:
    queue = PostgresQueue(proxy.url, statement_timeout=1)
    await queue.prepare()
    proxy.go_silent_after(b"procrastinate_jobs")
    async with asyncio.timeout(BOUND):
        with pytest.raises(StorageError, match=r"cannot submit a job to .*no answer within 1 seconds"):
            await queue.submit(JOB)
    proxy.resume()
    await queue.submit(JOB)
    [row] = await fetch(postgres_url, "SELECT count(*) FROM diarist_queue.procrastinate_jobs")
    assert row[0] == 1


@pytest.mark.parametrize("kind", [PostgresStorage, PgVectorStore, PostgresQueue])
@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_impossible_limits_are_refused(kind: Any, seconds: float) -> None:
    with pytest.raises(ConfigError, match="statement_timeout"):
        kind("postgresql://localhost/app", statement_timeout=seconds)
