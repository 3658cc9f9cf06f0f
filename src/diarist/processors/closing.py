"""Who closes a processor: the agent that was given it, or the last call that uses one it brought along."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast
from weakref import WeakKeyDictionary

from diarist.concurrency import contained
from diarist.processors.base import Processor
from diarist.processors.plan import leaves

logger = logging.getLogger("diarist")

# Per event loop, since that is what connections belong to: how many runs use a processor, by its ``id()``.
_uses: WeakKeyDictionary[asyncio.AbstractEventLoop, Counter[int]] = WeakKeyDictionary()


def closable(processors: Sequence[Processor[Any]]) -> list[Processor[Any]]:
    """Those that have something to close, parts of compositions included, each once."""
    each = {id(part): part for part in leaves(processors)}
    return [part for part in each.values() if type(part).close is not cast(Any, Processor).close]


@asynccontextmanager
async def in_use(processors: Sequence[Processor[Any]], brought: Collection[Processor[Any]]) -> AsyncGenerator[None]:
    """Around a run: its closable processors are in use. Those that its call ``brought`` along are closed after it,
    unless another run uses them still, which then does it; what that raises is logged, and the run stays as it is."""
    if not processors:
        yield
        return
    uses = _uses.setdefault(asyncio.get_running_loop(), Counter())
    uses.update(map(id, processors))
    try:
        yield
    finally:
        uses.subtract(map(id, processors))
        for processor in processors:
            if uses[id(processor)] == 0:
                del uses[id(processor)]
                if any(processor is other for other in brought):
                    await _close(processor)


async def _close(processor: Processor[Any]) -> None:
    try:
        await contained(processor.close())
    except Exception as error:
        logger.warning("processor %r could not be closed: %s", processor.id, error, exc_info=error)
