"""Transactions, SQL text and schema versions that all SQL databases share.

SQL is written once, as text with ``:name`` for values. Small differences between dialects are handled by placeholders
(``MARKS``), larger ones by functions that check ``Connection.dialect``.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from diarist.exceptions import SchemaError

P = ParamSpec("P")
R = TypeVar("R")
Row = Sequence[Any]
Dialect = Literal["sqlite", "postgresql"]

MARKS: Mapping[str, tuple[str, str]] = {
    # Microseconds since 1970 by the database's clock. SQLite's resolution is one millisecond. PostgreSQL uses the start
    # time of the statement, since the transaction may have waited for a lock after its start.
    "{now}": (
        "(CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)",
        "CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)",
    ),
    # SQLite has one writer at a time, so it needs no row locks.
    "{for update}": ("", "FOR UPDATE"),
    "{for key share}": ("", "FOR KEY SHARE"),
    # The type of columns that are compared and ordered by bytes, independent of the database's locale.
    "{key}": ("TEXT", 'TEXT COLLATE "C"'),
}
"""Placeholders and their SQL in SQLite and in PostgreSQL. ``id {any ids}`` compares with each text of a list."""

_ANY = re.compile(r"\{any (\w+)\}")
_NAME = re.compile(r"(?<![:\w]):([a-z]\w*)")


class Connection(ABC):
    """A connection inside a transaction. Values are passed by name; ``violations`` are its constraint errors."""

    dialect: Dialect
    violations: type[Exception]

    @abstractmethod
    async def fetch(self, sql: str, /, **values: Any) -> Sequence[Row]:
        """Return all rows."""

    @abstractmethod
    async def first(self, sql: str, /, **values: Any) -> Row | None:
        """Return the first row, None if there is none."""

    async def value(self, sql: str, /, **values: Any) -> Any:
        """Return the first column of the first row, None if there is none."""
        row = await self.first(sql, **values)
        return None if row is None else row[0]

    @abstractmethod
    async def execute(self, sql: str, /, **values: Any) -> int:
        """Return the number of rows that the statement changed."""

    @abstractmethod
    async def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]], /) -> None:
        """Run the statement once for each row of values."""

    def lift_time_limit(self) -> None:  # noqa: B027 - most databases have none
        """Let the rest of the transaction take as long as it needs, for work such as building an index."""


Work = Callable[Concatenate[Connection, P], Coroutine[Any, Any, R]]


@lru_cache(2048)
def in_sqlite(sql: str) -> tuple[str, tuple[str, ...]]:
    """Return the SQL for SQLite, and the names of values that are lists, to be passed as JSON."""
    for mark, (text, _) in MARKS.items():
        sql = sql.replace(mark, text)
    return _ANY.sub(r"IN (SELECT value FROM json_each(:\1))", sql), tuple(_ANY.findall(sql))


def json_list(texts: Any) -> str:
    """Return a list of texts for SQLite. The driver refuses invalid Unicode in it, as in any text."""
    return json.dumps(texts, ensure_ascii=False)


@lru_cache(2048)
def in_postgresql(sql: str) -> tuple[str, tuple[str, ...]]:
    """Return the SQL for PostgreSQL with ``$1`` for values, and their names in that order."""
    for mark, (_, text) in MARKS.items():
        sql = sql.replace(mark, text)
    return numbered(_ANY.sub(r"= ANY(:\1)", sql), "$")


def numbered(sql: str, sign: str) -> tuple[str, tuple[str, ...]]:
    """Replace ``:name`` by ``sign`` and a number. Returns the SQL, and the names in that order."""
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return f"{sign}{names.setdefault(found[1], len(names) + 1)}"

    text = _NAME.sub(number, sql)
    return text, tuple(names)


# --- schema ------------------------------------------------------------------------------------------------

SchemaChange = Callable[[Connection], Coroutine[Any, Any, object]]


@dataclass(frozen=True, kw_only=True)
class Schema:
    """A group of tables with a version of their own, recorded in the table ``diarist_schema``.

    Attributes:
        name: Name of the group; several groups share one database.
        version: Version that this code reads and writes.
        create: Creates the tables of that version in an empty database.
        migrations: Steps by version; step n migrates the tables from version n to n + 1.
    """

    name: str
    version: int
    create: SchemaChange
    migrations: Mapping[int, SchemaChange] = field(default_factory=dict[int, SchemaChange])

    async def is_current(self, connection: Connection, location: str) -> bool:
        """Return False if tables must be created or migrated. Raises SchemaError if they have a newer version."""
        found = await read_version(connection, self.name)
        if found is not None and found > self.version:
            raise SchemaError(
                f"{location} has version {found} of the {self.name} tables, but this diarist supports"
                f" version {self.version}: upgrade diarist, or use another database"
            )
        return found == self.version

    async def ensure(self, connection: Connection, location: str) -> None:
        """Create the tables or migrate them step by step, inside a write transaction."""
        if await self.is_current(connection, location):
            return
        found = await read_version(connection, self.name)
        if found is None:
            await connection.execute(
                "CREATE TABLE IF NOT EXISTS diarist_schema (name TEXT NOT NULL PRIMARY KEY, version INTEGER NOT NULL)"
            )
            await self.create(connection)
            await connection.execute(
                "INSERT INTO diarist_schema (name, version) VALUES (:name, :version)",
                name=self.name,
                version=self.version,
            )
            return
        for version in range(found, self.version):
            await self.migrations[version](connection)
        await connection.execute(
            "UPDATE diarist_schema SET version = :version WHERE name = :name", name=self.name, version=self.version
        )


async def read_version(connection: Connection, group: str) -> int | None:
    """Return the version of a group's tables in the database; None if there are none."""
    exists = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'diarist_schema'"
    if connection.dialect == "postgresql":  # to_regclass() would miss a table that was created since its last call
        exists = "SELECT 1 FROM pg_catalog.pg_class WHERE relname = 'diarist_schema' AND pg_table_is_visible(oid)"
    if await connection.value(exists) is None:
        return None
    return await connection.value("SELECT version FROM diarist_schema WHERE name = :name", name=group)


