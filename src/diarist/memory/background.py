"""Background jobs of a memory. Turns wait for them only on request."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import Context
from dataclasses import dataclass, field

from diarist.concurrency import inner_cancel_as_error, program_is_ending
from diarist.exceptions import DiaristError, StorageError
from diarist.sync import blocked_loop, running_loop

logger = logging.getLogger("diarist")

_GLANCE = 1.0
"""Interval, in seconds, at which a waiter checks that the job's loop still runs: a stopped loop sends no signal."""


@dataclass(eq=False, slots=True)
class _Job:
    loop: asyncio.AbstractEventLoop
    process: int = field(default_factory=os.getpid)
    done: Future[None] = field(default_factory=Future[None])
    task: asyncio.Task[None] | None = None


class Background:
    """Runs jobs as tasks of the event loop that starts them, at most one job per name at a time.

    Usable from several event loops and threads at once. Jobs end with their loop.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self._lock = threading.RLock()

    def start(self, name: str, work: Callable[[], Awaitable[object]], *, context: Context | None = None) -> bool:
        """Start ``work`` unless a job of this name is running; return True if it was started.

        Its errors are logged; work cut off by the end of the program is silently left to the next run. Unless
        it gets a ``context``, the job does not see the caller's tracing span or context variables.
        """
        job = _Job(asyncio.get_running_loop())
        with self._lock:
            if self._job(name) is not None:
                return False
            self._jobs[name] = job
        job.task = job.loop.create_task(_run(name, work), name=f"diarist {name}", context=context or Context())
        job.task.add_done_callback(lambda task: self._end(name, job))
        return True

    def running(self, name: str) -> bool:
        """Return True if a job of this name runs."""
        return self._job(name) is not None

    async def wait(self, name: str, timeout: float | None = None) -> bool:
        """Wait until no job of this name runs, at most ``timeout`` seconds. A job on a stopped loop does not block the
        wait.

        Returns False at once if the job cannot end, since the current synchronous call blocks its loop.
        """
        job = self._job(name)
        if job is None:
            return True
        if job.loop is blocked_loop.get():
            return False
        ended, clock = asyncio.wrap_future(job.done), asyncio.get_running_loop().time
        deadline = math.inf if timeout is None else clock() + timeout
        while self._job(name) is job:
            await asyncio.wait([ended], timeout=max(0.0, min(_GLANCE, deadline - clock())))
            if ended.done() or clock() >= deadline:
                break
        return True

    async def settled(self, *, here: bool = False) -> None:
        """Wait until no job runs, including jobs started during the wait. Leaves out jobs on an event loop that the
        current synchronous call blocks. ``here``: wait only for the jobs of the current event loop."""
        loop = asyncio.get_running_loop()
        while any([await self.wait(name) for name, job in list(self._jobs.items()) if not here or job.loop is loop]):
            pass

    def check_elsewhere(self) -> None:
        """Raise DiaristError if a job runs on the event loop of this thread: a synchronous wait would block it."""
        here = running_loop()
        with self._lock:
            if any(job.loop is here for job in self._jobs.values()):
                raise DiaristError(
                    "background work runs on the event loop of this thread, which a synchronous call would block; "
                    "await the async method instead, such as 'await memory.settled()'"
                )

    def _job(self, name: str) -> _Job | None:
        """Return the running job of this name. Drops a job on a closed or stopped loop, since it may never end, and
        after a fork a job of the parent. If such a job does continue, compare-and-set protects the logs against a late
        save."""
        with self._lock:
            job = self._jobs.get(name)
            if job is not None and not (job.process == os.getpid() and job.loop.is_running()):
                del self._jobs[name]
                return None
            return job

    def _end(self, name: str, job: _Job) -> None:
        with self._lock:
            if self._jobs.get(name) is job:
                del self._jobs[name]
        job.done.set_result(None)


async def _run(name: str, work: Callable[[], Awaitable[object]]) -> None:
    try:
        await inner_cancel_as_error(work())
    except Exception as error:  # no caller awaits this task, so its failure is logged here
        if program_is_ending():
            logger.debug("background work %s was cut off by the program's end: %r", name, error)
        elif isinstance(error, StorageError):  # an outage says enough by its message, and fails every job
            logger.warning("background work %s failed: %s", name, error)
        else:
            logger.exception("background work %s failed", name)
