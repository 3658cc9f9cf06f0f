"""Running several coroutines as one piece of work, and whether there is time for any."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


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
