"""Resource scope: observe the other threads of a resource together, and quote their newest messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from diarist.counting import ensure_counted
from diarist.memory.observational.log.coverage import Coverage, sources_of, uncovered_rows, visible_log
from diarist.memory.observational.message_units import observable_units, tokens_of
from diarist.memory.observational.observe import Batch, observe
from diarist.memory.observational.prompt.diary_note import Tail
from diarist.memory.observational.prompt.threads import thread_label
from diarist.memory.observational.roles.transcript import shorten
from diarist.memory.observational.selection import split_batches
from diarist.memory.observational.thread_diary import CycleResult, ThreadDiary, raise_if_away
from diarist.memory.rows import seq_of
from diarist.messages import Message
from diarist.storage.base import Storage
from diarist.storage.records import ObservationLog, Source
from diarist.tokens import TokenCounter

AT_ONCE = 8
"""Maximum number of parallel calls of the Observer."""

TAIL_THREADS = 3
TAIL_ROWS = 4
_LINE_LENGTH = 240
_PAGE = 100
TAIL_SHARE = 0.05
"""Share of ``message_tokens`` that all tails together may use."""

_BEGINNING = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Unobserved:
    """The uncovered rows of one thread, and the units of them that may be observed."""

    thread_id: str
    raw: list[Message]
    units: list[list[Message]]

    @property
    def tokens(self) -> int:
        return sum(tokens_of(unit) for unit in self.units)


async def unobserved(diary: ThreadDiary, log: ObservationLog, ends: Mapping[str, int | None]) -> list[Unobserved]:
    """Return the uncovered rows of threads. Leaves out threads without rows that may be observed.

    Args:
        ends: The ids of the threads, each with the ``seq`` before which its rows are read; None for all rows.
    """
    found: list[Unobserved] = []
    for thread_id, end in ends.items():
        raw = await uncovered_rows(diary.storage, Coverage(log.entries, thread_id), thread_id, before=end)
        ensure_counted(raw, diary.counter)
        if units := observable_units(raw, ()):
            found.append(Unobserved(thread_id, raw, units))
    return found


def pack_threads(
    threads: Iterable[Unobserved], limit: int, *, least: float = 0, refused: Sequence[Source] = ()
) -> list[list[Message]]:
    """Split the threads, in the order of their oldest messages, into batches as ``split_batches`` does."""
    ordered = sorted(threads, key=lambda thread: oldest_of(thread.raw))
    units = [unit for thread in ordered for unit in thread.units]
    return split_batches(units, limit, None, least=least, refused=refused)


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
    ids = [thread.thread_id for thread in threads]
    async with diary.logs.claim_each(ids, log.resource_id, "observation") as mine:
        log = await diary.logs.newer(log) or log
        left = await unobserved(diary, log, dict.fromkeys(mine))
        limit, refused = diary.config.observation.max_tokens_per_batch, log.observer_failures.refused
        batches = [batch_of(rows, left, log) for rows in pack_threads(left, limit, refused=refused)]
        for start in range(0, len(batches), AT_ONCE):
            results = await observe_side_by_side(
                [(diary, batch) for batch in batches[start : start + AT_ONCE]],
                visible_log(log, None),
                timeout=diary.config.background_timeout,
                buffered=True,
            )
            for result in results:
                raise_if_away(result)
            if any(isinstance(result, Exception) or result.partial for result in results):
                return  # do not call a failing Observer again, nor observe newer rows before unnoted ones
            log = await diary.logs.newer(log) or log


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


def batch_of(rows: Sequence[Message], threads: Sequence[Unobserved], log: ObservationLog) -> Batch:
    """Return rows of several threads as one batch, with the sources of each thread."""
    ids = {row.id for row in rows}
    sources = tuple(
        source
        for thread in threads
        for source in sources_of(
            [row for row in thread.raw if row.id in ids],
            thread.raw,
            Coverage(log.entries, thread.thread_id),
            thread.thread_id,
        )
    )
    return Batch(rows=rows, sources=sources, run_id=None)


async def tails_of(
    storage: Storage, log: ObservationLog, *, but: str, obscured: bool, room: float, counter: TokenCounter
) -> list[Tail]:
    """Return the newest uncovered messages of threads other than ``but``, as a few short lines each.

    Chooses the three most recently used of the hundred newest threads. All tails together take at most ``room`` tokens;
    the newest lines of each thread have priority.
    """
    page = await storage.list_threads(resource_id=log.resource_id, limit=_PAGE)
    others = [thread for thread in page.items if thread.id != but]
    tails: list[Tail] = []
    others.sort(key=lambda thread: thread.updated_at or thread.created_at or _BEGINNING, reverse=True)
    for thread in others[:TAIL_THREADS]:
        coverage = Coverage(log.active, thread.id)
        tail = Tail(thread_label(thread.id, obscured=obscured), [])
        left = room - counter.count(tail.heading)
        for row in await storage.list_messages(thread.id, limit=TAIL_ROWS, newest_first=True):
            if seq_of(row) in coverage or not row.text.strip():
                continue
            speaker = {"user": "User", "assistant": "Assistant"}.get(row.role, "Tool")
            line = f"{speaker}: {shorten(' '.join(row.text.split()), _LINE_LENGTH)}"
            left -= counter.count(line)
            if left < 0:
                break
            tail.lines.insert(0, line)
            room = left
        if tail.lines:
            tails.append(tail)
    return tails


def oldest_of(rows: Sequence[Message]) -> tuple[datetime, str, int]:
    """Return the sort key of the rows of a thread: the time of the oldest, then thread id and number of the first."""
    first = min((row.created_at for row in rows if row.created_at is not None), default=_BEGINNING)
    return first, rows[0].thread_id or "", seq_of(rows[0])
