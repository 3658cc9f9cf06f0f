"""Manual observation and reflection, regardless of the thresholds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from diarist.exceptions import ConflictError, DiaristError, RoleError, ThreadBusyError
from diarist.memory.observational.cycles import reflect
from diarist.memory.observational.decide import ReflectionPlan, plan_reflection
from diarist.memory.observational.engine import WAIT_FOR_OTHERS, Engine, RunMemory
from diarist.memory.observational.events import Emit
from diarist.memory.observational.jobs import (
    AT_ONCE,
    Unobserved,
    observe_side_by_side,
    pack_threads,
    unobserved,
)
from diarist.memory.observational.log.coverage import visible_log
from diarist.memory.observational.log.log_store import OTHER_THREADS
from diarist.memory.observational.thread_diary import Batch, CycleResult, NotSmallerError
from diarist.memory.rows import seq_of, threads_of
from diarist.storage.records import ObservationLog

Progress = Callable[[int, int], None]
"""Called with the tokens done so far and the total."""

_MAX_TRIES = 3
_SHRINK_TO = 0.6


async def observe_now(
    engine: Engine,
    resource_id: str,
    thread_id: str | None = None,
    *,
    progress: Progress | None = None,
    emit: Emit | None = None,
) -> None:
    """Observe all rows that may be observed, of a thread or of all threads of a resource; reflect when due.

    Activates buffered notes first. The calls for one thread run in sequence, each with the notes of the calls before.
    For a resource, calls of up to ``max_tokens_per_batch`` cover several threads and run in parallel. Each call is
    saved separately, so its result stays if a later one fails. Back-off and ``observe_timeout`` do not apply.

    Args:
        thread_id: The thread; None for all threads of the resource, which must share a diary.
        progress: Called with (tokens done, total tokens) before each round of calls and at the end.

    Raises:
        ModelError, RoleError: The Observer or the Reflector failed, or the Observer refused three messages in a row.
        ThreadBusyError: Another process is observing the thread, or some threads of the resource.
        ConflictError: The same messages were changed during each of three calls.
        StorageError: The storage failed.
    """
    any_thread = thread_id or await engine.any_thread(resource_id)
    if not any_thread:
        return
    memory = await engine.open(any_thread, resource_id, None, emit=emit, manual=True)
    if not await memory.settled():
        raise DiaristError(
            "background work on this diary runs on the event loop of this thread, which a synchronous call blocks; "
            "use 'await memory.diary.observe(...)'"
        )
    observing = _Observing(memory, thread_id, progress)
    if thread_id is not None:
        return await observing.run()
    async with memory.diary.logs.claim(OTHER_THREADS, resource_id, "observation", wait=WAIT_FOR_OTHERS) as mine:
        if not mine:
            raise ThreadBusyError(f"resource {resource_id!r} is being observed by another process; try again later")
        await observing.run()


async def reflect_now(
    engine: Engine,
    thread_id: str,
    resource_id: str,
    *,
    wait: float,
    guidance: str | None = None,
    emit: Emit | None = None,
) -> ObservationLog:
    """Replace all active entries, except those of a live run, by one; does nothing if the diary is empty.

    Args:
        thread_id: The thread that the events name; empty to choose any thread of the resource.
        wait: Seconds to wait for another process that is reflecting; its result is then condensed again.
        guidance: The user's instructions on what to keep or drop. Without them, the target is 60% of the tokens.

    Raises:
        ThreadBusyError: Another process was still reflecting after ``wait`` seconds.
        ModelError, RoleError: The Reflector failed, or without guidance its text was hardly smaller.
        ConflictError: The entries were changed during each of three calls.
    """
    any_thread = thread_id or await engine.any_thread(resource_id)
    diary = engine.diary(any_thread, resource_id, emit, manual=True)
    await diary.settle(await diary.read(), None)
    async with diary.logs.claim(thread_id, resource_id, "reflection", wait=wait) as mine:
        if not mine:
            whose = f"thread {thread_id!r}" if thread_id else f"resource {resource_id!r}"
            raise ThreadBusyError(
                f"the diary of {whose} is being condensed by another process, for longer than the {wait:g} s of "
                "thread_wait; try again later"
            )
        conflicts = 0
        while True:
            log = visible_log(await diary.read(), None)
            if log.tokens == 0:
                return log
            plan = ReflectionPlan(
                key=log.key,
                entries=log.active,
                tokens=log.tokens,
                target_tokens=max(int((_SHRINK_TO if guidance is None else 1) * log.tokens), 1),
                any_size=guidance is not None,
            )
            result = await reflect(diary, log, plan, timeout=None, guidance=guidance)
            if isinstance(result, CycleResult):
                return visible_log(result.log, None)
            conflicts += 1
            if not isinstance(result, ConflictError) or conflicts == _MAX_TRIES:
                raise result


class _Observing:
    """Observes the uncovered rows of a thread, or of all threads of a resource, oldest first."""

    def __init__(self, memory: RunMemory, thread_id: str | None, progress: Progress | None) -> None:
        self._memory, self._thread_id, self._progress = memory, thread_id, progress
        self._resource_id = memory.diary.resource_id
        self._done = self._total = self._refused = 0
        self._conflicts: Counter[tuple[str | None, str]] = Counter()

    async def run(self) -> None:
        """Observe threads in groups of about one round of parallel calls, so that few are claimed at a time."""
        diary, busy = self._memory.diary, list[str]()
        if self._thread_id is not None:
            ids = [self._thread_id]
        else:
            ids = [thread.id async for thread in threads_of(diary.storage, self._resource_id)]
        await self._activate()
        threads = await unobserved(diary, self._memory.window.stored, dict.fromkeys(ids))
        self._total = sum(thread.tokens for thread in threads)
        wait = WAIT_FOR_OTHERS if self._thread_id is None else 0
        for group in _grouped(threads, AT_ONCE * self._memory.config.observation.max_tokens_per_batch):
            ends = {thread.thread_id: seq_of(thread.raw[-1]) + 1 for thread in group}
            async with diary.logs.claim_each(list(ends), self._resource_id, "observation", wait=wait) as mine:
                busy += [thread_id for thread_id in ends if thread_id not in mine]
                while batches := await self._next_batches({thread_id: ends[thread_id] for thread_id in mine}):
                    await self._observe(batches)
                    await self._reflect_when_due()
        if busy:
            names = ", ".join(map(repr, busy))
            which = f"thread {names} is" if len(busy) == 1 else f"threads {names} are"
            raise ThreadBusyError(f"{which} being observed by another process; try again later")
        self._total = self._done  # others may have removed messages
        self._report()

    async def _activate(self) -> None:
        """Read the diary, and activate the buffered notes of the thread; for a resource, all of its diary."""
        memory, only = self._memory, self._thread_id
        await memory.refresh()
        memory.window.stored = await memory.diary.settle(memory.window.stored, None)
        waiting = [
            entry
            for entry in visible_log(memory.window.stored, None).buffered
            if only is None or any(source.thread_id == only for source in entry.sources)
        ]
        if waiting:
            await memory.activate(waiting, sum(entry.message_tokens for entry in waiting), "manual")
            if only is not None:
                await memory.update_title()

    async def _next_batches(self, ends: Mapping[str, int]) -> list[Batch]:
        """Return the batches for the next round of calls; empty if these threads have no uncovered rows before their
        ends."""
        await self._activate()  # notes that other processes have made since
        log, limits = self._memory.window.stored, self._memory.window.limits()
        threads = await unobserved(self._memory.diary, log, ends)
        limit, least, at_once = limits.batch_tokens, limits.least_batch_tokens, 1
        if self._thread_id is None:
            limit, least, at_once = self._memory.config.observation.max_tokens_per_batch, 0, AT_ONCE
        return pack_threads(threads, log, limit, least=least)[:at_once]

    async def _observe(self, batches: Sequence[Batch]) -> None:
        """Observe batches in parallel, and name their threads. Raises an error of a call, but of the same rows only the
        third ConflictError, since the next round observes them again."""
        self._report()
        memory = self._memory
        ids = [batch.rows[0].thread_id or "" for batch in batches]
        work = [(replace(memory.diary, thread_id=id), batch) for id, batch in zip(ids, batches, strict=True)]
        results = await observe_side_by_side(work, visible_log(memory.window.stored, None), timeout=None)
        await memory.refresh()
        await memory.adopt(memory.window.stored)
        for batch, result in zip(batches, results, strict=True):
            if isinstance(result, Exception):
                first = batch.rows[0].thread_id, batch.rows[0].id
                self._conflicts[first] += 1
                if not isinstance(result, ConflictError) or self._conflicts[first] == _MAX_TRIES:
                    raise result
            else:
                self._refused = self._refused + 1 if result.refused else 0
                if self._refused >= _MAX_TRIES:
                    raise RoleError(f"the Observer refused three messages in a row, the last one with {result.refused}")
        self._done += sum(result.entry.message_tokens for result in results if isinstance(result, CycleResult))
        if memory.config.observation.thread_title:
            for diary, batch in work:
                if len({source.thread_id for source in batch.sources}) == 1:
                    await diary.rename_thread(visible_log(memory.window.stored, None, diary.thread_id))

    async def _reflect_when_due(self) -> None:
        """Condense the diary if it has reached its threshold. It stays as it is if it was changed during the call, or
        if the text is hardly smaller. Raises ModelError, RoleError."""
        memory = self._memory
        limit = memory.window.limits().observation_tokens
        if memory.window.stored.reflection is not None and memory.log.tokens >= limit:
            await memory.activate_reflection()
        plan = plan_reflection(memory.log, limit)
        if plan is None or memory.log.tokens < limit:
            return
        diary = memory.diary
        async with diary.logs.claim(diary.thread_id, self._resource_id, "reflection") as mine:
            if not mine:
                return
            result = await reflect(diary, memory.log, plan, timeout=None)
        if isinstance(result, CycleResult):
            await memory.adopt(result.log)
        elif not isinstance(result, ConflictError | NotSmallerError):
            raise result

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self._done, max(self._done, self._total))


def _grouped(threads: Sequence[Unobserved], tokens: int) -> list[list[Unobserved]]:
    """Divide threads, in order, into groups of at most ``tokens``; a larger thread is a group of its own."""
    groups: list[list[Unobserved]] = []
    room = 0
    for thread in threads:
        if not groups or thread.tokens > room:
            groups.append([])
            room = tokens
        groups[-1].append(thread)
        room -= thread.tokens
    return groups
