"""Waiting for work that is cut short leaves nobody waiting, and nothing behind."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from diarist.agent.waiting import with_written
from diarist.chunks import DataChunk
from diarist.concurrency import obtained, undisturbed
from diarist.run_context import Writer


async def nothing(*_: object) -> None: ...


@pytest.mark.parametrize("way", ["with_written", "undisturbed", "obtained"])
async def test_work_that_is_cancelled_before_it_begins_keeps_nobody_waiting(way: str) -> None:
    ways = {
        "with_written": lambda: with_written(nothing(), Writer("r"), nothing),
        "undisturbed": lambda: undisturbed(nothing()),
        "obtained": lambda: obtained(nothing(), nothing),
    }
    known = asyncio.all_tasks()
    waiting = asyncio.create_task(ways[way]())
    await asyncio.sleep(0)
    (inner,) = asyncio.all_tasks() - known - {waiting}
    inner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, 10)
    gc.collect()  # "was never awaited" would be an error here


async def test_nothing_is_left_unawaited_where_a_hook_fails_and_the_call_is_cancelled() -> None:
    async def fail() -> None:
        raise ValueError("a hook")

    writer = Writer("r")
    writer.custom(DataChunk("data-x", {}))
    waiting = asyncio.create_task(with_written(nothing(), writer, fail))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gc.collect()


async def test_what_is_obtained_may_come_from_anything_that_can_be_awaited() -> None:
    """A storage of somebody's own may hand out futures."""
    loop, complaints = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    future: asyncio.Future[str] = loop.create_future()
    loop.call_soon(future.set_result, "a lease")
    assert await obtained(future, nothing) == "a lease"
    await asyncio.sleep(0)
    assert complaints == []
