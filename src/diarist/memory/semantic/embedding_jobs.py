"""Keeps the vectors of messages up to date."""

from __future__ import annotations

import logging
from collections.abc import Collection
from time import monotonic

from diarist.byte_cache import ByteCache, size_of
from diarist.concurrency import inner_cancel_as_error, program_is_ending
from diarist.exceptions import ConfigError
from diarist.memory.background import Background
from diarist.memory.receipt import Receipt
from diarist.memory.rows import seq_of
from diarist.memory.semantic.index import SemanticIndex
from diarist.memory.semantic.notes import cut_quotes
from diarist.memory.semantic.removal import forget_progress, remove_vectors
from diarist.memory.semantic.setup import VectorOption, find_vectors
from diarist.messages import Message
from diarist.storage.base import Storage
from diarist.storage.records import Thread
from diarist.vectors import VectorStore

logger = logging.getLogger("diarist")


_LONGEST_WAIT = 60.0

_CHECKED = 1_000_000
"""Size limit, in bytes, of the cache of resources that are embedded completely."""

_CHECK_AGAIN = 300.0
"""Seconds after which all threads of a resource are checked again: another process may have failed to embed some."""


class EmbeddingJobs:
    """Keeps the vectors of messages up to date in background jobs, one per resource.

    Args:
        index: The index of messages; None: only remove vectors that another memory made.
        vector: The vector store, as passed to the memory.
    """

    def __init__(
        self,
        index: SemanticIndex | None,
        vector: VectorOption,
        storage: Storage,
        background: Background,
    ) -> None:
        self._index, self._storage, self._background = index, storage, background
        self._vector: VectorOption = vector
        self._waiting: dict[str, Thread] = {}
        self._checked: ByteCache[str, float] = ByteCache(_CHECKED)
        self._store: VectorStore | None = None

    def start(self, thread: Thread) -> None:
        """Embed new messages of the thread in the background. The first time, after a failure, and every five minutes,
        embed those of all threads of its resource."""
        index = self._index
        if index is None:
            return
        self._waiting[thread.id] = thread
        self._background.start(_job(thread), lambda: self._work(index, thread))

    async def settled(self, thread: Thread) -> None:
        """Wait until no job runs for the thread's resource, at most a minute: an embedder may hang."""
        await self._background.wait(_job(thread), _LONGEST_WAIT)

    async def catch_up(self, thread: Thread | None, resource_id: str) -> int:
        """Embed new messages of a thread or a resource now; return the number of messages read."""
        index = self.index()
        if thread is not None:
            return await index.catch_up(thread) or 0
        return sum([await index.catch_up(found) or 0 for found in await index.behind(resource_id)])

    def index(self) -> SemanticIndex:
        """Return the index. Raises ConfigError if there is none."""
        if self._index is None:
            raise ConfigError("this memory has no vectors; pass embedder=..., such as embedder='wordllama'")
        return self._index

    async def go_back(self, thread: Thread, seq: int, *, wait: bool = True) -> None:
        """Let the next job embed the rows of a thread behind ``seq`` again.

        ``wait``: first wait for a running job.
        """
        if self._index is not None:
            if wait:
                await self.settled(thread)
            await self._index.go_back(thread, seq, wait=wait)
        elif (store := await self._found()) is not None:
            await forget_progress(store, thread)

    async def replace(self, row: Message, *, says_else: bool) -> None:
        """Remove the vectors of a message that stays, and rebuild them in the background.

        ``says_else``: The text has changed, so notes that quote it are cut.
        """
        thread_id, resource_id = row.thread_id, row.resource_id
        if self._index is None or thread_id is None or resource_id is None:
            await self.forget(resource=resource_id, thread=thread_id, message_ids=[row.id])
            return
        thread = Thread(id=thread_id, resource_id=resource_id)
        await self.settled(thread)
        await self._index.go_back(thread, seq_of(row) - 1, row)
        if says_else:
            await cut_quotes(self._storage, resource_id, thread_id, [row.id])
        self.start(thread)

    async def forget(
        self, *, resource: str | None, thread: str | None = None, message_ids: Collection[str] | None = None
    ) -> Receipt:
        """Remove the vectors of a resource, of a thread, or of some of its messages, and cut notes that quote them."""
        store = await self._found()
        if store is None:
            return Receipt()
        count = await remove_vectors(store, resource_id=resource, thread_id=thread, message_ids=message_ids)
        notes: list[str] = []
        if resource is not None and thread is not None:
            notes = await cut_quotes(self._storage, resource, thread, message_ids)
        return Receipt(vectors=count, note_ids=tuple(notes))

    async def purge(self) -> tuple[str, ...]:
        """Remove deleted vectors from files too; return the places where some may remain, each with the reason."""
        store = await self._found()
        # A store in the storage's own file was purged with it.
        return () if store is None or store.location == self._storage.location else await store.purge()

    async def close(self) -> None:
        """Close the vector store."""
        if self._store is not None:
            await self._store.close()

    async def _found(self) -> VectorStore | None:
        """Return the vector store. It is looked up at first use, since another ``Memory`` may have created it by
        then."""
        if self._store is None:
            self._store = await find_vectors(self._storage, self._vector, self._index)
        return self._store

    async def _work(self, index: SemanticIndex, begun: Thread) -> None:
        resource_id = begun.resource_id
        while mine := [found for found in list(self._waiting.values()) if found.resource_id == resource_id]:
            for thread in mine:
                del self._waiting[thread.id]
            checked = self._checked.get(resource_id)
            self._checked.drop(resource_id)  # until this job is complete: it may fail, or end with its event loop
            try:
                if checked is None or monotonic() - checked >= _CHECK_AGAIN:
                    checked = monotonic()
                    behind = await inner_cancel_as_error(index.behind(resource_id))
                    mine = list({found.id: found for found in [*mine, *behind]}.values())
                if all([await self._embed(index, thread) for thread in mine]):
                    self._checked.put(resource_id, checked, size_of(resource_id))
            except Exception as error:  # any error of the user's store; the next turn continues from the cursor
                _tell(resource_id, error)

    async def _embed(self, index: SemanticIndex, thread: Thread) -> bool:
        """Embed a thread; return True if all of it is embedded. Failures are logged, so other threads continue."""
        try:
            return await inner_cancel_as_error(index.catch_up(thread)) is not None
        except Exception as error:  # any error of the user's store or embedder; the next turn continues from the cursor
            _tell(thread.resource_id, error)
            return False


def _tell(resource_id: str, error: Exception) -> None:
    level = logging.DEBUG if program_is_ending() else logging.WARNING
    logger.log(level, "messages of %r are embedded later: %r", resource_id, error)


def _job(thread: Thread) -> str:
    return f"embed {thread.resource_id}"
