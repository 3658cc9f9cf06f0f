"""Engines and transactions that the SQL back ends share.

Work is a plain function over a SQLAlchemy connection. ``Database.read`` and ``Database.write`` run it as one
transaction and return what it returns, so that one text of SQL serves every driver, synchronous or not.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    event,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import NullPool
from sqlalchemy.sql.functions import FunctionElement

from diarist.exceptions import ConfigError, InputError, SchemaError, StorageError
from diarist.lanes import Job, Lanes, LanesClosedError, Transactions
from diarist.prepared import PreparedEngine

P = ParamSpec("P")
R = TypeVar("R")
Work = Callable[Concatenate[Connection, P], R]


class now(FunctionElement[int]):
    """The database's clock, in microseconds since 1970 (UTC). SQLite's has steps of one millisecond."""

    type = BigInteger()
    inherit_cache = True


@compiles(now, "sqlite")
def _sqlite_now(element: now, compiler: Any, **_: Any) -> str:
    return "(CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)"


@compiles(now, "postgresql")
def _postgresql_now(element: now, compiler: Any, **_: Any) -> str:
    # The start of the statement, not of the transaction, which may have waited for a lock since.
    return "CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)"


# --- schema ------------------------------------------------------------------------------------------------

_versions = Table(
    "diarist_schema",
    MetaData(),
    Column("name", Text, primary_key=True),
    Column("version", Integer, nullable=False),
)


@dataclass(frozen=True, kw_only=True)
class Schema:
    """A group of tables with a version of their own, recorded in the table ``diarist_schema``.

    Attributes:
        name: Of the group; several groups share one database.
        version: What this code reads and writes.
        tables: The tables of that version, for a database that has none.
        migrations: By version n, what turns tables of version n into version n + 1.
    """

    name: str
    version: int
    tables: MetaData
    migrations: Mapping[int, Callable[[Connection], None]] = field(
        default_factory=dict[int, Callable[[Connection], None]]
    )

    def is_current(self, connection: Connection, location: str) -> bool:
        """False where tables must be created or migrated. Raises SchemaError for newer ones."""
        found = self.stored_version(connection)
        if found is not None and found > self.version:
            raise SchemaError(
                f"{location} holds version {found} of the {self.name} tables, and this diarist knows"
                f" version {self.version}: upgrade diarist, or use another database"
            )
        return found == self.version

    def ensure(self, connection: Connection, location: str) -> None:
        """Create the tables or migrate them, step by step; call it inside a write transaction."""
        if self.is_current(connection, location):
            return
        found = self.stored_version(connection)
        if found is None:
            _versions.create(connection, checkfirst=True)
            self.tables.create_all(connection)
            connection.execute(insert(_versions).values(name=self.name, version=self.version))
            return
        for version in range(found, self.version):
            if version not in self.migrations:
                raise SchemaError(
                    f"{location}: version {found} of the {self.name} tables is too old for this diarist,"
                    f" which migrates from version {min(self.migrations, default=self.version)} on"
                )
            self.migrations[version](connection)
        changed = update(_versions).where(_versions.c.name == self.name).values(version=self.version)
        connection.execute(changed)

    def stored_version(self, connection: Connection) -> int | None:
        """Which version the database holds; None where there are no tables of this group."""
        return stored_version(connection, self.name)


def stored_version(connection: Connection, group: str) -> int | None:
    """Which version of a group of tables the database holds; None where there are none."""
    if not inspect(connection).has_table(_versions.name):
        return None
    return connection.scalar(select(_versions.c.version).where(_versions.c.name == group))


# --- databases ---------------------------------------------------------------------------------------------


class Database(ABC):
    """Runs work in transactions. Usable from several tasks, threads and event loops at once."""

    @property
    @abstractmethod
    def location(self) -> str:
        """Where the data lies, for people; without a password."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, and create or migrate the tables; does nothing when it is open."""

    @abstractmethod
    async def close(self) -> None:
        """Wait for running work and release the connections; the next call opens again."""

    @abstractmethod
    async def read(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run ``work(connection, …)`` on one consistent state of the data. Raises StorageError."""

    @abstractmethod
    async def write(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run ``work(connection, …)`` and commit; an exception rolls all of it back. Raises StorageError.

        A caller that is cancelled before the commit leaves nothing behind. Where several may write at once, work
        that collided with another's is rolled back and run again, from its beginning.
        """


class LanedDatabase(Database):
    """A database that has one writer at a time, in threads of its own: one that writes, and some that read.

    One hop takes a whole transaction there. (An asynchronous driver hops for each of its dozen steps, which costs
    several times the work itself, and is bound to one event loop.) A back end says how it connects and what its
    errors mean.

    Args:
        schema: The tables that this object uses.
        busy_timeout: Seconds to wait while another process writes, before StorageError.
    """

    def __init__(self, schema: Schema, *, busy_timeout: float) -> None:
        if not busy_timeout >= 0:
            raise ConfigError(f"busy_timeout must be zero or more seconds, not {busy_timeout}")
        self._schema = schema
        self._busy_timeout = busy_timeout
        self._lanes: Lanes | None = None
        self._lock = threading.Lock()

    @abstractmethod
    def _engine(self, connections: int, begin: str) -> Transactions:
        """An engine whose transactions begin with ``begin``. It must not hold this object, which would never go.

        A transaction that starts by reading and writes later must be BEGIN IMMEDIATE: else two of them read the
        same value, and one update is lost.
        """

    @abstractmethod
    def _prepare(self, writer: Transactions) -> None:
        """What comes before everything else; runs once, in the writing thread."""

    @abstractmethod
    def _remedy(self, code: str) -> str:
        """What to do about an error of this name, such as ``SQLITE_BUSY``; empty where nobody knows."""

    async def open(self) -> None:
        await self.read(_open)

    async def close(self) -> None:
        with self._lock:
            lanes, self._lanes = self._lanes, None
        if lanes is not None and lanes.pid == os.getpid():
            await asyncio.to_thread(lanes.close)
            lanes.release()

    async def read(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(False, work, *args, **kwargs)

    async def write(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(True, work, *args, **kwargs)

    async def _run(self, writes: bool, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        def transaction(engine: Transactions, cancelled: Callable[[], bool]) -> R:
            with engine.begin() as connection:
                result = work(connection, *args, **kwargs)
                if cancelled():
                    raise asyncio.CancelledError
            return result

        while True:
            try:
                return await self._in(await self._opened(), writes, transaction, name_of(work))
            except LanesClosedError:
                continue  # by another task, between opening and submitting: open again

    async def _opened(self) -> Lanes:
        lanes = self._lanes
        if lanes is None or lanes.pid != os.getpid():  # neither threads nor SQLite survive a fork
            with self._lock:
                lanes = self._lanes
                if lanes is None or lanes.pid != os.getpid():
                    self._lanes = lanes = Lanes(self._engine)
                    lanes.release = weakref.finalize(self, lanes.abandon)
        if not lanes.ready:
            await self._in(lanes, True, lambda _, __: self._make_ready(lanes), "open")
        return lanes

    def _make_ready(self, lanes: Lanes) -> None:
        """Runs in the one writing thread, so it happens once."""
        if lanes.ready:
            return
        self._prepare(lanes.writer)
        with lanes.reader.begin() as connection:
            current = self._schema.is_current(connection, self.location)
        if not current:
            with lanes.writer.begin() as connection:
                self._schema.ensure(connection, self.location)
        lanes.ready = True

    async def _in(self, lanes: Lanes, writes: bool, job: Job[R], doing: str) -> R:
        try:
            return await lanes.run(writes, job)
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise self._storage_error(doing, error) from error
        except UnicodeEncodeError as error:
            raise InputError(f"cannot {doing}: {error.object!r} is not valid Unicode") from error

    def _storage_error(self, doing: str, error: Exception) -> StorageError:
        cause = getattr(error, "orig", None) or error
        code = "_".join(getattr(cause, "sqlite_errorname", "").split("_")[:2])
        where = self.location if doing == "open" else f"in {self.location}"
        return StorageError(f"cannot {doing} {where}: {cause}{self._remedy(code)}")


class SQLiteDatabase(LanedDatabase):
    """An SQLite file in WAL mode: any number of readers beside one writer at a time, across processes.

    Args:
        path: The file; created when it is missing. Its folder must exist.
        schema: The tables that this object uses.
        busy_timeout: Seconds to wait while another process writes, before StorageError.
    """

    def __init__(self, path: str | os.PathLike[str], schema: Schema, *, busy_timeout: float = 30.0) -> None:
        self._path = file_path(path)
        super().__init__(schema, busy_timeout=busy_timeout)

    @property
    def location(self) -> str:
        return str(self._path)

    def _engine(self, connections: int, begin: str) -> Transactions:
        return PreparedEngine(_engine(self._path, self._busy_timeout), begin)

    def _prepare(self, writer: Transactions) -> None:
        refuse_impossible(self._path)
        assert isinstance(writer, PreparedEngine)
        with writer.driver() as connection:
            _switch_to_wal(connection, self._busy_timeout)

    def _remedy(self, code: str) -> str:
        return file_remedy(code, self._path, self._busy_timeout)


def file_path(path: str | os.PathLike[str]) -> Path:
    """The file, whatever the working directory will be. Raises ConfigError for data that lives in memory."""
    if not os.fspath(path) or ":memory:" in os.fspath(path):
        raise ConfigError(
            f"SQLite needs the path of a file, not {os.fspath(path)!r};"
            " for data that lives in memory use InMemoryStorage()"
        )
    return Path(path).expanduser().absolute()


def file_remedy(code: str, path: Path, busy_timeout: float) -> str:
    """What to do about an error of SQLite on a file, by its name."""
    return _REMEDIES.get(code, "").format(seconds=busy_timeout, folder=path.parent)


_REMEDIES = {
    "SQLITE_BUSY": "; somebody else has been writing for {seconds:g} seconds (busy_timeout): end that, or wait longer",
    "SQLITE_READONLY": "; make the file and the folder {folder} writable, or choose another path",
    "SQLITE_CANTOPEN": "; make the folder {folder} readable and writable, or choose another path",
    "SQLITE_NOTADB": "; the file is something else: move it away, or choose another path",
    "SQLITE_CORRUPT": "; the file is damaged: restore a copy, or save what is readable with"
    " the command .recover of the sqlite3 shell",
    "SQLITE_FULL": "; free some space on the disk",
}


def _engine(path: Path, busy_timeout: float) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        poolclass=NullPool,  # who prepares statements keeps the connections
        connect_args={
            "timeout": busy_timeout,
            "isolation_level": None,  # the driver begins nothing by itself
            "check_same_thread": False,  # threads take turns with it
            "cached_statements": 256,
        },
    )

    def configure(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # what is forgotten must not lie on in unused pages
        # Committed is committed for every process, killed or not. After a power cut the newest commits may be
        # missing, the file stays whole; FULL would wait for the disk at each of a turn's half dozen commits.
        connection.execute("PRAGMA synchronous = NORMAL")

    event.listen(engine, "connect", configure)
    return engine


def _switch_to_wal(connection: sqlite3.Connection, busy_timeout: float) -> None:
    """Set the journal mode, which the file remembers. The switch does not wait for a lock by itself."""
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)  # in the writing thread: nobody else waits here


def refuse_impossible(path: Path) -> None:
    """Raises StorageError for a path at which no file can be made."""
    if path.is_dir():
        raise StorageError(f"cannot open {path}: it is a folder; name a file in it, such as {path / 'memory.db'}")
    if not path.parent.is_dir():
        raise StorageError(
            f"cannot open {path}: the folder {path.parent} does not exist; create it, or choose another path"
        )


def _open(connection: Connection) -> None:
    """Work that needs an open database only."""


def name_of(work: Callable[..., object]) -> str:
    """``append_messages`` becomes "append messages", for error messages."""
    return work.__name__.strip("_").replace("_", " ")
