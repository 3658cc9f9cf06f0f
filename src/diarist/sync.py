"""Runs async code for synchronous callers: one event loop per process, in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import wait
from contextlib import suppress
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from diarist.exceptions import DiaristError

P = ParamSpec("P")
T = TypeVar("T")

INTERRUPT_GRACE = 5.0
"""Seconds that an interrupted call waits for the end of its run, so that the run can store its steps."""

blocked_loop = ContextVar[asyncio.AbstractEventLoop | None]("blocked_loop", default=None)
"""The event loop that stands still until the current synchronous call ends; None if there is none."""

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None
_pid = 0
"""The process that runs the loop; 0 once it was ended."""


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the shared loop and wait for it; background work on the loop continues between calls.

    An interruption, such as Ctrl-C, cancels the work and waits at most ``INTERRUPT_GRACE`` for its end. Raises
    DiaristError when called from the shared loop itself, which would be a deadlock.
    """
    interrupted, ended = threading.Event(), threading.Event()
    blocked = running_loop() or blocked_loop.get()
    tasks: list[asyncio.Task[Any] | None] = []  # the work's task, once it has started

    async def to_its_end() -> T:
        blocked_loop.set(blocked)
        tasks.append(asyncio.current_task())
        try:
            if interrupted.is_set():
                work.close()
                raise asyncio.CancelledError
            return await work
        finally:
            ended.set()

    def cancel() -> None:
        for task in tasks:
            if task is not None:
                task.cancel()

    loop = _shared_loop()
    if threading.current_thread() is _thread:
        work.close()
        raise DiaristError(
            "a synchronous call was made from the event loop that runs such calls; use the async method there, such "
            "as 'await generate(...)'"
        )
    try:
        return asyncio.run_coroutine_threadsafe(to_its_end(), loop).result()
    except BaseException:
        if not ended.is_set():  # interrupted, perhaps before the future was created
            interrupted.set()
            loop.call_soon_threadsafe(cancel)
            ended.wait(INTERRUPT_GRACE)
        raise


def end_shared_loop() -> None:
    """Cancel what runs on the shared loop, and wait at most ``INTERRUPT_GRACE`` for its end; once.

    Databases call it when the program ends, before they close: the work releases its leases in them.
    """
    global _pid
    is_mine, _pid = _pid == os.getpid(), 0
    if is_mine and _loop is not None:
        wait([asyncio.run_coroutine_threadsafe(_cancel_others(), _loop)], timeout=INTERRUPT_GRACE)


async def _cancel_others() -> None:
    """Cancel all other tasks of the loop and wait for them, as ``asyncio.run`` does at its end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread; None if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def blocking(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return a synchronous form of an async method: the same arguments, and the result itself."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_sync(method(*args, **kwargs))

    return call


def iterating(method: Callable[P, AsyncGenerator[T]]) -> Callable[P, Iterator[T]]:
    """Return a synchronous form of a method that yields its results."""

    @wraps(method)
    def iterate(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        results = method(*args, **kwargs)

        async def following() -> list[T]:
            async for result in results:
                return [result]
            return []

        try:
            while found := run_sync(following()):
                yield found[0]
        finally:
            run_sync(results.aclose())

    return iterate


def _shared_loop() -> asyncio.AbstractEventLoop:
    global _loop, _thread, _pid
    with _lock:
        if _loop is None or _thread is None or not _thread.is_alive():  # after a fork, only the parent has the thread
            _loop = asyncio.new_event_loop()
            _thread = threading.Thread(target=_serve, args=[_loop], name="diarist-sync", daemon=True)
            _thread.start()
            _pid = os.getpid()
        return _loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop for ever. ``SystemExit`` ends only the call that raised it."""
    while True:
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
            return
