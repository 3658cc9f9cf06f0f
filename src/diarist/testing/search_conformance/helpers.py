"""Short words for the tests of a search."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from diarist.messages import Message, Part
from diarist.storage import Hit, Page, SearchStorage, Storage
from diarist.testing.storage_conformance.helpers import begin

NOON = datetime(2026, 1, 20, 12, tzinfo=UTC)


async def search(storage: Storage, query: str, resource_id: str = "ada", **more: Any) -> Page[Hit]:
    assert isinstance(storage, SearchStorage)
    return await storage.search_messages(query, resource_id=resource_id, **more)


async def found(storage: Storage, query: str, resource_id: str = "ada", **more: Any) -> list[str]:
    page = await search(storage, query, resource_id, **more)
    return [hit.message.text for hit in page.items]


async def found_in_pages(storage: Storage, query: str, limit: int) -> list[list[str]]:
    pages: list[list[str]] = []
    cursor = None
    while not pages or cursor is not None:
        page = await search(storage, query, limit=limit, cursor=cursor)
        pages.append([hit.message.text for hit in page.items])
        cursor = page.cursor
    return pages


async def say(storage: Storage, parts: Sequence[Part], **more: Any) -> Message:
    """One committed message of these parts, as stored."""
    run = await begin(storage)
    (seq,) = await storage.append_messages(run, [Message(role="assistant", parts=list(parts), **more)])
    await storage.finish_run(run, "committed")
    (stored,) = await storage.list_messages("trip", after=seq - 1)
    return stored
