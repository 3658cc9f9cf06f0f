"""Removal of rows and of everything that was made from them.

The first save of the log removes the entries made from the rows, and adds tombstones, so that work in flight cannot
restore anything. Then the copies of the entries' text are removed, then the rows, and last the titles that a model made
from them. After a crash the tombstones remain, and ``finish_removals`` does the rest when the log is opened next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

from diarist.exceptions import ConflictError, NotFoundError
from diarist.memory.generated_titles import is_generated, made_from, without_mark
from diarist.memory.memory_note import keep_date
from diarist.memory.observational.log.coverage import Coverage
from diarist.memory.observational.log.edits import Erasure, erase, erase_past, row_stones, without_stones
from diarist.memory.observational.log.log_store import LogStore, logs_of
from diarist.memory.observational.log.transitions import threads_of_entries
from diarist.memory.receipt import Receipt
from diarist.memory.rows import rows_between, rows_of_all_branches, seq_of, threads_of
from diarist.messages import Message, SentBlock
from diarist.storage.base import Storage
from diarist.storage.records import ObservationLog, RowRef, Thread, Tombstone
from diarist.storage.words import message_texts, text_terms

WHOLE = 1 << 62
"""Last row number of a range that covers a whole thread."""

_NAME_OR_NUMBER = re.compile(r"(?<![.!?] )(?<!^)(?<!\w)[^\W\d_a-z]\w+|\w*\d\w*", re.MULTILINE)
"""Matches a capitalised word that does not begin a sentence, or a word with a digit."""


async def finish_removals(storage: Storage, log: ObservationLog) -> ObservationLog:
    """Finish the removals that the log's row tombstones name. Call it when a log is opened, before rows are read.

    Returns:
        The log without these tombstones; the same object if it has none.

    Raises:
        StorageError: The tombstones stay, and the next call starts over.
    """
    stones = row_stones(log)
    if not stones:
        return log
    mine = list(stones)
    for thread_id in {stone.thread_id for stone in stones}:
        thread = await storage.get_thread(thread_id)
        if thread is not None and thread.resource_id != log.resource_id:  # another thread now has this id
            mine = [stone for stone in mine if stone.thread_id != thread_id]
    if mine and await remove_rows(storage, [log], mine) != Receipt():
        await storage.purge()
    return await drop_stones(storage, log, stones)


async def finish_earlier_removals(storage: Storage, thread: Thread) -> None:
    """Finish an interrupted removal of an earlier thread with this id.

    Call it when a thread is created, before any of its rows are visible: tombstones name rows by number, and the new
    rows get the same numbers. Only a resource's log can have such tombstones; a thread's own log is deleted with it.
    """
    log = await LogStore(storage, "resource").read(thread.id, thread.resource_id)
    if any(stone.thread_id == thread.id for stone in row_stones(log)):
        await finish_removals(storage, log)


async def drop_stones(storage: Storage, log: ObservationLog, stones: Sequence[Tombstone]) -> ObservationLog:
    """Remove tombstones of rows that cannot come back."""
    logs = LogStore(storage, log.scope)
    return await logs.update(lambda: logs.reread(log), lambda log: without_stones(log, stones))


async def remove_rows(
    storage: Storage,
    logs: Sequence[ObservationLog],
    stones: Sequence[Tombstone],
    *,
    rows: Sequence[RowRef] = (),
) -> Receipt:
    """Remove rows, and everything in the logs that was made from them. Leaves tombstones in the logs.

    Args:
        stones: The ranges of the rows, which may be in threads that are already deleted.
        rows: Rows that must still be stored when the tombstones are saved. If a thread was deleted and created again,
            other rows have these numbers.

    Raises:
        ConflictError: One of ``rows`` is no longer stored.
    """
    names: set[str] = set()  # names and numbers in the rows that are still stored
    ids: dict[str, list[str]] = {}
    for thread_id in dict.fromkeys(stone.thread_id for stone in stones):
        places = Coverage((), thread_id, stones)
        after, before = places.ranges[0][0] - 1, places.ranges[-1][1] + 1
        async for row in rows_between(storage, thread_id, after=after, before=before):
            if seq_of(row) in places:
                ids.setdefault(thread_id, []).append(row.id)
                for text in message_texts(row):
                    names |= {term for name in _NAME_OR_NUMBER.findall(text) for term in text_terms(name)}
    receipt = Receipt()
    for log in logs:
        receipt += await _clean(storage, log, stones, names, rows)
    for thread_id, message_ids in ids.items():
        await storage.delete_messages(thread_id, message_ids)
        receipt += Receipt(message_ids=tuple(message_ids))
    # Clean titles last, to find those made during the removal. After a crash the tombstones start the removal again.
    return receipt + await _clean_titles(storage, [stone.thread_id for stone in stones])


async def remove_traces(storage: Storage, logs: Sequence[ObservationLog], row: Message) -> None:
    """Remove from the logs everything that was made from a row. The row stays, and counts as not observed.

    Observations of the row that are still being made are dropped.
    """
    stones = (Tombstone(thread_id=row.thread_id or "", first_seq=seq_of(row), last_seq=seq_of(row)),)
    for log in logs:
        await _clean(storage, log, stones, set(), (), stays=True)
    if row.thread_id is not None:
        await _clean_titles(storage, [row.thread_id], changed=row.id)


def without_rows(log: ObservationLog, past: Sequence[ObservationLog], stones: Sequence[Tombstone]) -> ObservationLog:
    """Return the log without the entries made from these rows, and without tombstones for them. The rows stay.

    Args:
        past: The earlier generations of the log.
    """
    erasure = Erasure(stones)
    if not any(map(erasure.reaches, log.every_entry)):
        return log
    return without_stones(erase(log, past, erasure), set(stones).difference(log.tombstones))


async def clean_after_move(
    storage: Storage, thread_id: str, logs: Sequence[ObservationLog], stones: Sequence[Tombstone]
) -> None:
    """Remove copies of what was made from rows that have left the active branch of a thread: from earlier generations,
    titles, and the memory notes of other threads.

    Args:
        logs: The logs before their entries were removed.
    """
    erasure = Erasure(stones)
    for log in logs:
        if log.version:
            history = await LogStore(storage, log.scope).rewrite_history(log.key, lambda old: erase_past(old, erasure))
            reached = [entry for old in (*history, log) for entry in old.every_entry if erasure.reaches(entry)]
            await _clean_titles(storage, threads_of_entries(reached))
            if reached and log.scope == "resource":
                await _clean_notes(storage, log, stones)
    await _clean_titles(storage, [thread_id])


# --- the log and its history ---------------------------------------------------------------------------------


async def _clean(
    storage: Storage,
    log: ObservationLog,
    stones: Sequence[Tombstone],
    names: set[str],
    rows: Sequence[RowRef],
    *,
    stays: bool = False,
) -> Receipt:
    """Remove everything made from the rows from a log, its earlier generations, titles and memory notes.

    Args:
        names: Words to look for in the remaining entries, for the receipt's ``mentioning_ids``.
        stays: True if the rows themselves stay; then no tombstones are kept.
    """
    erasure, logs = Erasure(stones), LogStore(storage, log.scope)
    before = log
    past: list[ObservationLog] = []

    async def read_past() -> None:
        nonlocal past
        past = await storage.list_generations(log.key)

    def mark(now: ObservationLog) -> ObservationLog:
        """Add the tombstones, and remove the entries made from the rows."""
        nonlocal before
        before = now
        erased = erase(now, past, erasure)
        return without_stones(erased, set(erasure.stones).difference(now.tombstones)) if stays else erased

    after = await logs.update(lambda: logs.reread(log), mark, prepare=read_past, rows=rows)
    history = await logs.rewrite_history(log.key, lambda old: erase_past(old, erasure))
    reached = [e for old in (*history, before) for e in old.every_entry if erasure.reaches(e)]
    known = {entry.id for entry in before.entries}
    receipt = Receipt(
        observation_ids=tuple(dict.fromkeys(entry.id for entry in reached)),
        restored_ids=tuple(entry.id for entry in after.entries if entry.id not in known),
        mentioning_ids=tuple(e.id for e in after.every_entry if not names.isdisjoint(text_terms(e.text))),
    )
    receipt += await _clean_titles(storage, threads_of_entries(reached))
    return receipt + await _clean_notes(storage, after, stones)


# --- copies of the log's text ---------------------------------------------------------------------------------------


async def _clean_titles(storage: Storage, thread_ids: Iterable[str], *, changed: str = "") -> Receipt:
    """Empty the titles that were made by a model and have lost their source.

    A title made from a message is emptied when the message is deleted. A title made by the Observer stays while a diary
    entry contains it: the entry records the messages that the title was made from.

    Args:
        changed: The id of a message with new content; a title made from it is emptied too.
    """
    receipt = Receipt()
    for thread_id in dict.fromkeys(thread_ids):
        thread = await storage.get_thread(thread_id)
        if thread is None or not is_generated(thread):
            continue
        source = made_from(thread)
        if source is not None:
            stays = source != changed and bool(await storage.existing_ids(thread_id, [source]))
        else:
            entries = [entry for log in await logs_of(storage, thread) for entry in log.every_entry]
            stays = any(said.thread_title == thread.title for entry in entries for said in (entry, *entry.hints))
        if stays:
            continue
        with suppress(ConflictError, NotFoundError):  # renamed or deleted at this moment
            await storage.update_thread(thread_id, title="", metadata=without_mark(), expected_title=thread.title)
            receipt += Receipt(title_ids=(thread_id,))
    return receipt


async def _clean_notes(storage: Storage, log: ObservationLog, stones: Sequence[Tombstone]) -> Receipt:
    """Reduce memory notes sent after the rows were stored to their date, because they may quote the log.

    The notes of a thread's log are in that thread. The notes of a resource's log are in the threads of the resource
    that have changed since the rows' threads were created.
    """
    first: dict[str, int] = {}
    for stone in stones:
        first[stone.thread_id] = min(stone.first_seq, first.get(stone.thread_id, stone.first_seq))
    if log.scope == "thread":
        readers = [log.key.removeprefix("thread:")]
    else:
        named = [await storage.get_thread(thread_id) for thread_id in first]
        created = [thread.created_at for thread in named if thread is not None and thread.created_at is not None]
        since = min(created) if len(created) == len(first) else None
        threads = [thread async for thread in threads_of(storage, log.resource_id)]
        readers = [t.id for t in threads if since is None or t.updated_at is None or t.updated_at >= since]
    receipt = Receipt()
    for thread_id in readers:
        receipt += await cut_notes(storage, thread_id, after=first.get(thread_id, 0))
    return receipt


async def cut_notes(storage: Storage, thread_id: str, *, after: int = 0) -> Receipt:
    """In rows with a number above ``after``, reduce each memory note to its date."""
    cut: dict[str, SentBlock | None] = {}
    async for row in rows_of_all_branches(storage, thread_id, after=after):
        kept = None if row.sent is None else keep_date(row.sent)
        if kept is not row.sent or row.id in cut:  # a client may have sent the same id on another branch
            cut[row.id] = kept
    if cut:
        await storage.rewrite_sent(thread_id, cut)
    return Receipt(note_ids=tuple(cut))
