"""Digest checks: detect notes made from rows that were changed or removed since."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from diarist.memory.observational.log.coverage import digest_rows
from diarist.memory.rows import seq_of
from diarist.storage.base import Storage
from diarist.storage.records import Observation, Source


async def stale_entries(storage: Storage, entries: Sequence[Observation], run_id: str) -> set[str]:
    """Return the ids of the entries with changed or removed rows. All entries must be of one run."""
    sources = [source for entry in entries for source in entry.sources]
    changed = set(await changed_sources(storage, sources, run_id))
    return {entry.id for entry in entries if not changed.isdisjoint(entry.sources)}


async def changed_sources(storage: Storage, sources: Sequence[Source], run_id: str | None) -> list[Source]:
    """Return the sources with rows that, as a run sees them, were changed or removed. Reads each thread once."""
    changed: list[Source] = []
    for thread_id in sorted({source.thread_id for source in sources}):
        own = [source for source in sources if source.thread_id == thread_id]
        first, last = min(source.first_seq for source in own), max(source.last_seq for source in own)
        rows = await storage.list_messages(thread_id, after=first - 1, before=last + 1, run_id=run_id)
        for source in own:
            start = bisect_left(rows, source.first_seq, key=seq_of)
            end = bisect_right(rows, source.last_seq, key=seq_of)
            if digest_rows(rows[start:end]) != source.digest:
                changed.append(source)
    return changed
