"""Eight processes work on the same data: no row is lost, and no other row comes between the rows of a run."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest

from diarist.messages import Message
from diarist.storage import Thread
from tests.processes import run_at_once
from tests.storage.backends import OPENED, Backend
from tests.storage.backends import backend as backend
from tests.storage.backends import mongodb_url as mongodb_url

PROCESSES = 8
RUNS = 4
ROWS = 2

# Plays RUNS runs: one after the other on one thread, or at once on as many. Where a thread is busy it waits. Every
# third run is discarded. After each it raises a number in a log and adds an event.
WORKER = f"""
import asyncio, json, random
from dataclasses import replace
from diarist.exceptions import ConflictError, ThreadBusyError
from diarist.messages import Message
from diarist.storage import ObservationLog, Thread
{OPENED}

async def begun(storage, run_id, thread_id):
    while True:
        try:
            return await storage.begin_run(run_id, Thread(id=thread_id, resource_id="ada"))
        except ThreadBusyError:
            await asyncio.sleep(random.uniform(0, 0.1))

async def counted(storage):
    while True:
        log = await storage.get_log("resource:ada")
        log = log or ObservationLog(key="resource:ada", scope="resource", resource_id="ada")
        failures = replace(log.observer_failures, count=log.observer_failures.count + 1)
        try:
            saved = await storage.save_log(replace(log, observer_failures=failures), expected_version=log.version)
            return saved.version
        except ConflictError:
            pass

async def play(storage, run_id, thread_id, end):
    run = await begun(storage, run_id, thread_id)
    numbers = []
    for row in range({ROWS}):
        numbers += await storage.append_messages(run, [Message.user(f"{{run_id}} {{row}}")])
        await storage.heartbeat(run)
    await storage.finish_run(run, end)
    event = await storage.append_event("resource:ada", "data-x", {{}})
    version = await counted(storage)
    return dict(run=run_id, thread=thread_id, token=run.token, end=end, seqs=numbers, event=event.seq, version=version)

async def main(address, name, threads):
    async with opened(address) as storage:
        await storage.open()
        go()
        one_by_one = asyncio.Semaphore(int(threads))

        async def turn(n):
            async with one_by_one:
                end = "discarded" if n % 3 == 2 else "committed"
                return await play(storage, f"{{name}}-{{n}}", f"t{{n % int(threads)}}", end)

        print(json.dumps(await asyncio.gather(*(turn(n) for n in range({RUNS})))))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, RUNS])
async def test_processes_at_work_on_the_same_threads(backend: Backend, threads: int) -> None:
    said = run_at_once(WORKER, [[backend.address, f"p{number}", str(threads)] for number in range(PROCESSES)])
    played: list[dict[str, Any]] = [run for some in said for run in json.loads(some.removeprefix("ready\n"))]
    assert len(played) == PROCESSES * RUNS
    everyone = list(range(1, len(played) + 1))
    assert sorted(run["event"] for run in played) == everyone
    assert sorted(run["version"] for run in played) == everyone  # of savers of one version, one won

    async with backend.storage() as storage:
        log = await storage.get_log("resource:ada")
        assert log is not None
        assert log.observer_failures.count == len(played)
        for thread_id, runs in _by_thread(played).items():
            _check_order(runs)
            kept = [run for run in runs if run["end"] == "committed"]
            rows = await storage.list_messages(thread_id)
            assert [row.seq for row in rows] == [seq for run in kept for seq in run["seqs"]]
            assert [row.text for row in rows] == [f"{run['run']} {row}" for run in kept for row in range(ROWS)]
            last = await storage.begin_run(
                f"last of {thread_id}", Thread(id=thread_id, resource_id="ada")
            )  # none is live
            [seq] = await storage.append_messages(last, [Message.user("x")])
            assert seq > max((row.seq or 0 for row in rows), default=0)


def _by_thread(played: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The runs of each thread, in the order of their tokens."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in sorted(played, key=lambda run: run["token"]):
        found[run["thread"]].append(run)
    return found


def _check_order(runs: list[dict[str, Any]]) -> None:
    """Check that tokens and numbers rise, and that no other row lies between the rows of a run.

    A thread with only discarded runs is deleted with them, and its numbers start again with the next run.
    """
    tokens = [run["token"] for run in runs]
    assert tokens == sorted(set(tokens))
    last = 0
    for run in runs:
        first = run["seqs"][0]
        assert first == last + 1 or first == 1
        assert run["seqs"] == list(range(first, first + ROWS))
        last = run["seqs"][-1]


FIRST = f"""
import asyncio
from diarist.storage import Thread
{OPENED}

go()
asyncio.run(opened(sys.argv[1]).create_thread(Thread(id=sys.argv[2], resource_id="ada")))
"""


@pytest.mark.slow
async def test_first_opening_by_many_processes_at_once(backend: Backend) -> None:
    run_at_once(FIRST, [[backend.address, str(number)] for number in range(PROCESSES)])
    async with backend.storage() as storage:
        assert {thread.id for thread in (await storage.list_threads()).items} == set("01234567")
