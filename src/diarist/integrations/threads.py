"""Finds out that a thread was deleted, so that an adapter gives memory its history again."""

from __future__ import annotations

import asyncio

from diarist.exceptions import NotFoundError
from diarist.memory import Memory
from diarist.memory.turn import LONGEST_FAILURE


async def is_deleted(memory: Memory, thread: str) -> bool:
    """Return True if there is no such thread. If memory fails, return False: the turn will say so."""
    try:
        async with asyncio.timeout(LONGEST_FAILURE):
            await memory.threads.get(thread)
    except NotFoundError:
        return True
    except Exception:  # any error, as in a turn
        return False
    return False
