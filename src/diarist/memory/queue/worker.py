"""Working off a queue, until somebody says stop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import psycopg
from procrastinate import App
from procrastinate.exceptions import ConnectorException, UniqueViolation
from procrastinate.jobs import Job as QueuedJob
from procrastinate.jobs import Status

from diarist.concurrency import contained
from diarist.exceptions import InputError, StorageError
from diarist.memory.observational.work.jobs import Job

if TYPE_CHECKING:
    from diarist.memory.queue.postgres import PostgresQueue

logger = logging.getLogger("diarist")

QUEUED_WORK = "diarist.work"
MAX_ATTEMPTS = 5
_FIRST_DELAY = 10
"""Seconds; doubled each time. All together outlast the lease of a process that was killed."""
_SILENCE = 30
"""Seconds without a sign of life after which a worker is taken for dead; they give one every ten."""
_PAUSE = 5.0


class Worker:
    """One worker of a queue.

    Args:
        work: Does a job; False where it should be tried again later.
    """

    def __init__(
        self, queue: PostgresQueue, work: Callable[[Job], Awaitable[bool]], *, concurrency: int, grace: float
    ) -> None:
        self._queue = queue
        self._work = work
        self._concurrency = concurrency
        self._grace = grace

    async def run(self) -> None:
        """Until cancelled. Raises StorageError where the queue cannot be opened at the start."""
        await self._queue.prepare()
        logger.info("working off the queue %r in %s", self._queue.name, self._queue.location)
        while True:
            try:
                with self._queue.explained("work off"):
                    await self._run_once()
                logger.warning("the worker lost its connection to %s; it starts again", self._queue.location)
            except StorageError as error:
                logger.warning("%s; trying again", error)
            await asyncio.sleep(_PAUSE)

    async def _run_once(self) -> None:
        """Until cancelled, or until a connection is lost: then this returns or raises."""
        app = App(connector=self._queue.connector())
        app.task(name=QUEUED_WORK, queue=self._queue.name)(self._do)

        # A periodic task also keeps the library watching its other helpers: without any, it stops doing so.
        @app.periodic(cron="* * * * *", periodic_id=self._queue.name)
        @app.task(name="diarist.recover", queue=self._queue.name, queueing_lock=f"{self._queue.name}:recover")
        async def recover(timestamp: int) -> None:  # pyright: ignore[reportUnusedFunction]
            await self._recover(app)

        async with app.open_async():
            await self._recover(app)
            await app.run_worker_async(
                queues=[self._queue.name],
                concurrency=self._concurrency,
                shutdown_graceful_timeout=self._grace,
                delete_jobs="successful",
                install_signal_handlers=False,
                stalled_worker_timeout=_SILENCE,
            )

    async def _do(self, job: dict[str, Any], attempt: int) -> None:
        wanted, started = _understood(job), time.monotonic()
        try:
            done = await contained(self._work(wanted))
        except asyncio.CancelledError:  # this worker is told to stop
            await self._queue.put_back(wanted, attempt=attempt)
            return  # a job that ends by an error is kept, as failed
        except Exception:
            logger.exception("background work %s failed", wanted.name)
            done = False
        if done:
            logger.info("background work %s took %.1f s", wanted.name, time.monotonic() - started)
        elif attempt < MAX_ATTEMPTS:
            await self._queue.put_back(wanted, attempt=attempt + 1, delay=_FIRST_DELAY * 2 ** (attempt - 1))
        else:
            logger.warning("background work %s is left to the next run of its thread", wanted.name)

    async def _recover(self, app: App) -> None:
        """Put back what workers held that died."""
        for job in await app.job_manager.get_stalled_jobs(queue=self._queue.name, seconds_since_heartbeat=_SILENCE):
            logger.warning("background work %s was held by a worker that died", job.queueing_lock)
            try:
                await _put_back(app, job)
            except ConnectorException as error:
                if not isinstance(error.__cause__, psycopg.errors.RaiseException):
                    raise
                logger.debug("another worker has put it back: %s", error.__cause__)


def _understood(job: dict[str, Any]) -> Job:
    try:
        return Job.from_json(job)
    except InputError as error:
        logger.warning(
            "background work %r is not done, and kept in the queue as failed: %s; let workers have the version of "
            "diarist that asks for it",
            job.get("name"),
            error,
        )
        raise


async def _put_back(app: App, job: QueuedJob) -> None:
    try:
        if job.attempts < MAX_ATTEMPTS:  # else it may be the job that workers die of
            await app.job_manager.retry_job(job)
            return
    except UniqueViolation:
        logger.debug("it was asked for again meanwhile")
    await app.job_manager.finish_job(job, Status.FAILED, delete_job=True)
