"""The vectors of messages: made when a run has ended, found again, and removed with the messages.

An index belongs to one embedder. How far a thread has been embedded is kept beside its vectors, in an index of
cursors: so another store or another embedder begins anew by itself, and nothing is lost by a crash. A cursor is moved
only when the vectors up to it are stored; what was done twice has the same ids.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

import orjson

from diarist.memory.observational.log.coverage import seq_of
from diarist.memory.observational.log.removal import threads_of
from diarist.memory.semantic.chunks import chunks_of
from diarist.messages import Message, new_id
from diarist.models.embedders import Embedder, embed_texts
from diarist.storage.base import Storage
from diarist.storage.records import Thread
from diarist.vectors import Filter, Metadata, VectorStore
from diarist.vectors.checks import LONGEST_NAME
from diarist.vectors.filters import is_value

_ROWS = 64
_IDS_AT_ONCE = 500
_LEASE = 60.0
_PREFIX = "messages "
_CURSORS = " cursors"

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


class SemanticIndex:
    """The vectors of all messages of a storage."""

    def __init__(self, storage: Storage, vectors: VectorStore, embedder: Embedder, *, chunk_length: int) -> None:
        self._storage = storage
        self._vectors = vectors
        self._embedder = embedder
        self._chunk_length = chunk_length
        self._owner = new_id("embedding")
        self._ready = False
        name = f"{_PREFIX}{embedder.name} {embedder.dimension}"
        if len(name.encode()) > LONGEST_NAME - len(_CURSORS):
            name = f"{_PREFIX}{blake2b(name.encode(), digest_size=16).hexdigest()}"
        self._name, self._cursors = name, f"{name}{_CURSORS}"

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
        hits = await self._vectors.query(
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
                await self._drop_gone(near.thread_id, [near.message_id])
        except Exception as error:  # of somebody's store
            logger.warning("vectors of messages that are gone cannot be removed: %r", error)

    # -- making

    async def catch_up(self, thread: Thread) -> int | None:
        """Embed what the thread has and was not embedded yet; returns how many messages were looked at.

        None while another process is at it, or was killed at it less than a minute ago. Raises ConfigError, ModelError,
        StorageError; what was done stays, and the next call goes on from there.
        """
        await self._open()
        lease = await self._storage.acquire_lease(f"embed:{thread.id}", self._owner, ttl=_LEASE)
        if lease is None:
            return None
        try:
            cursor = await self._cursor(thread.id)
            if cursor.pending:
                await self._drop_gone(thread.id, cursor.pending)
            count = 0
            while rows := await self._storage.list_messages(thread.id, after=cursor.seq, limit=_ROWS):
                cursor = await self._embed(thread, rows, cursor)
                count += len(rows)
                await self._storage.renew_lease(lease, ttl=_LEASE)
            return count
        finally:
            await self._storage.release_lease(lease)

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
        ids = list(dict.fromkeys(row.id for row, _, _ in pieces))
        if ids:
            vectors = await embed_texts(self._embedder, [text for _, _, text in pieces])
            await self._save(thread, _Cursor(cursor.seq, tuple(ids)))
            said = [(piece, vector) for piece, vector in zip(pieces, vectors, strict=True) if any(vector)]
            await self._vectors.upsert(
                self._name,
                [_vector_id(thread.id, row.id, number) for (row, number, _), _ in said],
                [vector for _, vector in said],
                [_metadata(thread, row, number) for (row, number, _), _ in said],
            )
            await self._drop_gone(thread.id, ids)
        moved = _Cursor(seq_of(rows[-1]))
        if await self._storage.get_thread(thread.id) is None:
            await self.remove(thread_id=thread.id)
        else:
            await self._save(thread, moved)
        return moved

    async def _drop_gone(self, thread_id: str, ids: Sequence[str]) -> None:
        """Who removes messages removes their vectors afterwards, but not those that are stored still later."""
        known = await self._storage.existing_ids(thread_id, ids)
        if gone := [id for id in ids if id not in known]:
            await self._remove(self._name, {"thread_id": thread_id}, gone)

    # -- removing

    async def remove(
        self,
        *,
        resource_id: str | None = None,
        thread_id: str | None = None,
        message_ids: Collection[str] | None = None,
    ) -> int:
        """Remove the vectors of messages, of a thread or of a resource, those of earlier embedders included; returns
        how many there were."""
        await self._open()
        named = {"resource_id": resource_id, "thread_id": thread_id}  # both where known: else all resources are read
        wanted = {key: value for key, value in named.items() if value is not None}
        count = 0
        for name in [name for name in await self._vectors.list_indexes() if name.startswith(_PREFIX)]:
            if thread_id is None or message_ids is None:
                removed = await self._vectors.delete(name, filter=wanted)
                count += 0 if name.endswith(_CURSORS) else removed
            elif not name.endswith(_CURSORS):
                count += await self._remove(name, wanted, message_ids)
        return count

    async def _remove(self, name: str, wanted: Filter, message_ids: Collection[str]) -> int:
        count, ids = 0, iter(message_ids)
        while some := list(islice(ids, _IDS_AT_ONCE)):
            count += await self._vectors.delete(name, filter={**wanted, "message_id": {"$in": some}})
        return count

    async def close(self) -> None:
        self._ready = False
        await self._vectors.close()
        await self._embedder.close()

    # -- cursors

    async def _open(self) -> None:
        """Raises ConfigError where the index is there with another dimension."""
        if not self._ready:
            dimension = self._embedder.dimension
            await self._vectors.create_index(self._name, dimension=dimension, partition_by="resource_id")
            await self._vectors.create_index(self._cursors, dimension=2)
            self._ready = True

    async def _cursor(self, thread_id: str) -> _Cursor:
        found = (await self._vectors.get(self._cursors, [_cursor_id(thread_id)])).values()
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
        await self._vectors.upsert(self._cursors, [_cursor_id(thread.id)], [vector], [data])


def _metadata(thread: Thread, row: Message, chunk: int) -> Metadata:
    """What queries and removals ask for; no words of the message."""
    found: dict[str, str | int | float | bool] = {
        f"metadata.{key}": value for key, value in row.metadata.items() if is_value(value) and is_value(key)
    }
    found |= {
        "resource_id": thread.resource_id,
        "thread_id": thread.id,
        "message_id": row.id,
        "seq": seq_of(row),
        "chunk": chunk,
        "role": row.role,
    }
    if row.created_at is not None:
        found["created_at"] = row.created_at.timestamp()
    return found


def _vector_id(thread_id: str, message_id: str, chunk: int) -> str:
    return blake2b(orjson.dumps([thread_id, message_id, chunk]), digest_size=16).hexdigest()


def _cursor_id(thread_id: str) -> str:
    return f"thread:{thread_id}"
