"""The lifecycle of a run: begin it once no other run of its thread is live, renew it, end it."""

from __future__ import annotations

import asyncio
import logging
import random
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial

from diarist.concurrency import acquire_or_undo, cancel_and_wait, shield_until_done, try_in_background
from diarist.exceptions import ConflictError, InputError, RunLostError, StorageError, ThreadBusyError
from diarist.messages import Message
from diarist.run_context import Outcome
from diarist.storage.base import Storage
from diarist.storage.records import NewEvent, Run, Thread, is_own_resource

logger = logging.getLogger("diarist")

RUN_TTL = 60.0
"""Seconds without a heartbeat after which another process may take over the thread of a run."""

_FIRST_WAIT, _LONGEST_WAIT = 0.02, 0.5
_queues = weakref.WeakValueDictionary[tuple[asyncio.AbstractEventLoop, int, str], asyncio.Lock]()
"""A lock per event loop and thread, for the callers that want to begin a run. The holder, the first of them, asks the
database; the others wait."""
_NEWEST = 100
"""Number of newest rows to search for the last messages of a run, if the storage did not confirm the run's end."""


async def open_run(
    storage: Storage,
    run_id: str,
    thread: Thread,
    *,
    wait: float,
    guarded: bool = False,
    on_wait: Callable[[str, float], object] = lambda reason, seconds: None,
) -> Run:
    """Begin a run once no other run of the thread is live. A cancelled call leaves no run.

    Of several calls that wait in an event loop, the one that came first begins first.

    Args:
        wait: Seconds to wait for another run to end.
        guarded: As for ``Storage.begin_run``.
        on_wait: Called before each wait, with its reason and its seconds at most; with an empty reason and 0 once the
            database is asked.

    Raises:
        ThreadBusyError: Another run of the thread did not end in time.
        InputError: The thread belongs to another resource.
        StorageError: The database failed. If it did begin the run but its reply was lost, the run is discarded in the
            background once the database is back.
    """
    deadline = time.monotonic() + wait
    queue = _queues.setdefault((asyncio.get_running_loop(), id(storage), thread.id), asyncio.Lock())
    if queue.locked():
        on_wait(f"another call waits for thread {thread.id!r}", wait)
    is_first, pause = False, _FIRST_WAIT
    try:
        with suppress(TimeoutError):  # then ask the database once, since the run may have ended
            async with asyncio.timeout(wait):
                is_first = await queue.acquire()
        on_wait("", 0)
        while True:
            try:
                return await acquire_or_undo(
                    _begin(storage, run_id, thread, guarded), partial(_discard_if_begun, storage, run_id), ttl=RUN_TTL
                )
            except ThreadBusyError as error:
                left, reason = deadline - time.monotonic(), str(error)
                if left <= 0:
                    raise _too_busy(error, wait) from error
            seconds = min(left, pause * random.uniform(0.5, 1.5))
            on_wait(reason, seconds)
            await asyncio.sleep(seconds)
            pause = min(pause * 2, _LONGEST_WAIT)
    except InputError:
        found = await storage.get_thread(thread.id)
        if found is not None and (is_own_resource(thread.resource_id) or is_own_resource(found.resource_id)):
            check_owner(found, thread.resource_id)  # its error says how to use such a thread
        raise
    finally:
        if is_first:
            queue.release()


def _too_busy(error: ThreadBusyError, wait: float) -> ThreadBusyError:
    return ThreadBusyError(
        f"{error}, for longer than the {wait:g} s of thread_wait; raise thread_wait, or try again later (a "
        f"run whose process died holds its thread until {RUN_TTL:g} s after its last heartbeat); if that "
        "run itself makes this call, as in a tool, use another thread or read_only=True; a stream that is "
        "not read to its end runs until you close it, so use it with 'async with'"
    )


