"""``diarist worker``: import the application's ``Memory`` and run its queue until a signal arrives."""

from __future__ import annotations

import asyncio
import logging
import signal

from diarist.cli.objects import object_at
from diarist.exceptions import InputError
from diarist.memory import Memory

logger = logging.getLogger("diarist")


def find(place: str) -> Memory:
    """Import the memory at ``module:name``. Raises InputError."""
    found = object_at(place, "memory")
    if not isinstance(found, Memory):
        raise InputError(f"{place} must be a Memory, not {type(found).__name__}")
    return found


def serve(memory: Memory, *, concurrency: int, grace: float) -> None:
    """Run jobs until SIGINT or SIGTERM. Raises ConfigError, StorageError."""

    async def run() -> None:
        async with memory:
            work = asyncio.create_task(memory.run_worker(concurrency=concurrency, grace=grace))
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, work.cancel)
            try:
                await work
            except asyncio.CancelledError:
                logger.info("stopped")

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logger.setLevel(logging.INFO)
    asyncio.run(run())
