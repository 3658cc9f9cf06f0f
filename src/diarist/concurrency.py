"""Helpers for tasks that are cancelled, fail, or take longer than their caller can wait."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any, TypeVar

from diarist.exceptions import ConflictError, RunLostError, StorageError

T = TypeVar("T")

logger = logging.getLogger("diarist")

CLEANUP_GRACE = 2.0
"""Grace period for cleanup after a cancellation, in seconds."""
_MOMENT = 0.01
"""Time in seconds in which cancelled work usually ends."""
_JITTER = 0.02
"""Longest pause after a first conflict, in seconds; longer after each further one."""

_INNER_CANCEL = "something that it awaited was cancelled"

_LONGEST_PAUSE = 2.0
"""Longest pause between two attempts in the background, in seconds."""

_detached: set[asyncio.Future[Any]] = set()
"""Keeps tasks that run longer than their grace period; asyncio itself has only weak references to tasks."""


async def gather_or_cancel(works: Sequence[Coroutine[Any, Any, Any]]) -> None:
    """Await all. The first error cancels the others and is raised; of several at once, the one listed first."""
    tasks = [asyncio.ensure_future(work) for work in works]
    if not tasks:
        return
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def retry_on_conflict(work: Callable[[], Awaitable[T]]) -> T:
    """Await ``work``, which reads and saves. After a ConflictError, pause and repeat it, up to ten times in all."""
    for attempt in range(1, 10):
        try:
            return await work()
        except ConflictError:
            await asyncio.sleep(random.uniform(0, _JITTER * attempt))
    return await work()


def being_cancelled() -> bool:
    """Return True if the current task was cancelled.

    Otherwise, a CancelledError comes from something that the task awaited, and is a failure like any other.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def inner_cancel_as_error(work: Awaitable[T]) -> T:
    """Await ``work``. A CancelledError becomes a RuntimeError if the current task was not cancelled.

    Such an error comes from something that ``work`` awaited, such as a client that was closed.
    """
    try:
        return await work
    except asyncio.CancelledError as error:
        if being_cancelled():
            raise
        raise RuntimeError(_INNER_CANCEL) from error


async def finish_within(seconds: float | None, work: Awaitable[T], late: Exception) -> T:
    """Await ``work``, for at most ``seconds``. Then cancel it and raise ``late``; its cleanup ends in the background.

    A CancelledError from something that ``work`` awaited becomes a RuntimeError, as in ``inner_cancel_as_error``.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        await wait_with_grace(task, hurried=True)
        if task.done():
            _log_failure(task)
        raise
    if task.cancelled():
        raise RuntimeError(_INNER_CANCEL)
    if task.done():
        return task.result()
    task.cancel()
    _keep(task)
    await asyncio.wait([task], timeout=_MOMENT)
    if not task.done():
        logger.warning("a call that took too long was cancelled; its cleanup continues in the background")
    raise late


async def wait_with_grace(
    task: asyncio.Future[Any], *, hurried: bool = False, limited: bool = True
) -> asyncio.CancelledError | None:
    """Wait for the end of a task. Returns the last cancellation of the caller that arrived during the wait.

    The grace period begins with such a cancellation. After it, the task continues in the background.

    Args:
        hurried: True begins the grace period at once.
        limited: False waits as long as the task takes.
    """
    cancelled: asyncio.CancelledError | None = None
    clock, deadline = asyncio.get_running_loop().time, None
    while not task.done():
        if deadline is None and limited and (hurried or cancelled is not None):
            deadline = clock() + CLEANUP_GRACE
        if deadline is not None and clock() >= deadline:
            logger.warning(
                "cleanup after a cancelled call takes longer than %g s; it continues in the background", CLEANUP_GRACE
            )
            _keep(task)
            break
        try:
            await asyncio.wait([task], timeout=None if deadline is None else deadline - clock())
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


def try_in_background(work: Callable[[], Awaitable[object]], seconds: float) -> None:
    """Repeat ``work()`` in the background until the database is back, for at most ``seconds``.

    ``work`` ends or releases something: a ConflictError or a RunLostError means that this has happened already.
    """
    _keep(asyncio.create_task(_try(work, seconds), context=Context()))


async def _try(work: Callable[[], Awaitable[object]], seconds: float) -> None:
    deadline, pause = time.monotonic() + seconds, _JITTER
    while True:
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(pause * 2, _LONGEST_PAUSE)
        try:
            await work()
            return
        except (ConflictError, RunLostError):
            return
        except StorageError:
            if time.monotonic() > deadline:
                raise


def _keep(task: asyncio.Future[Any]) -> None:
    _detached.add(task)
    task.add_done_callback(_log_failure)


def _log_failure(task: asyncio.Future[Any], *, unless_done_before: bool = False) -> None:
    _detached.discard(task)
    if task.cancelled() or (error := task.exception()) is None or program_is_ending():
        return
    if not (unless_done_before and isinstance(error, (ConflictError, RunLostError))):
        logger.warning("cleanup after a cancelled or failed call failed: %s", error)


async def shield_until_done(
    work: Callable[[], Coroutine[Any, Any, T]], *, hurried: bool = False, repeat: bool = False
) -> T | None:
    """Run ``work()`` to its end, even if the caller is cancelled; then raise the cancellation.

    A cancellation is raised instead of an error of ``work``. After it, or with ``hurried``, ``work`` has the grace
    period of ``wait_with_grace``; with ``hurried``, the result is None if ``work`` takes longer. An event loop that
    ends cancels all tasks: if ``work`` had not begun, it still runs.

    Args:
        repeat: True runs ``work`` once more even if it had begun. It must be safe to do twice; a ConflictError or a
            RunLostError then means that it was done before.
    """
    has_begun = False

    async def begin() -> T:
        nonlocal has_begun
        has_begun = True
        return await work()

    task = asyncio.create_task(begin())
    cancelled = await wait_with_grace(task, hurried=hurried)
    if task.cancelled() and (repeat or not has_begun):
        task = asyncio.create_task(begin())
        cancelled = await wait_with_grace(task, hurried=hurried or cancelled is not None) or cancelled
    if cancelled is not None:
        if task.done():
            _log_failure(task, unless_done_before=repeat)
        raise cancelled
    return task.result() if task.done() else None


async def acquire_or_undo(work: Awaitable[T], undo: Callable[[], Awaitable[object]], *, ttl: float) -> T:
    """Await ``work``, which acquires a resource. If it is cancelled, await ``undo()`` and raise the cancellation.

    ``undo`` begins when ``work`` has ended, unless that failed, and has the grace period of ``wait_with_grace``.

    Args:
        undo: Releases the resource if it was acquired. It must be safe to do twice.
        ttl: Seconds after which the resource is free anyway. An ``undo`` that fails is repeated for as long.
    """
    task = asyncio.ensure_future(work)

    async def finish_and_undo() -> None:
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is not None:  # nothing was acquired
            return
        try:
            await undo()
        except Exception:  # any error: the caller raises a cancellation
            try_in_background(undo, ttl)

    try:
        await asyncio.wait([task])
        return task.result()
    except asyncio.CancelledError:
        await shield_until_done(finish_and_undo, hurried=True, repeat=True)
        raise


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancel a task, unless it is done, and wait until it has ended. Its own errors are not raised."""
    cancelled: asyncio.CancelledError | None = None
    if not task.done():
        task.cancel()
        cancelled = await wait_with_grace(task, limited=False)
    if not task.cancelled() and (error := task.exception()):  # only log it, since the caller may raise another error
        logger.debug("a stopped task had failed", exc_info=error)
    if cancelled is not None:
        raise cancelled


def program_is_ending() -> bool:
    """Return True if the main program has ended, which makes daemon threads fail."""
    if sys.is_finalizing() or not threading.main_thread().is_alive():
        return True
    try:  # executors refuse work shortly before the two checks above return True
        with ThreadPoolExecutor(1) as threads:
            threads.submit(int)
    except RuntimeError:
        return True
    return False
