"""Short transactions run where they are asked for, and never keep an event loop waiting."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import (
    Column,
    Connection,
    Dialect,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    bindparam,
    insert,
    select,
    update,
)

from diarist import Memory, Message, in_place, lanes
from diarist.database import Database, Schema
from diarist.exceptions import InputError, StorageError
from diarist.in_place import SHORT_ROWS, require_short
from diarist.libsql_database import LibSQLDatabase
from diarist.sqlite_database import SQLiteDatabase
from diarist.storage import SQLiteStorage

_tables = MetaData()
notes = Table("notes", _tables, Column("text", Text))
counts = Table("counts", _tables, Column("name", Text, primary_key=True), Column("value", Integer))
SCHEMA = Schema(name="notes", version=1, tables=_tables)


def add(connection: Connection, words: str) -> int:
    """Returns the thread it ran in."""
    connection.execute(insert(notes).values(text=words))
    return threading.get_ident()


def add_many(connection: Connection, words: str) -> int:
    add(connection, words)
    require_short(connection, rows=SHORT_ROWS + 1)
    return threading.get_ident()


def read_all(connection: Connection) -> list[str | None]:
    return list(connection.scalars(select(notes.c.text)))


def raise_count(connection: Connection) -> None:
    value = connection.scalar(select(counts.c.value).where(counts.c.name == "n")) or 0
    connection.execute(update(counts).where(counts.c.name == "n").values(value=value + 1))


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SQLiteDatabase]:
    database = SQLiteDatabase(tmp_path / "notes.db", SCHEMA)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def writer(database: SQLiteDatabase) -> AsyncIterator[sqlite3.Connection]:
    """Somebody else, who is writing."""
    connection = sqlite3.connect(database.location, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield connection
    connection.close()


async def test_short_work_needs_no_other_thread(database: SQLiteDatabase) -> None:
    assert await database.short_write(add, "kept") == threading.get_ident()
    assert await database.short_read(read_all) == ["kept"]


async def test_what_turns_out_to_be_long_is_done_once_and_elsewhere(database: SQLiteDatabase) -> None:
    assert await database.short_write(add_many, "kept") != threading.get_ident()
    assert await database.read(read_all) == ["kept"]


async def test_a_database_that_is_not_in_this_process_is_asked_as_always(tmp_path: Path) -> None:
    database = LibSQLDatabase(tmp_path / "notes.db", SCHEMA)
    assert await database.short_write(add_many, "kept") != threading.get_ident()
    assert await database.short_read(read_all) == ["kept"]
    await database.close()


async def test_the_loop_goes_on_while_somebody_else_writes(
    database: SQLiteDatabase, writer: sqlite3.Connection
) -> None:
    waiting = asyncio.create_task(database.short_write(add, "late"))
    for _ in range(100):
        assert await database.short_read(read_all) == []
    assert not waiting.done()
    writer.execute("COMMIT")
    await waiting
    assert await database.short_read(read_all) == ["late"]


async def test_a_writer_that_does_not_end_is_told(tmp_path: Path) -> None:
    database = SQLiteDatabase(tmp_path / "notes.db", SCHEMA, busy_timeout=0.05)
    await database.open()
    with sqlite3.connect(database.location, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match=r"cannot add in .*notes\.db: .*somebody else has been writing"):
            await database.short_write(add, "late")
    await database.close()
    other.close()


async def test_errors_are_those_of_any_transaction(database: SQLiteDatabase) -> None:
    def look_up_numbers(connection: Connection) -> None:
        connection.exec_driver_sql("SELECT number FROM nowhere")

    def add_and_fail(connection: Connection) -> None:
        add(connection, "lost")
        raise LookupError("on purpose")

    with pytest.raises(StorageError, match=r"cannot look up numbers in .*notes\.db: no such table"):
        await database.short_read(look_up_numbers)
    with pytest.raises(InputError, match=r"cannot add: .* is not valid Unicode"):
        await database.short_write(add, "half a character: \ud800")
    with pytest.raises(LookupError, match="on purpose"):
        await database.short_write(add_and_fail)
    assert await database.read(read_all) == []


async def test_who_is_cancelled_begins_nothing(database: SQLiteDatabase) -> None:
    async def write() -> None:
        asyncio.tasks.current_task().cancel()  # type: ignore[union-attr]
        await database.short_write(add, "lost")

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(write())
    assert await database.read(read_all) == []


def others() -> tuple[Iterator[int], asyncio.Task[None]]:
    """A task that takes its turn of the loop whenever it may, and how often it has had one."""
    turns = count()

    async def take_turns() -> None:
        while True:
            next(turns)
            await asyncio.sleep(0)

    return turns, asyncio.create_task(take_turns())


async def test_short_work_in_a_row_lets_others_have_their_turn(
    database: SQLiteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_place, "FREE", 0.0)  # so that each has used up what there is
    turns, other = others()
    for _ in range(20):
        await database.short_read(read_all)
    other.cancel()
    assert next(turns) >= 19


async def test_who_goes_on_and_on_leaves_others_their_share(database: SQLiteDatabase) -> None:
    done = [0] * 5

    async def go_on(number: int) -> None:
        while sum(done) < 5_000:
            await database.short_read(read_all)
            done[number] += 1

    await asyncio.gather(*map(go_on, range(5)))
    assert min(done) > 500


async def test_after_a_slow_disk_the_threads_do_the_work(
    database: SQLiteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_place, "SLOW", -1.0)  # so that any transaction is slow
    assert await database.short_write(add, "slow") == threading.get_ident()
    assert await database.short_write(add, "next") != threading.get_ident()
    assert await database.read(read_all) == ["slow", "next"]


async def test_the_log_of_the_file_does_not_grow_for_ever(database: SQLiteDatabase) -> None:
    with sqlite3.connect(database.location) as other:
        other.execute("PRAGMA user_version = 7")
    other.close()
    for number in range(3_000):
        await database.short_write(add, f"{number} " * 200)
        if number % 100 == 0:
            await database.write(read_all)  # what is to be done in the writing thread is done
    assert _log_size(database) < 10_000_000
    with sqlite3.connect(database.location) as other:
        assert other.execute("PRAGMA user_version").fetchone() == (7,)  # the application's own
    other.close()


@pytest.mark.parametrize("at_once", [1, 8])
async def test_counters_lose_no_update(database: SQLiteDatabase, at_once: int) -> None:
    """In several event loops, each in its thread, by both ways."""
    await database.write(lambda connection: connection.execute(insert(counts).values(name="n", value=0)))
    ways = [database.short_write, database.write]
    threads = [threading.Thread(target=_count, args=(ways[n % 2], at_once)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    found = await database.read(lambda connection: connection.scalar(select(counts.c.value)))
    assert found == 4 * at_once * 25


def _count(way: Callable[[Callable[[Connection], None]], Awaitable[None]], at_once: int) -> None:
    async def one() -> None:
        for _ in range(25):
            await way(raise_count)

    async def several() -> None:
        await asyncio.gather(*(one() for _ in range(at_once)))

    asyncio.run(several())


async def test_it_opens_again_after_closing(database: Database) -> None:
    await database.short_write(add, "before")
    await database.close()
    await database.short_write(add, "after")
    assert await database.short_read(read_all) == ["before", "after"]


async def test_closing_waits_for_what_was_asked_for_before(tmp_path: Path) -> None:
    database = SQLiteDatabase(tmp_path / "notes.db", SCHEMA)
    await database.open()
    writing = [asyncio.create_task(database.short_write(add, str(n))) for n in range(20)]
    await asyncio.sleep(0)
    await database.close()
    assert not Path(f"{database.location}-wal").exists()  # noqa: ASYNC240
    await asyncio.gather(*writing)
    assert await database.read(read_all) == [str(n) for n in range(20)]
    await database.close()


async def test_closing_waits_for_what_turns_out_to_be_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "PATIENCE", 0)
    database = SQLiteDatabase(tmp_path / "notes.db", SCHEMA)
    await database.open()
    writing = [asyncio.create_task(database.short_write(add_many, str(n))) for n in range(20)]
    await asyncio.sleep(0)
    await database.close()
    await asyncio.gather(*writing)
    assert sorted(await database.read(read_all), key=str) == sorted(map(str, range(20)))
    await database.close()


async def test_short_writes_come_between_long_ones_that_never_end(database: SQLiteDatabase) -> None:
    done = asyncio.Event()

    async def write_on() -> None:
        while not done.is_set():
            await database.write(add, "long")

    busy = [asyncio.create_task(write_on()) for _ in range(8)]
    for _ in range(60):
        await database.short_write(add, "short")
    done.set()
    await asyncio.gather(*busy)


async def test_many_at_once_leave_the_loop_its_time(database: SQLiteDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one turn of the loop take no longer than they may; then all others have their turn."""
    monkeypatch.setattr(in_place, "BURST", 0)  # so that one is enough
    turns, other = others()
    await asyncio.gather(*(database.short_write(add, "x") for _ in range(50)))
    other.cancel()
    assert next(turns) >= 50


