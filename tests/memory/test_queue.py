"""Background work in worker processes: real ones, over a real PostgreSQL, with a model behind HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from procrastinate.schema import SchemaManager
from typer.testing import CliRunner

from diarist import (
    Agent,
    Memory,
    ObservationalMemoryConfig,
    ObservationConfig,
    Processor,
    ReflectionConfig,
    tool,
)
from diarist.cli.app import app
from diarist.exceptions import ConfigError, SchemaError, StorageError
from diarist.memory.observational.jobs import Job
from diarist.memory.observational.log.transitions import Operation
from diarist.memory.queue import PostgresQueue
from diarist.processors import ProcessOutputResultArgs
from diarist.storage import InMemoryStorage, ObservationLog
from diarist.storage.postgres import PostgresStorage
from diarist.testing import ScriptedModel, ToolCall
from tests.loopback.openai_server import OpenAIServer
from tests.loopback.server import Answer, Hang
from tests.postgres import fetch, run_sql
from tests.processes import run_at_once

NOWHERE = "http://127.0.0.1:9/v1"

APP = """
import os
from diarist import Memory, ObservationalMemoryConfig, ObservationConfig, ReflectionConfig
from diarist.memory.queue import PostgresQueue
from diarist.storage.postgres import PostgresStorage

url = os.environ["DATABASE"]
memory = Memory(
    storage=PostgresStorage(url),
    observational_memory=ObservationalMemoryConfig(
        model="openai/observer",
        observation=ObservationConfig(message_tokens=400, buffer_tokens=100, block_after=20_000),
        reflection=ReflectionConfig(observation_tokens=4000),
    ),
    queue=PostgresQueue(url),
)
number = 5
"""
"""What the workers import; ``memory_of`` is the same for the process that talks."""


def memory_of(url: str) -> Memory:
    """Its models are out of this process's reach: what is noted, a worker has noted."""
    return Memory(
        storage=PostgresStorage(url),
        observational_memory=ObservationalMemoryConfig(
            model="openai/observer",
            observation=ObservationConfig(message_tokens=400, buffer_tokens=100, block_after=20_000),
            reflection=ReflectionConfig(observation_tokens=4000),
        ),
        queue=PostgresQueue(url),
    )


def agent_of(memory: Memory, **options: Any) -> Agent:
    return Agent(model=ScriptedModel(lambda _: "Understood, noted.", name="actor"), memory=memory, **options)


