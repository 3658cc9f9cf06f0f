"""The vectors of messages: made when a run has ended, found again, and removed with the messages.

An index belongs to one embedder. How far a thread has been embedded is kept beside its vectors, in an index of
cursors: so another store or another embedder begins anew by itself, and nothing is lost by a crash. A cursor is moved
only when the vectors up to it are stored; what was done twice has the same ids.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

import orjson

from diarist.concurrency import at_work, being_cancelled, contained, obtained, undisturbed
from diarist.exceptions import ConfigError, ThreadBusyError
from diarist.memory.observational.log.coverage import seq_of
from diarist.memory.observational.log.removal import threads_of
from diarist.memory.semantic.chunks import chunks_of
from diarist.memory.semantic.config import nearness
from diarist.memory.semantic.embedding import HARMLESS, Made, embed_pieces
from diarist.memory.semantic.removal import CURSORS, PREFIX, MessageVectors, lease_of
from diarist.memory.semantic.vector_rows import cursor_id, metadata_of, vector_id
from diarist.messages import Message, new_id
from diarist.models.embedders import Embedder, embed_texts
from diarist.storage.base import Storage
from diarist.storage.records import Lease, Thread
from diarist.vectors import Filter, Metadata, Metric, VectorStore
from diarist.vectors.checks import LONGEST_NAME

_ROWS = 64
_COPIES = 256
_LEASE = 60.0
_PATIENCE = 10.0
_TRIES = 120

logger = logging.getLogger("diarist")


@dataclass(frozen=True, slots=True)
class Near:
    """A message that is near to a text, and which chunk of it is."""

    thread_id: str
    message_id: str
    seq: int
    chunk: int
    score: float


@dataclass(frozen=True, slots=True)
class _Cursor:
    """``pending``: ids of messages whose vectors may be stored while they themselves are gone."""

    seq: int = 0
    pending: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Copied:
    """A row, its copy in another thread, and how many chunks it has."""

    row: Message
    copy: Message
    chunks: int


class SemanticIndex:
    """The vectors of all messages of a storage.

    Attributes:
        vectors: The store that they are in.
    """

    def __init__(
        self,
        storage: Storage,
        vectors: VectorStore,
        embedder: Embedder,
        *,
        chunk_length: int,
        metric: Metric = "cosine",
    ) -> None:
        self._storage = storage
        self._metric: Metric = metric
        self.vectors = vectors
        self._removal = MessageVectors(vectors)
        self._embedder = embedder
        self._chunk_length = chunk_length
        self._owner = new_id("embedding")
        self._ready = False
        name = f"{PREFIX}{embedder.name} {embedder.dimension}{'' if metric == 'cosine' else f' {metric}'}"
        if len(name.encode()) > LONGEST_NAME - len(CURSORS):
            name = f"{PREFIX}{blake2b(name.encode(), digest_size=16).hexdigest()}"
        self._name, self._cursors = name, f"{name}{CURSORS}"

    async def check(self) -> None:
        """Try the embedder once, where nothing of it is stored yet.

        Whatever may pass is logged and left to the first use. Raises ConfigError where the vectors are of another
        length than it says, or the store cannot have such an index.
        """
        try:
            async with asyncio.timeout(_PATIENCE):
                found = await contained(self.vectors.describe(self._name))
                if found is None or not found.count:
                    await contained(embed_texts(self._embedder, [HARMLESS], purpose="query"))
                    await contained(self._open())
        except ConfigError:
            raise
        except Exception as error:  # of somebody's store or embedder
            logger.warning("the embedder %s cannot be tried at the start: %r", self._embedder.name, error)

    @property
    def nearness(self) -> tuple[float, float]:
        """The least and the greatest nearness that there can be."""
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
    ) -> list[Near]:
        """Messages of a resource that are near to ``text``, nearest first, each once. They may be gone meanwhile.

        Raises ConfigError, ModelError, StorageError.
        """
        pieces = chunks_of(Message.user(text), self._chunk_length)
        if not pieces:
            return []
        await self._open()
        (vector,) = await embed_texts(self._embedder, pieces[:1], purpose="query")
        if not any(vector):
            return []
        conditions: list[Filter] = [{"resource_id": resource_id}, filter or {}]
        if thread_id is not None:
            conditions.append({"thread_id": thread_id})
        hits = await self.vectors.query(
            self._name, vector, top_k=2 * limit, filter={"$and": conditions}, threshold=threshold
        )
        found: dict[tuple[str, str], Near] = {}
        for hit in hits:
            data = hit.metadata
            near = Near(
                str(data["thread_id"]), str(data["message_id"]), int(data["seq"]), int(data["chunk"]), hit.score
            )
            found.setdefault((near.thread_id, near.message_id), near)
        return list(found.values())[:limit]

    async def load(self, near: Near, resource_id: str, *, after: int = 0) -> list[Message]:
        """The message, and so many behind it; nothing where it is gone or another resource's."""
        rows = await self._storage.list_messages(near.thread_id, after=near.seq - 1, limit=1 + after)
        if not rows or rows[0].id != near.message_id or rows[0].resource_id != resource_id:
            return []
        return rows

    def excerpt(self, near: Near, row: Message) -> str:
        """The chunk of the row that was found."""
        pieces = chunks_of(row, self._chunk_length)
        return pieces[near.chunk] if near.chunk < len(pieces) else row.text

    async def discard(self, gone: Sequence[Near]) -> None:
        """Remove vectors whose messages are gone; those of others, which a store gave wrongly, stay.

        Never raises: what was found beside them is good all the same, and who finds them next tries again.
        """
        try:
            for near in gone:
                await contained(self._drop_gone(near.thread_id, [near.message_id]))
        except Exception as error:  # of somebody's store
            logger.warning("vectors of messages that are gone cannot be removed: %r", error)

    # -- making

    async def catch_up(self, thread: Thread) -> int | None:
        """Embed what the thread has and was not embedded yet; returns how many messages were looked at.

        None while another process is at it, or was killed at it less than a minute ago. Raises ConfigError, ModelError,
        StorageError; what was done stays, and the next call goes on from there.
        """
        await self._open()
        async with self._claimed(thread.id) as lease:
            if lease is None:
                return None
            cursor = await self._cursor(thread.id)
            if cursor.pending:
                await self._drop_gone(thread.id, cursor.pending)
            count = 0
            while rows := await self._storage.list_messages(thread.id, after=cursor.seq, limit=_ROWS):
                cursor = await self._embed(thread, rows, cursor)
                count += len(rows)
                await self._storage.renew_lease(lease, ttl=_LEASE)
            return count

    async def go_back(self, thread: Thread, row: Message) -> None:
        """Remove the vectors of a row; ``catch_up`` embeds it once more, and what is behind it.

        Raises ConfigError, StorageError; ThreadBusyError where another process is embedding the thread for a minute.
        """
        await self._open()
        for _ in range(_TRIES):
            async with self._claimed(thread.id) as lease:
                if lease is not None:
                    cursor = await self._cursor(thread.id)
                    if cursor.seq >= seq_of(row):
                        await self._save(thread, _Cursor(seq_of(row) - 1, cursor.pending))
                    await self._removal.remove(
                        resource_id=thread.resource_id, thread_id=thread.id, message_ids=[row.id]
                    )
                    return
            await asyncio.sleep(_LEASE / _TRIES)
        raise ThreadBusyError(f"thread {thread.id!r} is being embedded by another process; try again later")

    @asynccontextmanager
    async def _claimed(self, thread_id: str) -> AsyncGenerator[Lease | None]:
        """Nobody else embeds the thread meanwhile; None where somebody does."""
        me, claim = asyncio.current_task(), self._storage.acquire_lease(lease_of(thread_id), self._owner, ttl=_LEASE)
        lease = await obtained(claim, partial(self._let_go, thread_id))
        try:
            yield lease
        finally:
            if at_work(me):
                await undisturbed(self._let_go(thread_id, lease), hurried=being_cancelled())

    async def _let_go(self, thread_id: str, lease: Lease | None) -> None:
        if lease is not None:
            await self._storage.release_lease(lease)
            if await self._storage.get_thread(thread_id) is None:  # who removed it came before this work ended
                await self._storage.delete_lease(lease.name)

    async def behind(self, resource_id: str) -> list[Thread]:
        """The threads of a resource that have messages which were not embedded yet."""
        await self._open()
        behind: list[Thread] = []
        async for thread in threads_of(self._storage, resource_id):
            cursor = await self._cursor(thread.id)
            if cursor.pending or await self._storage.list_messages(thread.id, after=cursor.seq, limit=1):
                behind.append(thread)
        return behind

    async def _embed(self, thread: Thread, rows: Sequence[Message], cursor: _Cursor) -> _Cursor:
        """Store the vectors of these rows and move the cursor behind them."""
        pieces = [(row, number, text) for row in rows for number, text in enumerate(chunks_of(row, self._chunk_length))]
        if pieces:
            await self._store(thread, cursor, await embed_pieces(self._embedder, thread.id, pieces))
        return await self._move(thread, seq_of(rows[-1]))

    async def _store(self, thread: Thread, cursor: _Cursor, made: Iterable[Made]) -> None:
        """Store vectors of chunks of rows, but for zeros."""
        said = [(row, number, vector) for row, number, vector in made if any(vector)]
        ids = list(dict.fromkeys(row.id for row, _, _ in said))
        await self._save(thread, _Cursor(cursor.seq, tuple(ids)))
        await self.vectors.upsert(
            self._name,
            [vector_id(thread.id, row.id, number) for row, number, _ in said],
            [vector for _, _, vector in said],
            [metadata_of(thread, row, number) for row, number, _ in said],
        )
        await self._drop_gone(thread.id, ids)

    async def _move(self, thread: Thread, seq: int) -> _Cursor:
        """All up to here is stored."""
        moved = _Cursor(seq)
        if await self._storage.get_thread(thread.id) is None:
            await self._removal.remove(resource_id=thread.resource_id, thread_id=thread.id)
        else:
            await self._save(thread, moved)
        return moved

    async def _drop_gone(self, thread_id: str, ids: Sequence[str]) -> None:
        """Who removes messages removes their vectors afterwards, but not those that are stored still later."""
        known = await self._storage.existing_ids(thread_id, ids)
        if gone := [id for id in ids if id not in known]:
            await self._removal.remove_messages(self._name, {"thread_id": thread_id}, gone)

    # -- copying

    async def copy(self, source_id: str, copy: Thread, rows: AsyncIterator[tuple[Message, Message]]) -> None:
        """Give a new thread the vectors of the thread that it is a copy of, as far as that is embedded.

        ``catch_up`` embeds the rest: also where this is cut short, or messages of the source are gone meanwhile.

        Args:
            rows: Rows of the source, in their order, each with its copy.

        Raises ConfigError, StorageError.
        """
        await self._open()
        async with self._claimed(copy.id) as lease:
            if lease is None:
                return
            end = (await self._cursor(source_id)).seq
            cursor = await self._cursor(copy.id)
            async for page in self._pages(rows, cursor.seq, end):
                moved = await self._copy(source_id, copy, page, cursor)
                if moved is None:
                    break
                cursor = moved
                await self._storage.renew_lease(lease, ttl=_LEASE)

    async def take_back(self, copy: Thread) -> None:
        """Remove the vectors of a copy that did not come about. Never raises: that is what is to be told."""
        try:
            await contained(self._removal.remove(resource_id=copy.resource_id, thread_id=copy.id))
        except Exception as error:  # of somebody's store; what is left is removed when it is found
            logger.warning("vectors of a copy that was given up cannot be removed: %r", error)

    async def _pages(
        self, rows: AsyncIterator[tuple[Message, Message]], begin: int, end: int
    ) -> AsyncIterator[list[_Copied]]:
        """Rows without gaps in the copy, of which the source has all vectors, some hundred vectors at a time."""
        page: list[_Copied] = []
        size = 0
        async for row, copied in rows:
            if seq_of(row) > end or seq_of(copied) != begin + 1:
                break
            begin += 1
            chunks = len(chunks_of(row, self._chunk_length))
            page.append(_Copied(row, copied, chunks))
            size += max(1, chunks)
            if size >= _COPIES:
                yield page
                page, size = [], 0
        if page:
            yield page

    async def _copy(self, source_id: str, copy: Thread, page: list[_Copied], cursor: _Cursor) -> _Cursor | None:
        """Copy vectors of these rows; None where the source has not all of the rows any more."""
        found = await self._vectors_of(source_id, {one.row.id: one.chunks for one in page if one.chunks})
        ids = [one.row.id for one in page]
        if len(await self._storage.existing_ids(source_id, ids)) < len(ids):
            return None
        copies = {one.row.id: one.copy for one in page}
        if found:
            await self._store(copy, cursor, [(copies[id], number, vector) for (id, number), vector in found.items()])
        return await self._move(copy, seq_of(page[-1].copy))

    async def _vectors_of(self, thread_id: str, chunks: Mapping[str, int]) -> dict[tuple[str, int], list[float]]:
        """Vectors of messages of a thread, by id and number of the chunk.

        Args:
            chunks: How many chunks each would have now. There are more where they were once shorter: whether there
                is one more is always asked.
        """
        found: dict[tuple[str, int], list[float]] = {}
        asked = {id: range(count + 1) for id, count in chunks.items()}
        while asked:
            places = {vector_id(thread_id, id, number): (id, number) for id in asked for number in asked[id]}
            records = await self.vectors.get(self._name, list(places))
            found |= {places[key]: record.vector for key, record in records.items()}
            asked = {id: range(some.stop, 2 * some.stop) for id, some in asked.items() if (id, some.stop - 1) in found}
        return found

    async def close(self) -> None:
        self._ready = False
        await self.vectors.close()
        await self._embedder.close()

    # -- cursors

    async def _open(self) -> None:
        """Raises ConfigError where the index is there with another dimension."""
        if not self._ready:
            dimension = self._embedder.dimension
            await self.vectors.create_index(
                self._name, dimension=dimension, metric=self._metric, partition_by="resource_id"
            )
            await self.vectors.create_index(self._cursors, dimension=2)
            self._ready = True

    async def _cursor(self, thread_id: str) -> _Cursor:
        found = (await self.vectors.get(self._cursors, [cursor_id(thread_id)])).values()
        for record in found:
            return _Cursor(int(record.metadata["seq"]), tuple(orjson.loads(str(record.metadata["pending"]))))
        return _Cursor()

    async def _save(self, thread: Thread, cursor: _Cursor) -> None:
        data: Metadata = {
            "thread_id": thread.id,
            "resource_id": thread.resource_id,
            "seq": cursor.seq,
            "pending": orjson.dumps(cursor.pending).decode(),
        }
        # Any vector will do, as long as not all are the same: trees of near vectors take those badly.
        angle = int.from_bytes(blake2b(thread.id.encode(), digest_size=4).digest())
        vector = [math.cos(angle), math.sin(angle)]
        await self.vectors.upsert(self._cursors, [cursor_id(thread.id)], [vector], [data])
