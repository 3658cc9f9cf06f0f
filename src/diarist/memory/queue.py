"""A job queue in a PostgreSQL database, and the worker that runs its jobs."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, LiteralString, cast

try:
    import psycopg
    from procrastinate import App, PsycopgConnector
    from procrastinate.exceptions import AlreadyEnqueued, ConnectorException, UniqueViolation
    from procrastinate.jobs import Job as QueuedJob
    from procrastinate.jobs import Status
    from procrastinate.schema import SchemaManager
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.sql import SQL, Identifier
except ImportError as error:
    raise ImportError("PostgresQueue needs an extra of diarist: pip install 'diarist[queue]'") from error

from diarist.checks import seconds, texts
from diarist.concurrency import being_cancelled, inner_cancel_as_error
from diarist.databases.postgres import NoAnswerError, check_schema_name, without_password
from diarist.exceptions import ConfigError, InputError, SchemaError, StorageError
from diarist.memory.observational.jobs import Job

Connection = psycopg.AsyncConnection[Any]

logger = logging.getLogger("diarist")

_CONNECT_TIMEOUT = 10
"""Seconds."""
QUEUED_WORK = "diarist.work"
MAX_ATTEMPTS = 5
_FIRST_DELAY = 10
"""Seconds before the second attempt; doubled for each further one. All delays together are longer than the lease of a
killed process."""
_SILENCE = 30
"""Seconds without a heartbeat after which a worker counts as dead; workers send one every ten seconds."""
_PAUSE = 5.0


class PostgresQueue:
    """Hands background work of a memory to worker processes, through the tables of procrastinate.

    Any number of processes, threads and event loops can use it. It keeps no connection open: each submitted job opens
    one briefly.

    Args:
        url: ``postgresql://user:password@host:port/name``, with libpq's parameters; the storage's database or another
            one.
        schema: PostgreSQL schema of the tables; created if it is missing.
        name: Name of the queue. Memories with different configurations need different queues in one database.
        statement_timeout: Time limit in seconds for submitting a job; then StorageError. Creating and migrating the
            tables has no limit.

    Raises ConfigError for another kind of URL. Needs the extra ``queue``.
    """

    def __init__(
        self, url: str, *, schema: str = "diarist_queue", name: str = "diarist", statement_timeout: float = 30.0
    ) -> None:
        check_schema_name(schema)
        texts("", name=name)
        if not 1 <= len(name) <= 50:
            raise ConfigError(f"name must be 1 to 50 characters long, not {name!r}")
        seconds("", "statement_timeout", statement_timeout)
        self.name = name
        self._statement_timeout = statement_timeout
        self.location = without_password(url)
        self._schema = schema
        self._conninfo = _conninfo(url, schema)
        self._ready = False

    async def submit(self, job: Job) -> None:
        """Add a job to the queue, unless one of the same name is waiting or running.

        Raises:
            StorageError: The database cannot be reached, or rejects the job.
        """
        async with self._connected("submit a job to") as connection:
            found = await connection.execute(
                "SELECT 1 FROM procrastinate_jobs WHERE status = 'doing' AND queueing_lock = %s LIMIT 1",
                [f"{self.name}:{job.name}"],
            )
            if await found.fetchone() is None:  # if one is running, a later job covers the messages stored since
                await self._put(connection, job, attempt=1)

    async def put_back(self, job: Job, *, attempt: int, delay: int = 0) -> None:
        """Return a running job to the queue for another ``attempt``, after ``delay`` seconds."""
        async with self._connected("return a job to") as connection:
            await self._put(connection, job, attempt=attempt, delay=delay)

    async def _put(self, connection: Connection, job: Job, *, attempt: int, delay: int = 0) -> None:
        lock = f"{self.name}:{job.name}"  # as with leases: one job per name runs at a time; other names run in parallel
        task = App(connector=PsycopgConnector()).configure_task(
            QUEUED_WORK,
            queue=self.name,
            lock=lock,
            queueing_lock=lock,
            schedule_in={"seconds": delay} if delay else None,
            connection=connection,
        )
        with suppress(AlreadyEnqueued):
            await task.defer_async(job=job.to_json(), attempt=attempt)

    async def prepare(self) -> None:
        """Connect, and create the tables if they are missing. Raises StorageError."""
        async with self._connected("open"):
            pass

    @contextmanager
    def _explained(self, doing: str) -> Generator[None]:
        """Turn errors of the driver and of procrastinate into StorageError."""
        try:
            yield
        except (psycopg.Error, ConnectorException, NoAnswerError) as error:
            cause = error.__cause__ if isinstance(error, ConnectorException) and error.__cause__ else error
            words = next(iter(str(cause).splitlines()), "") or type(cause).__name__
            raise StorageError(f"cannot {doing} the queue in {self.location}: {words}{_remedy(cause)}") from error

    @asynccontextmanager
    async def _connected(self, doing: str) -> AsyncGenerator[Connection]:
        with self._explained(doing):
            async with await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True) as connection:
                if not self._ready:
                    with _cut_after(self._statement_timeout, connection):
                        last = await _last_migration(connection)
                    if last != max(_migrations()):
                        await _ensure_schema(connection, self._schema, self.location)
                    self._ready = True
                with _cut_after(self._statement_timeout, connection):
                    yield connection

    # -- the worker

    async def run(self, work: Callable[[Job], Awaitable[bool]], *, concurrency: int, grace: float) -> None:
        """Run jobs until cancelled; see ``JobQueue``. Raises StorageError if the queue cannot be opened."""
        await self.prepare()
        logger.info("running the jobs of queue %r in %s", self.name, self.location)
        while True:
            try:
                with self._explained("run jobs of"):
                    await self._run_once(work, concurrency, grace)
                logger.warning("the worker lost its connection to %s; it starts again", self.location)
            except StorageError as error:
                if being_cancelled():  # the database was away when the worker stopped
                    raise asyncio.CancelledError from error
                logger.warning("%s; trying again", error)
            await asyncio.sleep(_PAUSE)

    async def _run_once(self, work: Callable[[Job], Awaitable[bool]], concurrency: int, grace: float) -> None:
        """Run jobs until cancelled, or until a connection is lost: then this returns or raises."""
        connector = PsycopgConnector(
            conninfo=self._conninfo, min_size=1, max_size=4, timeout=_CONNECT_TIMEOUT, name="diarist worker"
        )
        app = App(connector=connector)

        @app.task(name=QUEUED_WORK, queue=self.name)
        async def do(job: dict[str, Any], attempt: int) -> None:  # pyright: ignore[reportUnusedFunction]
            await self._do(work, job, attempt)

        # Procrastinate watches its helper tasks only if there is a periodic task.
        @app.periodic(cron="* * * * *", periodic_id=self.name)
        @app.task(name="diarist.recover", queue=self.name, queueing_lock=f"{self.name}:recover")
        async def recover(timestamp: int) -> None:  # pyright: ignore[reportUnusedFunction]
            await self._recover(app)

        async with app.open_async():
            await self._recover(app)
            await app.run_worker_async(
                queues=[self.name],
                concurrency=concurrency,
                shutdown_graceful_timeout=grace,
                delete_jobs="successful",
                install_signal_handlers=False,
                stalled_worker_timeout=_SILENCE,
            )

    async def _do(self, work: Callable[[Job], Awaitable[bool]], job: dict[str, Any], attempt: int) -> None:
        try:
            wanted = Job.from_json(job)
        except InputError as error:
            logger.warning(
                "background work %r is not understood, and marked as failed: %s; run workers with the version of "
                "diarist that submits jobs",
                job.get("name"),
                error,
            )
            raise
        started = time.monotonic()
        try:
            done = await inner_cancel_as_error(work(wanted))
        except asyncio.CancelledError:  # the worker stops
            await self.put_back(wanted, attempt=attempt)
            return  # raising would mark the job as failed
        except StorageError as error:
            logger.warning("background work %s failed: %s", wanted.name, error)
            done = False
        except Exception:
            logger.exception("background work %s failed", wanted.name)
            done = False
        if done:
            logger.info("background work %s took %.1f s", wanted.name, time.monotonic() - started)
        elif attempt < MAX_ATTEMPTS:
            delay = _FIRST_DELAY * 2 ** (attempt - 1)
            try:
                await self.put_back(wanted, attempt=attempt + 1, delay=delay)
            except StorageError as error:  # the queue is not available either
                logger.warning("background work %s is left to the next run of its thread: %s", wanted.name, error)
        else:
            logger.warning("background work %s is left to the next run of its thread", wanted.name)

    async def _recover(self, app: App) -> None:
        """Return the jobs of dead workers to the queue."""
        for job in await app.job_manager.get_stalled_jobs(queue=self.name, seconds_since_heartbeat=_SILENCE):
            logger.warning("the worker of background work %s died", job.queueing_lock)
            try:
                await _put_back(app, job)
            except ConnectorException as error:
                if not isinstance(error.__cause__, psycopg.errors.RaiseException):
                    raise
                logger.debug("another worker has returned it to the queue: %s", error.__cause__)


@contextmanager
def _cut_after(seconds: float, connection: Connection) -> Generator[None]:
    """Cut the connection if the block takes longer, which ends every wait in it.

    A cancellation would not do that, since the driver first asks the server to stop.
    """
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
        return "; check the server and the network, or set a higher limit"
    if isinstance(cause, psycopg.errors.InsufficientPrivilege):
        return "; grant the user the missing privilege (CREATE on the database, at first use), or use another user"
    if isinstance(cause, psycopg.OperationalError) and cause.sqlstate is None:
        return "; start PostgreSQL, or correct the URL"
    return ""


async def _put_back(app: App, job: QueuedJob) -> None:
    try:
        if job.attempts < MAX_ATTEMPTS:  # after that, the job itself may kill its workers
            await app.job_manager.retry_job(job)
            return
    except UniqueViolation:
        logger.debug("the job was submitted again")
    await app.job_manager.finish_job(job, Status.FAILED, delete_job=True)


# -- the tables: created at first use, and migrated to the installed procrastinate

_LOCK = 0x646961717565  # the letters "diaque": advisory locks of a database are named by numbers


async def _ensure_schema(connection: Connection, schema: str, location: str) -> None:
    """Create or migrate the tables. If several processes start at once, one of them does it and the others wait.

    Args:
        connection: In autocommit, with the schema as its search path.

    Raises:
        SchemaError: The tables belong to a newer procrastinate.
    """
    # A session lock, taken before the transaction: a transaction that waited for the lock would not see the tables that
    # another one created.
    await connection.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
    try:
        async with connection.transaction():
            migrations, last = _migrations(), await _last_migration(connection)
            newest = max(migrations)
            if last is not None and last > newest:
                raise SchemaError(f"the queue in {location} belongs to a newer procrastinate; install that version")
            if last is None:
                await connection.execute(SQL("CREATE SCHEMA IF NOT EXISTS {}").format(Identifier(schema)))
                await connection.execute(SchemaManager.get_schema())
                await connection.execute("CREATE TABLE diarist_queue (last_migration text NOT NULL)")
                await connection.execute("INSERT INTO diarist_queue VALUES (%s)", [newest])
            else:
                for name in sorted(name for name in migrations if name > last):
                    await connection.execute(migrations[name])
                await connection.execute("UPDATE diarist_queue SET last_migration = %s", [newest])
    finally:
        await connection.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])


async def _last_migration(connection: Connection) -> str | None:
    """Return the name of the last migration; None if there are no tables yet."""
    there = await (await connection.execute("SELECT to_regclass('diarist_queue')")).fetchone()
    if there is None or there[0] is None:
        return None
    row = await (await connection.execute("SELECT last_migration FROM diarist_queue")).fetchone()
    return None if row is None else str(row[0])


def _migrations() -> dict[str, LiteralString]:
    """Return the migrations of the installed procrastinate; their names sort by age."""
    files = Path(SchemaManager.get_migrations_path()).glob("*.sql")
    return {file.stem: cast(LiteralString, file.read_text(encoding="utf-8")) for file in files}
