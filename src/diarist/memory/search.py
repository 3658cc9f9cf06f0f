"""The part of ``Memory`` with which people find what was said and what was noted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from diarist.exceptions import ConfigError, InputError
from diarist.memory.forgetting import Forgetting
from diarist.memory.message_filter import (
    MessageFilter,
    MessageRange,
    before_and_after,
    filtered_hits,
    with_neighbours,
)
from diarist.memory.observational.log.coverage import visible_log
from diarist.messages import Json
from diarist.storage.base import SearchStorage
from diarist.storage.codec import check_limit, check_names
from diarist.storage.records import Hit, Observation, Page
from diarist.storage.words import excerpt_of, query_terms, text_terms

_PAGE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationHit:
    """An entry of a diary that a search found.

    Attributes:
        key: Of the diary, ``thread:<id>`` or ``resource:<id>``.
        excerpt: One line of it, around the first word that was looked for.
    """

    observation: Observation
    key: str
    excerpt: str


class Search(Forgetting):
    """Full-text search. Words are whole words, case does not matter, and all of them must be there."""

    async def search(
        self,
        query: str,
        *,
        resource: str | None = None,
        thread: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        metadata: Mapping[str, Json] | None = None,
        message_range: MessageRange = 0,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Hit]:
        """Messages of a resource, or of one thread, that have all words of ``query``; newest first.

        Args:
            resource: Whose messages; with ``thread`` it must be the thread's.
            since: Only messages said at this moment or later; one without a time is left out.
            until: Only messages said before this moment; likewise.
            metadata: Only messages that have all these values, compared as JSON: 1, 1.0 and True differ.
            message_range: Neighbours to give with each hit, as its ``before`` and ``after``: so many before and after
                it, or a pair (before, after); 100 at most.
            limit: Hits of a page. With a filter the last page may be empty.
            cursor: Of the page before.

        Raises:
            InputError: Neither resource nor thread, a query without words, a thread of another resource, a limit
                below 1, a foreign cursor, a moment without a time zone, metadata that is not JSON.
            NotFoundError: There is no such thread.
            ConfigError: The storage cannot search.
        """
        if not isinstance(self.storage, SearchStorage):
            raise ConfigError(f"{type(self.storage).__name__} cannot search; use SQLiteStorage or PostgresStorage")
        wanted = MessageFilter(since=since, until=until, metadata=metadata)
        around = before_and_after(message_range)
        owner = await self._owner(resource, thread)
        page = await filtered_hits(
            self.storage, query, wanted, resource_id=owner, thread_id=thread, limit=limit, cursor=cursor
        )
        return replace(page, items=await with_neighbours(self.storage, page.items, *around))

    async def search_observations(
        self, query: str, *, resource: str | None = None, thread: str | None = None, limit: int = 20
    ) -> list[ObservationHit]:
        """Entries of the diaries as they stand now that have all words of ``query``, the newest first.

        With ``thread``, those that were made from messages of it. Raises as ``search``; any storage will do.
        """
        terms, most = query_terms(query), check_limit(limit, least=1)
        owner = await self._owner(resource, thread)
        hits: list[ObservationHit] = []
        for key in await self._keys(owner, thread):
            log = await self.storage.get_log(key)
            for entry in () if log is None else visible_log(log, None).active:
                if _is_of(entry, thread) and text_terms(entry.text).issuperset(terms):
                    hits.append(ObservationHit(observation=entry, key=key, excerpt=excerpt_of([entry.text], terms)))
        return sorted(hits, key=_observed_at, reverse=True)[:most]

    async def _owner(self, resource: str | None, thread: str | None) -> str:
        check_names(thread=thread, resource=resource)
        if thread is not None:
            return (await self._thread(thread, resource)).resource_id
        if resource is None:
            raise InputError("a search needs resource=... or thread=...: whose messages to look through")
        return resource

    async def _keys(self, resource: str, thread: str | None) -> list[str]:
        """The diaries of the resource, or the one of the thread."""
        logs = self._logs()
        if thread is not None or (self.config is not None and self.config.scope == "resource"):
            return [logs.key(thread or "", resource)]
        keys: list[str] = []
        cursor: str | None = None
        while True:
            page = await self.storage.list_threads(resource_id=resource, limit=_PAGE, cursor=cursor)
            keys += [logs.key(found.id, resource) for found in page.items]
            if page.cursor is None:
                return keys
            cursor = page.cursor


def _is_of(entry: Observation, thread: str | None) -> bool:
    return thread is None or any(source.thread_id == thread for source in entry.sources)


def _observed_at(hit: ObservationHit) -> datetime:
    return hit.observation.observed_at
