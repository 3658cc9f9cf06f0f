"""Jobs that observe and reflect, and what they share with work by hand: observing several threads at once.

A job names only a thread and an operation. It reads the current log and rows and does whatever is due, so any process
may run it, and running it twice is harmless. Jobs run in the background, or while a run waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from itertools import chain
from math import inf
from typing import Any, Protocol, Self

from diarist.counting import ensure_counted
from diarist.exceptions import InputError
from diarist.memory.observational.cycles import observe, reflect
from diarist.memory.observational.decide import plan_reflection
from diarist.memory.observational.log.coverage import Coverage, sources_of, uncovered_rows, visible_log
from diarist.memory.observational.log.transitions import Operation
from diarist.memory.observational.message_units import (
    observable_units,
    split_at_chunks,
    split_batches,
    tokens_of,
)
from diarist.memory.observational.thread_diary import Batch, CycleResult, Patience, ThreadDiary, raise_if_away
from diarist.memory.observational.window import Window
from diarist.memory.rows import seq_of
from diarist.messages import Json, Message
from diarist.storage.records import ObservationLog

AT_ONCE = 8
"""Maximum number of parallel calls of the Observer."""

_PAGE = 100
_BEGINNING = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as plain values, so that any process can run it.

    Attributes:
        name: Deduplication key: at most one job per name runs.
        run_id: The run that started it. While that run is live, the job sees its rows.
        pinned: Ids of rows that must stay raw.
        before: Only rows with a ``seq`` below this are observed.
        others: Observe the other threads of the resource.
    """

    name: str
    operation: Operation
    thread_id: str
    resource_id: str
    run_id: str | None = None
    pinned: tuple[str, ...] = ()
    before: int | None = None
    others: bool = False

    def to_json(self) -> dict[str, Json]:
        return {**asdict(self), "pinned": list(self.pinned)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the job from the result of ``to_json``. Raises InputError if invalid, such as from a newer version."""
        from pydantic import TypeAdapter, ValidationError

        unknown = sorted(value.keys() - {field.name for field in fields(cls)})
        if unknown:
            raise InputError(f"it has fields that this version of diarist does not know: {', '.join(unknown)}")
        try:
            return TypeAdapter(cls).validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise InputError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


class JobQueue(Protocol):
    """A queue that carries jobs from the processes that serve users to the workers."""

    async def submit(self, job: Job) -> None:
        """Put a job in the queue, unless one with its name is queued or running. Raises StorageError."""
        ...

    async def run(self, work: Callable[[Job], Awaitable[bool]], *, concurrency: int, grace: float) -> None:
        """Process jobs until cancelled. Raises StorageError.

        Args:
            work: Runs a job; returns False if another process is running it, so that it is retried later.
            concurrency: Maximum number of jobs at a time.
            grace: Grace period for running jobs after a cancellation, in seconds; unfinished jobs return to the queue.
        """
        ...


async def observe_due(job: Job, window: Window) -> None:
    """Observe the uncovered rows of a thread, batch by batch, and save each entry.

    A failure, already reported and counted, ends the job, and so does a refused message.

    If a run waits, the entries are active at once, and the job may stop when the run can go on. Otherwise the entries
    are buffered, and too few tokens for a call are left for a later job.

    Args:
        window: The rows and the diary as they are stored.

    Raises StorageError if the storage is not available and no run waits.
    """
    diary, run_id, patience = window.diary, job.run_id, window.diary.patience
    while batches := _batches(job, window, all_sizes=patience is not None):
        result = await observe(
            diary,
            visible_log(window.stored, run_id),
            window.batch(batches[0]),  # only one, since the others depend on what its notes cover
            timeout=_time_limit(diary),
            buffered=patience is None,
        )
        if isinstance(result, Exception):
            _stop_after(result, patience)
            break
        window.stored = result.log
        if result.refused:
            break
        if patience is not None:
            can_go_on = diary.config.buffers and window.facts.unnoted_tokens < diary.limits.message_tokens
            if not patience.left or (can_go_on and job.before is not None):
                break
    in_background = patience is None or diary.was_left
    if in_background and run_id is not None and any(entry.run_id == run_id for entry in window.stored.entries):
        await diary.end_run(run_id)  # the run may have ended before its notes were saved


async def reflect_due(job: Job, diary: ThreadDiary, log: ObservationLog, observation_tokens: int) -> None:
    """Condense the oldest entries of the diary if due, and save the result: active if a run waits, else buffered.

    ``observation_tokens``: as in ``Limits``.

    Raises StorageError if the storage is not available and no run waits.
    """
    log = visible_log(log, job.run_id)
    plan = plan_reflection(log, observation_tokens)
    if plan is None or log.reflection is not None or log.tokens < diary.limits.reflection_start_tokens:
        return
    patience = diary.patience
    result = await reflect(diary, log, plan, timeout=_time_limit(diary), buffered=patience is None)
    if isinstance(result, Exception):
        _stop_after(result, patience)


def _time_limit(diary: ThreadDiary) -> float:
    """Return the time limit of a call in seconds: the time that a run waits for it, if it must not outlast the wait."""
    if diary.patience is None or diary.config.buffers:
        return diary.config.background_timeout
    return diary.patience.left


def _stop_after(error: Exception, patience: Patience | None) -> None:
    """After a failure, a run does not wait again, and a queue tries the job again if the storage is not available."""
    if patience is None:
        raise_if_away(error)
    else:
        patience.lose()


def _batches(job: Job, window: Window, *, all_sizes: bool) -> list[list[Message]]:
    """Return batches of uncovered rows, one per call of the Observer.

    Unless ``all_sizes``, leaves out the newest ones that are too small. Keeps small batches before a buffered chunk,
    since they cannot grow.
    """
    end = inf if job.before is None else job.before
    units = [unit for unit in window.fresh(job.pinned) if seq_of(unit[-1]) < end]
    waiting, limits = Coverage(window.stored.buffered, job.thread_id), window.diary.limits
    least, calls = limits.least_batch_tokens, list[list[Message]]()
    for piece in split_at_chunks(units, waiting):
        calls += split_batches(piece, limits.batch_tokens, job.run_id, least=least)
    newest_chunk = waiting.ranges[-1][0] if waiting.ranges else 0
    while calls and not all_sizes and tokens_of(calls[-1]) < least and seq_of(calls[-1][0]) > newest_chunk:
        calls.pop()
    return calls


# --- several threads at once ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unobserved:
    """The uncovered rows of one thread, and the units of them that may be observed."""

    thread_id: str
    raw: list[Message]
    units: list[list[Message]]

    @property
    def tokens(self) -> int:
        return sum(tokens_of(unit) for unit in self.units)

    @property
    def oldest(self) -> tuple[datetime, str, int]:
        """Time of the oldest row, then the thread's id and the number of its first row."""
        first = min((row.created_at for row in self.raw if row.created_at is not None), default=_BEGINNING)
        return first, self.thread_id, seq_of(self.raw[0])


async def unobserved(diary: ThreadDiary, log: ObservationLog, ends: Mapping[str, int | None]) -> list[Unobserved]:
    """Return the uncovered rows of threads, in the order of their oldest. Leaves out threads without rows that may be
    observed.

    Args:
        ends: The ids of the threads, each with the ``seq`` before which its rows are read; None for all rows.
    """
    found: list[Unobserved] = []
    for thread_id, end in ends.items():
        raw = await uncovered_rows(diary.storage, Coverage(log.entries, thread_id), thread_id, before=end)
        ensure_counted(raw, diary.counter)
        if units := observable_units(raw, ()):
            found.append(Unobserved(thread_id, raw, units))
    return sorted(found, key=lambda thread: thread.oldest)


def pack_threads(threads: Sequence[Unobserved], log: ObservationLog, limit: int, *, least: float = 0) -> list[Batch]:
    """Return the batches of the threads, as ``split_batches`` makes them, with the sources of each thread."""
    units = [unit for thread in threads for unit in thread.units]
    batches: list[Batch] = []
    for rows in split_batches(units, limit, None, least=least):
        sources = [
            sources_of(
                [row for row in rows if row.thread_id == thread_id], raw, Coverage(log.entries, thread_id), thread_id
            )
            for thread_id, raw in ((thread.thread_id, thread.raw) for thread in threads)
        ]
        batches.append(Batch(rows=rows, sources=tuple(chain.from_iterable(sources)), run_id=None))
    return batches


async def buffer_other_threads(diary: ThreadDiary, log: ObservationLog) -> None:
    """Observe the uncovered rows of the resource's other threads in the background.

    Reads only the hundred newest threads, since this runs at the end of every run. Does nothing if their rows have
    fewer than ``buffer_tokens`` in total. Leaves out rows of live runs, and threads that another process is observing.

    Raises StorageError if the storage is not available.
    """
    page = await diary.storage.list_threads(resource_id=log.resource_id, limit=_PAGE)
    others = [thread.id for thread in page.items if thread.id != diary.thread_id]
    threads = await unobserved(diary, log, dict.fromkeys(others))
    if sum(thread.tokens for thread in threads) < (diary.limits.buffer_tokens or diary.limits.message_tokens):
        return
    ends = {thread.thread_id: seq_of(thread.raw[-1]) + 1 for thread in threads}
    async with diary.logs.claim_each(list(ends), log.resource_id, "observation") as mine:
        while True:
            log = await diary.logs.newer(log) or log
            left = await unobserved(diary, log, {thread_id: ends[thread_id] for thread_id in mine})
            batches = pack_threads(left, log, diary.config.observation.max_tokens_per_batch)[:AT_ONCE]
            results = await observe_side_by_side(
                [(diary, batch) for batch in batches],
                visible_log(log, None),
                timeout=diary.config.background_timeout,
                buffered=True,
            )
            for result in results:
                raise_if_away(result)
            if not results or any(isinstance(result, Exception) or result.refused for result in results):
                return  # do not call a failing Observer again


async def observe_side_by_side(
    work: Sequence[tuple[ThreadDiary, Batch]], log: ObservationLog, *, timeout: float | None, buffered: bool = False
) -> list[CycleResult | Exception]:
    """Observe batches in parallel, each with the earlier notes of ``log``; save entries in the order of ``work``."""
    done = [asyncio.Event() for _ in work]

    async def observe_one(place: int, diary: ThreadDiary, batch: Batch) -> CycleResult | Exception:
        turn = done[place - 1].wait if place else None
        try:
            return await observe(diary, log, batch, timeout=timeout, buffered=buffered, before_save=turn)
        finally:
            if turn is not None:  # after a failure, later batches still wait for all earlier ones
                await turn()
            done[place].set()

    return await asyncio.gather(*(observe_one(place, diary, batch) for place, (diary, batch) in enumerate(work)))
