"""Exports threads as lines, page by page, so that memory use does not grow with them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from diarist.memory.observational.log.coverage import visible_log
from diarist.memory.observational.log.removal import WHOLE, finish_removals
from diarist.memory.rows import seq_of
from diarist.memory.transfer.format import (
    Generation,
    Item,
    Moved,
    WholeResource,
    Working,
    first_line,
    last_line,
    to_line,
)
from diarist.memory.transfer.numbering import Numbering, cut, cut_past, renumbered
from diarist.memory.transfer.thread_writer import PAGE
from diarist.memory.working.store import WorkingMemoryStore
from diarist.messages import Json
from diarist.storage.base import Storage
from diarist.storage.records import ObservationLog, Thread, Tombstone
from diarist.tokens import TokenCounter


class Exporter:
    """Exports threads. Messages that are stored during the export may be included or not.

    Attributes:
        moved: Counts of the export so far.
    """

    def __init__(self, storage: Storage, counter: TokenCounter) -> None:
        self.moved = Moved()
        self._storage, self._counter = storage, counter
        self._numberings: dict[str, Numbering] = {}

    async def one(self, thread: Thread) -> AsyncIterator[str]:
        """Yield a file with one thread."""
        yield first_line()
        async for item in self._thread(thread):
            yield to_line(item)
        yield last_line(self.moved)

    async def many(self, resource: str | None, metadata: Mapping[str, Json] | None) -> AsyncIterator[str]:
        """Yield a file with all threads, of one resource or of all. With ``metadata`` only matching threads, and no
        data of resources."""
        yield first_line()
        for owner in [resource] if resource is not None else await self._owners(metadata):
            self._numberings.clear()
            async for thread in self._threads(owner, metadata):
                async for item in self._thread(thread):
                    yield to_line(item)
            whole = await self._resource(owner)
            if metadata is None and not whole.is_empty:
                self.moved.resources += 1
                yield to_line(whole)
        yield last_line(self.moved)

    async def _owners(self, metadata: Mapping[str, Json] | None) -> list[str]:
        """Return the resources of all threads, newest thread first, then those with data but no threads."""
        owners: dict[str, None] = {}
        async for thread in self._threads(None, metadata):
            owners[thread.resource_id] = None
        cursor: str | None = None
        while metadata is None:
            page = await self._storage.list_resources(cursor=cursor)
            owners |= dict.fromkeys(page.items)
            cursor = page.cursor
            if cursor is None:
                break
        return list(owners)

    async def _threads(self, resource: str | None, metadata: Mapping[str, Json] | None) -> AsyncIterator[Thread]:
        cursor: str | None = None
        while True:
            page = await self._storage.list_threads(resource_id=resource, metadata=metadata, cursor=cursor)
            for thread in page.items:
                yield thread
            cursor = page.cursor
            if cursor is None:
                return

    async def _thread(self, thread: Thread) -> AsyncIterator[Item]:
        head = await self._storage.get_log(f"thread:{thread.id}")
        if head is not None:
            await finish_removals(self._storage, head, self._counter)
        self.moved.threads += 1
        yield thread
        if text := await self._working_memory(f"thread:{thread.id}"):
            yield Working(text)
        self._numberings[thread.id] = numbering = Numbering(thread.id)
        after = 0
        while rows := await self._storage.list_messages(thread.id, after=after, limit=PAGE):
            for row in rows:
                numbering.take(seq_of(row))
                self.moved.messages += 1
                yield row
            after = seq_of(rows[-1])
        for row in numbering.of_forgotten(await self._storage.list_forgotten(thread.id)):
            yield row
        logs = await self._logs(f"thread:{thread.id}")
        for log in logs[:-1]:
            yield Generation(log)
        for log in logs[-1:]:
            yield log

    async def _resource(self, resource_id: str) -> WholeResource:
        key = f"resource:{resource_id}"
        head = await self._storage.get_log(key)
        if head is not None:
            await finish_removals(self._storage, head, self._counter)
        kept = await self._storage.get_resource(resource_id)
        return WholeResource(
            id=resource_id,
            metadata=kept.metadata,
            working_memory=await self._working_memory(key),
            logs=tuple(await self._logs(key)),
        )

    async def _working_memory(self, key: str) -> str:
        scope = "thread" if key.startswith("thread:") else "resource"
        return (await WorkingMemoryStore(self._storage, scope).read(key)).text

    async def _logs(self, key: str) -> list[ObservationLog]:
        """Return the generations of a diary, reduced to notes on messages that were exported."""
        head = await self._storage.get_log(key)
        if head is None:
            return []
        history = [visible_log(log, None) for log in await self._storage.list_generations(key)]
        missing = self._missing([*history, head])
        logs = [*(cut_past(log, missing) for log in history), cut(visible_log(head, None), history, missing)]
        return [renumbered(log, self._numberings) for log in logs]

    def _missing(self, logs: list[ObservationLog]) -> list[Tombstone]:
        named = {source.thread_id for log in logs for entry in log.every_entry for source in entry.sources}
        gone = sorted(named - self._numberings.keys())
        missing = [stone for numbering in self._numberings.values() for stone in numbering.missing]
        return [*missing, *(Tombstone(thread_id=name, first_seq=1, last_seq=WHOLE) for name in gone)]
