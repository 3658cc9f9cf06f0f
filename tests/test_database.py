"""The schema's version: recorded, migrated forwards, never backwards. Transactions of the SQLite database."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import Column, Connection, MetaData, Table, Text, func, insert, select, text

from diarist.database import Schema, now
from diarist.exceptions import SchemaError, StorageError
from diarist.sqlite_database import SQLiteDatabase

_tables = MetaData()
notes = Table("notes", _tables, Column("text", Text))
SCHEMA = Schema(name="notes", version=1, tables=_tables)


def add(connection: Connection, words: str) -> None:
    connection.execute(insert(notes).values(text=words))


def read_all(connection: Connection) -> list[str | None]:
    return list(connection.scalars(select(notes.c.text)))


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SQLiteDatabase]:
    database = SQLiteDatabase(tmp_path / "notes.db", SCHEMA)
    yield database
    await database.close()


async def with_schema(database: SQLiteDatabase, schema: Schema) -> list[str | None]:
    """What the same file holds for a program that knows another schema."""
    other = SQLiteDatabase(database.location, schema)
    try:
        return await other.read(read_all)
    finally:
        await other.close()


async def test_an_exception_rolls_all_of_it_back(database: SQLiteDatabase) -> None:
    def add_and_fail(connection: Connection) -> None:
        add(connection, "lost")
        raise LookupError("on purpose")

    await database.write(add, "kept")
    with pytest.raises(LookupError, match="on purpose"):
        await database.write(add_and_fail)
    assert await database.read(read_all) == ["kept"]


async def test_errors_say_what_was_done_where_and_why(database: SQLiteDatabase) -> None:
    def look_up_numbers(connection: Connection) -> None:
        connection.execute(text("SELECT number FROM nowhere"))

    with pytest.raises(StorageError, match=r"cannot look up numbers in .*notes\.db: no such table") as caught:
        await database.read(look_up_numbers)
    assert caught.value.__cause__ is not None


async def test_it_opens_once_nobody_else_writes(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "notes.db", isolation_level=None) as other:
        other.execute("PRAGMA journal_mode = WAL")
        database = SQLiteDatabase(tmp_path / "notes.db", SCHEMA, busy_timeout=0.05)
        other.execute("BEGIN IMMEDIATE")
        for _ in range(2):
            with pytest.raises(StorageError, match="somebody else has been writing"):
                await database.open()
        other.execute("COMMIT")
    await database.open()
    assert await database.read(read_all) == []
    await database.close()


async def test_counters_lose_no_update(database: SQLiteDatabase) -> None:
    """A transaction that reads first and writes later keeps others from writing in between."""

    def count_up(connection: Connection) -> None:
        add(connection, str(connection.scalar(select(func.count()).select_from(notes))))

    other = SQLiteDatabase(database.location, SCHEMA)
    await asyncio.gather(*((database, other)[n % 2].write(count_up) for n in range(40)))
    await other.close()
    assert await database.read(read_all) == [str(number) for number in range(40)]


async def test_the_clock_is_the_databases(database: SQLiteDatabase) -> None:
    def clock(connection: Connection) -> tuple[int, int]:
        seconds = connection.scalar(text("SELECT CAST(strftime('%s', 'now') AS INTEGER)"))
        return connection.scalar(select(now())) or 0, seconds or 0

    micros, seconds = await database.read(clock)
    assert 0 <= micros // 1_000_000 - seconds <= 1


async def test_migrations_run_forwards_step_by_step(database: SQLiteDatabase) -> None:
    await database.write(add, "one")
    migrations = {
        1: lambda connection: connection.execute(text("UPDATE notes SET text = text || ' two'")),
        2: lambda connection: connection.execute(text("UPDATE notes SET text = text || ' three'")),
    }
    third = Schema(name="notes", version=3, tables=_tables, migrations=migrations)
    assert await with_schema(database, third) == ["one two three"]
    assert await with_schema(database, third) == ["one two three"]  # once
    with pytest.raises(SchemaError, match=r"version 3 of the notes tables.* version 1"):
        await with_schema(database, SCHEMA)


async def test_a_migration_that_fails_changes_nothing(database: SQLiteDatabase) -> None:
    def half_way(connection: Connection) -> None:
        connection.execute(text("DELETE FROM notes"))
        connection.execute(text("UPDATE nowhere SET text = ''"))

    await database.write(add, "one")
    with pytest.raises(StorageError, match="nowhere"):
        await with_schema(database, Schema(name="notes", version=2, tables=_tables, migrations={1: half_way}))
    assert await with_schema(database, SCHEMA) == ["one"]


async def test_too_old_a_schema_is_refused(database: SQLiteDatabase) -> None:
    await database.open()
    with pytest.raises(SchemaError, match=r"version 1 of the notes tables is too old"):
        await with_schema(database, Schema(name="notes", version=5, tables=_tables))


async def test_groups_of_tables_share_a_file(database: SQLiteDatabase) -> None:
    await database.write(add, "one")
    others = MetaData()
    Table("others", others, Column("text", Text))
    second = Schema(name="others", version=7, tables=others)
    assert await with_schema(database, second) == ["one"]
    assert await with_schema(database, SCHEMA) == ["one"]