async def test_the_log_of_a_file_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "notes.db")
    database = SQLiteDatabase(tmp_path / "link.db", SCHEMA)
    for _ in range(700):
        await database.short_write(add, "x" * 16_000)
    await database.write(read_all)
    assert (tmp_path / "real" / "notes.db-wal").stat().st_size < 8_000_000
    await database.close()


async def test_nobody_overtakes(database: SQLiteDatabase, writer: sqlite3.Connection) -> None:
    """Not even while somebody else writes, or where some of the work is long."""
    ways = [add, add, add_many, add, add]
    writing = [asyncio.create_task(database.short_write(way, str(n))) for n, way in enumerate(ways)]
    for _ in range(20):
        await asyncio.sleep(0)
    writer.execute("COMMIT")
    writing += [asyncio.create_task(database.short_write(add, str(n))) for n in range(5, 8)]
    await asyncio.gather(*writing)
    assert await database.read(read_all) == [str(n) for n in range(8)]


async def test_long_writes_come_between_short_ones_that_never_end(database: SQLiteDatabase) -> None:
    done = asyncio.Event()

    async def write_on() -> int:
        count = 0
        while not done.is_set():
            await database.short_write(add, "x" * 4_000)
            count += 1
        return count

    busy = [asyncio.create_task(write_on()) for _ in range(8)]
    for _ in range(60):
        await database.write(add, "long")
    done.set()
    assert all(await asyncio.gather(*busy))
    assert _log_size(database) < 10_000_000