# --- databases ---------------------------------------------------------------------------------------------


class Database(ABC):
    """Runs work in transactions. Usable from several tasks, threads and event loops at once.

    Work is a coroutine function that takes a ``Connection``. It may await nothing but the connection, since SQLite runs
    it in a thread without an event loop.
    """

    location: str
    """Location of the data, without password, to show to users."""

    async def open(self) -> None:
        """Connect, and create or migrate the tables. Does nothing if the database is open."""
        await self.read(_open_database)

    @abstractmethod
    async def close(self) -> None:
        """Wait for running work and release the connections. The next call opens the database again."""

    @abstractmethod
    async def read(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run ``work(connection, …)`` on a consistent snapshot of the data. Raises StorageError."""

    async def glance(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a read that takes well under a millisecond, as ``read`` does. It may delay writes, and costs less."""
        return await self.read(work, *args, **kwargs)

    @abstractmethod
    async def write(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run ``work(connection, …)`` and commit; an exception rolls back the transaction. Raises StorageError.

        If the caller is cancelled before the commit, nothing is changed. On PostgreSQL, work that conflicts with
        another transaction is rolled back and run again.
        """

    async def erase(self) -> tuple[str, ...]:
        """Remove deleted data from the database's files as well.

        Returns:
            Places where deleted data may remain, with the reasons, to show to users. Empty if there are none.

        Raises StorageError.
        """
        return ()

    def erase_soon(self) -> None:  # noqa: B027 - most databases have nothing to do
        """Try to remove deleted data from a file's write-ahead log, in the background."""


async def _open_database(connection: Connection) -> None:
    pass


class OnDatabase:
    """A storage or vector store with its data in a ``Database``. Most of its methods are one transaction each."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @property
    def location(self) -> str:
        return self.database.location

    async def purge(self) -> tuple[str, ...]:
        return await self.database.erase()

    async def close(self) -> None:
        await self.database.close()


Method = Callable[Concatenate[OnDatabase, P], Coroutine[Any, Any, R]]


def reads(work: Work[P, R]) -> Method[P, R]:
    """Return a method that runs ``work`` by ``Database.read``, with the method's arguments after the connection.

    Use it in a class that does not inherit from the interface, so that type checkers take the types from ``work``.
    """

    @wraps(work)
    async def method(self: OnDatabase, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.database.read(work, *args, **kwargs)

    return method


def writes(work: Work[P, R]) -> Method[P, R]:
    """Return a method that runs ``work`` by ``Database.write``, as ``reads`` does."""

    @wraps(work)
    async def method(self: OnDatabase, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.database.write(work, *args, **kwargs)

    return method


def name_of(work: Callable[..., object]) -> str:
    """Return ``append messages`` for ``append_messages``, for error messages."""
    return work.__name__.strip("_").replace("_", " ")