class Workers:
    """Starts workers, each in a process of its own."""

    def __init__(self, folder: Path, url: str, models: str) -> None:
        (folder / "app.py").write_text(APP)
        self.folder = folder
        self.environment = {**os.environ, "DATABASE": url, "OPENAI_BASE_URL": models, "OPENAI_API_KEY": "test"}
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *options: str) -> subprocess.Popen[str]:
        with (self.folder / f"worker-{len(self.started)}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", "from diarist.cli import main; main()", "worker", "app:memory", *options],
                cwd=self.folder,
                env=self.environment,
                stderr=log,
                text=True,
            )
        self.started.append(process)
        return process

    async def has_said(self, words: str) -> bool:
        return words in (self.folder / "worker-0.log").read_text()

    def stop(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


@pytest.fixture
def workers(
    tmp_path: Path, postgres_url: str, openai_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workers]:
    monkeypatch.setenv("OPENAI_BASE_URL", NOWHERE)
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    workers = Workers(tmp_path, postgres_url, openai_server.base_url)
    yield workers
    workers.stop()


def notes(number: int) -> list[Answer]:
    """Answers of an Observer, each with something new."""
    line = "<diary>\nDate: 2026-03-02\n- 🔴 Ada has booked seat {0} of train {0}00\n</diary>"
    return [Answer(text=[line.format(n)]) for n in range(1, number + 1)]


async def until(condition: Callable[[], Awaitable[Any]]) -> Any:
    """What the condition comes to once it is true."""
    async with asyncio.timeout(120):
        while not (found := await condition()):  # noqa: ASYNC110 - it is for another process to make it true
            await asyncio.sleep(0.05)
    return found


async def talk(agent: Agent, turns: int, *, thread: str = "trip", first: int = 1) -> None:
    for number in range(first, first + turns):
        await agent.generate(f"message {number}: " + "I fly to Rome. " * 15, thread=thread)


async def jobs(url: str, status: str) -> list[dict[str, Any]]:
    """The waiting (``todo``) or running (``doing``) jobs of conversations."""
    there = await fetch(url, "SELECT to_regclass('diarist_queue.procrastinate_jobs') AS name")
    if there[0]["name"] is None:
        return []
    query = "SELECT * FROM diarist_queue.procrastinate_jobs WHERE status::text = $1 AND task_name = 'diarist.work'"
    return [dict(row) for row in await fetch(url, query, status)]


async def idle(url: str) -> bool:
    return not await jobs(url, "todo") and not await jobs(url, "doing")


def noted(log: ObservationLog) -> list[str]:
    return [entry.text for entry in log.entries]


# --- what a worker does -------------------------------------------------------------------------------------


async def test_the_workers_make_all_notes_of_a_conversation(
    workers: Workers, postgres_url: str, openai_server: OpenAIServer
) -> None:
    openai_server.will(*notes(50))
    workers.start()
    async with memory_of(postgres_url) as memory:
        agent = agent_of(memory)
        for turn in range(1, 9):
            await talk(agent, 1, first=turn)
            await memory.settled()
            await until(lambda: idle(postgres_url))
        log = await memory.diary.get(thread="trip")
        assert [entry.state for entry in log.entries].count("active") > 0
        assert [f"seat {n} of" in text for n, text in enumerate(noted(log), start=1)] == [True] * len(log.entries)
        assert len(openai_server.requests) == len(log.entries)
        events = {event.type for event in await memory.storage.list_events("thread:trip")}
        assert {"data-om-buffering-start", "data-om-buffering-end", "data-om-activation"} <= events
        assert "data-om-buffering-failed" not in events


@pytest.mark.slow
async def test_a_job_is_handed_over_once_while_it_waits_or_is_done(
    workers: Workers, postgres_url: str, openai_server: OpenAIServer
) -> None:
    openai_server.will(Hang())
    async with memory_of(postgres_url) as memory:
        agent = agent_of(memory)
        await talk(agent, 6)
        await memory.settled()
        assert len(await jobs(postgres_url, "todo")) == 1
        workers.start()
        await until(lambda: jobs(postgres_url, "doing"))
        await talk(agent, 3, first=7)
        await memory.settled()
        assert await jobs(postgres_url, "todo") == []


@pytest.mark.slow
async def test_two_workers_never_do_one_cycle_twice(
    workers: Workers, postgres_url: str, openai_server: OpenAIServer
) -> None:
    openai_server.will(*notes(200))
    workers.start()
    workers.start()
    async with memory_of(postgres_url) as memory:
        agent = agent_of(memory)
        threads = [f"trip-{number}" for number in range(4)]
        await asyncio.gather(*(talk(agent, 8, thread=thread) for thread in threads))
        await memory.settled()
        await until(lambda: idle(postgres_url))
        logs = [await memory.diary.get(thread=thread) for thread in threads]
        made = [len(log.entries) for log in logs]
        assert (min(made) > 0, len(openai_server.requests)) == (True, sum(made))


# --- what happens to it -------------------------------------------------------------------------------------


async def age(url: str) -> None:
    """Let the minutes pass that a dead worker is waited for."""
    await fetch(url, "UPDATE diarist_queue.procrastinate_workers SET last_heartbeat = now() - interval '1 hour'")


@pytest.mark.slow
async def test_the_work_of_a_killed_worker_is_done_by_another(
    workers: Workers, postgres_url: str, openai_server: OpenAIServer
) -> None:
    openai_server.will(Hang(), *notes(50))
    async with memory_of(postgres_url) as memory:
        await talk(agent_of(memory), 5)
        await memory.settled()
        killed = workers.start()
        await openai_server.came()
        killed.kill()
        await openai_server.client_left()
        assert len(await jobs(postgres_url, "doing")) == 1
        await age(postgres_url)
        workers.start()

        async def put_back() -> bool:
            return any(job["scheduled_at"] for job in await jobs(postgres_url, "todo"))

        await until(put_back)  # since the lease of the dead holds for up to a minute
        assert noted(await memory.diary.get(thread="trip")) == []
        await fetch(postgres_url, "UPDATE diarist_leases SET expires_at = 0")
        await fetch(
            postgres_url, "UPDATE diarist_queue.procrastinate_jobs SET scheduled_at = NULL WHERE status = 'todo'"
        )
        await until(lambda: idle(postgres_url))
        assert noted(await memory.diary.get(thread="trip"))


@pytest.mark.slow
async def test_a_worker_that_is_told_to_stop_finishes_what_it_does(
    workers: Workers, postgres_url: str, openai_server: OpenAIServer
) -> None:
    openai_server.will(*notes(1))
    worker = workers.start()
    async with memory_of(postgres_url) as memory:
        await talk(agent_of(memory), 5)
        await openai_server.came()
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, 60) == 0
        assert len(noted(await memory.diary.get(thread="trip"))) == 1
        assert await jobs(postgres_url, "doing") == []


