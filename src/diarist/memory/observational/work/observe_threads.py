"""Observing all threads of a resource to their end, because somebody asked for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from diarist.exceptions import ThreadBusyError
from diarist.memory.observational.cycles import Batch, Cycles
from diarist.memory.observational.log.coverage import visible_log
from diarist.memory.observational.log.log_store import OTHER_THREADS
from diarist.memory.observational.thread_memory import ThreadMemory
from diarist.memory.observational.window import tokens_of
from diarist.memory.observational.work.anew import Settle, Tries, read_anew
from diarist.memory.observational.work.observe_all import Progress, reflect_when_due
from diarist.memory.observational.work.other_threads import (
    AT_ONCE,
    Place,
    observe_side_by_side,
    oldest_of,
    read_batches,
    unobserved_threads,
    waves,
)
from diarist.storage.base import Storage
from diarist.tokens import TokenCounter

_PATIENCE_WITH_OTHERS = 5.0
"""Seconds to wait for a lease that somebody else holds: it may be one who was killed."""


class _Found(NamedTuple):
    """A thread with something to be observed: when that begins, and its size in tokens."""

    begun: Place
    thread_id: str
    tokens: int


class ResourceObserver:
    """Observes what no entry covers of the threads of a resource, oldest first, several threads to a call.

    Args:
        memory: Of any thread of the resource.
        cycles_of: How a thread is observed.
        settle: Reads the log when something was changed meanwhile.
        limit: Tokens of one call.
        progress: Called with (tokens done, tokens in all) before each round of calls and at the end.
    """

    def __init__(
        self,
        memory: ThreadMemory,
        cycles_of: Callable[[str], Cycles],
        settle: Settle,
        storage: Storage,
        counter: TokenCounter,
        *,
        limit: int,
        progress: Progress | None,
    ) -> None:
        self._memory = memory
        self._cycles_of = cycles_of
        self._settle = settle
        self._storage = storage
        self._counter = counter
        self._limit = limit
        self._progress = progress
        self._done = 0
        self._total = 0
        self._tries = Tries()
        self._busy: list[str] = []

    async def run(self) -> None:
        """See ``Engine.observe_resource``."""
        memory, resource_id = self._memory, self._memory.log.resource_id
        await memory.jobs.settled()
        claim = memory.cycles.logs.claim(OTHER_THREADS, resource_id, "observation", wait=_PATIENCE_WITH_OTHERS)
        async with claim as mine:
            if not mine:
                raise ThreadBusyError(f"resource {resource_id!r} is being observed by somebody else; try again later")
            while not await self._observe_all():
                await read_anew(memory, self._settle)
            self._tell()
            if self._busy:
                raise ThreadBusyError(f"threads {self._busy} are being observed by somebody else; try again later")

    async def _observe_all(self) -> bool:
        """Observe what no entry covers; False where to look anew, since something was changed meanwhile."""
        await self._activate()
        found = await self._find()
        self._total = self._done + sum(thread.tokens for thread in found)
        self._busy = []
        for some in _groups(found, AT_ONCE * self._limit):
            if not await self._observe_threads([thread.thread_id for thread in some]):
                return False
        return await reflect_when_due(self._memory, self._tries)

    async def _activate(self) -> None:
        """What waits comes first."""
        await self._memory.refresh()
        waiting = visible_log(self._memory.stored, None).buffered
        if waiting:
            await self._memory.activate(waiting, sum(entry.message_tokens for entry in waiting), "manual")

    async def _find(self) -> list[_Found]:
        """All threads with something to be observed, in the order in which that was said."""
        threads = unobserved_threads(self._storage, self._memory.stored, counter=self._counter)
        return sorted([_Found(oldest_of(t.raw), t.thread_id, t.tokens) async for t in threads if t.units])

    async def _observe_threads(self, thread_ids: Sequence[str]) -> bool:
        """Observe these threads, but for those that somebody else is at; returns as ``_observe_all`` does."""
        memory = self._memory
        logs, resource_id = memory.cycles.logs, memory.log.resource_id
        async with logs.claim_each(thread_ids, resource_id, "observation", wait=_PATIENCE_WITH_OTHERS) as mine:
            self._busy += [thread_id for thread_id in thread_ids if thread_id not in mine]
            await self._activate()  # what others have noted meanwhile
            for some in waves(await read_batches(self._storage, memory.stored, mine, self._limit, self._counter)):
                if not await self._observe(some):
                    return False
        return True

    async def _observe(self, batches: Sequence[Batch]) -> bool:
        self._tell()
        memory = self._memory
        work = [(self._cycles_of(batch.rows[0].thread_id or ""), batch) for batch in batches]
        outcomes = await observe_side_by_side(work, visible_log(memory.stored, None), timeout=None)
        await memory.refresh()
        await memory.adopt(memory.stored)
        saved = [
            batch
            for batch, outcome in zip(batches, outcomes, strict=True)
            if self._tries.log_of(outcome, (batch.rows[0].thread_id, batch.rows[0].id)) is not None
        ]
        self._done += sum(tokens_of(batch.rows) for batch in saved)
        for cycles, batch in work:
            await self._update_title(cycles, batch)
        return await reflect_when_due(memory, self._tries) and len(saved) == len(batches)

    async def _update_title(self, cycles: Cycles, batch: Batch) -> None:
        threads = {source.thread_id for source in batch.sources}
        if self._memory.config.observation.thread_title and len(threads) == 1:
            log = visible_log(self._memory.stored, None, threads.pop())
            if log.hints.thread_title:
                await cycles.rename_thread(log, log.hints.thread_title)

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._done, self._total)


def _groups(found: Sequence[_Found], tokens: int) -> Iterator[list[_Found]]:
    """Threads whose rows are read together: of about so many tokens."""
    group: list[_Found] = []
    for thread in found:
        if group and sum(one.tokens for one in group) + thread.tokens > tokens:
            yield group
            group = []
        group.append(thread)
    if group:
        yield group
