"""Forgetting rows, with every word that was made from them.

First tombstones are saved into the log, so that no work in flight brings anything back; then everything is removed
that is made from the rows; the rows themselves go last, since they tell what to look for. A crash in between leaves
the tombstones, and ``finish_removals`` does the rest. It takes the tombstones away, too: so what a run that was
live meanwhile has still written is looked through once more before the next one begins.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from functools import cache

from diarist.chunks import DataChunk
from diarist.memory.observational.data_parts import without_words
from diarist.memory.observational.log.coverage import Coverage, seq_of
from diarist.memory.observational.log.edits import (
    Erasure,
    erase,
    erase_past,
    row_stones,
    without_stones,
)
from diarist.memory.observational.log.log_store import LogStore
from diarist.memory.observational.prompt.sent_block import keep_date
from diarist.memory.observational.prompts import load_prompt
from diarist.memory.receipt import Receipt
from diarist.memory.title_marks import made_from, without_mark
from diarist.messages import Message, SentBlock
from diarist.storage.base import Storage
from diarist.storage.records import Observation, ObservationLog, RowRef, Thread, Tombstone
from diarist.storage.words import message_terms, text_terms
from diarist.tokens import TokenCounter

WHOLE = 1 << 62
"""The end of a range that takes a whole thread."""

_PAGE = 500
_NEAR = 50
"""Places further on, reading what lies between costs more than asking again."""
_PROMPTS = (
    "observer",
    "observer_threads",
    "observer_title",
    "reflector",
    "reflector_levels",
    "reflector_threads",
    "using_notes",
)


async def finish_removals(storage: Storage, log: ObservationLog, counter: TokenCounter) -> ObservationLog:
    """Finish what tombstones in the log say is to be removed. Call it when a log is opened, before rows are read.

    Returns:
        The log without these tombstones; the very log where it has none.

    Raises:
        StorageError: The tombstones stay, and the next call begins anew.
    """
    stones = row_stones(log)
    if not stones:
        return log
    mine = await _of_resource(storage, stones, log.resource_id)
    if mine and (await remove_rows(storage, [log], mine, counter)).message_ids:
        await storage.purge()
    return await drop_stones(storage, log, stones)


async def finish_earlier_removals(storage: Storage, thread: Thread, counter: TokenCounter) -> None:
    """Finish what was cut short of removing an earlier thread of this id. Call it when a thread is begun, before any
    of its rows can be seen: tombstones name rows by their places, and the new ones take the same places.

    A thread's own log goes with the thread, so that only the resource's can have such tombstones.
    """
    log = await LogStore(storage, "resource").read(thread.id, thread.resource_id)
    if any(stone.thread_id == thread.id for stone in row_stones(log)):
        await finish_removals(storage, log, counter)


async def _of_resource(storage: Storage, stones: Sequence[Tombstone], resource_id: str) -> list[Tombstone]:
    """Without those of threads that another resource has by now: the rows that they named went with the old thread."""
    others: set[str] = set()
    for thread_id in {stone.thread_id for stone in stones}:
        thread = await storage.get_thread(thread_id)
        if thread is not None and thread.resource_id != resource_id:
            others.add(thread_id)
    return [stone for stone in stones if stone.thread_id not in others]


async def drop_stones(storage: Storage, log: ObservationLog, stones: Sequence[Tombstone]) -> ObservationLog:
    """Take away tombstones of rows that nobody can bring back."""
    return await _update(storage, log, lambda log: without_stones(log, stones))


async def remove_rows(
    storage: Storage,
    logs: Sequence[ObservationLog],
    stones: Sequence[Tombstone],
    counter: TokenCounter,
    *,
    rows: Sequence[RowRef] = (),
) -> Receipt:
    """Remove rows, and what the logs have that was made from them; leaves tombstones in the logs.

    Args:
        stones: Where the rows lie, also in threads that are gone already.
        rows: Must be stored when the tombstones are saved: in a thread that was made anew, other rows have their
            places. Raises ConflictError where they are not.
    """
    words, ids = await _look(storage, stones)
    receipt = Receipt()
    for log in logs:
        receipt += await _clean(storage, log, stones, words, counter, rows)
    for thread_id, message_ids in ids.items():
        receipt += await _clean_generated_title(storage, thread_id, message_ids)
        await storage.delete_messages(thread_id, message_ids)
        receipt += await _clean_generated_title(storage, thread_id, message_ids)  # it was thought of meanwhile
        receipt += Receipt(message_ids=tuple(message_ids))
    return receipt


async def own_words(storage: Storage, row: Message) -> set[str]:
    """The words that of all messages of its thread only this one says."""
    words, _ = await _look(storage, _stones_of(row))
    return words


async def remove_traces(
    storage: Storage, logs: Sequence[ObservationLog], row: Message, words: set[str], counter: TokenCounter
) -> None:
    """Take out of the logs what was made from a row that stays, which is raw again by this.

    Notes that are being made of it are dropped.

    Args:
        words: What is taken out as well wherever it is said, such as ``own_words``.
    """
    for log in logs:
        await _clean(storage, log, _stones_of(row), words, counter, (), stays=True)
    if row.thread_id is not None:
        await _clean_generated_title(storage, row.thread_id, [row.id])


def _stones_of(row: Message) -> tuple[Tombstone, ...]:
    return (Tombstone(thread_id=row.thread_id or "", first_seq=seq_of(row), last_seq=seq_of(row)),)


def thread_of(log: ObservationLog) -> str:
    """The thread of a log of scope ``thread``; no name at all for that of a resource, which has many."""
    return log.key.removeprefix("thread:") if log.scope == "thread" else ""


async def _update(
    storage: Storage,
    log: ObservationLog,
    change: Callable[[ObservationLog], ObservationLog],
    check: Callable[[], Awaitable[None]] | None = None,
    rows: Sequence[RowRef] = (),
) -> ObservationLog:
    logs = LogStore(storage, log.scope)
    return await logs.update(thread_of(log), log.resource_id, change, check=check, rows=rows)


async def rows_between(
    storage: Storage, thread_id: str, *, after: int = 0, before: int | None = None
) -> AsyncIterator[Message]:
    """Visible rows in order, read page by page."""
    while rows := await storage.list_messages(thread_id, after=after, before=before, limit=_PAGE):
        for row in rows:
            yield row
        after = seq_of(rows[-1])


# --- what is to be looked for ------------------------------------------------------------------------------


async def _look(storage: Storage, stones: Sequence[Tombstone]) -> tuple[set[str], dict[str, list[str]]]:
    """The words that only these rows of their threads say, of rows that are still there; and their ids, by thread."""
    words: set[str] = set()
    ids: dict[str, list[str]] = {}
    for thread_id in dict.fromkeys(stone.thread_id for stone in stones):
        places = Coverage((), thread_id, stones)
        for first, last in _stretches(places):
            async for row in rows_between(storage, thread_id, after=first - 1, before=last + 1):
                if seq_of(row) in places:
                    ids.setdefault(thread_id, []).append(row.id)
                    words |= message_terms(row)
    for thread_id, gone in ids.items():
        known = set(gone)
        async for row in rows_between(storage, thread_id):
            if not words:
                break
            if row.id not in known:
                words -= message_terms(row)
    return words, ids


def _stretches(places: Coverage) -> Iterator[tuple[int, int]]:
    """The pieces, as they are read: together where they lie near each other."""
    start, end = places.ranges[0]
    for first, last in places.ranges[1:]:
        if first - end > _NEAR:
            yield start, end
            start = first
        end = last
    yield start, end


async def _said_elsewhere(
    storage: Storage, log: ObservationLog, stones: Sequence[Tombstone], words: set[str]
) -> set[str]:
    """Those of the words that entries have from the messages of other threads."""
    gone = {stone.thread_id for stone in stones}
    found: set[str] = set()
    for entry in _all_entries(log):
        others = [source for source in entry.sources if source.thread_id not in gone]
        if others and not (words - found).isdisjoint(text_terms(entry.text)):
            for source in others:
                async for row in rows_between(
                    storage, source.thread_id, after=source.first_seq - 1, before=source.last_seq + 1
                ):
                    found |= words & message_terms(row)
    return found


@cache
def _own_words() -> frozenset[str]:
    """Words of our prompts: an entry that says one need not have it from any message."""
    return frozenset(term for name in _PROMPTS for term in text_terms(load_prompt(name)))


def _all_entries(log: ObservationLog) -> list[Observation]:
    return [*log.entries, *((log.reflection.entry,) if log.reflection is not None else ())]


# --- the log and its history ---------------------------------------------------------------------------------


async def _clean(
    storage: Storage,
    log: ObservationLog,
    stones: Sequence[Tombstone],
    words: set[str],
    counter: TokenCounter,
    rows: Sequence[RowRef],
    *,
    stays: bool = False,
) -> Receipt:
    """Take out of a log, of its history and of all copies of its words what was made from the rows.

    ``stays``: The rows are not removed, so no tombstones are left.
    """
    words = words - _own_words()
    for past in (log, *(await storage.list_generations(log.key) if words and log.scope == "resource" else ())):
        words -= await _said_elsewhere(storage, past, stones, words)
    erasure = Erasure(tuple(stones), frozenset(words))
    before, after = await _mark(storage, log, erasure, rows, stays=stays)
    history = await LogStore(storage, log.scope).rewrite_history(log.key, lambda past: erase_past(past, erasure))
    receipt = _compare(before, after, history, erasure)
    receipt += await _clean_events(storage, after)
    receipt += await _clean_titles(storage, [before, *history], erasure)
    return receipt + await _clean_notes(storage, after, stones, counter)


async def _mark(
    storage: Storage, log: ObservationLog, erasure: Erasure, rows: Sequence[RowRef], *, stays: bool
) -> tuple[ObservationLog, ObservationLog]:
    """Save the tombstones, and take out what is made from the rows; returns the log before and after."""
    before = log
    history: list[ObservationLog] = []

    async def read_history() -> None:
        nonlocal history
        history = await storage.list_generations(log.key)

    def change(log: ObservationLog) -> ObservationLog:
        nonlocal before
        before = log
        erased = erase(log, history, erasure)
        return without_stones(erased, set(erasure.stones).difference(log.tombstones)) if stays else erased

    after = await _update(storage, log, change, check=read_history, rows=rows)
    return before, after


def _compare(
    before: ObservationLog, after: ObservationLog, history: Sequence[ObservationLog], erasure: Erasure
) -> Receipt:
    entries = [entry for log in (*history, before) for entry in _all_entries(log)]
    known = {entry.id for entry in before.entries}
    return Receipt(
        observation_ids=tuple(dict.fromkeys(entry.id for entry in entries if erasure.reaches(entry))),
        restored_ids=tuple(entry.id for entry in after.entries if entry.id not in known),
    )


# --- copies of its words ---------------------------------------------------------------------------------------


async def _clean_events(storage: Storage, log: ObservationLog) -> Receipt:
    """Empty the texts of errors, which may quote what a model was told; event logs hold no other words."""
    after, count = 0, 0
    while events := await storage.list_events(log.key, after=after, limit=_PAGE):
        for event in events:
            data = without_words(DataChunk(type=event.type, data=event.data)) if "error" in event.data else event.data
            if data != event.data:
                count += await storage.rewrite_event(log.key, event.seq, data)
        after = events[-1].seq
    return Receipt(events=count)


async def _clean_titles(storage: Storage, logs: Sequence[ObservationLog], erasure: Erasure) -> Receipt:
    emptied: list[str] = []
    reached = [e for log in logs for e in _all_entries(log) if erasure.reaches(e)]
    made = {entry.thread_title for entry in reached}
    named = [stone.thread_id for stone in erasure.stones] + [s.thread_id for e in reached for s in e.sources]
    for thread_id in dict.fromkeys(named):
        thread = await storage.get_thread(thread_id)
        if thread is not None and thread.title and (thread.title in made or erasure.is_said_in(thread.title)):
            await storage.update_thread(thread_id, title="")
            emptied.append(thread_id)
    return Receipt(title_ids=tuple(emptied))


async def _clean_generated_title(storage: Storage, thread_id: str, message_ids: Sequence[str]) -> Receipt:
    thread = await storage.get_thread(thread_id)
    if thread is None or made_from(thread) not in message_ids:
        return Receipt()
    await storage.update_thread(thread_id, title="", metadata=without_mark())
    return Receipt(title_ids=(thread_id,))


async def _clean_notes(
    storage: Storage, log: ObservationLog, stones: Sequence[Tombstone], counter: TokenCounter
) -> Receipt:
    """Cut the notes that were sent since the rows were stored: they may quote the log."""
    receipt = Receipt()
    first: dict[str, int] = {}
    for stone in stones:
        first[stone.thread_id] = min(stone.first_seq, first.get(stone.thread_id, stone.first_seq))
    for thread_id in await _readers(storage, log, first):
        receipt += await cut_notes(storage, thread_id, counter, after=first.get(thread_id, 0))
    return receipt


async def _readers(storage: Storage, log: ObservationLog, named: dict[str, int]) -> list[str]:
    """The threads whose prompts hold the log: its own, or those of its resource that were used since."""
    if log.scope == "thread":
        return [thread_of(log)]
    since = await _oldest(storage, named)
    threads = [thread async for thread in threads_of(storage, log.resource_id)]
    return [thread.id for thread in threads if since is None or thread.updated_at is None or thread.updated_at >= since]


async def _oldest(storage: Storage, named: dict[str, int]) -> datetime | None:
    """A moment before which none of the named rows was stored; None if nobody can say."""
    created = [thread.created_at for id in named if (thread := await storage.get_thread(id)) is not None]
    if len(created) < len(named) or None in created:
        return None
    return min(moment for moment in created if moment is not None)


async def threads_of(storage: Storage, resource_id: str) -> AsyncIterator[Thread]:
    """All visible threads of a resource, read page by page."""
    cursor: str | None = None
    while True:
        page = await storage.list_threads(resource_id=resource_id, cursor=cursor)
        for thread in page.items:
            yield thread
        cursor = page.cursor
        if cursor is None:
            return


async def cut_notes(storage: Storage, thread_id: str, counter: TokenCounter, *, after: int = 0) -> Receipt:
    """Leave of the notes that were sent along with rows behind ``after`` no more than the date."""
    cut: dict[str, SentBlock | None] = {}
    async for row in rows_between(storage, thread_id, after=after):
        if row.sent is not None:
            kept = keep_date(row.sent, counter)
            if kept is not row.sent:
                cut[row.id] = kept
    if cut:
        await storage.rewrite_sent(thread_id, cut)
    return Receipt(note_ids=tuple(cut))