@pytest.mark.slow
async def test_unfinished_work_of_a_stopped_worker_is_queued_again(
    workers: Workers, postgres_url: str, openai_server: OpenAIServer
) -> None:
    openai_server.will(Hang(), *notes(1))
    worker = workers.start("--grace", "0")
    async with memory_of(postgres_url) as memory:
        await talk(agent_of(memory), 5)
        await openai_server.came()
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, 60) == 0
        assert [len(await jobs(postgres_url, status)) for status in ("todo", "doing")] == [1, 0]
        workers.start()
        await until(lambda: idle(postgres_url))
        assert noted(await memory.diary.get(thread="trip"))


@asynccontextmanager
async def outage(postgres_server: str) -> AsyncGenerator[None]:
    """Ends all connections of the database, and accepts none in the block."""
    await fetch(postgres_server, "ALTER DATABASE app ALLOW_CONNECTIONS false")
    try:
        await fetch(postgres_server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'app'")
        yield
    finally:
        await fetch(postgres_server, "ALTER DATABASE app ALLOW_CONNECTIONS true")


@pytest.mark.slow
async def test_a_worker_stops_amid_an_outage_of_its_database(
    workers: Workers, postgres_server: str, postgres_url: str, openai_server: OpenAIServer
) -> None:
    openai_server.will(Hang())
    worker = workers.start("--grace", "0")
    async with memory_of(postgres_url) as memory:
        await talk(agent_of(memory), 5)
        await openai_server.came()
        async with outage(postgres_server):
            worker.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(worker.wait, 120) == 0


@pytest.mark.slow
async def test_a_worker_outlives_an_outage_of_its_database(
    workers: Workers, postgres_server: str, postgres_url: str, openai_server: OpenAIServer
) -> None:
    openai_server.will(*notes(50))
    worker = workers.start()
    async with memory_of(postgres_url) as memory:
        agent = agent_of(memory)
        await talk(agent, 5)
        await until(lambda: idle_with_notes(memory, postgres_url))
        async with outage(postgres_server):
            await until(lambda: workers.has_said("trying again"))
        await talk(agent, 5, thread="second")
        await until(lambda: idle_with_notes(memory, postgres_url, "second"))
        assert worker.poll() is None


async def idle_with_notes(memory: Memory, url: str, thread: str = "trip") -> bool:
    return await idle(url) and bool(noted(await memory.diary.get(thread=thread)))


async def test_a_model_that_fails_is_told_and_the_job_ends(
    workers: Workers, postgres_url: str, openai_server: OpenAIServer
) -> None:
    openai_server.will(*[Answer(text=[" "])] * 10)
    workers.start()
    async with memory_of(postgres_url) as memory:
        await talk(agent_of(memory), 5)
        await memory.settled()

        async def told() -> list[str]:
            return [e.type for e in await memory.storage.list_events("thread:trip") if e.type.endswith("-failed")]

        assert await until(told) == ["data-om-buffering-failed"]
        await until(lambda: idle(postgres_url))


class Away(InMemoryStorage):
    """Cannot save a diary at first."""

    away = True

    async def save_log(self, *args: Any, **options: Any) -> ObservationLog:
        if self.away:
            raise StorageError("the server is away")
        return await super().save_log(*args, **options)


@pytest.mark.slow
async def test_notes_that_cannot_be_saved_are_made_again_later(postgres_url: str) -> None:
    small = ObservationConfig(message_tokens=400, buffer_tokens=100, block_after=20_000)
    diary = ObservationalMemoryConfig(model="extractive", observation=small)
    storage = Away()
    async with Memory(storage=storage, observational_memory=diary, queue=PostgresQueue(postgres_url)) as memory:
        await talk(agent_of(memory), 5)
        await memory.settled()
        worker = asyncio.create_task(memory.run_worker(grace=0))

        async def put_off() -> bool:
            return any(job["scheduled_at"] for job in await jobs(postgres_url, "todo"))

        await until(put_off)
        storage.away = False
        await fetch(postgres_url, "UPDATE diarist_queue.procrastinate_jobs SET scheduled_at = NULL")
        await until(lambda: idle_with_notes(memory, postgres_url))
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


# --- the queue alone ----------------------------------------------------------------------------------------


@asynccontextmanager
async def working(queue: PostgresQueue) -> AsyncGenerator[list[str]]:
    """A worker in this process; gives the names of the jobs that it does."""
    done: list[str] = []

    async def work(job: Job) -> bool:
        done.append(job.name)
        return True

    worker = asyncio.create_task(queue.run(work, concurrency=2, grace=0))
    yield done
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


def wanted(name: str, operation: Operation = "observation") -> Job:
    return Job(name=name, operation=operation, thread_id="t", resource_id="t")


async def has(seen: list[str], name: str) -> bool:
    return name in seen


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        ({"urgency": 1}, "fields that this version of diarist does not know: urgency"),
        ({"operation": "digestion"}, "operation"),
    ],
)
async def test_a_job_of_another_version_is_kept_as_failed(
    postgres_url: str, caplog: pytest.LogCaptureFixture, other: dict[str, Any], complaint: str
) -> None:
    queue = PostgresQueue(postgres_url)
    await queue.submit(wanted("of another version"))
    change = "UPDATE diarist_queue.procrastinate_jobs SET args = jsonb_set(args, '{job}', args->'job' || $1::jsonb)"
    await fetch(postgres_url, change, json.dumps(other))
    await queue.submit(wanted("of this one"))
    async with working(queue) as done:
        await until(lambda: jobs(postgres_url, "failed"))
        await until(lambda: has(done, "of this one"))
        await until(lambda: idle(postgres_url))
    assert done == ["of this one"]
    (failed,) = await jobs(postgres_url, "failed")
    assert "of another version" in failed["args"]
    said = next(record.message for record in caplog.records if record.name == "diarist" and complaint in record.message)
    assert "background work 'of another version' is not understood" in said


