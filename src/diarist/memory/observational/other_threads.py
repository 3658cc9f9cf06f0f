"""Resource scope: what is said in the other threads of a resource, observed together and told in short."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from diarist.counting import ensure_counted
from diarist.memory.observational.coverage import Coverage, seq_of, sources_of, visible_log
from diarist.memory.observational.cycles import Batch, Cycles
from diarist.memory.observational.threads import thread_label
from diarist.memory.observational.window import observable_units, tokens_of
from diarist.messages import Message
from diarist.storage.base import Storage
from diarist.storage.records import ObservationLog
from diarist.tokens import TokenCounter

TAIL_THREADS = 3
TAIL_ROWS = 4
_LINE_LENGTH = 240
_PAGE = 100
_BEGINNING = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Unobserved:
    """The rows of one thread that no entry covers, and those of them that may be observed."""

    thread_id: str
    raw: list[Message]
    units: list[list[Message]]

    @property
    def tokens(self) -> int:
        return sum(tokens_of(unit) for unit in self.units)


@dataclass(frozen=True, slots=True)
class Tail:
    """The newest words of another thread that the diary does not have yet. ``label`` is what the thread is called."""

    label: str
    lines: list[str]


async def unobserved_threads(
    storage: Storage, log: ObservationLog, *, counter: TokenCounter, but: str | None = None
) -> AsyncIterator[Unobserved]:
    """The threads of the log's resource that have rows which no entry covers, newest thread first, page by page."""
    cursor: str | None = None
    while True:
        page = await storage.list_threads(resource_id=log.resource_id, limit=_PAGE, cursor=cursor)
        for thread in page.items:
            if thread.id != but:
                coverage = Coverage(log.entries, thread.id)
                rows = await storage.list_messages(thread.id, after=coverage.prefix_end)
                raw = [row for row in rows if row.role != "system" and seq_of(row) not in coverage]
                ensure_counted(raw, counter)
                if raw:
                    yield Unobserved(thread.id, raw, observable_units(raw, ()))
        cursor = page.cursor
        if cursor is None:
            return


def pack_threads(threads: Sequence[Unobserved], limit: int) -> list[list[Message]]:
    """Rows of several threads in batches of at most ``limit`` tokens each.

    The largest threads are placed first, each into the first batch with room for it; one that is larger than
    the limit is split by messages. A unit that is larger alone is a batch alone. Batches stand in the order of
    their oldest messages, and in a batch the rows of a thread stay together.
    """
    pieces = [piece for thread in threads for piece in _split(thread.units, limit)]
    pieces.sort(key=tokens_of, reverse=True)
    batches: list[list[list[Message]]] = []
    for piece in pieces:
        room = (batch for batch in batches if sum(map(tokens_of, batch)) + tokens_of(piece) <= limit)
        batch = next(room, None)
        if batch is None:
            batches.append([piece])
        else:
            batch.append(piece)
    joined = [[row for piece in sorted(batch, key=_oldest) for row in piece] for batch in batches]
    return sorted(joined, key=_oldest)


async def buffer_other_threads(
    cycles: Cycles, storage: Storage, log: ObservationLog, *, but: str, least: float, limit: int, counter: TokenCounter
) -> None:
    """Observe, in the background and in parallel, what no entry covers of the other threads of the resource.

    Does nothing where all of it together has fewer than ``least`` tokens. Rows of live runs are not seen.

    Args:
        but: A thread that looks after itself.
        limit: Tokens of one call.
    """
    threads = [thread async for thread in unobserved_threads(storage, log, counter=counter, but=but) if thread.units]
    if sum(thread.tokens for thread in threads) < least:
        return
    seen = visible_log(log, None)
    work = [batch_of(batch, threads, log) for batch in pack_threads(threads, limit)]
    await asyncio.gather(
        *(cycles.observe(seen, batch, timeout=cycles.background_timeout, buffered=True) for batch in work)
    )


def batch_of(rows: Sequence[Message], threads: Sequence[Unobserved], log: ObservationLog) -> Batch:
    """Rows of several threads as one batch, with the sources of each thread."""
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


async def tails_of(storage: Storage, log: ObservationLog, *, but: str, obscured: bool) -> list[Tail]:
    """The newest words of the three other threads of the resource that were begun last, a few lines each."""
    page = await storage.list_threads(resource_id=log.resource_id, limit=TAIL_THREADS + 1)
    tails: list[Tail] = []
    for thread in [thread for thread in page.items if thread.id != but][:TAIL_THREADS]:
        coverage = Coverage(log.active, thread.id)
        rows = await storage.list_messages(thread.id, limit=TAIL_ROWS, newest_first=True)
        lines = [_line(row) for row in rows[::-1] if seq_of(row) not in coverage and row.text.strip()]
        if lines:
            tails.append(Tail(thread_label(thread.id, obscured=obscured), lines))
    return tails


def _split(units: Sequence[Sequence[Message]], limit: int) -> list[list[Message]]:
    pieces: list[list[Message]] = []
    for unit in units:
        if not pieces or tokens_of(pieces[-1]) + tokens_of(unit) > limit:
            pieces.append([])
        pieces[-1] += unit
    return pieces


def _oldest(rows: Sequence[Message]) -> tuple[datetime, str, int]:
    first = min((row.created_at for row in rows if row.created_at is not None), default=_BEGINNING)
    return first, rows[0].thread_id or "", seq_of(rows[0])


def _line(row: Message) -> str:
    speaker = {"user": "User", "assistant": "Assistant"}.get(row.role, "Tool")
    text = " ".join(row.text.split())
    return f"{speaker}: {text if len(text) <= _LINE_LENGTH else text[: _LINE_LENGTH - 1] + '…'}"
