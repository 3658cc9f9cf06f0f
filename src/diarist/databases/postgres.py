"""PostgreSQL, through ``asyncpg``."""

from __future__ import annotations

import asyncio
import atexit
import errno
import os
import random
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl, quote_plus, urlencode, urlsplit

try:
    import asyncpg  # pyright: ignore[reportMissingTypeStubs]
except ImportError as error:
    raise ImportError("PostgreSQL needs an extra of diarist: pip install 'diarist[postgres]'") from error

from diarist.checks import seconds, texts, whole
from diarist.databases.base import Connection, Database, Dialect, P, R, Row, Schema, Work, in_postgresql, name_of
from diarist.exceptions import ConfigError, InputError, StorageError
from diarist.sync import end_shared_loop

T = TypeVar("T")
Mode = Literal["read", "write"]

ATTEMPTS = 8
CONNECT_TIMEOUT = 10
"""Timeout for connecting, in seconds."""
_NO_LIMIT = 1e7
"""Timeout of a statement without a time limit, in seconds. (None would mean the connection's own limit.)"""
IDLE_IN_TRANSACTION = 60
"""Seconds after which the server ends an idle transaction."""
_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""Errors of the driver and its connections. The driver's internal error is one of them: it is raised if a connection
breaks between two answers."""
_SCHEMA_LOCK = 0x64696172697374  # the letters "diarist": advisory locks of a database are named by numbers

# Readers use one snapshot for all statements. Writers lock data before they read and change it, so they need the
# state committed when they got the lock.
_BEGIN: dict[Mode, str] = {
    "read": "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY",
    "write": "BEGIN ISOLATION LEVEL READ COMMITTED",
}


class NoAnswerError(TimeoutError):
    """The server did not answer in time."""


class _PoolBusyError(Exception):
    """No connection became free in time."""


class _PoolClosedError(Exception):
    """Work was submitted to a closed pool."""


class PostgresConnection(Connection):
    """A connection of ``asyncpg`` inside a transaction. The driver limits the time of each statement.

    The limit is not set in the server, since a server that hangs cannot enforce it.
    """

    dialect: Dialect = "postgresql"
    violations: type[Exception] = asyncpg.IntegrityConstraintViolationError

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._limit: float | None = None

    async def fetch(self, sql: str, /, **values: Any) -> Sequence[Row]:
        text, names = in_postgresql(sql)
        return await self._driver.fetch(text, *[values[name] for name in names], timeout=self._limit)

    async def first(self, sql: str, /, **values: Any) -> Row | None:
        text, names = in_postgresql(sql)
        return await self._driver.fetchrow(text, *[values[name] for name in names], timeout=self._limit)

    async def execute(self, sql: str, /, **values: Any) -> int:
        text, names = in_postgresql(sql)
        status: str = await self._driver.execute(text, *[values[name] for name in names], timeout=self._limit)
        count = status.rpartition(" ")[2]
        return int(count) if count.isdecimal() else 0

    async def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]], /) -> None:
        text, names = in_postgresql(sql)
        await self._driver.executemany(text, [[row[name] for name in names] for row in rows], timeout=self._limit)

    def lift_time_limit(self) -> None:
        self._limit = _NO_LIMIT


class PostgresDatabase(Database):
    """A database on a PostgreSQL server, shared by any number of processes and machines.

    Each process has one pool of connections, in a thread with its own event loop, for callers in any thread or loop.

    Args:
        url, schema, pool_size, busy_timeout: As for ``PostgresStorage``.
        tables: The tables that this object uses.
        statement_timeout: As for ``PostgresStorage``. Creating and migrating tables, and work that calls
            ``lift_time_limit``, have no limit.
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
        whole("", "pool_size", pool_size, least=1)
        seconds("", "busy_timeout", busy_timeout)
        seconds("", "statement_timeout", statement_timeout)
        self.location = without_password(url)
        # The settings end with the transaction. PgBouncer refuses most settings of a new connection, and with
        # transaction pooling the settings of one client would apply to others: its schema, too.
        settings = [
            f"SET LOCAL lock_timeout = {max(1, int(busy_timeout * 1000))}",
            # A client machine that disappears during a transaction must not keep its locks for hours.
            f"SET LOCAL idle_in_transaction_session_timeout = {IDLE_IN_TRANSACTION * 1000}",
        ]
        if schema is not None:
            settings.append(f"SET LOCAL search_path = {_quoted(schema)}")
        self._begin = {mode: "; ".join([begin, *settings]) for mode, begin in _BEGIN.items()}
        connect: Any = asyncpg.connect  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        self._connect = partial(  # without a reference to this object: see _Pool
            connect,
            "postgresql://" + url.partition("://")[2],
            timeout=CONNECT_TIMEOUT,
            command_timeout=busy_timeout + statement_timeout,  # a statement may wait for a lock first
            statement_cache_size=512,
        )
        self._tables = tables
        self._schema = schema
        self._pool_size = pool_size
        self._busy_timeout = busy_timeout
        self._statement_timeout = busy_timeout + statement_timeout
        self._pool: _Pool | None = None
        self._lock = threading.Lock()

    async def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.to_thread(pool.close)

    async def erase(self) -> tuple[str, ...]:
        return (
            f"{self.location}: PostgreSQL keeps deleted rows in its files until it vacuums the tables and writes over"
            " the space, and in its write-ahead log until that is recycled",
        )

    async def read(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run("read", name_of(work), lambda connection: work(connection, *args, **kwargs))

    async def write(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run("write", name_of(work), lambda connection: work(connection, *args, **kwargs))

    async def _run(self, mode: Mode, doing: str, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        while True:
            pool = self._pool
            if pool is None or pool.pid != os.getpid():  # neither threads nor connections survive a fork
                with self._lock:
                    pool = self._pool
                    if pool is None or pool.pid != os.getpid():
                        try:
                            self._pool = pool = _Pool(self._connect, self._pool_size, self._busy_timeout)
                        except (OSError, RuntimeError) as error:
                            raise StorageError(f"cannot {doing} in {self.location}: {error}{_LIMITS}") from error
                        weakref.finalize(self, pool.close, cancel=True, wait=0).atexit = False
            try:
                job = pool.submit(partial(self._repeated, pool, mode, doing, work))
            except _PoolClosedError:
                continue  # another task closed it between opening and submitting: open again
            return await asyncio.wrap_future(job)

    async def _repeated(
        self, pool: _Pool, mode: Mode, doing: str, work: Callable[[Connection], Coroutine[Any, Any, T]]
    ) -> T:
        """Run the transaction. Repeats it after a conflict with another one, or if an idle connection was lost."""
        for attempt in range(1, ATTEMPTS + 1):
            tried = _Try(mode, self._begin[mode])
            try:
                if not pool.prepared:  # prepare it once for all waiting callers; an error goes to all of them
                    if pool.preparing is None:
                        pool.preparing = asyncio.create_task(self._make_ready(pool))
                    await asyncio.shield(pool.preparing)
                return await tried.run(pool, work)
            except (*_ERRORS, _PoolBusyError) as error:
                if attempt == ATTEMPTS or not tried.may_repeat(error):
                    raise self._mapped(doing, tried, error) from error
            await asyncio.sleep(random.uniform(0, 0.002 * 2**attempt))
        raise AssertionError("unreachable")

    async def _make_ready(self, pool: _Pool) -> None:
        try:
            await _Try("write", self._begin["write"]).run(pool, self._ensure)
            pool.prepared = True
        finally:
            pool.preparing = None

    async def _ensure(self, connection: Connection) -> None:
        encoding = await connection.value("SHOW server_encoding")
        if encoding != "UTF8":
            raise StorageError(
                f"{self.location} has the encoding {encoding}, which cannot hold all texts:"
                " use a database that was created with ENCODING 'UTF8'"
            )
        if await self._tables.is_current(connection, self.location):
            return
        connection.lift_time_limit()
        # If several processes open the database at once, one of them migrates it; the others wait and check again.
        await connection.value("SELECT pg_advisory_xact_lock(:lock)", lock=_SCHEMA_LOCK)
        if self._schema is not None:
            found = "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = :name"
            if await connection.value(found, name=self._schema) is None:
                await connection.execute(f"CREATE SCHEMA {_quoted(self._schema)}")
        await self._tables.ensure(connection, self.location)

    def _mapped(self, doing: str, tried: _Try, error: Exception) -> StorageError | InputError:
        """Return the error to raise, with a remedy if one is known."""
        state = _sqlstate(error)
        if isinstance(error.__cause__, UnicodeEncodeError):
            return InputError(f"cannot {doing}: {error.__cause__.object!r} is not valid Unicode")
        if state == "22021":
            return InputError(f"cannot {doing}: PostgreSQL cannot store a NUL character in a key or title")
        if state == "54000":
            return InputError(
                f"cannot {doing}: an id or key is too long for an index of PostgreSQL: use at most 1,000 bytes"
            )
        if isinstance(error, _PoolBusyError):
            reason = (
                f"all {self._pool_size} connections have been in use for {self._busy_timeout:g} seconds;"
                " check that the server answers, raise pool_size or busy_timeout, or do less at once"
            )
        elif isinstance(error, NoAnswerError):
            reason = (
                f"no answer to a statement within {self._statement_timeout:g} seconds (busy_timeout and"
                " statement_timeout); check the server and the network, or raise these limits"
            )
        elif type(error) is TimeoutError:
            reason = f"no connection within {CONNECT_TIMEOUT} seconds; check the server, or correct the URL"
        else:
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__  # without the server's details
            if isinstance(error, OSError):
                is_limit = error.errno in (errno.EMFILE, errno.ENFILE)
                reason += _LIMITS if is_limit else "; start PostgreSQL there, or correct the URL"
            reason += _REMEDIES.get(state, "").format(seconds=self._busy_timeout)
        if tried.committing and tried.mode == "write":
            reason += "; the connection broke during the commit, so the changes may have been stored or not"
        return StorageError(f"cannot {doing} in {self.location}: {reason}")


class _Try:
    """One attempt at a transaction, and its progress."""

    def __init__(self, mode: Mode, begin: str) -> None:
        self.mode: Mode = mode
        self._begin = begin
        self.committing = False
        self._lost = False

    async def run(self, pool: _Pool, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        driver = await pool.acquire()
        usable = False
        try:
            await driver.execute(self._begin)
            try:
                result = await work(PostgresConnection(driver))
            except Exception as error:
                if not isinstance(error, TimeoutError) and not driver.is_closed():
                    with suppress(*_ERRORS):  # keep the first error
                        await driver.execute("ROLLBACK")
                        usable = True
                raise
            self.committing = not driver.is_closed()
            await driver.execute("COMMIT")
            usable = True
            return result
        except TimeoutError as error:
            pool.drop_idle()  # other connections may be dead as well
            raise NoAnswerError from error
        except Exception as error:
            self._lost = driver.is_closed() or isinstance(error, asyncpg.InternalClientError)
            if str(error).startswith(_NOT_SENT):
                self.committing = False
            if self._lost or _sqlstate(error) == _READ_ONLY:
                usable = False
                pool.drop_idle()
            raise
        finally:
            pool.release(driver, usable=usable)

    def may_repeat(self, error: Exception) -> bool:
        """Return True if the attempt changed nothing and another one may succeed.

        This is the case if two transactions inserted the same row, which the second attempt will find; if the server
        has closed an idle connection, which is noticed at its next use; or if another program has changed the tables,
        so that a prepared statement is outdated.
        """
        if _sqlstate(error) in _COLLISIONS or isinstance(error, asyncpg.InvalidCachedStatementError):
            return True
        broken = self._lost or _sqlstate(error) == "57P01"
        return broken and (self.mode == "read" or not self.committing)


_NOT_SENT = "cannot switch to state"
"""Begins the driver's error if the server has ended the connection before a statement was sent."""
_READ_ONLY = "25006"
"""A write on a read-only server. After a failover, new connections may reach the new primary; open ones do not."""
_COLLISIONS = {
    "23503",  # foreign key: the referenced row was just deleted
    "23505",  # unique: the row was just inserted
    "40001",  # serialization failure
    "40P01",  # deadlock
}


class _Pool:
    """The connections of an open database, and the thread with their event loop.

    Holds no reference to its owner, so the owner can be garbage-collected, which closes the pool.
    """

    def __init__(self, connect: Callable[[], Awaitable[Any]], size: int, busy_timeout: float) -> None:
        self.pid = os.getpid()
        self.prepared = False
        self.preparing: asyncio.Task[None] | None = None
        self._connect = connect
        self._busy_timeout = busy_timeout
        self._free = asyncio.Semaphore(size)
        self._idle: list[Any] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="diarist-postgres", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._loop.close()
            raise
        _living.add(self)

    def submit(self, job: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        with self._lock:
            if self._closed:
                raise _PoolClosedError
            return asyncio.run_coroutine_threadsafe(job(), self._loop)

    async def acquire(self) -> Any:
        """Return a connection of the driver. Raises _PoolBusyError, and the driver's connection errors."""
        try:
            async with asyncio.timeout(self._busy_timeout if self._free.locked() else None):
                await self._free.acquire()
        except TimeoutError:
            raise _PoolBusyError from None
        try:
            return await self._idle_or_new()
        except BaseException:
            self._free.release()
            raise

    async def _idle_or_new(self) -> Any:
        """Return an idle connection, or open one. If the server accepts no more, wait for either."""
        deadline, pause = time.monotonic() + self._busy_timeout, 0.02
        while True:
            while self._idle:
                driver = self._idle.pop()
                if not driver.is_closed():
                    return driver
            try:
                return await self._connect()
            except asyncpg.TooManyConnectionsError:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(random.uniform(0, pause))
            pause = min(2 * pause, 0.5)

    def release(self, driver: Any, *, usable: bool) -> None:
        """Return a connection to the pool. An unusable one is closed, so the server rolls back its transaction."""
        self._free.release()
        if usable and not driver.is_closed():
            self._idle.append(driver)
        else:
            self._close_soon(driver)

    def drop_idle(self) -> None:
        """Close the idle connections."""
        idle, self._idle = self._idle, []
        for driver in idle:
            self._close_soon(driver)

    def _close_soon(self, driver: Any) -> None:
        async def close() -> None:
            with suppress(Exception):
                await driver.close(timeout=2.0)

        if not driver.is_closed():
            task = asyncio.create_task(close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def close(self, *, cancel: bool = False, wait: float | None = None) -> None:
        """Reject new work, wait for running work or cancel it, and release the connections.

        Blocks at most ``wait`` seconds; by default, until all is done. With 0, any thread may call it, even during
        garbage collection.
        """
        if self.pid != os.getpid():
            return
        with self._lock:
            if not self._closed:
                self._closed = True
                ended = asyncio.run_coroutine_threadsafe(self._finish(cancel), self._loop)
                ended.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
                _living.discard(self)
        if wait != 0:
            self._thread.join(wait)

    def _serve(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _finish(self, cancel: bool) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            if cancel:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Close all at once, since a server may not answer; the driver drops connections that do not close in time.
        self.drop_idle()
        await asyncio.gather(*self._closing)


_living: set[_Pool] = set()
"""Pools to close at exit."""


@atexit.register
def _close_at_exit() -> None:
    try:
        end_shared_loop()
    finally:
        for pool in list(_living):
            pool.close(cancel=True, wait=2)


# --- addresses ---------------------------------------------------------------------------------------------

_SCHEMES = ("postgresql", "postgres", "postgresql+asyncpg")
_EXAMPLE = "write postgresql://user:password@host:5432/name"  # never the URL itself, which may hold a password


def without_password(url: str) -> str:
    """Return the URL without its password. Raises ConfigError for other kinds of URL."""
    try:
        found = urlsplit(url)
        user, at, hosts = found.netloc.rpartition("@")
    except (ValueError, TypeError, AttributeError) as error:  # None, from an environment variable that is not set
        raise ConfigError(f"not a URL of a PostgreSQL database: {_EXAMPLE}") from error
    ports = [host.rpartition("]")[2].partition(":")[2] for host in hosts.split(",")]
    # In a password with a slash, the text before the slash looks like a port.
    if found.scheme not in _SCHEMES or "://" not in url or any(port and not port.isdecimal() for port in ports):
        raise ConfigError(f"not a URL of a PostgreSQL database: {_EXAMPLE}")
    query = [(name, value) for name, value in parse_qsl(found.query) if name != "password"]
    parameters = f"?{urlencode(query, quote_via=quote_plus, safe='/')}" if query else ""
    return f"postgresql://{user.partition(':')[0]}{at}{hosts}{found.path}{parameters}"


def check_schema_name(name: str) -> None:
    """Raise ConfigError for a name that PostgreSQL would truncate, reject or misinterpret."""
    texts("", schema=name)
    size = len(name.encode(errors="replace"))
    half = any("\ud800" <= character <= "\udfff" for character in name)
    if not 1 <= size <= 63 or "\0" in name or name.startswith("pg_") or name == "$user" or half:
        raise ConfigError(
            "schema must be the name of a PostgreSQL schema, at most 63 bytes long and not starting with pg_,"
            f" and not {name!r}"
        )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# --- errors ------------------------------------------------------------------------------------------------

_LIMITS = "; raise the limits of the process (ulimit -n, -u)"
_POOLED = "; let the pooler (such as PgBouncer) use session pooling"
_REMEDIES = {
    "26000": _POOLED,
    "42P05": _POOLED,
    "28P01": "; correct the user or the password in the URL",
    "28000": "; correct the user or the password in the URL, or let the server accept them (pg_hba.conf)",
    "3D000": "; create the database, or name another one in the URL",
    "3F000": "; grant the user the rights USAGE and CREATE on the schema, or name another one (schema=)",
    "42P01": "; the tables were removed: start the program again (or close the storage), and they are created again",
    "42501": "; grant the user the missing privilege, or connect as another user",
    _READ_ONLY: "; connect to the primary server, which accepts writes",
    "53100": "; free some space on the server's disk",
    "53300": ", for {seconds:g} seconds (busy_timeout); raise max_connections of the server, or lower pool_size here or"
    " elsewhere",
    "57014": "; it was cancelled by another program, or by the server's statement_timeout: raise that for this user",
    "55P03": "; another program has held a lock for {seconds:g} seconds (busy_timeout): end it, or raise busy_timeout",
    "57P03": "; wait until the server is up",
}


def _sqlstate(error: BaseException) -> str:
    return getattr(error, "sqlstate", None) or ""
