"""Reads threads, whole or in part, page by page. Diaries are reduced to entries made from the messages read."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

from diarist.memory.memory_note import without_diary
from diarist.memory.message_filter import MessageFilter
from diarist.memory.observational.log.coverage import visible_log
from diarist.memory.observational.log.removal import WHOLE, finish_removals
from diarist.memory.rows import rows_between, seq_of, threads_of
from diarist.memory.transfer.format import DiaryLogs, Item, LeftOut, ThreadItem, WholeResource, WorkingText
from diarist.memory.transfer.numbering import Numbering, cut, renumbered, sources_in
from diarist.memory.working.store import WorkingMemoryStore
from diarist.messages import Json, Message
from diarist.storage.base import Storage
from diarist.storage.records import ObservationLog, Thread, Tombstone


class ThreadReader:
    """Reads a thread. Messages that are stored while it reads may be included or not.

    Args:
        wanted: The messages to read. None: all.
        limit: Only this many of them, the newest.

    Attributes:
        numbering: The new numbers of the rows read so far.
    """

    def __init__(
        self, storage: Storage, thread: Thread, wanted: MessageFilter | None = None, limit: int | None = None
    ) -> None:
        self.numbering = Numbering(thread.id)
        self._storage, self._thread = storage, thread
        self._wanted, self._limit = wanted or MessageFilter(), limit
        self._first = 0

    async def content(self) -> AsyncIterator[ThreadItem]:
        """Yield everything in the thread: its working memory, messages, ids of deleted messages, and diary."""
        key = f"thread:{self._thread.id}"
        if text := await read_working_memory(self._storage, key):
            yield WorkingText(text)
        if self._limit is not None:
            newest = deque([seq_of(row) async for row, taken in self.rows() if taken], self._limit)
            self._first = newest[0] if newest else WHOLE
        async for row, taken in self.rows():
            self.numbering.add(seq_of(row), copied=taken)
            if taken:
                yield row if row.sent is None else replace(row, sent=without_diary(row.sent))
        for rank, forgotten in enumerate(await self._storage.list_forgotten(self._thread.id)):
            yield forgotten._replace(seq=self.numbering.count_to(forgotten.seq), rank=rank)
        yield DiaryLogs(tuple(await read_diary(self._storage, key, {self._thread.id: self.numbering})))

    async def rows(self) -> AsyncIterator[tuple[Message, bool]]:
        """Yield the existing rows, each with True if it is selected."""
        async for row in rows_between(self._storage, self._thread.id):
            yield row, seq_of(row) >= self._first and self._wanted.takes(row)


async def read_diary(storage: Storage, key: str, numberings: Mapping[str, Numbering]) -> list[ObservationLog]:
    """Return the generations of a diary, reduced to entries made from the numbered rows only.

    Args:
        numberings: The numbering of each thread, with all rows read. Entries made from rows that were stored later are
            left out.
    """
    head = await storage.get_log(key)
    if head is None:
        return []
    logs = [visible_log(log, None) for log in [*await storage.list_generations(key), head]]
    missing = [stone for numbering in numberings.values() for stone in numbering.missing]
    others = sorted({source.thread_id for source in sources_in(logs)} - numberings.keys())
    missing += [Tombstone(thread_id=thread_id, first_seq=1, last_seq=WHOLE) for thread_id in others]
    return [renumbered(log, numberings) for log in cut(logs, missing)]


async def read_working_memory(storage: Storage, key: str) -> str:
    return (await WorkingMemoryStore(storage, "thread").read(key)).text


# --- exports ----------------------------------------------------------------------------------------------------


async def thread_items(
    storage: Storage, thread: Thread, numberings: dict[str, Numbering] | None = None
) -> AsyncIterator[Item | LeftOut]:
    """Yield a thread and everything in it; add its numbering to ``numberings``."""
    for key in (f"thread:{thread.id}", f"resource:{thread.resource_id}"):
        if (head := await storage.get_log(key)) is not None:
            await finish_removals(storage, head)
    yield thread
    reader = ThreadReader(storage, thread)
    if numberings is not None:
        numberings[thread.id] = reader.numbering
    async for item in reader.content():
        yield item
    if superseded := await storage.list_superseded(thread.id):
        yield LeftOut(len(superseded))


async def all_items(
    storage: Storage, resource: str | None, metadata: Mapping[str, Json] | None
) -> AsyncIterator[Item | LeftOut]:
    """Yield all threads, of one resource or of all. With ``metadata`` only matching threads, and no data of
    resources."""
    owners: dict[str, None] = {} if resource is None else {resource: None}
    if resource is None:  # in the order of their newest threads; those without threads come last
        async for thread in threads_of(storage, None, metadata):
            owners[thread.resource_id] = None
        cursor: str | None = None
        while metadata is None:
            page = await storage.list_resources(cursor=cursor)
            owners |= dict.fromkeys(page.items)
            cursor = page.cursor
            if cursor is None:
                break
    for owner in owners:
        numberings: dict[str, Numbering] = {}
        async for thread in threads_of(storage, owner, metadata):
            async for item in thread_items(storage, thread, numberings):
                yield item
        if metadata is not None:
            continue
        key = f"resource:{owner}"
        whole = WholeResource(
            id=owner,
            metadata=(await storage.get_resource(owner)).metadata,
            working_memory=await read_working_memory(storage, key),
            logs=tuple(await read_diary(storage, key, numberings)),
        )
        if whole.metadata or whole.working_memory or whole.logs:
            yield whole