async def test_a_reflection_does_not_wait_for_an_observation_that_is_put_off(postgres_url: str) -> None:
    queue = PostgresQueue(postgres_url)
    await queue.put_back(wanted("thread:t:observation"), attempt=2, delay=3600)
    await queue.submit(wanted("thread:t:reflection", "reflection"))
    async with working(queue) as done:
        await until(lambda: has(done, "thread:t:reflection"))


async def test_each_queue_looks_for_dead_workers(postgres_url: str) -> None:
    async def looked_after() -> set[str]:
        query = "SELECT DISTINCT periodic_id FROM diarist_queue.procrastinate_periodic_defers"
        return {row[0] for row in await fetch(postgres_url, query)}

    async def both() -> bool:
        return len(await looked_after()) == 2

    one, two = (PostgresQueue(postgres_url, name=name) for name in ("one", "two"))
    await one.prepare()
    async with working(one):
        await until(looked_after)
        async with working(two):  # most often in the same minute
            await until(both)


# --- the runs -----------------------------------------------------------------------------------------------


class Refuses(Processor[Any]):
    """Discards each run at its end."""

    id = "refuses"

    async def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
        args.abort("no")


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True], ids=["while the run is live", "after its end"])
async def test_of_a_discarded_run_no_worker_leaves_a_note(
    late: bool, workers: Workers, postgres_url: str, openai_server: OpenAIServer
) -> None:
    openai_server.will(*notes(50))
    steps = 0

    @tool
    async def read() -> str:
        """Read on."""
        nonlocal steps
        steps += 1
        if steps == 5 and not late:
            await openai_server.came()
        return "secret " * 100

    calls = [ToolCall("read", {}) for _ in range(6)]
    async with memory_of(postgres_url) as memory:
        await agent_of(memory).generate("hello", thread="trip")
        if not late:
            workers.start()
        agent = Agent(
            model=ScriptedModel(*calls, "done"), tools=[read], memory=memory, output_processors=[Refuses()], max_steps=9
        )
        result = await agent.generate("go", thread="trip")
        assert (result.tripwire is not None, steps) == (True, 6)
        await memory.settled()
        if late:
            assert len(await jobs(postgres_url, "todo")) == 1
            workers.start()
        await until(lambda: idle(postgres_url))
        log = await memory.storage.get_log("thread:trip")
        assert log is not None
        assert len(log.tombstones) == 1
        noted = [source for entry in log.entries for source in entry.sources]
        assert all(source.last_seq <= 2 for source in noted)  # "hello" may be noted: its run has ended well
        assert bool(openai_server.requests) is not late  # a slow run may have been noted twice before its end


