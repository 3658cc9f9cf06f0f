"""Running several coroutines as one piece of work."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
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