def check_owner(thread: Thread, resource_id: str) -> None:
    """Raise InputError if the stored thread belongs to another resource."""
    if thread.resource_id == resource_id:
        return
    if is_own_resource(resource_id):
        raise InputError(
            f"thread {thread.id!r} belongs to resource {thread.resource_id!r}, and cannot be used without resource="
        )
    if is_own_resource(thread.resource_id):
        raise InputError(
            f"thread {thread.id!r} does not belong to resource {resource_id!r}: it was begun without a resource; "
            "use it without resource="
        )
    raise InputError(f"thread {thread.id!r} does not belong to resource {resource_id!r}")


async def _begin(storage: Storage, run_id: str, thread: Thread, guarded: bool) -> Run:
    try:
        return await storage.begin_run(run_id, thread, ttl=RUN_TTL, guarded=guarded)
    except (ConflictError, ThreadBusyError):
        raise
    except StorageError:  # perhaps only the reply was lost
        try:
            if (run := await _live_run(storage, run_id)) is not None:
                return run
        except StorageError:
            try_in_background(partial(_discard_if_begun, storage, run_id), RUN_TTL)
        raise


async def _discard_if_begun(storage: Storage, run_id: str) -> None:
    if (run := await _live_run(storage, run_id)) is not None:
        await storage.finish_run(run, "discarded")


async def _live_run(storage: Storage, run_id: str) -> Run | None:
    run = await storage.get_run(run_id)
    return run if run is not None and run.state == "live" else None


class Heartbeat:
    """Renews a run three times per ``RUN_TTL``, until ``end``, or until ``owner`` is garbage.

    It starts as a timer and creates a task only for the first renewal, because most runs end earlier.
    """

    def __init__(self, storage: Storage, run: Run, owner: object) -> None:
        self._storage = storage
        self._run = run
        self._owner = weakref.ref(owner)
        # The loop keeps cancelled timers with their context for a while. An empty context keeps no messages alive.
        self._timer = asyncio.get_running_loop().call_later(RUN_TTL / 3, self._begin, context=Context())
        self._task: asyncio.Task[None] | None = None

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        while self._owner() is not None:
            try:
                await self._storage.heartbeat(self._run, ttl=RUN_TTL)
            except RunLostError:
                return  # the run's next write raises it
            except StorageError as error:
                logger.warning("heartbeat of run %s failed: %s", self._run.id, error)
            await asyncio.sleep(RUN_TTL / 3)

    async def end(self) -> None:
        """Stop renewing."""
        self._timer.cancel()
        if self._task is not None:
            await cancel_and_wait(self._task)


async def end_run(
    storage: Storage,
    run: Run,
    outcome: Outcome,
    last: Sequence[Message] = (),
    events: Sequence[NewEvent] = (),
    *,
    late: Sequence[Message] = (),
) -> Sequence[int]:
    """End the run with its last messages and events, even if the caller is cancelled. Return the ``seq`` of each
    message.

    Args:
        late: Messages to store if the run ends late; not with ``last``.

    Raises:
        RunLostError, ConflictError: As for ``Storage.finish_run``.
        StorageError: As for ``Storage.finish_run``. A run without last messages then ends in the background once the
            database is back, or at the end of its time to live.
    """
    end_late = partial(storage.finish_run, run, outcome, messages=late, events=events)

    async def end() -> Sequence[int]:
        try:
            return await storage.finish_run(run, outcome, messages=last, events=events)
        except (ConflictError, RunLostError):
            raise
        except StorageError:  # perhaps only the reply was lost
            with suppress(StorageError):
                found = await storage.get_run(run.id)
                if found is None and outcome == "discarded":  # discarding deleted the run and the thread it created
                    return []
                if found is not None and found.state == "live" and not last:
                    return await end_late()
                if found is not None and (found.token, found.state) == (run.token, outcome):
                    rows = await storage.list_messages(run.thread_id, limit=_NEWEST, newest_first=True) if last else []
                    numbers = {row.id: row.seq for row in rows if row.run_id == run.id and row.seq is not None}
                    if all(message.id in numbers for message in last):
                        return [numbers[message.id] for message in last]
            if not last:
                try_in_background(end_late, RUN_TTL)
            raise

    return await shield_until_done(end, repeat=True) or ()
