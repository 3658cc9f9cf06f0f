"""Waiting for a piece of work when the one who waits may be cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from diarist.run_context import Writer

T = TypeVar("T")

logger = logging.getLogger("diarist")


def being_cancelled() -> bool:
    """Whether somebody has cancelled the current task. A CancelledError without that was raised by work that
    waited for something cancelled, and is a failure like any other."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def undisturbed(work: Coroutine[Any, Any, None]) -> None:
    """Wait for ``work`` to its very end. A cancellation that comes meanwhile is raised after it, and wins over
    what ``work`` raised itself."""
    task = asyncio.ensure_future(work)
    cancelled = await _end_of(task)
    if cancelled is not None:
        raise cancelled
    task.result()


async def with_written(work: Coroutine[Any, Any, T], writer: Writer, pass_on: Callable[[], Awaitable[None]]) -> T:
    """Await ``work``, and ``pass_on`` what is written meanwhile, as it is written; all of it also where ``work``
    fails."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda _: writer.wake())
    try:
        while not task.done():
            await writer.arrived()
            await pass_on()
        await pass_on()
        return await task
    finally:
        await stop(task)


async def stop(task: asyncio.Task[Any]) -> None:
    """Cancel a task, unless it is done, and wait until it has ended, however it ends."""
    cancelled: asyncio.CancelledError | None = None
    if not task.done():
        task.cancel()
        cancelled = await _end_of(task)
    if not task.cancelled() and (error := task.exception()):
        # Whoever stops it has a reason to raise already, or has raised this very error.
        logger.debug("a stopped task had failed", exc_info=error)
    if cancelled is not None:
        raise cancelled


async def _end_of(task: asyncio.Task[Any]) -> asyncio.CancelledError | None:
    """The last cancellation that came while waiting, if any."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled
