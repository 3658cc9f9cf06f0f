"""Engines and transactions that the SQL back ends share.

Work is a plain function over a SQLAlchemy connection. ``Database.read`` and ``Database.write`` run it as one
transaction and return what it returns, so that one text of SQL serves every driver, synchronous or not.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    Table,
    Text,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from diarist.exceptions import ConfigError, DiaristError, InputError, SchemaError, StorageError
from diarist.in_place import ElsewhereError, InPlace
from diarist.lanes import Job, Lanes, LanesClosedError, Transactions

P = ParamSpec("P")
R = TypeVar("R")
Work = Callable[Concatenate[Connection, P], R]

_DRIVER_ERRORS = (SQLAlchemyError, sqlite3.Error, UnicodeEncodeError)


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

    async def short_read(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As ``read``, for work on a few rows. A library in this process may do it at once, in the calling thread:
        work that can be long then says so by ``require_short``."""
        return await self.read(work, *args, **kwargs)

    async def short_write(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As ``write``, for work on a few rows; see ``short_read``."""
        return await self.write(work, *args, **kwargs)


class LanedDatabase(Database):
    """A database that has one writer at a time, in threads of its own: one that writes, and some that read.

    One hop takes a whole transaction there; short ones may need none (``_place``). (An asynchronous driver hops for
    each of its dozen steps, which costs several times the work itself, and is bound to one event loop.) A back end says
    how it connects and what its errors mean.

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
            await asyncio.to_thread(_close, lanes)

    def _place(self) -> InPlace | None:
        """What runs short transactions without a thread of their own, where that is no matter of waiting."""
        return None

    async def read(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(False, work, *args, **kwargs)

    async def write(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(True, work, *args, **kwargs)

    async def short_read(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run_shortly(False, work, *args, **kwargs)

    async def short_write(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run_shortly(True, work, *args, **kwargs)

    async def _run_shortly(self, writes: bool, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            lanes = await self._opened()
            lanes.enter()
            try:
                if (place := lanes.place) is not None:
                    await place.turn()  # who was cancelled begins nothing
                    if writes and lanes.is_writing:
                        await lanes.written()  # between short writes it would hardly ever get the file's lock
                    if not (writes and lanes.is_writing):
                        try:
                            return place.run(writes, work, *args, **kwargs)
                        except ElsewhereError:
                            pass
                        except _DRIVER_ERRORS as error:
                            raise self._told(name_of(work), error) from error
                        finally:
                            if writes:
                                lanes.tend()
                return await self._in(lanes, writes, _transaction(work, *args, **kwargs), name_of(work))
            finally:
                lanes.leave()
        except LanesClosedError:  # by another task meanwhile, or by one that has lost patience
            pass
        return await self._run(writes, work, *args, **kwargs)

    async def _run(self, writes: bool, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        while True:
            try:
                return await self._in(await self._opened(), writes, _transaction(work, *args, **kwargs), name_of(work))
            except LanesClosedError:
                continue  # by another task, between opening and submitting: open again

    async def _opened(self) -> Lanes:
        lanes = self._lanes
        if lanes is None or lanes.pid != os.getpid():  # neither threads nor SQLite survive a fork
            with self._lock:
                lanes = self._lanes
                if lanes is None or lanes.pid != os.getpid():
                    self._lanes = lanes = Lanes(self._engine, self._place())
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
        except _DRIVER_ERRORS as error:
            raise self._told(doing, error) from error
        finally:
            if writes and (place := lanes.place) is not None:
                place.wrote_elsewhere()
                lanes.tend()

    def _told(self, doing: str, error: Exception) -> DiaristError:
        if isinstance(error, UnicodeEncodeError):
            return InputError(f"cannot {doing}: {error.object!r} is not valid Unicode")
        cause = getattr(error, "orig", None) or error
        code = "_".join(getattr(cause, "sqlite_errorname", "").split("_")[:2])
        where = self.location if doing == "open" else f"in {self.location}"
        return StorageError(f"cannot {doing} {where}: {cause}{self._remedy(code)}")


def _transaction(work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> Job[R]:
    def transaction(engine: Transactions, cancelled: Callable[[], bool]) -> R:
        with engine.begin() as connection:
            result = work(connection, *args, **kwargs)
            if cancelled():
                raise asyncio.CancelledError
        return result

    return transaction


def _close(lanes: Lanes) -> None:
    lanes.close()
    lanes.release()


def _open(connection: Connection) -> None:
    """Work that needs an open database only."""


def name_of(work: Callable[..., object]) -> str:
    """``append_messages`` becomes "append messages", for error messages."""
    return work.__name__.strip("_").replace("_", " ")
