"""The part of ``Memory`` with which people find messages by meaning, and what keeps vectors in step with messages."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime

from diarist.concurrency import contained, program_is_ending
from diarist.exceptions import ConfigError, InputError
from diarist.memory.forgetting import Forgetting
from diarist.memory.message_filter import MessageFilter, MessageRange, before_and_after, with_neighbours
from diarist.memory.moving.cloning import CopiedRows
from diarist.memory.observational.work.background import Background
from diarist.memory.receipt import Receipt
from diarist.memory.semantic.hybrid import HybridSearch
from diarist.memory.semantic.index import SemanticIndex
from diarist.memory.semantic.notes import cut_quotes
from diarist.memory.semantic.removal import VectorsBeside
from diarist.messages import Json, Message
from diarist.storage.codec import check_names
from diarist.storage.records import Hit, Page, Thread

logger = logging.getLogger("diarist")


class Recalling(Forgetting):
    """Finding by meaning."""

    semantic: SemanticIndex | None
    _vectors: VectorsBeside
    _background: Background
    _embedding: Embedding

    async def recall(
        self,
        query: str,
        *,
        resource: str | None = None,
        thread: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        metadata: Mapping[str, Json] | None = None,
        threshold: float | None = None,
        message_range: MessageRange = 0,
        limit: int = 10,
        cursor: str | None = None,
    ) -> Page[Hit]:
        """Messages of a resource, or of one thread, that mean something like ``query`` or have all its words.

        Best first, by reciprocal rank fusion of both ways; up to a hundred of each that pass the filters are looked
        at. With a storage that cannot search, by meaning alone.

        Args:
            resource: Whose messages; with ``thread`` it must be the thread's.
            since: Only messages said at this moment or later; one without a time is left out.
            until: Only messages said before this moment; likewise.
            metadata: Only messages that have all these values, compared as JSON: 1, 1.0 and True differ.
            threshold: The least nearness of what is found by meaning, for ``cosine`` from -1 to 1. None: however far.
            message_range: Neighbours to give with each hit, as its ``before`` and ``after``: so many before and after
                it, or a pair (before, after); 100 at most.
            limit: Hits of a page.
            cursor: Of the page before.

        Raises:
            ConfigError: This memory has no vectors.
            InputError: Neither resource nor thread, an empty query, a thread of another resource, a limit below 1, a
                foreign cursor, a moment without a time zone, metadata that is not JSON, a threshold out of range.
            NotFoundError: There is no such thread.
            ModelError: The embedder failed.
        """
        index = self._index()
        wanted = MessageFilter(since=since, until=until, metadata=metadata)
        around = before_and_after(message_range)
        check_names(thread=thread, resource=resource)
        if thread is not None:
            resource = (await self._thread(thread, resource)).resource_id
        if resource is None:
            raise InputError("recall needs resource=... or thread=...: whose messages to look through")
        search = HybridSearch(index, self.storage, tolerant=False, wanted=wanted, threshold=threshold)
        page = await search(query, resource_id=resource, thread_id=thread, limit=limit, cursor=cursor)
        return replace(page, items=await with_neighbours(self.storage, page.items, *around))

    async def embed_messages(self, *, resource: str | None = None, thread: str | None = None) -> int:
        """Embed now what was not embedded yet of a thread, or of all threads of a resource; what the background does
        by itself for threads that are used.

        Returns:
            How many messages were looked at; 0 for a thread that another process is at.

        Raises:
            ConfigError: This memory has no vectors; or the embedder's have another length than it says.
            InputError: Neither resource nor thread, a thread of another resource.
            NotFoundError: There is no such thread.
            ModelError, StorageError: It failed; what was done stays.
        """
        index = self._index()
        check_names(thread=thread, resource=resource)
        if thread is not None:
            return await index.catch_up(await self._thread(thread, resource)) or 0
        if resource is None:
            raise InputError("say whose messages to embed: resource=... or thread=...")
        return sum([await index.catch_up(found) or 0 for found in await index.behind(resource)])

    def _index(self) -> SemanticIndex:
        if self.semantic is None:
            raise ConfigError("this memory has no vectors; pass embedder=..., such as embedder='wordllama'")
        return self.semantic

    async def _thread_copied(self, source: Thread, copy: Thread, rows: CopiedRows) -> None:
        """A copy takes its vectors along. It stands without them, too: they can be made at any time."""
        if self.semantic is not None:
            async with aclosing(rows):
                await _take_along(self.semantic, source, copy, rows)
        await self._thread_added(copy)

    async def _copy_withdrawn(self, copy: Thread) -> None:
        if self.semantic is not None:
            await self.semantic.take_back(copy)

    async def _thread_added(self, thread: Thread) -> None:
        """What was not embedded yet is embedded like what is said."""
        self._embedding.start(thread)

    async def _embed_again(self, row: Message, *, says_else: bool) -> None:
        thread_id, resource_id = row.thread_id, row.resource_id
        if self.semantic is None or thread_id is None or resource_id is None:
            await self._forget_vectors(resource=resource_id, thread=thread_id, message_ids=[row.id])
            return
        thread = Thread(id=thread_id, resource_id=resource_id)
        await self._embedding.settled(thread)
        await self.semantic.go_back(thread, row)
        if says_else:
            await cut_quotes(self.storage, self.counter, resource_id, thread_id, [row.id])
        self._embedding.start(thread)

    async def _forget_vectors(
        self, *, resource: str | None, thread: str | None = None, message_ids: Collection[str] | None = None
    ) -> Receipt:
        vectors = await self._vectors.find()
        if vectors is None:
            return Receipt()
        count = await vectors.remove(resource_id=resource, thread_id=thread, message_ids=message_ids)
        notes: list[str] = []
        if resource is not None and thread is not None:
            notes = await cut_quotes(self.storage, self.counter, resource, thread, message_ids)
        return Receipt(vectors=count, note_ids=tuple(notes))


async def _take_along(index: SemanticIndex, source: Thread, copy: Thread, rows: CopiedRows) -> None:
    try:
        await contained(index.copy(source.id, copy, rows))
    except Exception as error:  # of somebody's store; what was not copied is embedded from the cursor on
        _tell(copy.resource_id, error)


_LONGEST_WAIT = 60.0


class Embedding:
    """Has threads embedded in the background, each by one job at a time."""

    def __init__(self, index: SemanticIndex | None, background: Background) -> None:
        self._index = index
        self._background = background
        self._waiting: dict[str, Thread] = {}
        self._complete: set[str] = set()

    def start(self, thread: Thread) -> None:
        """Embed what is new in the thread; and the first time, or after a failure, in all threads of its resource."""
        index = self._index
        if index is None:
            return
        self._waiting[thread.id] = thread
        self._background.start(_job(thread), lambda: self._work(index, thread))

    async def settled(self, thread: Thread) -> None:
        """Wait until nothing runs for the thread's resource, a minute at most: an embedder may hang."""
        await self._background.wait(_job(thread), _LONGEST_WAIT)

    async def _work(self, index: SemanticIndex, begun: Thread) -> None:
        resource_id = begun.resource_id
        while mine := [found for found in list(self._waiting.values()) if found.resource_id == resource_id]:
            for thread in mine:
                del self._waiting[thread.id]
            is_complete = resource_id in self._complete
            self._complete.discard(resource_id)  # until all is done: it may fail, or end with its event loop
            try:
                if not is_complete:
                    behind = await contained(index.behind(resource_id))
                    mine = list({found.id: found for found in [*mine, *behind]}.values())
                if all([await self._embed(index, thread) for thread in mine]):
                    self._complete.add(resource_id)
            except Exception as error:  # of somebody's store; the next turn goes on from the cursor
                _tell(resource_id, error)

    async def _embed(self, index: SemanticIndex, thread: Thread) -> bool:
        """Whether all of the thread is embedded. What cannot be in one thread does not keep others waiting."""
        try:
            return await contained(index.catch_up(thread)) is not None
        except Exception as error:  # of somebody's store or embedder; the next turn goes on from the cursor
            _tell(thread.resource_id, error)
            return False


def _tell(resource_id: str, error: Exception) -> None:
    level = logging.DEBUG if program_is_ending() else logging.WARNING
    logger.log(level, "messages of %r are embedded later: %r", resource_id, error)


def _job(thread: Thread) -> str:
    return f"embed {thread.resource_id}"
