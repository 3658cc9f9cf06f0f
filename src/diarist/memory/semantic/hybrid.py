"""Searches messages by words and by meaning at once."""

from __future__ import annotations

import logging
from typing import Any, cast

from diarist.checks import check_whole
from diarist.concurrency import finish_within
from diarist.exceptions import InputError
from diarist.memory.message_filter import MessageFilter, filtered_hits
from diarist.memory.observational.roles.transcript import shorten
from diarist.memory.semantic.index import MessageKey, NearMessage, SemanticIndex, message_key
from diarist.storage.base import SearchStorage, Storage
from diarist.storage.codec import decode_cursor, encode_cursor
from diarist.storage.records import Hit, Page
from diarist.storage.words import check_query
from diarist.vectors import Filter
from diarist.vectors.filters import is_value

POOL = 100
"""Maximum hits of each of the two searches; paging can reach twice as many."""
RANK_OFFSET = 60
"""Reciprocal rank fusion (Cormack, Clarke and Büttcher, 2009): a hit at rank r scores 1 / (60 + r) in each search."""

_EXCERPT = 240
_PATIENCE = 10.0

logger = logging.getLogger("diarist")


async def hybrid_search(
    index: SemanticIndex,
    storage: Storage,
    query: str,
    *,
    resource_id: str,
    thread_id: str | None,
    limit: int,
    cursor: str | None,
    wanted: MessageFilter | None = None,
    threshold: float | None = None,
    tolerant: bool = False,
) -> Page[Hit]:
    """Search messages of a resource for all words of the query, and for its meaning; return the best hits first.

    Args:
        wanted: Filter for the messages to search.
        threshold: Minimum nearness of hits by meaning.
        tolerant: True: if the search by meaning fails or takes longer than 10 seconds, log that and return only the
            hits by words. False: raise the error.

    Raises InputError for an empty query, a limit below 1, an impossible threshold, or an invalid cursor.
    """
    given, (least, most) = cast(Any, threshold), index.nearness
    if given is not None and (type(given) not in (int, float) or not least <= given <= most):
        raise InputError(f"threshold must be from {least:g} to {most:g}, not {given!r}")
    check_query(query)
    if not query.strip():
        raise InputError("the query is empty: pass the text to search for")
    check_whole("limit", limit, least=1)
    word, start = ("ranked", 0) if cursor is None else decode_cursor(cursor, "this search", str, int)
    if word != "ranked" or start < 0:
        raise InputError(f"not a cursor of this search: {cursor!r}")
    wanted = wanted or MessageFilter()
    by_words = await _hits_by_words(storage, query, wanted, resource_id, thread_id)
    found: list[NearMessage] = []
    try:
        near = index.near(
            query,
            resource_id=resource_id,
            thread_id=thread_id,
            limit=POOL,
            threshold=threshold,
            filter=_conditions(wanted),
        )
        late = TimeoutError(f"it took longer than {_PATIENCE:g} s")
        found = await finish_within(_PATIENCE if tolerant else None, near, late)
    except Exception as error:  # any error of the user's store or embedder
        if not tolerant:
            raise
        logger.warning("the search by meaning failed, so only words were searched: %r", error)
    by_meaning = {one.key: one for one in found}
    order = _fused(list(by_words), list(by_meaning))
    items: list[Hit] = []
    while start < len(order) and len(items) < limit:
        key = order[start]
        start += 1
        if key in by_words:
            items.append(by_words[key])
            continue
        rows = await index.load(by_meaning[key], resource_id)
        if rows and wanted.takes(rows[0]):
            excerpt = shorten(" ".join(index.excerpt(by_meaning[key], rows[0]).split()), _EXCERPT)
            items.append(Hit(message=rows[0], excerpt=excerpt))
    return Page(items=items, cursor=encode_cursor("ranked", start) if start < len(order) else None)


async def _hits_by_words(
    storage: Storage, query: str, wanted: MessageFilter, resource_id: str, thread_id: str | None
) -> dict[MessageKey, Hit]:
    if not isinstance(storage, SearchStorage):
        return {}
    try:
        page = await filtered_hits(
            storage, query, wanted, resource_id=resource_id, thread_id=thread_id, limit=POOL, cursor=None
        )
    except InputError:  # no words to search for, or too many: the search by meaning may find something
        return {}
    return {message_key(hit.message): hit for hit in page.items}


def _conditions(wanted: MessageFilter) -> Filter:
    """Return the filter as conditions on vectors. They let through all matching messages, and perhaps others."""
    said: dict[str, float] = {}
    if wanted.since is not None:
        said["$gte"] = wanted.since.timestamp()
    if wanted.until is not None:
        said["$lte"] = wanted.until.timestamp()
    values = {
        f"metadata.{key}": {"$eq": value}
        for key, value in (wanted.metadata or {}).items()
        if is_value(key) and is_value(value)
    }
    return {**({"created_at": said} if said else {}), **values}


def _fused(*rankings: list[MessageKey]) -> list[MessageKey]:
    """Combine rankings by reciprocal rank fusion; on a tie, the order of the first ranking counts."""
    scores: dict[MessageKey, float] = {}
    for ranking in rankings:
        for rank, key in enumerate(ranking, start=1):
            scores[key] = scores.get(key, 0.0) + 1 / (RANK_OFFSET + rank)
    return sorted(scores, key=lambda key: -scores[key])
