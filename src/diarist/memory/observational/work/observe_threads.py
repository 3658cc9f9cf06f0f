"""Observing all threads of a resource to their end, because somebody asked for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from diarist.exceptions import ConflictError, ThreadBusyError
from diarist.memory.observational.cycles import Batch, Cycles, Outcome
from diarist.memory.observational.log.coverage import visible_log
from diarist.memory.observational.log.log_store import OTHER_THREADS
from diarist.memory.observational.thread_memory import ThreadMemory
from diarist.memory.observational.window import tokens_of
from diarist.memory.observational.work.observe_all import Progress, error_of, reflect_when_due
from diarist.memory.observational.work.other_threads import (
    AT_ONCE,
    Place,
    claim_threads,
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
        limit: Tokens of one call.
        progress: Called with (tokens done, tokens in all) before each round of calls and at the end.
    """

    def __init__(
        self,
        memory: ThreadMemory,
        cycles_of: Callable[[str], Cycles],
        storage: Storage,
        counter: TokenCounter,
        *,
        limit: int,
        progress: Progress | None,
    ) -> None:
        self._memory = memory
        self._cycles_of = cycles_of
        self._storage = storage
        self._counter = counter
        self._limit = limit
        self._progress = progress
        self._done = 0
        self._total = 0

    async def run(self) -> None:
        """See ``Engine.observe_resource``."""
        memory, resource_id = self._memory, self._memory.log.resource_id
        await memory.jobs.settled()
        async with memory.cycles.logs.claim(OTHER_THREADS, resource_id, "observation") as mine:
            if not mine:
                raise ThreadBusyError(f"resource {resource_id!r} is being observed by somebody else; try again later")
            await self._activate()
            found = await self._find()
            self._total = sum(thread.tokens for thread in found)
            busy: list[str] = []
            for some in _groups(found, AT_ONCE * self._limit):
                busy += await self._observe_threads([thread.thread_id for thread in some])
            await reflect_when_due(memory, memory.thread_id, resource_id)
            self._tell()
            if busy:
                raise ThreadBusyError(f"threads {busy} are being observed by somebody else; try again later")

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

    async def _observe_threads(self, thread_ids: Sequence[str]) -> list[str]:
        """Observe these threads; returns those that somebody else is at."""
        memory = self._memory
        logs, resource_id = memory.cycles.logs, memory.log.resource_id
        async with claim_threads(logs, resource_id, thread_ids, wait=_PATIENCE_WITH_OTHERS) as mine:
            await self._activate()  # what others have noted meanwhile
            for some in waves(await read_batches(self._storage, memory.stored, mine, self._limit, self._counter)):
                await self._observe(some)
        return [thread_id for thread_id in thread_ids if thread_id not in mine]

    async def _observe(self, batches: Sequence[Batch]) -> None:
        self._tell()
        memory = self._memory
        work = [(self._cycles_of(batch.rows[0].thread_id or ""), batch) for batch in batches]
        outcomes = await observe_side_by_side(work, visible_log(memory.stored, None), timeout=None)
        self._done += sum(tokens_of(batch.rows) for batch in batches)
        await memory.refresh()
        await memory.adopt(memory.stored)
        _raise_first_error(outcomes)
        for cycles, batch in work:
            await self._update_title(cycles, batch)
        await reflect_when_due(memory, memory.thread_id, memory.log.resource_id)

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


def _raise_first_error(outcomes: Sequence[Outcome]) -> None:
    """Of rows that were changed, or that somebody else observed meanwhile, nothing is to be said."""
    for outcome in outcomes:
        if outcome.log is None and not isinstance(outcome.error, ConflictError):
            raise error_of(outcome)
