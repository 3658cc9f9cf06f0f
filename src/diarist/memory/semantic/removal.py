"""Removes vectors of messages. This needs no embedder, so it works for the vectors of every memory."""

from __future__ import annotations

from collections.abc import Collection

from diarist.storage.records import Thread
from diarist.vectors import VectorStore

PREFIX = "messages "
CURSORS = " cursors"
"""Prefix of the names of all indexes, and suffix of those with cursors."""

_IDS_AT_ONCE = 500


def lease_of(thread_id: str) -> str:
    """Return the name of the lease for embedding a thread."""
    return f"embed:{thread_id}"


async def remove_vectors(
    store: VectorStore,
    *,
    resource_id: str | None = None,
    thread_id: str | None = None,
    message_ids: Collection[str] | None = None,
) -> int:
    """Remove the vectors of a resource, of a thread, or of some messages of a thread, whichever embedder made them.

    Returns their number. With ``resource_id``, the store need not read all partitions.
    """
    named = {"resource_id": resource_id, "thread_id": thread_id}
    wanted = {key: value for key, value in named.items() if value is not None}
    count = 0
    for name in [name for name in await store.list_indexes() if name.startswith(PREFIX)]:
        if thread_id is None or message_ids is None:
            removed = await store.delete(name, filter=wanted)
            count += 0 if name.endswith(CURSORS) else removed
        elif not name.endswith(CURSORS):
            ids = list(message_ids)
            for start in range(0, len(ids), _IDS_AT_ONCE):
                some = {"message_id": {"$in": ids[start : start + _IDS_AT_ONCE]}}
                count += await store.delete(name, filter={**wanted, **some})
    return count


async def forget_progress(store: VectorStore, thread: Thread) -> None:
    """Forget how far a thread is embedded, whichever embedder did it: all of it is embedded again."""
    for name in await store.list_indexes():
        if name.startswith(PREFIX) and name.endswith(CURSORS):
            await store.delete(name, filter={"resource_id": thread.resource_id, "thread_id": thread.id})
