"""The vectors of messages as far as no embedder is needed: they are removed with their messages, whoever made them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from itertools import islice

from diarist.vectors import Filter, VectorStore

PREFIX = "messages "
CURSORS = " cursors"
"""How the names of indexes begin, and how those end that tell how far threads are embedded."""

_IDS_AT_ONCE = 500


def lease_of(thread_id: str) -> str:
    """The name of the claim on embedding a thread."""
    return f"embed:{thread_id}"


class MessageVectors:
    """The vectors of messages in a store, of all embedders there ever were."""

    def __init__(self, store: VectorStore) -> None:
        self._store = store

    async def remove(
        self,
        *,
        resource_id: str | None = None,
        thread_id: str | None = None,
        message_ids: Collection[str] | None = None,
    ) -> int:
        """Remove the vectors of messages, of a thread or of a resource; returns how many there were."""
        named = {"resource_id": resource_id, "thread_id": thread_id}  # both where known: else all resources are read
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
        """Remove the vectors of messages from one index."""
        count, ids = 0, iter(message_ids)
        while some := list(islice(ids, _IDS_AT_ONCE)):
            count += await self._store.delete(name, filter={**wanted, "message_id": {"$in": some}})
        return count

    async def close(self) -> None:
        await self._store.close()


class VectorsBeside:
    """The vectors that may be in a memory's reach, looked for when they are needed.

    Args:
        store: Where they are; None: nowhere.
        is_there: Whether the store has been made; by default it has. It is asked until it has.
    """

    def __init__(
        self, store: Callable[[], VectorStore] | None, is_there: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        self._store, self._is_there = store, is_there
        self._found: MessageVectors | None = None

    async def find(self) -> MessageVectors | None:
        """None where there are none. Raises ConfigError where an extra is missing, StorageError."""
        if self._found is None and self._store is not None and (self._is_there is None or await self._is_there()):
            self._found = MessageVectors(self._store())
        return self._found

    async def close(self) -> None:
        if self._found is not None:
            await self._found.close()
