"""``diarist worker``: import the application's ``Memory`` and run its queue until a signal arrives."""

from __future__ import annotations

import asyncio
import importlib
import logging
import signal
import sys
from functools import reduce
from pathlib import Path

from diarist.exceptions import InputError
from diarist.memory import Memory

logger = logging.getLogger("diarist")


def find(place: str) -> Memory:
    """Import the memory at ``module:name``. Raises InputError."""
    module_name, colon, name = place.partition(":")
    if not (module_name and colon and name):
        raise InputError(f"name the memory as MODULE:NAME, such as app:memory, not {place!r}")
    if module_name.endswith(".py") or not all(part.isidentifier() for part in module_name.split(".")):
        raise InputError(f"{module_name!r} is not the name of a module: write app:memory for the memory in app.py")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the application's own code runs
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(f"there is no module {error.name!r}, neither in {here} nor installed") from error
        raise InputError(
            f"the module {module_name!r} cannot be imported: {type(error).__name__}: {error}; "
            f"python -c 'import {module_name}' shows where"
        ) from error
    try:
        found = reduce(getattr, name.split("."), module)
    except AttributeError as error:
        raise InputError(f"the module {module_name!r} has no {name!r}") from error
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