def _log_size(database: SQLiteDatabase) -> int:
    return Path(f"{database.location}-wal").stat().st_size


async def test_few_writes_each_by_many_processes_do_not_fill_the_log(database: SQLiteDatabase) -> None:
    """Here objects of one process, which know as little of each other; one that has the file open keeps it from being
    tidied up by whoever closes it last."""
    for _ in range(30):
        other = SQLiteDatabase(database.location, SCHEMA)
        for _ in range(50):
            await other.short_write(add, "x" * 8_000)
        await other.close()
    assert _log_size(database) < 10_000_000


class Interrupting(TypeDecorator[str]):
    """Values for which the driver is never asked: somebody presses Ctrl-C before."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("kind", [Interrupting, None], ids=["in SQLAlchemy", "in our own code"])
def test_an_interrupt_amid_a_transaction_harms_nobody(tmp_path: Path, kind: type[Interrupting] | None) -> None:
    """As from the keyboard: it comes up as it is, and the next call finds everything in order."""
    database = SQLiteDatabase(tmp_path / "notes.db", SCHEMA)

    def interrupted(connection: Connection) -> None:
        add(connection, "lost")
        if kind is None:
            raise KeyboardInterrupt
        connection.execute(insert(notes).values(text=bindparam("new", type_=kind())), {"new": "lost"})

    with asyncio.Runner() as runner:
        runner.run(database.open())
        with pytest.raises(KeyboardInterrupt):
            runner.run(database.short_write(interrupted))
        runner.run(database.short_write(add, "kept"))
        assert runner.run(database.short_read(read_all)) == ["kept"]
        runner.run(database.close())


@pytest.mark.parametrize("texts", [["x" * 300_000], ["x" * 9_000, "y" * 9_000, "z" * 9_000], ["話" * 5_000]])
async def test_what_is_long_to_store_or_to_read_holds_no_event_loop_up(
    tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    run = in_place.InPlace.run

    def watched(self: in_place.InPlace, writes: bool, work: Callable[..., object], *args: object) -> object:
        found = run(self, writes, work, *args)
        done.append(work.__name__)
        return found

    monkeypatch.setattr(in_place.InPlace, "run", watched)
    async with SQLiteStorage(tmp_path / "memory.db") as storage:
        await Memory(storage=storage).save_messages([Message.user(text) for text in texts], thread="t")
        assert "begin_run" in done
        assert "append_messages" not in done
        assert "finish_run" not in done
        assert [row.text for row in await storage.list_messages("t")] == texts
        assert ("list_messages" in done) == (len(texts[0]) < 200_000)
