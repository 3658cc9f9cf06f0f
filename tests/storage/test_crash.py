"""``kill -9`` loses no run that was acknowledged, and processes lose none of each other's updates."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator

import pytest

from diarist.storage import ObservationLog, Storage, Thread
from tests.storage.backends import OPENED, Backend
from tests.storage.backends import backend as backend
from tests.storage.backends import mongodb_url as mongodb_url

KILLS = {"sqlite": 24, "postgres": 12, "mongodb": 12}
PROCESSES = 3
BATCHES, ROWS = 2, 3

# Writes runs for ever, one line on standard output per run that storage has acknowledged. A run whose process
# was killed is expired at once (ttl 0), so the next process takes its thread over.
WRITER = f"""
import asyncio, sys
from diarist.exceptions import ThreadBusyError
from diarist.messages import Message, new_id
from diarist.storage import Thread
{OPENED}

async def main(address, thread_id):
    storage = opened(address)
    thread = Thread(id=thread_id, resource_id="ada")
    while True:
        run = await storage.begin_run(new_id("run"), thread, ttl=0)
        for batch in range({BATCHES}):
            rows = [Message.user(f"{{run.id}} {{batch}} {{row}} " + "x" * 3000) for row in range({ROWS})]
            await storage.append_messages(run, rows)
        await storage.finish_run(run, "committed")
        print(run.id, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""

COUNTER = f"""
import asyncio, sys
from dataclasses import replace
from diarist.exceptions import ConflictError
from diarist.storage import ObservationLog
{OPENED}

async def main(address, times):
    async with opened(address) as storage:
        for _ in range(int(times)):
            while True:
                log = await storage.get_log("thread:t")
                log = log or ObservationLog(key="thread:t", scope="thread", resource_id="ada")
                more = replace(log, observer_failures=replace(
                    log.observer_failures, count=log.observer_failures.count + 1))
                try:
                    await storage.save_log(more, expected_version=log.version)
                    break
                except ConflictError:
                    pass

asyncio.run(main(*sys.argv[1:]))
"""


class Writer:
    """A process that writes to one thread until it is killed, and what it was told is committed."""

    def __init__(self, address: str, thread_id: str) -> None:
        self.thread_id = thread_id
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, address, thread_id],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.acknowledged: list[str] = []
        self.progress = threading.Condition()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):
                with self.progress:
                    self.acknowledged.append(line.strip())
                    self.progress.notify()

    def kill_after(self, runs: int, seconds: float) -> None:
        """Kill it a moment after it has written so many runs, in the middle of whatever it does then."""
        with self.progress:
            assert self.progress.wait_for(lambda: len(self.acknowledged) >= runs, timeout=300)
            self.progress.wait_for(lambda: False, timeout=seconds)
        self.process.kill()
        self.reader.join()  # first: it is the reader's pipe, and ends with the process
        _, errors = self.process.communicate()
        assert (self.process.returncode, errors) == (-signal.SIGKILL, "")


@pytest.fixture
def killed(backend: Backend) -> Iterator[list[Writer]]:
    """Writers that were killed one by one, each followed by another on the same thread."""
    moments = random.Random(20260120)
    living = [Writer(backend.address, f"t{number}") for number in range(PROCESSES)]
    dead: list[Writer] = []
    try:
        while len(dead) < KILLS[backend.name]:
            victim = living.pop(moments.randrange(len(living)))
            victim.kill_after(moments.randint(1, 4), moments.uniform(0, 0.02))
            dead.append(victim)
            living.append(Writer(backend.address, victim.thread_id))
        for writer in living:
            writer.kill_after(1, 0)
            dead.append(writer)
        yield dead
    finally:
        for writer in living:
            writer.process.kill()


@pytest.mark.slow
def test_killed_writers_lose_nothing_that_was_acknowledged(killed: list[Writer], backend: Backend) -> None:
    assert len(killed) > KILLS[backend.name]
    if backend.name == "sqlite":
        connection = sqlite3.connect(backend.address)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        connection.close()
    asyncio.run(_check(killed, backend))


async def _check(killed: list[Writer], backend: Backend) -> None:
    acknowledged: dict[str, list[str]] = defaultdict(list)
    for writer in killed:
        acknowledged[writer.thread_id] += writer.acknowledged
    async with backend.storage() as storage:
        for thread_id, run_ids in acknowledged.items():
            await _check_thread(storage, thread_id, run_ids)


async def _check_thread(storage: Storage, thread_id: str, acknowledged: list[str]) -> None:
    run = await storage.begin_run(f"after {thread_id}", Thread(id=thread_id, resource_id="ada"))
    assert await storage.append_messages(run, []) == []
    rows = await storage.list_messages(thread_id)
    numbers = [row.seq or 0 for row in rows]
    assert numbers == sorted(set(numbers))

    by_run: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        by_run[row.run_id or ""].append(row.text.rstrip("x"))
    whole = [f"{batch} {row} " for batch in range(BATCHES) for row in range(ROWS)]
    for run_id, texts in by_run.items():
        assert texts == [f"{run_id} {text}" for text in whole][: len(texts)]
        assert len(texts) % ROWS == 0  # no append in part
        stored = await storage.get_run(run_id)
        assert stored is not None
        assert stored.state in ("committed", "interrupted")
        assert len(texts) == len(whole) or stored.state == "interrupted"
    for run_id in acknowledged:
        stored = await storage.get_run(run_id)
        assert stored is not None
        assert stored.state == "committed"
        assert len(by_run[run_id]) == len(whole)


@pytest.mark.slow
def test_processes_lose_none_of_each_others_updates(backend: Backend) -> None:
    processes, times = 4, 50
    workers = [
        subprocess.Popen([sys.executable, "-c", COUNTER, backend.address, str(times)], stderr=subprocess.PIPE)
        for _ in range(processes)
    ]
    assert [worker.communicate(timeout=600)[1] for worker in workers] == [b""] * processes
    log = asyncio.run(_log(backend))
    assert log is not None
    assert (log.version, log.observer_failures.count) == (processes * times, processes * times)


async def _log(backend: Backend) -> ObservationLog | None:
    async with backend.storage() as storage:
        return await storage.get_log("thread:t")
