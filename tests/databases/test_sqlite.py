"""Transactions on an SQLite file, the version of its tables, and the length of its log."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diarist.databases import sqlite as sqlite_database
from diarist.databases.base import Connection, Schema
from diarist.databases.blocking import ThreadConnection
from diarist.databases.sqlite import SQLiteDatabase
from diarist.exceptions import InputError, SchemaError, StorageError


async def create(connection: Connection) -> None:
    await connection.execute("CREATE TABLE notes (text TEXT)")


SCHEMA = Schema(name="notes", version=1, create=create)


async def add(connection: Connection, words: str) -> int:
    """Returns the thread it ran in."""
    await connection.execute("INSERT INTO notes (text) VALUES (:words)", words=words)
    return threading.get_ident()


async def read_all(connection: Connection) -> list[str | None]:
    return [row[0] for row in await connection.fetch("SELECT text FROM notes ORDER BY rowid")]


async def count_up(connection: Connection) -> None:
    await add(connection, str(await connection.value("SELECT count(*) FROM notes")))


async def delete_all(connection: Connection) -> None:
    await connection.execute("DELETE FROM notes")


async def look_up_numbers(connection: Connection) -> None:
    await connection.execute("SELECT number FROM nowhere")


async def add_and_fail(connection: Connection) -> None:
    await add(connection, "lost")
    raise LookupError("on purpose")


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SQLiteDatabase]:
    database = SQLiteDatabase(tmp_path / "notes.db", SCHEMA)
    await database.open()
    yield database
    await database.close()


async def with_schema(database: SQLiteDatabase, schema: Schema) -> list[str | None]:
    """What the same file holds for a program that knows another schema."""
    other = SQLiteDatabase(database.location, schema)
    try:
        return await other.read(read_all)
    finally:
        await other.close()


# --- transactions ------------------------------------------------------------------------------------------


async def test_an_exception_rolls_all_of_it_back(database: SQLiteDatabase) -> None:
    await database.write(add, "kept")
    with pytest.raises(LookupError, match="on purpose"):
        await database.write(add_and_fail)
    assert await database.read(read_all) == ["kept"]


async def test_errors_say_what_was_done_where_and_why(database: SQLiteDatabase) -> None:
    with pytest.raises(StorageError, match=r"cannot look up numbers in .*notes\.db: no such table") as caught:
        await database.read(look_up_numbers)
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    with pytest.raises(InputError, match=r"cannot add: .* is not valid Unicode"):
        await database.write(add, "half a character: \ud800")
    assert await database.read(read_all) == []


async def test_no_statement_runs_in_the_thread_of_the_event_loop(database: SQLiteDatabase) -> None:
    writers = {await database.write(add, "x") for _ in range(5)}
    assert len(writers) == 1
    assert threading.get_ident() not in writers


async def test_work_waits_for_its_connection_only(database: SQLiteDatabase) -> None:
    async def sleep_a_moment(connection: Connection) -> None:
        await add(connection, "lost")
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="may wait for its connection only"):
        await database.write(sleep_a_moment)
    assert await database.read(read_all) == []


async def test_it_opens_once_no_other_program_writes(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "notes.db", isolation_level=None) as other:
        other.execute("PRAGMA journal_mode = WAL")
        database = SQLiteDatabase(tmp_path / "notes.db", SCHEMA, busy_timeout=0.05)
        other.execute("BEGIN IMMEDIATE")
        for _ in range(2):
            with pytest.raises(StorageError, match="another program has been writing"):
                await database.open()
        other.execute("COMMIT")
    await database.open()
    assert await database.read(read_all) == []
    await database.close()


async def test_the_loop_goes_on_while_another_program_writes(database: SQLiteDatabase) -> None:
    writer = sqlite3.connect(database.location, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(database.write(add, "late"))
    for _ in range(100):
        assert await database.read(read_all) == []
    assert not waiting.done()
    writer.execute("COMMIT")
    await waiting
    assert await database.read(read_all) == ["late"]
    writer.close()


async def test_writes_happen_in_the_order_they_were_asked_for(database: SQLiteDatabase) -> None:
    await asyncio.gather(*(database.write(add, str(number)) for number in range(20)))
    assert await database.read(read_all) == [str(number) for number in range(20)]


async def test_a_cancelled_write_leaves_nothing(database: SQLiteDatabase) -> None:
    async def write() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await database.write(add, "lost")

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(write())
    assert await database.read(read_all) == []


@pytest.mark.parametrize("at_once", [1, 8])
async def test_counters_lose_no_update(database: SQLiteDatabase, at_once: int) -> None:
    """A transaction that reads first and writes later keeps others from writing in between: in several event loops, and
    through another connection to the file."""
    other = SQLiteDatabase(database.location, SCHEMA)

    async def several(one: SQLiteDatabase) -> None:
        for _ in range(10):
            await asyncio.gather(*(one.write(count_up) for _ in range(at_once)))

    threads = [threading.Thread(target=lambda one=one: asyncio.run(several(one))) for one in (database, other) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    await other.close()
    assert await database.read(read_all) == [str(number) for number in range(40 * at_once)]


async def test_it_opens_again_after_closing(database: SQLiteDatabase) -> None:
    await database.write(add, "before")
    await database.close()
    await database.write(add, "after")
    assert await database.read(read_all) == ["before", "after"]


async def test_closing_waits_for_work_that_was_asked_for_before(database: SQLiteDatabase) -> None:
    writing = [asyncio.create_task(database.write(add, str(number))) for number in range(20)]
    await asyncio.sleep(0)
    await database.close()
    assert not Path(f"{database.location}-wal").exists()  # noqa: ASYNC240
    await asyncio.gather(*writing)
    assert await database.read(read_all) == [str(number) for number in range(20)]


async def test_closing_leaves_no_log_however_many_connections_close(database: SQLiteDatabase) -> None:
    for _ in range(100):
        await database.write(add, "words")
        await asyncio.gather(*(database.read(read_all) for _ in range(8)))
        await database.close()
        assert not Path(f"{database.location}-wal").exists()  # noqa: ASYNC240
        assert not Path(f"{database.location}-shm").exists()  # noqa: ASYNC240


def test_an_interrupt_amid_a_transaction_rolls_it_back(tmp_path: Path) -> None:
    """It comes up as it is, and the next call finds everything in order."""
    database = SQLiteDatabase(tmp_path / "notes.db", SCHEMA)

    async def interrupted(connection: Connection) -> None:
        await add(connection, "lost")
        raise KeyboardInterrupt

    with asyncio.Runner() as runner:
        runner.run(database.open())
        with pytest.raises(KeyboardInterrupt):
            runner.run(database.write(interrupted))
        runner.run(database.write(add, "kept"))
        assert runner.run(database.read(read_all)) == ["kept"]
        runner.run(database.close())


async def test_the_clock_is_the_databases(database: SQLiteDatabase) -> None:
    async def clock(connection: Connection) -> tuple[int, int]:
        seconds = await connection.value("SELECT CAST(strftime('%s', 'now') AS INTEGER)")
        return await connection.value("SELECT {now}"), seconds

    micros, seconds = await database.read(clock)
    assert 0 <= micros // 1_000_000 - seconds <= 1


# --- the log of the file -----------------------------------------------------------------------------------


def log_size(path: str | Path) -> int:
    return Path(f"{path}-wal").stat().st_size


async def test_the_log_of_the_file_does_not_grow_without_end(database: SQLiteDatabase) -> None:
    with sqlite3.connect(database.location) as other:
        other.execute("PRAGMA user_version = 7")
    other.close()
    for _ in range(3_000):
        await database.write(add, "some words " * 100)
    assert log_size(database.location) < 10_000_000
    with sqlite3.connect(database.location) as other:
        assert other.execute("PRAGMA user_version").fetchone() == (7,)  # the application's own
    other.close()


async def test_the_log_of_a_file_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "notes.db")
    database = SQLiteDatabase(tmp_path / "link.db", SCHEMA)
    for _ in range(700):
        await database.write(add, "x" * 16_000)
    assert log_size(tmp_path / "real" / "notes.db") < 8_000_000
    await database.close()


async def test_few_writes_each_by_many_processes_do_not_fill_the_log(database: SQLiteDatabase) -> None:
    """Here objects of one process, which know as little of each other; one that has the file open keeps it from being
    tidied up by the one that closes it last."""
    for _ in range(30):
        other = SQLiteDatabase(database.location, SCHEMA)
        for _ in range(50):
            await other.write(add, "x" * 8_000)
        await other.close()
    assert log_size(database.location) < 10_000_000


async def test_an_erasure_that_failed_is_done_by_a_later_write(
    database: SQLiteDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint, errors = sqlite_database.checkpoint, [sqlite3.OperationalError("database or disk is full")]

    def fails_once(connection: ThreadConnection) -> bool:
        if errors:
            raise errors.pop()
        return checkpoint(connection)

    monkeypatch.setattr(sqlite_database, "checkpoint", fails_once)
    await database.write(add, "zanzibar")
    await database.write(delete_all)
    database.erase_soon()
    for _ in range(20):
        await database.write(add, "other words")
    assert "cannot write a checkpoint: database or disk is full" in caplog.text
    assert b"zanzibar" not in Path(f"{database.location}-wal").read_bytes()  # noqa: ASYNC240


# --- versions ----------------------------------------------------------------------------------------------


async def test_migrations_run_forwards_step_by_step(database: SQLiteDatabase) -> None:
    async def add_two(connection: Connection) -> None:
        await connection.execute("UPDATE notes SET text = text || ' two'")

    async def add_three(connection: Connection) -> None:
        await connection.execute("UPDATE notes SET text = text || ' three'")

    await database.write(add, "one")
    third = Schema(name="notes", version=3, create=create, migrations={1: add_two, 2: add_three})
    assert await with_schema(database, third) == ["one two three"]
    assert await with_schema(database, third) == ["one two three"]  # once
    with pytest.raises(SchemaError, match=r"version 3 of the notes tables.* version 1"):
        await with_schema(database, SCHEMA)


async def test_a_migration_that_fails_changes_nothing(database: SQLiteDatabase) -> None:
    async def half_way(connection: Connection) -> None:
        await connection.execute("DELETE FROM notes")
        await connection.execute("UPDATE nowhere SET text = ''")

    await database.write(add, "one")
    with pytest.raises(StorageError, match="nowhere"):
        await with_schema(database, Schema(name="notes", version=2, create=create, migrations={1: half_way}))
    assert await with_schema(database, SCHEMA) == ["one"]


async def test_groups_of_tables_share_a_file(database: SQLiteDatabase) -> None:
    async def create_others(connection: Connection) -> None:
        await connection.execute("CREATE TABLE others (text TEXT)")

    await database.write(add, "one")
    assert await with_schema(database, Schema(name="others", version=7, create=create_others)) == ["one"]
    assert await with_schema(database, SCHEMA) == ["one"]
