"""Beginning a run of a thread, after the one that is live."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from diarist.exceptions import ConflictError, InputError, StorageError, ThreadBusyError
from diarist.storage.base import Storage
from diarist.storage.records import Run, Thread

_FIRST_WAIT, _LONGEST_WAIT = 0.02, 0.5


async def open_run(
    storage: Storage, run_id: str, thread: Thread, *, wait: float, ttl: float = 60.0, guarded: bool = False
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
            return await _begin(storage, storage.begin_run(run_id, thread, ttl=ttl, guarded=guarded))
        except ThreadBusyError as error:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ThreadBusyError(
                    f"{error}, for longer than the {wait:g} s of thread_wait; set a higher one, or try again later"
                ) from error
        except InputError as error:
            if thread.resource_id != thread.id:
                raise
            raise InputError(f"{error}; without resource=, a thread is its own resource") from error
        except StorageError as error:
            if isinstance(error, ConflictError) or (run := await _begun(storage, run_id)) is None:
                raise
            return run
        await asyncio.sleep(min(left, pause * random.uniform(0.5, 1.5)))
        pause = min(pause * 2, _LONGEST_WAIT)


async def _begun(storage: Storage, run_id: str) -> Run | None:
    """The run, where only the reply to its beginning was lost: nobody else knows its id."""
    with suppress(StorageError):
        run = await storage.get_run(run_id)
        return run if run is not None and run.state == "live" else None
    return None


async def _begin(storage: Storage, begin: Coroutine[Any, Any, Run]) -> Run:
    """A cancellation meanwhile ends the run at once: nobody else could."""
    opening = asyncio.ensure_future(begin)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        await asyncio.shield(asyncio.ensure_future(_take_back(storage, opening)))
        raise


async def _take_back(storage: Storage, opening: asyncio.Future[Run]) -> None:
    await asyncio.wait({opening})
    if opening.exception() is None:
        await storage.finish_run(opening.result(), "discarded")
