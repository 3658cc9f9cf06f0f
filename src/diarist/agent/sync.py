"""The one door for synchronous callers: one event loop per process, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from diarist.exceptions import DiaristError

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the shared loop and wait for it; background work there goes on between calls.

    Raises DiaristError when called from that loop itself, where it could only wait for ever.
    """
    loop = _shared_loop()
    if threading.current_thread() is _thread:
        work.close()
        raise DiaristError("generate_sync was called from its own event loop; use 'await generate(...)' there")
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _shared_loop() -> asyncio.AbstractEventLoop:
    global _loop, _thread
    with _lock:
        if _loop is None or _thread is None or not _thread.is_alive():  # after a fork only the parent has it
            _loop = asyncio.new_event_loop()
            _thread = threading.Thread(target=_loop.run_forever, name="diarist-sync", daemon=True)
            _thread.start()
        return _loop
