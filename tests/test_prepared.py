"""Prepared statements of SQLite: they find, change and refuse what SQLAlchemy's own executions do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    bindparam,
    create_engine,
    delete,
    exists,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.pool import StaticPool

from diarist.database import Schema
from diarist.exceptions import StorageError
from diarist.prepared import PreparedEngine
from diarist.sqlite_database import SQLiteDatabase


class Tags(TypeDecorator[set[str]]):
    impl = Text
    cache_ok = True

    def process_bind_param(self, value: set[str] | None, dialect: Any) -> str:
        return " ".join(sorted(value or ()))

    def process_result_value(self, value: Any, dialect: Any) -> set[str]:
        return set(value.split())


_tables = MetaData()
notes = Table(
    "notes",
    _tables,
    Column("id", Integer, primary_key=True),
    Column("words", Text, unique=True),
    Column("tags", Tags),
    Column("seen", Boolean, nullable=False, default=False),
)
GET = select(notes).where(notes.c.id == bindparam("note"))
SOME = select(notes.c.words).where(notes.c.id.in_(bindparam("ids", expanding=True))).order_by(notes.c.id)
EVEN = select(notes.c.id, notes.c.tags, notes.c.id).where(notes.c.id.in_([2, 4])).order_by(notes.c.id)
ADD = insert(notes)
SEE = update(notes).where(notes.c.id == bindparam("note")).values(seen=bindparam("now")).returning(notes.c.seen)
DROP = delete(notes).where(notes.c.id == bindparam("note"))
LEFT = select(exists().where(notes.c.id > 0))
COUNT = text("SELECT count(*) FROM notes WHERE words != :words")
READING = {GET, SOME, EVEN, SEE, LEFT, COUNT}

Steps = list[tuple[Any, Any]]


def engine() -> Engine:
    made = create_engine("sqlite://", poolclass=StaticPool, connect_args={"isolation_level": None})
    _tables.create_all(made)
    return made


def did(connection: Connection, steps: Steps) -> list[Any]:
    """What each of these statements came to."""
    said: list[Any] = []
    for statement, values in steps:
        try:
            result: Any = connection.execute(statement, values)
            said.append([tuple(row) for row in result] if statement in READING else result.rowcount)
        except IntegrityError:
            said.append("refused")
    return said


rows = st.fixed_dictionaries(
    {
        "id": st.integers(1, 5),
        "words": st.one_of(st.none(), st.text("ab\u00e9\0", max_size=2)),
        "tags": st.sets(st.sampled_from("xyz")),
        "seen": st.booleans(),
    }
)
number = st.integers(0, 6)
steps = st.lists(
    st.one_of(
        st.tuples(st.just(ADD), rows),
        st.tuples(st.just(ADD), rows.map(lambda row: {name: row[name] for name in ("id", "words", "tags")})),
        st.tuples(
            st.just(ADD), st.lists(rows, min_size=1, max_size=3, unique_by=lambda row: (row["id"], row["words"]))
        ),
        st.tuples(st.just(GET), st.fixed_dictionaries({"note": number})),
        st.tuples(st.just(SOME), st.fixed_dictionaries({"ids": st.lists(number, max_size=20)})),
        st.tuples(st.just(EVEN), st.just({})),
        st.tuples(st.just(SEE), st.fixed_dictionaries({"note": number, "now": st.booleans()})),
        st.tuples(st.just(DROP), st.fixed_dictionaries({"note": number})),
        st.tuples(st.just(LEFT), st.just(None)),
        st.tuples(st.just(COUNT), st.fixed_dictionaries({"words": st.text("ab", max_size=1)})),
    ),
    max_size=30,
)


@given(steps)
def test_prepared_statements_do_what_sqlalchemy_does(taken: Steps) -> None:
    plainly, quickly = engine(), PreparedEngine(engine(), "BEGIN")
    with plainly.connect() as one, quickly.begin() as other:
        assert did(other, taken) == did(one, taken)
    quickly.dispose()
    plainly.dispose()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SQLiteDatabase]:
    database = SQLiteDatabase(tmp_path / "notes.db", Schema(name="notes", version=1, tables=_tables))
    yield database
    await database.close()


def three_times(work: Callable[[Connection], Any]) -> Callable[[Connection], list[Any]]:
    def thrice(connection: Connection) -> list[Any]:
        return [work(connection) for _ in range(3)]

    return thrice


async def test_rows_have_names_and_the_types_of_their_columns(database: SQLiteDatabase) -> None:
    def look(connection: Connection) -> tuple[Any, ...]:
        row: Any = connection.execute(GET, {"note": 1}).first()
        return row.id, row.words, row.tags, row.seen

    await database.write(lambda c: c.execute(ADD, {"id": 1, "words": "a", "tags": {"x", "y"}}).rowcount)
    assert await database.read(three_times(look)) == [(1, "a", {"x", "y"}, False)] * 3


async def test_what_is_refused_is_an_error_of_sqlalchemys_with_the_statement(database: SQLiteDatabase) -> None:
    def add(connection: Connection, number: int) -> None:
        connection.execute(ADD, {"id": number, "words": "a", "tags": set(), "seen": False})

    def collide(connection: Connection) -> str:
        add(connection, 1)
        said = ""
        for number in (2, 3, 4):
            with pytest.raises(IntegrityError, match=r"UNIQUE.*words") as caught:
                add(connection, number)
            said = str(caught.value.statement)
        return said

    assert (await database.write(collide)).startswith("INSERT INTO notes")


async def test_an_exception_takes_everything_back_and_the_connection_goes_on(database: SQLiteDatabase) -> None:
    def add(connection: Connection, number: int) -> None:
        connection.execute(ADD, {"id": number, "words": None, "tags": set(), "seen": False})
        if number == 3:
            raise LookupError("on purpose")

    def count(connection: Connection) -> int | None:
        return connection.scalar(select(func.count()).select_from(notes))

    for number in (1, 2):
        await database.write(add, number)
    with pytest.raises(LookupError):
        await database.write(add, 3)
    assert await database.read(count) == 2
    await database.write(add, 4)
    assert await database.read(count) == 3


async def test_a_statement_that_is_wrong_says_so_each_time(database: SQLiteDatabase) -> None:
    wrong = text("SELECT number FROM nowhere")

    def look_up_numbers(connection: Connection) -> None:
        for _ in range(3):
            with pytest.raises(OperationalError, match="no such table"):
                connection.execute(wrong)
        connection.execute(wrong)

    with pytest.raises(StorageError, match=r"cannot look up numbers in .*notes\.db: no such table"):
        await database.read(look_up_numbers)


def test_connections_in_use_close_when_they_no_longer_are(tmp_path: Path) -> None:
    file = create_engine(f"sqlite:///{tmp_path / 'notes.db'}", connect_args={"isolation_level": None})
    _tables.create_all(file)
    prepared = PreparedEngine(file, "BEGIN")
    with prepared.begin() as connection:
        prepared.dispose()
        assert connection.scalar(LEFT) == 0
    assert connection.closed
