"""Beginning a run of a thread, after the one that is live."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from functools import partial

from diarist.concurrency import obtained
from diarist.exceptions import ConflictError, InputError, StorageError, ThreadBusyError
from diarist.memory.ending import RUN_TTL, end_left_open, end_run, leave_open
from diarist.storage.base import Storage
from diarist.storage.records import Run, Thread

logger = logging.getLogger("diarist")

_FIRST_WAIT, _LONGEST_WAIT = 0.02, 0.5


async def open_run(
    storage: Storage, run_id: str, thread: Thread, *, wait: float, ttl: float = RUN_TTL, guarded: bool = False
) -> Run:
    """Begin a run once no other run of the thread is live. Cut short, it leaves none.

    Args:
        wait: Seconds to wait for another run to end.
        ttl, guarded: As for ``Storage.begin_run``.

    Raises:
        ThreadBusyError: Another run of the thread did not end in time.
        InputError: The thread belongs to another resource.
    """
    deadline = time.monotonic() + wait
    pause = _FIRST_WAIT
    while True:
        try:
            return await obtained(_begin(storage, run_id, thread, ttl, guarded), partial(_take_back, storage))
        except ThreadBusyError as error:
            if await end_left_open(storage, thread.id):
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                raise ThreadBusyError(
                    f"{error}, for longer than the {wait:g} s of thread_wait; set a higher one, or try again later"
                ) from error
        except InputError as error:
            if thread.resource_id != thread.id:
                raise
            raise InputError(f"{error}; without resource=, a thread is its own resource") from error
        await asyncio.sleep(min(left, pause * random.uniform(0.5, 1.5)))
        pause = min(pause * 2, _LONGEST_WAIT)


async def _begin(storage: Storage, run_id: str, thread: Thread, ttl: float, guarded: bool) -> Run:
    """Where only the reply was lost, the run is there all the same: nobody else knows its id."""
    try:
        return await storage.begin_run(run_id, thread, ttl=ttl, guarded=guarded)
    except (ConflictError, ThreadBusyError):
        raise  # the database has answered
    except StorageError as error:
        try:
            run = await storage.get_run(run_id)
        except StorageError:
            leave_open(storage, thread.id, run_id)
            raise error from error.__cause__
        if run is None:
            leave_open(storage, thread.id, run_id)  # it may begin yet
        if run is None or run.state != "live":
            raise
        return run


async def _take_back(storage: Storage, run: Run) -> None:
    try:
        await end_run(storage, run, "discarded")
    except StorageError as error:
        logger.warning("the cancelled run %s holds thread %s until its time is up: %s", run.id, run.thread_id, error)
