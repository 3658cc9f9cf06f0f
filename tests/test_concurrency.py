"""Waiting for cancelled work ends, and leaves no tasks or coroutines behind."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from diarist.concurrency import acquire_or_undo, finish_within, shield_until_done


async def nothing(*_: object) -> None: ...


async def test_work_that_is_cancelled_before_it_begins_ends_the_wait() -> None:
    known = asyncio.all_tasks()
    waiting = asyncio.create_task(acquire_or_undo(nothing(), nothing, ttl=0))
    await asyncio.sleep(0)
    (inner,) = asyncio.all_tasks() - known - {waiting}
    inner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, 10)
    gc.collect()  # "was never awaited" would be an error here


@pytest.mark.parametrize("steps", range(3))
def test_shielded_work_ends_though_the_event_loop_ends_before_it_begins(steps: int) -> None:
    done: list[str] = []

    async def work() -> None:
        done.append("work")

    async def main() -> None:
        task = asyncio.create_task(shield_until_done(work))
        task.add_done_callback(lambda _: done.append("wait"))
        for _ in range(steps):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert done == ["work", "wait"]
    gc.collect()


@pytest.mark.parametrize("repeat", [False, True])
def test_only_work_that_may_be_repeated_is_begun_again_if_the_event_loop_ends(repeat: bool) -> None:
    done: list[str] = []

    async def work() -> None:
        done.append("begun")
        await asyncio.sleep(0 if len(done) > 1 else 60)
        done.append("ended")

    async def main() -> None:
        task = asyncio.create_task(shield_until_done(work, repeat=repeat))
        task.add_done_callback(lambda _: done.append("wait"))
        for _ in range(3):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert done == (["begun", "begun", "ended", "wait"] if repeat else ["begun", "wait"])


@pytest.mark.parametrize("cleanup", [False, True])
async def test_a_cancelled_wait_ends_work_with_a_time_limit(cleanup: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diarist.concurrency.CLEANUP_GRACE", 0.01)
    closed, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            if cleanup:
                await closed.wait()
            ended.set()

    waiting = asyncio.create_task(finish_within(60, work(), TimeoutError()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended.is_set() is not cleanup
    closed.set()
    await asyncio.wait_for(ended.wait(), 10)


async def test_something_acquired_may_come_from_any_awaitable() -> None:
    """A custom storage may return futures."""
    loop, complaints = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    future: asyncio.Future[str] = loop.create_future()
    loop.call_soon(future.set_result, "a lease")
    assert await acquire_or_undo(future, nothing, ttl=0) == "a lease"
    await asyncio.sleep(0)
    assert complaints == []
