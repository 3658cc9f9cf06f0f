"""Transactions on PostgreSQL, through asyncpg."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import weakref
from collections.abc import Callable
from typing import Literal, TypeVar

import asyncpg  # pyright: ignore[reportMissingTypeStubs]
from sqlalchemy import Connection, func, literal, select, text
from sqlalchemy import exc as sa
from sqlalchemy.schema import CreateSchema

from diarist.database import Database, P, R, Schema, Work, name_of
from diarist.exceptions import ConfigError, InputError, StorageError
from diarist.postgres_database.address import check_schema_name, connector, parsed, without_password
from diarist.postgres_database.errors import cause_of, explained, sqlstate, unfit
from diarist.postgres_database.patience import Patience, take_your_time
from diarist.postgres_database.pool import Pool, PoolClosedError

T = TypeVar("T")
Mode = Literal["read", "write"]

ATTEMPTS = 8
_SCHEMA_LOCK = 0x64696172697374  # the letters "diarist": advisory locks of a database are named by numbers


class PostgresDatabase(Database):
    """A database on a PostgreSQL server: any number of processes on any number of machines.

    Each process has one pool of connections, in a thread with an event loop of its own, whichever loops and
    threads the callers run in.

    Args:
        url: ``postgresql://user:password@host:port/name``, with the parameters that libpq has, such as
            ``?sslmode=require``; ``postgres://`` and ``postgresql+asyncpg://`` mean the same.
        tables: The tables that this object uses.
        schema: The PostgreSQL schema they lie in; created when it is missing. None: the user's search path decides.
        pool_size: Connections at most. They are opened as they are needed.
        busy_timeout: Seconds to wait for a free connection, or for a lock that somebody else holds, before
            StorageError.
        statement_timeout: Seconds that the server may take for a statement, beside ``busy_timeout`` for the locks
            it waits for; then the connection is given up: StorageError. Creating and migrating tables, and work
            that calls ``take_your_time``, has no limit.
    """

    def __init__(
        self,
        url: str,
        tables: Schema,
        *,
        schema: str | None = None,
        pool_size: int = 10,
        busy_timeout: float = 30.0,
        statement_timeout: float = 30.0,
    ) -> None:
        if schema is not None:
            check_schema_name(schema)
        if pool_size < 1:
            raise ConfigError(f"pool_size must be at least 1, not {pool_size}")
        if not busy_timeout > 0:
            raise ConfigError(f"busy_timeout must be a positive number of seconds, not {busy_timeout}")
        if not statement_timeout > 0:
            raise ConfigError(f"statement_timeout must be a positive number of seconds, not {statement_timeout}")
        self._location = without_password(parsed(url))
        self._connect = connector(url, busy_timeout, schema)  # which does not know this object: see Pool
        self._tables = tables
        self._schema = schema
        self._pool_size = pool_size
        self._busy_timeout = busy_timeout
        self._silence = busy_timeout + statement_timeout  # a statement may wait for a lock first
        self._pool: Pool | None = None
        self._lock = threading.Lock()

    @property
    def location(self) -> str:
        return self._location

    async def open(self) -> None:
        await self.read(_open_tables)

    async def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None and pool.pid == os.getpid():
            await asyncio.to_thread(pool.close)

    async def read(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run("read", name_of(work), lambda connection: work(connection, *args, **kwargs))

    async def write(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run("write", name_of(work), lambda connection: work(connection, *args, **kwargs))

    async def _run(self, mode: Mode, doing: str, work: Callable[[Connection], T]) -> T:
        while True:
            try:
                job = self._opened().submit(lambda pool: self._repeated(pool, mode, doing, work))
                return await asyncio.wrap_future(job)
            except PoolClosedError:
                continue  # by another task, between opening and submitting: open again

    def _opened(self) -> Pool:
        pool = self._pool
        if pool is None or pool.pid != os.getpid():  # neither threads nor connections survive a fork
            with self._lock:
                pool = self._pool
                if pool is None or pool.pid != os.getpid():
                    self._pool = pool = Pool(self._connect, self._pool_size, self._busy_timeout)
                    weakref.finalize(self, pool.abandon).atexit = False
        return pool

    async def _repeated(self, pool: Pool, mode: Mode, doing: str, work: Callable[[Connection], T]) -> T:
        """Run the transaction until it does not collide with another, nor with a connection that has died."""
        for attempt in range(1, ATTEMPTS + 1):
            tried = _Try(mode, Patience(self._silence))
            try:
                if not pool.prepared:
                    await self._prepare(pool)
                return await tried.run(pool, work)
            except (sa.SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
                if attempt == ATTEMPTS or not tried.may_repeat(error):
                    raise self._mapped(doing, tried, error) from error
            await asyncio.sleep(random.uniform(0, 0.002 * 2**attempt))
        raise AssertionError("unreachable")

    async def _prepare(self, pool: Pool) -> None:
        """All who come at first use wait for one, and fail with it: one after the other they would wait for ever."""
        if pool.preparing is None:
            pool.preparing = asyncio.create_task(self._make_ready(pool))
        await asyncio.shield(pool.preparing)

    async def _make_ready(self, pool: Pool) -> None:
        try:
            await _Try("write", Patience(self._silence)).run(pool, self._ensure)
            pool.prepared = True
        finally:
            pool.preparing = None

    def _ensure(self, connection: Connection) -> None:
        encoding = connection.scalar(text("SHOW server_encoding"))
        if encoding != "UTF8":
            raise StorageError(
                f"{self.location} has the encoding {encoding}, which cannot hold all texts:"
                " use a database that was created with ENCODING 'UTF8'"
            )
        if self._tables.is_current(connection, self.location):
            return
        take_your_time()
        # Of many that open at once, one creates or migrates; the others wait, and look again.
        connection.execute(select(func.pg_advisory_xact_lock(literal(_SCHEMA_LOCK))))
        if self._schema is not None and not _schema_exists(connection, self._schema):
            connection.execute(CreateSchema(self._schema))
        self._tables.ensure(connection, self.location)

    def _mapped(self, doing: str, tried: _Try, error: Exception) -> StorageError | InputError:
        cause = cause_of(error)
        if (reason := unfit(cause)) is not None:
            return InputError(f"cannot {doing}: {reason}")
        reason = explained(cause, self._pool_size, self._busy_timeout)
        if tried.committing and tried.mode == "write":
            reason += "; it broke off at the commit, so it may have happened or not"
        return StorageError(f"cannot {doing} in {self.location}: {reason}")


class _Try:
    """One run of a transaction, and how far it came."""

    def __init__(self, mode: Mode, patience: Patience) -> None:
        self.mode: Mode = mode
        self.patience = patience
        self.committing = False

    async def run(self, pool: Pool, work: Callable[[Connection], T]) -> T:
        engine = pool.engine if self.mode == "write" else pool.reader
        async with self.patience.limiting(), engine.begin() as connection:
            result = await connection.run_sync(work)
            self.committing = True
            self.patience.restart()
        return result

    def may_repeat(self, error: Exception) -> bool:
        """Whether nothing has happened, and another time it may go well.

        Two transactions that both insert the first row of its kind collide; the second then finds that row.
        A connection that the server closed while it was idle is noticed at its next use.
        """
        if sqlstate(cause_of(error)) in _COLLISIONS:
            return True
        broken = getattr(error, "connection_invalidated", False) or sqlstate(cause_of(error)) == "57P01"
        return broken and (self.mode == "read" or not self.committing)


_COLLISIONS = {
    "23503",  # foreign key: the row it points to was deleted a moment ago
    "23505",  # unique: the row was inserted a moment ago
    "40001",  # serialization failure
    "40P01",  # deadlock
}


def _open_tables(connection: Connection) -> None:
    """Work that needs an open database only."""


def _schema_exists(connection: Connection, name: str) -> bool:
    found = connection.scalar(text("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = :name"), {"name": name})
    return found is not None
