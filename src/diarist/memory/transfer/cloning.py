"""Copies a thread inside a storage, whole or in part, with its diary."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from diarist.concurrency import being_cancelled, shield_until_done
from diarist.exceptions import ConflictError, InputError, NotFoundError, StorageError
from diarist.memory.memory_note import keep_date, without_diary
from diarist.memory.observational.log.coverage import digest_rows, visible_log
from diarist.memory.rows import seq_of
from diarist.memory.title_marks import MARK, made_from, mark_of
from diarist.memory.transfer.numbering import Numbering, Renaming, cut, cut_past, renumbered
from diarist.memory.transfer.thread_writer import PAGE, ThreadWriter, written
from diarist.memory.working.store import WorkingMemoryStore
from diarist.messages import Message
from diarist.storage.base import Storage
from diarist.storage.records import ObservationLog, Thread
from diarist.tokens import TokenCounter

logger = logging.getLogger("diarist")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Conditions on the messages to copy; a message must meet all of them.

    Attributes:
        since, until: Aware times: sent at ``since`` or later, and before ``until``.
        limit: Only this many of the matching messages, the newest.
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
        """Return True if a row passes, regardless of the limit."""
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
"""Existing rows of a thread, in order, each with its copy in the other thread."""


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
    """Create ``copy``, a new thread of the same resource (or of none, as the source), from the selected messages.

    Args:
        derive: Called with both threads once the copy exists, to create other data derived from messages.
        withdraw: Called with a copy that was removed again, to remove the data that ``derive`` created.
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
    try:
        if await cloning.count_again() != cloning.numbering.count:
            raise ConflictError(f"messages of thread {source.id!r} were removed while it was copied; try again")
        await derive(source, copy, cloning.pairs())
        found = await storage.get_thread(copy.id)
        if found is None:
            raise NotFoundError(f"thread {copy.id!r} was deleted as soon as it was there")
        return found
    except BaseException:
        await shield_until_done(_give_up(cloning, withdraw), hurried=being_cancelled())
        raise


async def _give_up(cloning: _Cloning, withdraw: Callable[[Thread], Awaitable[None]]) -> None:
    """Remove a copy that is visible already; the caller raises the error that made it fail.

    Vectors go last: a process that is embedding the copy removes its own when it finds the thread gone.
    """
    try:
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
        """Mark the title as made from a message, by the message's id in the copy."""
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
        gone = self.numbering.of_forgotten(await self.storage.list_forgotten(self.source.id))
        await writer.note_forgotten([row._replace(id=self.renaming.message_id(row.id)) for row in gone])

    def _copied(self, row: Message) -> Message:
        sent = row.sent and without_diary(row.sent)
        if sent is not None and not self.selection.is_everything:
            sent = keep_date(sent, self.counter)  # it may quote messages that are not copied
        return replace(row, id=self.renaming.message_id(row.id), sent=sent)

    async def _first_place(self) -> int:
        """Return the place of the oldest row within the limit."""
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
        """Return how many of the existing rows would be copied now."""
        return sum([taken and seq_of(row) <= self.numbering.end async for row, taken in self._rows()])

    async def pairs(self) -> CopiedRows:
        """Yield the copied rows, each with its copy, except rows removed since."""
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
        """Return digests of the copied rows, by the ranges of the entries' sources: the copies have other ids."""
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
        if self.source.resource_id == self.target.resource_id:
            return
        own = await WorkingMemoryStore(self.storage, "resource").read(f"resource:{self.source.resource_id}")
        if own.text:
            await writer.put_working_memory(own.text, key=f"resource:{self.target.resource_id}")
