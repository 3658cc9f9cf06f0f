"""Copying a thread inside a storage, whole or in part, with the diary that was made from it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from diarist.concurrency import at_work, being_cancelled, undisturbed
from diarist.exceptions import ConflictError, InputError, NotFoundError, StorageError
from diarist.memory.moving.numbering import Numbering, Renaming, cut, cut_past, map_entries, renumbered
from diarist.memory.moving.writing import PAGE, ThreadWriter, written
from diarist.memory.observational.log.coverage import digest_rows, seq_of, visible_log
from diarist.memory.observational.log.edits import touches
from diarist.memory.observational.log.log_store import LogStore
from diarist.memory.observational.log.transitions import drop_entries
from diarist.memory.observational.prompt.sent_block import keep_date, without_diary
from diarist.memory.title_marks import MARK, made_from, mark_of
from diarist.memory.working.store import WorkingMemoryStore
from diarist.messages import Message
from diarist.storage.base import Storage
from diarist.storage.records import Observation, ObservationLog, Source, Thread
from diarist.tokens import TokenCounter

logger = logging.getLogger("diarist")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which messages are copied: all that every one of these lets through.

    Attributes:
        since, until: Aware moments: said at ``since`` or later, and before ``until``.
        limit: Of the others, only so many of the newest.
    """

    ids: frozenset[str] | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        for name in ("since", "until"):
            moment: object = getattr(self, name)
            if moment is not None and (not isinstance(moment, datetime) or moment.tzinfo is None):
                raise InputError(f"{name} needs a datetime with a time zone, not {moment!r}")

    @property
    def is_everything(self) -> bool:
        return self == Selection()

    def takes(self, row: Message) -> bool:
        """Whether a row passes, the limit aside."""
        if self.ids is not None and row.id not in self.ids:
            return False
        if self.since is None and self.until is None:
            return True
        said = row.created_at
        return (
            said is not None
            and (self.since is None or said >= self.since)
            and (self.until is None or said < self.until)
        )


CopiedRows = AsyncGenerator[tuple[Message, Message]]
"""Rows of a thread that are there, in their order, each with its copy in the other thread."""


async def clone(
    storage: Storage,
    counter: TokenCounter,
    source: Thread,
    copy: Thread,
    selection: Selection,
    *,
    derive: Callable[[Thread, Thread, CopiedRows], Awaitable[None]],
    withdraw: Callable[[Thread], Awaitable[None]],
) -> Thread:
    """Write ``copy``, a new thread of the same resource, with what is selected of ``source``.

    Args:
        derive: Called with both threads when the copy is there: makes what else is derived from messages.
        withdraw: Called with a copy that was removed again: takes away what ``derive`` made.
    """
    if selection.ids is not None:
        known = await storage.existing_ids(source.id, sorted(selection.ids))
        if missing := sorted(selection.ids - known):
            raise NotFoundError(f"thread {source.id!r} has no message {missing[0]!r}")
    cloning = _Cloning(storage, counter, source, copy, selection)
    async with written(storage, counter, cloning.target) as writer:
        await cloning.copy_messages(writer)
        await cloning.copy_log(writer)
        await cloning.copy_working_memory(writer)
    me = asyncio.current_task()
    try:
        if await cloning.count_again() != cloning.numbering.count:
            raise ConflictError(f"messages of thread {source.id!r} were removed while it was copied; try again")
        await cloning.share_log()
        await derive(source, copy, cloning.pairs())
        found = await storage.get_thread(copy.id)
        if found is None:
            raise NotFoundError(f"thread {copy.id!r} was deleted as soon as it was there")
        return found
    except BaseException:
        if at_work(me):
            await undisturbed(_give_up(cloning, withdraw), hurried=being_cancelled())
        raise


async def _give_up(cloning: _Cloning, withdraw: Callable[[Thread], Awaitable[None]]) -> None:
    """Leave nothing of a copy that others see already. What made it fail is what is told.

    The diary of the resource comes first: a later thread of the same id would count as noted. Where that fails the copy
    stays, whole. Vectors come last: who
    is just embedding the copy removes his own when he finds the thread gone.
    """
    try:
        await cloning.unshare_log()
        await cloning.storage.delete_thread(cloning.target.id)
    except StorageError as error:
        logger.warning("the copy %s was given up, but cannot be removed: %s", cloning.target.id, error)
        return
    await withdraw(cloning.target)


