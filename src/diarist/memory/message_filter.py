"""Filters of messages, applied page by page in reading order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, cast

from diarist.checks import check_limit, check_moment, check_whole, checked_metadata
from diarist.exceptions import InputError
from diarist.memory.rows import seq_of
from diarist.messages import Json, Message
from diarist.storage.base import SearchStorage, Storage
from diarist.storage.codec import canonical
from diarist.storage.records import Hit, Page

MessageRange = int | tuple[int, int]
"""Neighbours of a message: a number for both sides, or a pair (before, after)."""

_PAGE = 100
_MOST_NEIGHBOURS = 100
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilter:
    """Conditions on messages; a message must meet all of them.

    Attributes:
        ids: The message has one of these ids.
        since, until: Aware times. The message was sent at ``since`` or later, and before ``until``; messages without a
            time do not pass.
        metadata: The message has all these values, compared as JSON: 1, 1.0 and True differ.

    Raises InputError for a time without a time zone, and for values that are not JSON.
    """

    ids: frozenset[str] | None = None
    since: datetime | None = None
    until: datetime | None = None
    metadata: Mapping[str, Json] | None = None
    _wanted: dict[str, str] = field(default_factory=dict[str, str], init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("since", "until"):
            check_moment(name, getattr(self, name))
        self._wanted.update({key: canonical(value) for key, value in checked_metadata(self.metadata).items()})

    @property
    def takes_all(self) -> bool:
        return self.ids is None and self.since is None and self.until is None and not self._wanted

    def takes(self, row: Message) -> bool:
        said = row.created_at
        if self.ids is not None and row.id not in self.ids:
            return False
        if self.since is not None and (said is None or said < self.since):
            return False
        if self.until is not None and (said is None or said >= self.until):
            return False
        return all(key in row.metadata and canonical(row.metadata[key]) == text for key, text in self._wanted.items())

    def has_passed(self, row: Message) -> bool:
        """Return True if no older row can pass. Precise to the second."""
        return self.since is not None and row.created_at is not None and self.since - row.created_at > _SECOND


async def filtered_rows(
    storage: Storage,
    thread_id: str,
    wanted: MessageFilter,
    *,
    after: int | None,
    before: int | None,
    limit: int | None,
    newest_first: bool,
) -> list[Message]:
    """Return matching rows as ``Storage.list_messages`` does. Other rows are read in batches and dropped."""
    if wanted.takes_all:
        return await storage.list_messages(
            thread_id, after=after, before=before, limit=limit, newest_first=newest_first
        )
    most = check_limit(limit)
    found: list[Message] = []
    while len(found) < most:
        rows = await storage.list_messages(
            thread_id, after=after, before=before, limit=_PAGE, newest_first=newest_first
        )
        found += [row for row in rows if wanted.takes(row)]
        if len(rows) < _PAGE:
            break
        after, before = (after, seq_of(rows[-1])) if newest_first else (seq_of(rows[-1]), before)
    return found[:most]


async def filtered_hits(
    storage: SearchStorage,
    query: str,
    wanted: MessageFilter,
    *,
    resource_id: str,
    thread_id: str | None,
    limit: int,
    cursor: str | None,
) -> Page[Hit]:
    """Return matching hits as ``SearchStorage.search_messages`` does; the last page may be empty."""
    check_whole("limit", limit, least=1)
    found: list[Hit] = []
    size = limit if wanted.takes_all else _PAGE
    while True:
        page = await storage.search_messages(
            query, resource_id=resource_id, thread_id=thread_id, limit=size, cursor=cursor
        )
        places = [place for place, hit in enumerate(page.items) if wanted.takes(hit.message)]
        room = limit - len(found)
        if len(places) > room:  # search again up to the last hit that fits: the cursor must point after it
            size = places[room - 1] + 1
            continue
        found += [page.items[place] for place in places]
        if page.cursor is None or len(found) == limit:
            return Page(items=found, cursor=page.cursor)
        if page.items and wanted.has_passed(page.items[-1].message):
            return Page(items=found)
        cursor, size = page.cursor, _PAGE


def before_and_after(message_range: MessageRange) -> tuple[int, int]:
    """Return the numbers of neighbours before and after. Raises InputError."""
    value: Any = message_range
    pair: tuple[Any, ...] = cast(tuple[Any, ...], value) if isinstance(value, tuple) else (value, value)
    if len(pair) != 2 or any(type(number) is not int or not 0 <= number <= _MOST_NEIGHBOURS for number in pair):
        raise InputError(
            f"message_range is a number from 0 to {_MOST_NEIGHBOURS}, or a pair (before, after) of them, not {value!r}"
        )
    return cast(tuple[int, int], pair)


async def with_neighbours(storage: Storage, hits: Sequence[Hit], message_range: MessageRange) -> list[Hit]:
    """Return the hits with their neighbours, as many as exist. Raises InputError for another range."""
    before, after = before_and_after(message_range)
    found: list[Hit] = []
    for hit in hits:
        thread_id, seq = hit.message.thread_id or "", seq_of(hit.message)
        earlier: list[Message] = []
        later: list[Message] = []
        if before:
            earlier = await storage.list_messages(thread_id, before=seq, limit=before, newest_first=True)
        if after:
            later = await storage.list_messages(thread_id, after=seq, limit=after)
        found.append(replace(hit, before=tuple(earlier[::-1]), after=tuple(later)))
    return found
