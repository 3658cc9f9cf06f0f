"""Rows: messages as they are stored, each with its number (``seq``) in its thread."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping

from diarist.messages import Json, Message
from diarist.storage.base import Storage
from diarist.storage.records import Thread

_PAGE = 500
_OPENER_ROWS, _OPENER_PAGE = 200, 20


def seq_of(row: Message) -> int:
    """Return the number of a stored message in its thread."""
    if row.seq is None:
        raise ValueError(f"message {row.id!r} is not stored: it has no seq")
    return row.seq


async def find_opener(
    storage: Storage, thread_id: str, *, before: Message, run_id: str | None = None
) -> Message | None:
    """Return the last user message among the 200 rows before a row; None if there is none.

    Args:
        run_id: A live run; its rows are included.
    """
    place = seq_of(before)
    for _ in range(_OPENER_ROWS // _OPENER_PAGE):
        page = await storage.list_messages(
            thread_id, before=place, limit=_OPENER_PAGE, newest_first=True, run_id=run_id
        )
        opener = next((row for row in page if row.role == "user"), None)
        if opener is not None or len(page) < _OPENER_PAGE:
            return opener
        place = seq_of(page[-1])
    return None


def stand_in(first: Message) -> Message:
    """Return a placeholder user message to put before ``first``, as some providers reject prompts that begin with the
    assistant."""
    text = "(The conversation begins with the assistant.)"
    return Message.user(text, id=f"{first.id}-opening", created_at=first.created_at)


async def rows_between(
    storage: Storage, thread_id: str, *, after: int = 0, before: int | None = None
) -> AsyncGenerator[Message]:
    """Yield the visible messages of a thread in order, read page by page."""
    while True:
        rows = await storage.list_messages(thread_id, after=after, before=before, limit=_PAGE)
        for row in rows:
            yield row
        if len(rows) < _PAGE:
            return
        after = seq_of(rows[-1])


async def rows_of_all_branches(storage: Storage, thread_id: str, *, after: int = 0) -> AsyncGenerator[Message]:
    """Yield the visible messages of a thread with a number above ``after``, the superseded ones first."""
    for one in await storage.list_superseded(thread_id):
        if seq_of(one.message) > after:
            yield one.message
    async for row in rows_between(storage, thread_id, after=after):
        yield row


async def threads_of(
    storage: Storage, resource_id: str | None, metadata: Mapping[str, Json] | None = None, *, hidden: bool = False
) -> AsyncIterator[Thread]:
    """Yield all threads, of one resource or of all, read page by page.

    Args:
        metadata: Only threads with these values.
        hidden: As for ``Storage.get_thread``.
    """
    cursor: str | None = None
    while True:
        page = await storage.list_threads(resource_id=resource_id, metadata=metadata, cursor=cursor, hidden=hidden)
        for thread in page.items:
            yield thread
        cursor = page.cursor
        if cursor is None:
            return