async def test_a_run_does_not_depend_on_the_queue(
    postgres_url: str, openai_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without queue or worker the notes are made when a run needs them, in its own process."""
    openai_server.will(*notes(50))
    monkeypatch.setenv("OPENAI_BASE_URL", openai_server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    memory = Memory(
        storage=PostgresStorage(postgres_url),
        observational_memory=ObservationalMemoryConfig(
            model="openai/observer", observation=ObservationConfig(message_tokens=400, buffer_tokens=100)
        ),
        queue=PostgresQueue("postgresql://127.0.0.1:9/nowhere"),
    )
    async with memory:
        await talk(agent_of(memory), 9)
        assert noted(await memory.diary.get(thread="trip"))
    assert "cannot submit a job to the queue in postgresql://127.0.0.1:9/nowhere" in caplog.text


# --- the tables ---------------------------------------------------------------------------------------------

SUBMIT = """
import asyncio, sys
from diarist.memory.observational.jobs import Job
from diarist.memory.queue import PostgresQueue
queue = PostgresQueue(sys.argv[1])
go()
asyncio.run(queue.submit(Job(name="same", operation="observation", thread_id="t", resource_id="t")))
"""


@pytest.mark.slow
def test_processes_that_start_at_once_share_the_tables_and_the_job(postgres_url: str) -> None:
    run_at_once(SUBMIT, [[postgres_url]] * 4)
    assert run_sql(postgres_url, "SELECT count(*) FROM diarist_queue.procrastinate_jobs")[0][0] == 1


def migrations() -> list[str]:
    return sorted(file.stem for file in Path(SchemaManager.get_migrations_path()).glob("*.sql"))


async def test_older_tables_are_migrated_and_newer_ones_refused(postgres_url: str) -> None:
    job = Job(name="first", operation="observation", thread_id="t", resource_id="t")
    await PostgresQueue(postgres_url).submit(job)
    *_, before, newest = migrations()
    remember = "UPDATE diarist_queue.diarist_queue SET last_migration = $1"
    triggers = "SELECT count(*) FROM pg_trigger WHERE tgname = 'procrastinate_trigger_status_events_update_v1'"
    name = "diarist_queue.procrastinate_trigger_function_status_events_update_v1"
    await fetch(postgres_url, f"DROP FUNCTION {name} CASCADE")  # which the last migration makes
    await fetch(postgres_url, remember, before)
    await PostgresQueue(postgres_url).submit(job)
    assert (await fetch(postgres_url, triggers))[0][0] == 1
    assert (await fetch(postgres_url, "SELECT * FROM diarist_queue.diarist_queue")) == [(newest,)]
    await fetch(postgres_url, remember, "99.00.00_01_pre")
    with pytest.raises(SchemaError, match="newer procrastinate"):
        await PostgresQueue(postgres_url).submit(job)


async def test_queues_of_other_names_and_schemas_are_apart(postgres_url: str) -> None:
    job = Job(name="same", operation="observation", thread_id="t", resource_id="t")
    for queue in (
        PostgresQueue(postgres_url),
        PostgresQueue(postgres_url, name="other"),
        PostgresQueue(postgres_url, schema='odd "name\\ of it'),
    ):
        await queue.submit(job)
        await queue.submit(job)
    assert len(await jobs(postgres_url, "todo")) == 2
    assert len({waiting["lock"] for waiting in await jobs(postgres_url, "todo")}) == 2, "none waits for the other's"
    odd = await fetch(postgres_url, 'SELECT * FROM "odd ""name\\ of it".procrastinate_jobs')
    assert len(odd) == 1


# --- what is refused ----------------------------------------------------------------------------------------


async def test_a_memory_says_what_a_queue_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    queue = PostgresQueue("postgresql://localhost/app")
    with pytest.raises(ConfigError, match="queue has no effect without observational memory"):
        Memory(storage=InMemoryStorage(), queue=queue)
    with pytest.raises(ConfigError, match="pass queue="):
        await Memory(storage=InMemoryStorage(), observational_memory=True).run_worker()
    with pytest.raises(ConfigError, match="the Observer has no model"):
        await Memory(storage=InMemoryStorage(), observational_memory=True, queue=queue).run_worker()
    with pytest.raises(ConfigError, match="concurrency must be at least 1"):
        await Memory(storage=InMemoryStorage(), observational_memory=True, queue=queue).run_worker(concurrency=0)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("mysql://localhost/app", {}),
        ("postgresql://localhost/app?sslmood=require", {}),
        ("postgresql://localhost/app", {"schema": "pg_mine"}),
        ("postgresql://localhost/app", {"name": ""}),
    ],
)
def test_a_queue_that_cannot_be_is_refused(url: str, options: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        PostgresQueue(url, **options)


async def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    queue = PostgresQueue("postgresql://ada:secret@127.0.0.1:9/app")
    with pytest.raises(StorageError, match="start PostgreSQL") as caught:
        await queue.submit(Job(name="n", operation="observation", thread_id="t", resource_id="t"))
    assert "postgresql://ada@127.0.0.1:9/app" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "status", "words"),
    [
        ("app", 2, "MODULE:NAME"),
        ("nothing:memory", 2, "there is no module 'nothing'"),
        ("app:nothing", 2, "the module 'app' has no 'nothing'"),
        ("app:number", 2, "app:number must be a Memory, not int"),
        ("app:memory", 1, "start PostgreSQL"),
    ],
)
def test_the_command_names_the_mistake(
    place: str, status: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "app", raising=False)
    monkeypatch.setenv("DATABASE", "postgresql://127.0.0.1:9/app")
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    result = CliRunner().invoke(app, ["worker", place])
    assert (result.exit_code, words in result.stderr) == (status, True), result.stderr
