"""Removes vectors of messages. This needs no embedder, so it works for the vectors of every memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from itertools import islice

from diarist.vectors import Filter, VectorStore

PREFIX = "messages "
CURSORS = " cursors"
"""Prefix of the names of all indexes, and suffix of those with cursors."""

_IDS_AT_ONCE = 500


def lease_of(thread_id: str) -> str:
    """Return the name of the lease for embedding a thread."""
    return f"embed:{thread_id}"


class MessageVectors:
    """The vectors of messages in a store, from all embedders that were ever used."""

    def __init__(self, store: VectorStore) -> None:
        self._store = store

    async def remove(
        self,
        *,
        resource_id: str | None = None,
        thread_id: str | None = None,
        message_ids: Collection[str] | None = None,
    ) -> int:
        """Remove the vectors of messages, of a thread or of a resource; return their number."""
        named = {
            "resource_id": resource_id,
            "thread_id": thread_id,
        }  # with the resource, the store need not read all partitions
        wanted = {key: value for key, value in named.items() if value is not None}
        count = 0
        for name in [name for name in await self._store.list_indexes() if name.startswith(PREFIX)]:
            if thread_id is None or message_ids is None:
                removed = await self._store.delete(name, filter=wanted)
                count += 0 if name.endswith(CURSORS) else removed
            elif not name.endswith(CURSORS):
                count += await self.remove_messages(name, wanted, message_ids)
        return count

    async def remove_messages(self, name: str, wanted: Filter, message_ids: Collection[str]) -> int:
        """Remove the vectors of messages from one index; return their number."""
        count, ids = 0, iter(message_ids)
        while some := list(islice(ids, _IDS_AT_ONCE)):
            count += await self._store.delete(name, filter={**wanted, "message_id": {"$in": some}})
        return count

    async def purge(self, *, besides: str) -> tuple[str, ...]:
        """Remove deleted vectors from files, too, unless the store lies at ``besides``, which was purged already."""
        return () if self._store.location == besides else await self._store.purge()

    async def close(self) -> None:
        await self._store.close()


class VectorsBeside:
    """Finds the vector store of a memory on first use, including a store that another memory created.

    Args:
        store: Returns the store; None if there is none.
        is_there: Returns True once the store has tables. By default it always has.
    """

    def __init__(
        self, store: Callable[[], VectorStore] | None, is_there: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        self._store, self._is_there = store, is_there
        self._found: MessageVectors | None = None

    async def find(self) -> MessageVectors | None:
        """Return the vectors, or None if there are none. Raises ConfigError if an extra is missing, StorageError."""
        if self._found is None and self._store is not None and (self._is_there is None or await self._is_there()):
            self._found = MessageVectors(self._store())
        return self._found

    async def close(self) -> None:
        if self._found is not None:
            await self._found.close()