class _Cloning:
    def __init__(
        self, storage: Storage, counter: TokenCounter, source: Thread, copy: Thread, selection: Selection
    ) -> None:
        self.storage, self.counter = storage, counter
        self.source, self.selection = source, selection
        self.numbering = Numbering(source.id)
        self.renaming = Renaming(source.id, copy.id, {})
        self.target = replace(copy, metadata={**copy.metadata, **self._mark(copy)})
        self._first = 0

    def _mark(self, copy: Thread) -> dict[str, object]:
        """The title comes along as what it is: made from a message, which has another id in the copy."""
        origin = made_from(self.source) if MARK in copy.metadata else None
        return {} if origin is None else mark_of(copy.title, self.renaming.message_id(origin))

    async def copy_messages(self, writer: ThreadWriter) -> None:
        self._first = await self._first_place()
        page: list[Message] = []
        async for row, taken in self._rows():
            if taken:
                self.numbering.take(seq_of(row))
                page.append(row)
            else:
                self.numbering.leave_out(seq_of(row))
            if len(page) == PAGE:
                await writer.append([self._copied(row) for row in page])
                page = []
        await writer.append([self._copied(row) for row in page])

    def _copied(self, row: Message) -> Message:
        sent = row.sent and without_diary(row.sent)
        if sent is not None and not self.selection.is_everything:
            sent = keep_date(sent, self.counter)  # it may quote what is not copied
        return replace(row, id=self.renaming.message_id(row.id), sent=sent)

    async def _first_place(self) -> int:
        """The place of the oldest row that the limit lets through."""
        left, before = self.selection.limit, None
        if left is None:
            return 0
        while left:
            rows = await self.storage.list_messages(self.source.id, before=before, limit=PAGE, newest_first=True)
            if not rows:
                return 0
            for row in rows:
                left -= self.selection.takes(row)
                before = seq_of(row)
                if not left:
                    return before
        return 1 << 62

    async def _rows(self) -> AsyncIterator[tuple[Message, bool]]:
        after = 0
        while rows := await self.storage.list_messages(self.source.id, after=after, limit=PAGE):
            for row in rows:
                yield row, seq_of(row) >= self._first and self.selection.takes(row)
            after = seq_of(rows[-1])

    async def count_again(self) -> int:
        """How many rows would be copied now, of those that were there."""
        return sum([taken and seq_of(row) <= self.numbering.end async for row, taken in self._rows()])

    async def pairs(self) -> CopiedRows:
        """What was copied; of rows that are gone meanwhile nothing."""
        async for row, _ in self._rows():
            place = self.numbering.range_of(seq_of(row), seq_of(row))
            if place is not None:
                yield row, replace(row, id=self.renaming.message_id(row.id), thread_id=self.target.id, seq=place[0])

    # -- the diary of the thread

    async def copy_log(self, writer: ThreadWriter) -> None:
        head = await self.storage.get_log(f"thread:{self.source.id}")
        if head is None:
            return
        history = [visible_log(log, None) for log in await self.storage.list_generations(head.key)]
        missing = self.numbering.missing
        logs = [*(cut_past(log, missing) for log in history), cut(visible_log(head, None), history, missing)]
        moved = [renumbered(log, {self.source.id: self.numbering}) for log in logs]
        digests = await self._digests(writer, moved)
        renaming = Renaming(self.source.id, self.target.id, digests)
        await writer.put_log([renaming.log(log) for log in moved])

    async def _digests(self, writer: ThreadWriter, logs: Sequence[ObservationLog]) -> dict[tuple[int, int], str]:
        """Of the copied rows, for every range that an entry was made from: their ids are others."""
        entries = [entry for log in logs for entry in log.every_entry]
        ranges = {(source.first_seq, source.last_seq) for entry in entries for source in entry.sources}
        digests: dict[tuple[int, int], str] = {}
        for first, last in sorted(ranges):
            rows = await self.storage.list_messages(
                self.target.id, after=first - 1, before=last + 1, run_id=writer.run.id
            )
            digests[first, last] = digest_rows(rows)
        return digests

    async def copy_working_memory(self, writer: ThreadWriter) -> None:
        kept = await WorkingMemoryStore(self.storage, "thread").read(f"thread:{self.source.id}")
        if kept.text:
            await writer.put_working_memory(kept.text)

    # -- the diary of the resource

    async def share_log(self) -> None:
        """Let entries of the resource's diary that were made from copied rows cover the copies as well."""
        logs = LogStore(self.storage, "resource")
        head = await logs.read(self.source.id, self.source.resource_id)
        if not head.version:
            return
        digests = await self._shared_digests([head, *await self.storage.list_generations(head.key)])
        await self._change_everywhere(lambda log: self._shared(log, digests))

    async def unshare_log(self) -> None:
        """Let the resource's diary cover nothing of the copy."""
        await self._change_everywhere(self._unshared)

    async def _change_everywhere(self, change: Callable[[ObservationLog], ObservationLog]) -> None:
        """Change the resource's diary, and its earlier generations."""
        logs = LogStore(self.storage, "resource")

        def changed(log: ObservationLog) -> ObservationLog:
            new = change(log)
            return log if new == log else new

        async def history() -> None:
            await logs.rewrite_history(logs.key(self.source.id, self.source.resource_id), changed)

        await logs.update(self.source.id, self.source.resource_id, changed, check=history)

    async def _shared_digests(self, logs: Sequence[ObservationLog]) -> dict[tuple[int, int], str]:
        ranges = {
            place
            for log in logs
            for entry in log.every_entry
            for source in entry.sources
            if source.thread_id == self.source.id and (place := self._place(source)) is not None
        }
        digests: dict[tuple[int, int], str] = {}
        for first, last in sorted(ranges):
            rows = await self.storage.list_messages(self.target.id, after=first - 1, before=last + 1)
            digests[first, last] = digest_rows(rows)
        return digests

    def _place(self, source: Source) -> tuple[int, int] | None:
        return self.numbering.range_of(source.first_seq, source.last_seq)

    def _shared(self, log: ObservationLog, digests: dict[tuple[int, int], str]) -> ObservationLog:
        missing = self.numbering.missing

        def share(entry: Observation) -> Observation:
            if entry.run_id is not None or (touches(entry, missing) and not entry.cut):
                return entry
            places = [self._place(source) for source in entry.sources if source.thread_id == self.source.id]
            copies = tuple(
                Source(thread_id=self.target.id, first_seq=place[0], last_seq=place[1], digest=digests[place])
                for place in places
                if place in digests
            )
            there = {source.thread_id for source in entry.sources}
            return entry if self.target.id in there else replace(entry, sources=(*entry.sources, *copies))

        return map_entries(log, share)

    def _unshared(self, log: ObservationLog) -> ObservationLog:
        def unshare(entry: Observation) -> Observation:
            left = tuple(source for source in entry.sources if source.thread_id != self.target.id)
            return replace(entry, sources=left) if len(left) < len(entry.sources) else entry

        made_of_it = {entry.id for entry in log.entries if {s.thread_id for s in entry.sources} == {self.target.id}}
        return map_entries(drop_entries(log, made_of_it), unshare)
