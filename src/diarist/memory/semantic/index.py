"""The index of message vectors: embeds messages after a run, searches them, and removes them with their messages.

Each embedder has its own index. A cursor per thread records how far the thread is embedded. Cursors are in an index of
the same store, so another store or embedder automatically starts from the beginning. A cursor moves only after the
vectors up to it are stored, and vector ids are deterministic, so a crash loses and duplicates nothing.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import blake2b

from diarist.concurrency import inner_cancel_as_error
from diarist.exceptions import ConfigError, ThreadBusyError
from diarist.memory.leases import LEASE_TTL, hold_leases
from diarist.memory.rows import seq_of, threads_of
from diarist.memory.semantic.chunks import HARMLESS, chunks_of, embed_chunks, metadata_of, vector_id
from diarist.memory.semantic.config import nearness
from diarist.memory.semantic.removal import CURSORS, PREFIX, lease_of, remove_vectors
from diarist.messages import Message, new_id
from diarist.models.embedders import Embedder, embed_texts
from diarist.storage.base import Storage
from diarist.storage.records import Lease, Thread
from diarist.vectors import Filter, Metadata, Metric, VectorStore
from diarist.vectors.checks import LONGEST_NAME

_ROWS = 64
_PATIENCE = 10.0

logger = logging.getLogger("diarist")


MessageKey = tuple[str, str]
"""Ids of a thread and of a message in it."""


def message_key(row: Message) -> MessageKey:
    return row.thread_id or "", row.id


@dataclass(frozen=True, slots=True)
class NearMessage:
    """A message near to a text, and the number of its nearest chunk."""

    thread_id: str
    message_id: str
    seq: int
    chunk: int
    score: float

    @property
    def key(self) -> MessageKey:
        return self.thread_id, self.message_id


class SemanticIndex:
    """The vectors of all messages of a storage.

    Attributes:
        vectors: Their vector store.
    """

    def __init__(
        self, storage: Storage, vectors: VectorStore, embedder: Embedder, *, chunk_length: int, metric: Metric
    ) -> None:
        self.vectors = vectors
        self._storage, self._embedder, self._chunk_length = storage, embedder, chunk_length
        self._metric: Metric = metric
        self._owner = new_id("embedding")
        self._ready = False
        name = f"{PREFIX}{embedder.name} {embedder.dimension}{'' if metric == 'cosine' else f' {metric}'}"
        if len(name.encode()) > LONGEST_NAME - len(CURSORS):
            name = f"{PREFIX}{blake2b(name.encode(), digest_size=16).hexdigest()}"
        self._name, self._cursors = name, f"{name}{CURSORS}"

    async def check(self) -> None:
        """Try the embedder once, if none of its vectors are stored yet. Temporary errors are only logged.

        Raises ConfigError if its vectors have another length than it declares, or the store cannot have such an index.
        """
        try:
            async with asyncio.timeout(_PATIENCE):
                found = await inner_cancel_as_error(self.vectors.describe(self._name))
                if found is None or not found.count:
                    await inner_cancel_as_error(embed_texts(self._embedder, [HARMLESS], purpose="query"))
                    await inner_cancel_as_error(self._open())
        except ConfigError:
            raise
        except Exception as error:  # any error of the user's store or embedder
            logger.warning("the embedder %s cannot be checked at the start: %r", self._embedder.name, error)

    @property
    def nearness(self) -> tuple[float, float]:
        """Return the minimum and maximum nearness by this index's metric."""
        return nearness(self._metric)

    # -- finding

    async def near(
        self,
        text: str,
        *,
        resource_id: str,
        thread_id: str | None = None,
        limit: int,
        threshold: float | None = None,
        filter: Filter | None = None,
    ) -> list[NearMessage]:
        """Return messages of a resource that are near to ``text``, nearest first. Some may have been removed since.

        Raises ConfigError, ModelError, StorageError.
        """
        chunks = chunks_of(Message.user(text), self._chunk_length)
        if not chunks:
            return []
        await self._open()
        (vector,) = await embed_texts(self._embedder, chunks[:1], purpose="query")
        if not any(vector):
            return []
        conditions: list[Filter] = [{"resource_id": resource_id}, filter or {}]
        conditions += [] if thread_id is None else [{"thread_id": thread_id}]
        hits = await self.vectors.query(
            self._name, vector, top_k=2 * limit, filter={"$and": conditions}, threshold=threshold
        )
        found: dict[MessageKey, NearMessage] = {}
        for hit in hits:
            data = hit.metadata
            key = str(data["thread_id"]), str(data["message_id"])
            found.setdefault(key, NearMessage(*key, int(data["seq"]), int(data["chunk"]), hit.score))
        return list(found.values())[:limit]

    async def load(self, near: NearMessage, resource_id: str, *, after: int = 0) -> list[Message]:
        """Return the message and ``after`` following ones. If it is gone, remove its vectors and return nothing.

        Returns nothing for a message of another resource either; its vectors stay.
        """
        rows = await self._storage.list_messages(near.thread_id, after=near.seq - 1, limit=1 + after)
        if rows and rows[0].id == near.message_id and rows[0].resource_id == resource_id:
            return rows
        try:
            await inner_cancel_as_error(self._drop_gone(near.thread_id, [near.message_id]))
        except Exception as error:  # any error of the user's store; the next search that finds them tries again
            logger.warning("vectors of messages that are gone cannot be removed: %r", error)
        return []

    def excerpt(self, near: NearMessage, row: Message) -> str:
        """Return the chunk of the row that was found by the search."""
        chunks = chunks_of(row, self._chunk_length)
        return chunks[near.chunk] if near.chunk < len(chunks) else row.text

    # -- making

    async def catch_up(self, thread: Thread) -> int | None:
        """Embed the thread's messages that are not embedded yet; return the number of messages read.

        Returns None if another process is doing that, or was killed less than a minute ago while doing it. Raises
        ConfigError, ModelError, StorageError; finished work stays, and the next call continues from there.
        """
        await self._open()
        async with self._claim(thread.id) as is_mine:
            if not is_mine:
                return None
            seq, count = await self._cursor(thread.id), 0
            while rows := await self._storage.list_messages(thread.id, after=seq, limit=_ROWS):
                await self._embed(thread, rows)
                seq, count = seq_of(rows[-1]), count + len(rows)
            return count

    async def go_back(self, thread: Thread, seq: int, row: Message | None = None, *, wait: bool = True) -> None:
        """Move the cursor back to ``seq``: ``catch_up`` embeds the rows behind it again. Remove the vectors of ``row``.

        Raises ConfigError, StorageError; ThreadBusyError if another process embeds the thread, with ``wait`` for
        a minute.
        """
        await self._open()
        async with self._claim(thread.id, wait=LEASE_TTL if wait else 0) as is_mine:
            if not is_mine:
                raise ThreadBusyError(f"thread {thread.id!r} is being embedded by another process; try again later")
            if await self._cursor(thread.id) > seq:
                await self._save(thread, seq)
            if row is not None:
                await remove_vectors(
                    self.vectors, resource_id=thread.resource_id, thread_id=thread.id, message_ids=[row.id]
                )

    @asynccontextmanager
    async def _claim(self, thread_id: str, *, wait: float = 0) -> AsyncGenerator[bool]:
        """Hold the lease for embedding the thread while the block runs; yields False if another process holds it."""

        async def release(lease: Lease) -> None:
            await self._storage.release_lease(lease)
            if await self._storage.get_thread(thread_id) is None:  # the thread was removed while this lease was held
                await self._storage.delete_lease(lease.name)

        async with hold_leases(self._storage, [lease_of(thread_id)], self._owner, wait=wait, release=release) as held:
            yield bool(held)

    async def behind(self, resource_id: str) -> list[Thread]:
        """Return the threads of a resource that have messages not embedded yet."""
        await self._open()
        behind: list[Thread] = []
        async for thread in threads_of(self._storage, resource_id):
            if await self._storage.list_messages(thread.id, after=await self._cursor(thread.id), limit=1):
                behind.append(thread)
        return behind

    async def _embed(self, thread: Thread, rows: Sequence[Message]) -> None:
        """Store the vectors of these rows, and move the cursor after them."""
        chunks = [(row, number, text) for row in rows for number, text in enumerate(chunks_of(row, self._chunk_length))]
        if chunks:
            embedded = await embed_chunks(self._embedder, thread.id, chunks)
            said = [(row, number, vector) for row, number, vector in embedded if any(vector)]
            await self.vectors.upsert(
                self._name,
                [vector_id(thread.id, row.id, number) for row, number, _ in said],
                [vector for _, _, vector in said],
                [metadata_of(thread, row, number) for row, number, _ in said],
            )
            await self._drop_gone(thread.id, list(dict.fromkeys(row.id for row, _, _ in said)))
        await self._save(thread, seq_of(rows[-1]))
        if await self._storage.get_thread(thread.id) is None:  # the thread was removed in between
            await remove_vectors(self.vectors, resource_id=thread.resource_id, thread_id=thread.id)

    async def _drop_gone(self, thread_id: str, ids: Sequence[str]) -> None:
        """Remove vectors of messages that were removed before these vectors were stored."""
        known = await self._storage.existing_ids(thread_id, ids)
        if gone := [id for id in ids if id not in known]:
            await remove_vectors(self.vectors, thread_id=thread_id, message_ids=gone)

    async def close(self) -> None:
        self._ready = False
        await self.vectors.close()
        await self._embedder.close()

    # -- cursors

    async def _open(self) -> None:
        """Create the indexes if needed. Raises ConfigError if one exists with another dimension."""
        if not self._ready:
            dimension = self._embedder.dimension
            await self.vectors.create_index(
                self._name, dimension=dimension, metric=self._metric, partition_by="resource_id"
            )
            await self.vectors.create_index(self._cursors, dimension=2)
            self._ready = True

    async def _cursor(self, thread_id: str) -> int:
        """Return the number of the thread's last embedded row; 0 if there is none."""
        found = await self.vectors.get(self._cursors, [f"thread:{thread_id}"])
        return next((int(record.metadata["seq"]) for record in found.values()), 0)

    async def _save(self, thread: Thread, seq: int) -> None:
        data: Metadata = {"thread_id": thread.id, "resource_id": thread.resource_id, "seq": seq}
        # The vector has no meaning, but must be unique: index trees degenerate with equal vectors.
        angle = int.from_bytes(blake2b(thread.id.encode(), digest_size=4).digest())
        vector = [math.cos(angle), math.sin(angle)]
        await self.vectors.upsert(self._cursors, [f"thread:{thread.id}"], [vector], [data])
