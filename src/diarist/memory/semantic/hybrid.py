"""Looking by words and by meaning at once."""

from __future__ import annotations

import asyncio
import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode

from diarist.exceptions import ConfigError, InputError
from diarist.memory.semantic.index import Near, SemanticIndex
from diarist.messages import Message
from diarist.storage.base import SearchStorage, Storage
from diarist.storage.records import Hit, Page

POOL = 100
"""The most that either way finds, and so the most there is to page through is twice that."""
RANK_OFFSET = 60
"""Reciprocal rank fusion (Cormack, Clarke and Büttcher, 2009): a hit of rank r counts 1 / (60 + r) for each way."""

_EXCERPT = 240
_PATIENCE = 10.0

Place = tuple[str, str]

logger = logging.getLogger("diarist")


class HybridSearch:
    """Messages of a resource, best first: those with all words of the query, and those that mean something like it.

    Args:
        tolerant: Where meaning fails, or takes longer than 10 seconds, words must do; that is logged. Otherwise
            failures are raised.
    """

    def __init__(self, index: SemanticIndex, storage: Storage, *, tolerant: bool) -> None:
        self._index = index
        self._storage = storage
        self._tolerant = tolerant

    async def __call__(
        self, query: str, *, resource_id: str, thread_id: str | None, limit: int, cursor: str | None
    ) -> Page[Hit]:
        """A page. Raises InputError for a query without text, a limit below 1, a foreign cursor."""
        if not query.strip():
            raise InputError("the query is empty: say what to look for")
        if limit < 1:
            raise InputError(f"limit must be at least 1, not {limit}")
        start = _decode(cursor)
        words = await self._words(query, resource_id, thread_id)
        near = await self._near(query, resource_id, thread_id)
        order = fused([list(words), list(near)])
        items: list[Hit] = []
        for place in order[start : start + limit]:
            hit = words.get(place) or await self._hit(near[place], resource_id)
            items += [hit] if hit is not None else []
        more = start + limit < len(order)
        return Page(items=items, cursor=_encode(start + limit) if more else None)

    async def _words(self, query: str, resource_id: str, thread_id: str | None) -> dict[Place, Hit]:
        if not isinstance(self._storage, SearchStorage):
            return {}
        try:
            page = await self._storage.search_messages(query, resource_id=resource_id, thread_id=thread_id, limit=POOL)
        except InputError:  # no words that could be looked for, or too many: it may mean something all the same
            return {}
        return {(hit.message.thread_id or "", hit.message.id): hit for hit in page.items}

    async def _near(self, query: str, resource_id: str, thread_id: str | None) -> dict[Place, Near]:
        try:
            async with asyncio.timeout(_PATIENCE if self._tolerant else None):
                found = await self._index.near(query, resource_id=resource_id, thread_id=thread_id, limit=POOL)
        except ConfigError:
            raise
        except Exception as error:  # of somebody's store or embedder
            if not self._tolerant:
                raise
            logger.warning("a search goes by words alone: %r", error)
            return {}
        return {(one.thread_id, one.message_id): one for one in found}

    async def _hit(self, near: Near, resource_id: str) -> Hit | None:
        rows = await self._index.load(near, resource_id)
        if not rows:
            await self._index.discard([near])
            return None
        return Hit(message=rows[0], excerpt=self._excerpt(near, rows[0]))

    def _excerpt(self, near: Near, row: Message) -> str:
        text = " ".join(self._index.excerpt(near, row).split())
        return text if len(text) <= _EXCERPT else f"{text[: _EXCERPT - 1]}…"


def fused(rankings: list[list[Place]]) -> list[Place]:
    """One ranking out of several; among equals, what the first has."""
    scores: dict[Place, float] = {}
    for ranking in rankings:
        for rank, place in enumerate(ranking, start=1):
            scores[place] = scores.get(place, 0.0) + 1 / (RANK_OFFSET + rank)
    return sorted(scores, key=lambda place: -scores[place])


def _encode(start: int) -> str:
    return urlsafe_b64encode(f"ranked {start}".encode()).decode().rstrip("=")


def _decode(cursor: str | None) -> int:
    if cursor is None:
        return 0
    try:
        word, number = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().split(" ")
        if word != "ranked" or not 0 <= int(number) <= 2 * POOL:
            raise ValueError("not a place")
    except ValueError as error:
        raise InputError(f"not a cursor of this search: {cursor!r}") from error
    return int(number)
