"""A job queue in a PostgreSQL database."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import psycopg
from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from diarist.exceptions import ConfigError, StorageError
from diarist.memory.observational.work.jobs import Job
from diarist.memory.queue.schema import ensure_schema, is_current
from diarist.memory.queue.worker import QUEUED_WORK, Worker
from diarist.postgres_database.address import check_schema_name, parsed, without_password
from diarist.postgres_database.patience import NoAnswerError

Connection = psycopg.AsyncConnection[Any]

_CONNECT_TIMEOUT = 10
"""Seconds."""


class PostgresQueue:
    """Hands background work of a memory to worker processes, through tables of procrastinate.

    Usable from any number of processes, threads and event loops. It holds no connection: each job that is handed
    over takes one of its own for a moment, beside the turn.

    Args:
        url: ``postgresql://user:password@host:port/name``, with libpq's parameters; the database of the storage,
            or another one.
        schema: The PostgreSQL schema to keep the tables in; created when it is missing.
        name: Which queue. Memories that share a database but not their configuration need queues of their own.
        statement_timeout: Seconds that the server may take to note a job, before the connection is given up:
            StorageError. Creating and migrating the tables has no limit.

    Raises ConfigError for another kind of URL. Needs the extra ``queue``.
    """

    def __init__(
        self, url: str, *, schema: str = "diarist_queue", name: str = "diarist", statement_timeout: float = 30.0
    ) -> None:
        check_schema_name(schema)
        if not 1 <= len(name) <= 50:
            raise ConfigError(f"name must be 1 to 50 characters long, not {name!r}")
        if not statement_timeout > 0:
            raise ConfigError(f"statement_timeout must be a positive number of seconds, not {statement_timeout}")
        self.name = name
        self._statement_timeout = statement_timeout
        self._location = without_password(parsed(url))
        self._schema = schema
        self._conninfo = _conninfo(url, schema)
        self._ready = False

    @property
    def location(self) -> str:
        """The address, without its password."""
        return self._location

    async def submit(self, job: Job) -> None:
        """Put a job in the queue, unless one of its name is there already or being done.

        Raises:
            StorageError: The database cannot be reached, or refuses.
        """
        async with self._connected("hand over a job to") as connection:
            if not await self._is_done_now(connection, job):  # what comes meanwhile is for a later job
                await self._put(connection, job, attempt=1, delay=0)

    async def put_back(self, job: Job, *, attempt: int, delay: int = 0) -> None:
        """As ``submit``, by the worker that does the job: for another ``attempt``, in ``delay`` seconds or later."""
        async with self._connected("put back a job into") as connection:
            await self._put(connection, job, attempt=attempt, delay=delay)

    async def _put(self, connection: Connection, job: Job, *, attempt: int, delay: int) -> None:
        with suppress(AlreadyEnqueued):
            await (
                App(connector=PsycopgConnector())
                .configure_task(
                    QUEUED_WORK,
                    queue=self.name,
                    # As the leases have it: one job of a name is done at a time, and waits for no other.
                    lock=self._lock_of(job),
                    queueing_lock=self._lock_of(job),
                    schedule_in={"seconds": delay} if delay else None,
                    connection=connection,
                )
                .defer_async(job=job.to_json(), attempt=attempt)
            )

    async def _is_done_now(self, connection: Connection, job: Job) -> bool:
        found = await connection.execute(
            "SELECT 1 FROM procrastinate_jobs WHERE status = 'doing' AND queueing_lock = %s LIMIT 1",
            [self._lock_of(job)],
        )
        return await found.fetchone() is not None

    def _lock_of(self, job: Job) -> str:
        return f"{self.name}:{job.name}"

    async def run(self, work: Callable[[Job], Awaitable[bool]], *, concurrency: int, grace: float) -> None:
        """Do what is in the queue and what comes, until cancelled; ``JobQueue`` has the rest."""
        await Worker(self, work, concurrency=concurrency, grace=grace).run()

    async def prepare(self) -> None:
        """Connect, and create the tables if need be. Raises StorageError."""
        async with self._connected("open"):
            pass

    def connector(self) -> PsycopgConnector:
        """The connections of a worker."""
        return PsycopgConnector(
            conninfo=self._conninfo, min_size=1, max_size=4, timeout=_CONNECT_TIMEOUT, name="diarist worker"
        )

    @contextmanager
    def explained(self, doing: str) -> Generator[None]:
        """Errors of driver and library become StorageError."""
        try:
            yield
        except (psycopg.Error, ConnectorException, NoAnswerError) as error:
            cause = error.__cause__ if isinstance(error, ConnectorException) and error.__cause__ else error
            words = next(iter(str(cause).splitlines()), "") or type(cause).__name__
            raise StorageError(f"cannot {doing} the queue in {self._location}: {words}{_remedy(cause)}") from error

    @asynccontextmanager
    async def _connected(self, doing: str) -> AsyncGenerator[Connection]:
        with self.explained(doing):
            async with await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True) as connection:
                if not self._ready:
                    with _cut_after(self._statement_timeout, connection):
                        current = await is_current(connection)
                    if not current:
                        await ensure_schema(connection, self._schema, self._location)
                    self._ready = True
                with _cut_after(self._statement_timeout, connection):
                    yield connection


@contextmanager
def _cut_after(seconds: float, connection: Connection) -> Generator[None]:
    """Cut the connection where the block takes longer, which ends every wait in it. (A cancellation would not: the
    driver asks the server first to stop.)"""
    late = False

    def cut() -> None:
        nonlocal late
        late = True
        if not connection.closed:
            with socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as line, suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    timer = asyncio.get_running_loop().call_later(seconds, cut)
    try:
        yield
    except (psycopg.Error, ConnectorException) as error:
        if late:
            raise NoAnswerError(f"no answer within {seconds:g} seconds (statement_timeout)") from error
        raise
    finally:
        timer.cancel()


def _conninfo(url: str, schema: str) -> str:
    try:
        known = conninfo_to_dict("postgresql://" + url.partition("://")[2])
    except psycopg.ProgrammingError as error:
        raise ConfigError("not a URL of a PostgreSQL database: a parameter in it is not one of libpq's") from error
    quoted = '"' + schema.replace('"', '""') + '"'
    path = quoted.replace("\\", r"\\").replace(" ", r"\ ")
    known["options"] = f"{known.get('options') or ''} -c search_path={path}".strip()
    known.setdefault("connect_timeout", str(_CONNECT_TIMEOUT))
    return make_conninfo("", **known)


def _remedy(cause: BaseException) -> str:
    if isinstance(cause, NoAnswerError):
        return "; see whether the server hangs, or the network to it, or allow more"
    if isinstance(cause, psycopg.errors.InsufficientPrivilege):
        return "; grant the user what is missing (CREATE on the database, at first use), or connect as another one"
    if isinstance(cause, psycopg.OperationalError) and cause.sqlstate is None:
        return "; start PostgreSQL there, or correct the URL"
    return ""
