"""Passing on what is written while a piece of work is at it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from diarist.concurrency import begun, stop
from diarist.run_context import Writer

T = TypeVar("T")


async def with_written(work: Coroutine[Any, Any, T], writer: Writer, pass_on: Callable[[], Awaitable[None]]) -> T:
    """Await ``work``, and ``pass_on`` what is written meanwhile, as it is written; all of it also where ``work``
    fails."""
    task = begun(work, writer.wake)
    try:
        while not task.done():
            await writer.arrived()
            await pass_on()
        await pass_on()
        return await task
    finally:
        await stop(task)
