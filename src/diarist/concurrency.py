"""Waiting for work that is cancelled, fails or outlasts its caller; and whether there is time for any."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

logger = logging.getLogger("diarist")

PATIENCE = 2.0
"""Seconds that who is cancelled waits for what must not be left undone, such as telling a database."""

_left_alone: set[asyncio.Task[Any]] = set()
"""Nobody else holds them."""


async def side_by_side(works: Sequence[Coroutine[Any, Any, Any]]) -> None:
    """Await all; the first that raises cancels the others, and its error is raised as it is. Of several errors at
    once, the first listed counts. Nothing to await is no mistake."""
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


def being_cancelled() -> bool:
    """Whether somebody has cancelled the current task. A CancelledError without that was raised by work that
    waited for something cancelled, and is a failure like any other."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def at_work(task: asyncio.Task[Any] | None) -> bool:
    """Whether ``task`` runs now. Where its coroutine is closed instead, nothing can be awaited any more."""
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no event loop runs
        return False


async def contained(work: Awaitable[T]) -> T:
    """Await ``work``; a CancelledError that it raises though nobody cancelled the current task becomes a RuntimeError:
    it waited for something that others cancelled, such as a client whose connections were closed."""
    try:
        return await work
    except asyncio.CancelledError as error:
        if being_cancelled():
            raise
        raise RuntimeError("it waited for something that was cancelled") from error


async def outlasted(
    task: asyncio.Task[Any], *, hurried: bool = False, patience: float | None = PATIENCE
) -> asyncio.CancelledError | None:
    """Wait for the end of a task, and return the last cancellation that came meanwhile.

    From such a cancellation on, or from the beginning where it is ``hurried``, that is at most ``patience`` seconds:
    then the task goes on by itself. None: however long it takes.
    """
    cancelled: asyncio.CancelledError | None = None
    clock, deadline = asyncio.get_running_loop().time, None
    while not task.done():
        if deadline is None and patience is not None and (hurried or cancelled is not None):
            deadline = clock() + patience
        if deadline is not None and clock() >= deadline:
            logger.warning("cleaning up after a cancelled call takes longer than %g s; it goes on by itself", patience)
            _left_alone.add(task)
            task.add_done_callback(_end_alone)
            break
        try:
            await asyncio.wait([task], timeout=None if deadline is None else deadline - clock())
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


def _end_alone(task: asyncio.Task[Any]) -> None:
    """Nobody asks any more what came of it."""
    _left_alone.discard(task)
    if not task.cancelled() and (error := task.exception()) and not program_is_ending():
        logger.warning("what a cancelled call had still to do failed: %s", error)


async def undisturbed(work: Coroutine[Any, Any, object], *, hurried: bool = False) -> None:
    """Wait for ``work`` to its very end. A cancellation that comes meanwhile is raised after it, and wins over
    what ``work`` raised itself. Then, and where it is ``hurried``, ``work`` may outlast the wait: see ``outlasted``."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task = begun(work, partial(_end, ended))
    cancelled: asyncio.CancelledError | None = None
    if not hurried:
        try:
            await ended
        except asyncio.CancelledError as error:
            cancelled, hurried = error, True
    cancelled = await outlasted(task, hurried=hurried) or cancelled
    if cancelled is None and task.done():
        task.result()
    if cancelled is not None:
        if task.done():
            _end_alone(task)
        raise cancelled


def begun(work: Awaitable[T], tell: Callable[[], object]) -> asyncio.Task[T]:
    """The task of ``work``, which calls ``tell`` as the last it does: its callbacks come a turn of the event loop
    later. ``tell`` is also called where the task is cancelled before it begins."""
    task = asyncio.create_task(_telling(work, tell))
    task.add_done_callback(partial(_tell_unbegun, work, tell))
    return task


async def _telling(work: Awaitable[T], tell: Callable[[], object]) -> T:
    try:
        return await work
    finally:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            tell()


def _tell_unbegun(work: Awaitable[Any], tell: Callable[[], object], task: asyncio.Task[Any]) -> None:
    if task.cancelled():
        tell()
        if asyncio.iscoroutine(work):
            work.close()


def _end(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


async def obtained(work: Awaitable[T], give_back: Callable[[T], Awaitable[object]]) -> T:
    """Await ``work``. A cancellation that comes meanwhile is raised when what came of it was given back: nobody else
    could. That may outlast the wait: see ``outlasted``."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task = begun(work, partial(_end, ended))
    try:
        await ended
    except asyncio.CancelledError:
        await outlasted(asyncio.create_task(_give_back(task, give_back)), hurried=True)
        raise
    return task.result()


async def _give_back(task: asyncio.Task[T], give_back: Callable[[T], Awaitable[object]]) -> None:
    await asyncio.wait([task])
    if task.cancelled() or task.exception() is not None:  # nothing came of it
        return
    try:
        await give_back(task.result())
    except Exception as error:  # whatever it is: a cancellation is on its way
        logger.warning("what a cancelled call had to give back it cannot: %s", error)


async def stop(task: asyncio.Task[Any]) -> None:
    """Cancel a task, unless it is done, and wait until it has ended, however it ends."""
    cancelled: asyncio.CancelledError | None = None
    if not task.done():
        task.cancel()
        cancelled = await outlasted(task, patience=None)
    if not task.cancelled() and (error := task.exception()):
        # Whoever stops it has a reason to raise already, or has raised this very error.
        logger.debug("a stopped task had failed", exc_info=error)
    if cancelled is not None:
        raise cancelled


def cancel_from_anywhere(task: asyncio.Task[Any]) -> None:
    """Cancel a task of any event loop, from any thread: a coroutine that nobody holds is closed wherever that is
    noticed. A loop that is closed runs none any more."""
    with suppress(RuntimeError):
        task.get_loop().call_soon_threadsafe(task.cancel)


def program_is_ending() -> bool:
    """Whether the main program is over. What daemon threads still try fails then, and says nothing about their work."""
    if sys.is_finalizing() or not threading.main_thread().is_alive():
        return True
    try:  # executors take no more work a moment earlier, and nothing else tells of it
        with ThreadPoolExecutor(1) as threads:
            threads.submit(int)
    except RuntimeError:
        return True
    return False
