"""Resource scope: what is said in the other threads of a resource, observed together and told in short."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from diarist.counting import ensure_counted
from diarist.memory.observational.cycles import Batch, Cycles, Outcome
from diarist.memory.observational.log.coverage import Coverage, seq_of, sources_of, visible_log
from diarist.memory.observational.log.refusals import narrow
from diarist.memory.observational.log.uncovered import uncovered_rows
from diarist.memory.observational.prompt.threads import thread_label
from diarist.memory.observational.window import observable_units, tokens_of
from diarist.messages import Message
from diarist.storage.base import Storage
from diarist.storage.records import ObservationLog, Source, Thread
from diarist.tokens import TokenCounter

AT_ONCE = 8
"""Calls of the Observer at a time."""

TAIL_THREADS = 3
TAIL_ROWS = 4
_LINE_LENGTH = 240
_PAGE = 100
TAIL_SHARE = 0.05
"""Of the tokens that a window takes, for all tails together."""

Place = tuple[datetime, str, int]
"""A moment, then a thread and a place in it, to put messages of several threads in order."""

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

    @property
    def heading(self) -> str:
        return f"Said in another conversation with the same user ({self.label}), which is not this one:"


async def unobserved_threads(
    storage: Storage, log: ObservationLog, *, counter: TokenCounter, pages: int | None = None, but: str | None = None
) -> AsyncIterator[Unobserved]:
    """The threads of the log's resource that have rows which no entry covers, newest thread first, page by page.

    Args:
        pages: Look at so many pages of a hundred threads; None: at all threads.
        but: A thread that is left out.
    """
    cursor: str | None = None
    seen = 0
    while pages is None or seen < pages:
        page = await storage.list_threads(resource_id=log.resource_id, limit=_PAGE, cursor=cursor)
        for thread in page.items:
            if thread.id != but and (found := await unobserved_rows(storage, log, thread.id, counter)):
                yield found
        cursor, seen = page.cursor, seen + 1
        if cursor is None:
            return


async def unobserved_rows(
    storage: Storage, log: ObservationLog, thread_id: str, counter: TokenCounter
) -> Unobserved | None:
    """The rows of a thread that no entry covers; None where there are none."""
    raw = await uncovered_rows(storage, Coverage(log.entries, thread_id), thread_id)
    ensure_counted(raw, counter)
    return Unobserved(thread_id, raw, observable_units(raw, ())) if raw else None


def pack_threads(threads: Sequence[Unobserved], limit: int, refused: Sequence[Source] = ()) -> list[list[Message]]:
    """Rows of several threads in batches of at most ``limit`` tokens each.

    The largest threads are placed first, each into the first batch with room for it. One that is larger than the
    limit is split by messages into batches of its own, and only its last piece shares one. A unit that is larger
    alone is a batch alone; what was ``refused`` too often comes alone, in smaller and smaller pieces. Batches stand
    in the order of their oldest messages, those of one thread in its order; in a batch the rows of a thread stay
    together.
    """
    split = [_split(thread.units, limit, refused) for thread in threads]
    batches = [[piece] for pieces in split for piece in pieces if piece.alone or piece is not pieces[-1]]
    shared: list[list[_Piece]] = []
    ends = (pieces[-1] for pieces in split if pieces and not pieces[-1].alone)
    for last in sorted(ends, key=lambda piece: piece.tokens, reverse=True):
        room = (batch for batch in shared if sum(piece.tokens for piece in batch) + last.tokens <= limit)
        batch = next(room, None)
        if batch is None:
            shared.append([last])
        else:
            batch.append(last)
    return [
        [row for piece in sorted(batch, key=lambda piece: piece.begun) for row in piece.rows]
        for batch in sorted([*batches, *shared], key=_begun)
    ]


async def buffer_other_threads(
    cycles: Cycles, storage: Storage, log: ObservationLog, *, but: str, least: float, limit: int, counter: TokenCounter
) -> None:
    """Observe, in the background, what no entry covers of the other threads of the resource: of the hundred that were
    begun last, since this is asked at the end of every run.

    Does nothing where all of it together has fewer than ``least`` tokens. Rows of live runs are not seen, and threads
    that somebody else observes are left to them.

    Args:
        but: A thread that looks after itself.
        limit: Tokens of one call.
    """
    found = unobserved_threads(storage, log, counter=counter, pages=1, but=but)
    threads = [thread async for thread in found if thread.units]
    if sum(thread.tokens for thread in threads) < least:
        return
    ids = [thread.thread_id for thread in threads]
    async with cycles.logs.claim_each(ids, log.resource_id, "observation") as mine:
        log = await cycles.logs.newer(log) or log
        for some in waves(await read_batches(storage, log, mine, limit, counter)):
            outcomes = await observe_side_by_side(
                [(cycles, batch) for batch in some],
                visible_log(log, None),
                timeout=cycles.background_timeout,
                buffered=True,
            )
            if any(outcome.log is None for outcome in outcomes):
                return  # what is down is not asked again and again
            log = await cycles.logs.newer(log) or log


async def read_batches(
    storage: Storage, log: ObservationLog, thread_ids: Sequence[str], limit: int, counter: TokenCounter
) -> list[Batch]:
    """What the log does not have of these threads, in batches of at most ``limit`` tokens each."""
    read = [await unobserved_rows(storage, log, thread_id, counter) for thread_id in thread_ids]
    threads = [thread for thread in read if thread is not None]
    return [batch_of(rows, threads, log) for rows in pack_threads(threads, limit, log.observer_failures.refused)]


def waves(batches: Sequence[Batch]) -> Iterator[Sequence[Batch]]:
    """As many batches as are observed at a time."""
    return (batches[start : start + AT_ONCE] for start in range(0, len(batches), AT_ONCE))


async def observe_side_by_side(
    work: Sequence[tuple[Cycles, Batch]], log: ObservationLog, *, timeout: float | None, buffered: bool = False
) -> list[Outcome]:
    """Observe batches in parallel; their entries are saved in the order of ``work``, whoever answers first.

    Args:
        log: What all of them are told of earlier notes.
        timeout: Seconds that the Observer has for each.
    """
    done = [asyncio.Event() for _ in work]

    async def observe(place: int, cycles: Cycles, batch: Batch) -> Outcome:
        turn = done[place - 1].wait if place else None
        try:
            return await cycles.observe(log, batch, timeout=timeout, buffered=buffered, turn=turn)
        finally:
            if turn is not None:  # who failed early lets nobody pass who waits for those before
                await turn()
            done[place].set()

    return await asyncio.gather(*(observe(place, cycles, batch) for place, (cycles, batch) in enumerate(work)))


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


async def tails_of(
    storage: Storage, log: ObservationLog, *, but: str, obscured: bool, room: float, counter: TokenCounter
) -> list[Tail]:
    """The newest words of the three other threads of the resource that were used last (of the hundred that were
    begun last), a few short lines each.

    Args:
        but: The thread that they are told to.
        room: Tokens that all of it may have; the newest lines of each thread come first.
    """
    page = await storage.list_threads(resource_id=log.resource_id, limit=_PAGE)
    others = [thread for thread in page.items if thread.id != but]
    tails: list[Tail] = []
    for thread in sorted(others, key=_last_used, reverse=True)[:TAIL_THREADS]:
        coverage = Coverage(log.active, thread.id)
        tail = Tail(thread_label(thread.id, obscured=obscured), [])
        left = room - counter.count(tail.heading)
        for row in await storage.list_messages(thread.id, limit=TAIL_ROWS, newest_first=True):
            if seq_of(row) in coverage or not row.text.strip():
                continue
            left -= counter.count(line := _line(row))
            if left < 0:
                break
            tail.lines.insert(0, line)
            room = left
        if tail.lines:
            tails.append(tail)
    return tails


@dataclass(slots=True)
class _Piece:
    """Rows of one thread that go to the Observer together.

    Attributes:
        begun: When it begins, by its oldest message; later than the piece before it.
        follows: There is a piece before it.
        alone: It shares no call.
    """

    rows: list[Message]
    tokens: int
    begun: Place
    follows: bool
    alone: bool


def _split(units: Sequence[Sequence[Message]], limit: int, refused: Sequence[Source]) -> list[_Piece]:
    pieces: list[_Piece] = []
    for part, alone in narrow(units, refused):
        for place, unit in enumerate(part):
            tokens = tokens_of(unit)
            if place and pieces[-1].tokens + tokens <= limit:
                pieces[-1].rows += unit
                pieces[-1].tokens += tokens
            else:
                begun = oldest_of(unit)
                if pieces:  # time stamps may come from elsewhere, and go back
                    begun = (max(begun[0], pieces[-1].begun[0]), *begun[1:])
                pieces.append(_Piece(list(unit), tokens, begun, bool(pieces), alone))
    return pieces


def _begun(batch: Sequence[_Piece]) -> Place:
    """When a batch begins: with its oldest message, but behind the pieces that a piece of it follows."""
    return max([min(piece.begun for piece in batch), *(piece.begun for piece in batch if piece.follows)])


def oldest_of(rows: Sequence[Message]) -> Place:
    """When the oldest of the rows was said; where they lie decides between equal times."""
    first = min((row.created_at for row in rows if row.created_at is not None), default=_BEGINNING)
    return first, rows[0].thread_id or "", seq_of(rows[0])


def _last_used(thread: Thread) -> datetime:
    return thread.updated_at or thread.created_at or _BEGINNING


def _line(row: Message) -> str:
    speaker = {"user": "User", "assistant": "Assistant"}.get(row.role, "Tool")
    text = " ".join(row.text.split())
    return f"{speaker}: {text if len(text) <= _LINE_LENGTH else text[: _LINE_LENGTH - 1] + '…'}"
