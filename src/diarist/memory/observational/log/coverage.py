"""Coverage: the rows of a thread that the log covers, always derived from the sources of its entries.

A source is an inclusive range of rows that the Observer read together. It starts right after the previous row. Numbers
in between belong to removed rows (of a discarded run, or deleted messages); including them keeps the ranges contiguous.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import itemgetter

from diarist.encoding import dumps
from diarist.memory.observational.log.transitions import derive_hints
from diarist.memory.rows import seq_of
from diarist.messages import Message, part_to_dict
from diarist.storage.base import Storage
from diarist.storage.records import Observation, ObservationLog, Source, Tombstone

_FIRST = itemgetter(0)


class Coverage:
    """The rows of one thread that the given entries or tombstones cover.

    Attributes:
        ranges: First and last row of each covered range, in order; adjacent ranges are merged.
    """

    def __init__(self, entries: Iterable[Observation], thread_id: str, stones: Iterable[Tombstone] = ()) -> None:
        found = [(s.first_seq, s.last_seq) for entry in entries for s in entry.sources if s.thread_id == thread_id]
        found += [(stone.first_seq, stone.last_seq) for stone in stones if stone.thread_id == thread_id]
        self.ranges: list[tuple[int, int]] = []
        for first, last in sorted(found):
            if not self.ranges or first > self.ranges[-1][1] + 1:
                self.ranges.append((first, last))
            elif last > self.ranges[-1][1]:
                self.ranges[-1] = self.ranges[-1][0], last

    def __contains__(self, seq: int) -> bool:
        return self.covers(seq, seq)

    def __ge__(self, other: Coverage) -> bool:
        """Return True if this covers every row that ``other`` covers."""
        return all(self.covers(first, last) for first, last in other.ranges)

    def covers(self, first: int, last: int) -> bool:
        """Return True if all rows from ``first`` to ``last`` are covered."""
        index = bisect_right(self.ranges, first, key=_FIRST) - 1
        return index >= 0 and last <= self.ranges[index][1]

    def meets(self, first: int, last: int) -> bool:
        """Return True if any row from ``first`` to ``last`` is covered."""
        index = bisect_right(self.ranges, last, key=_FIRST) - 1
        return index >= 0 and first <= self.ranges[index][1]

    def holes(self, before: int | None = None) -> list[tuple[int, int | None]]:
        """Return the gaps between the ranges, each as (row before the gap, row after the gap).

        The first gap starts after row 0. The last one is open-ended (None), or ends at ``before``.
        """
        after, found = 0, list[tuple[int, int | None]]()
        for first, last in self.ranges:
            if before is not None and first >= before:
                break
            if first > after + 1:
                found.append((after, first))
            after = last
        if before is None or after + 1 < before:
            found.append((after, before))
        return found

    def end_before(self, seq: int) -> int:
        """Return the last covered row before ``seq``; 0 if there is none."""
        index = bisect_right(self.ranges, seq - 1, key=_FIRST) - 1
        return min(self.ranges[index][1], seq - 1) if index >= 0 else 0


def visible_log(log: ObservationLog, run_id: str | None, thread_id: str = "") -> ObservationLog:
    """Return the log as a run sees it: without entries that cover rows of other live runs.

    Args:
        thread_id: The run's thread. In resource scope, the hints of the returned log are those of this thread.
    """
    entries = tuple([entry for entry in log.entries if entry.run_id in (None, run_id)])
    whose = thread_id if log.scope == "resource" else ""
    if len(entries) == len(log.entries) and not whose:
        return log
    return replace(log, entries=entries, hints=derive_hints(entries, whose))


def digest_rows(rows: Iterable[Message]) -> str:
    """Return the digest of rows: the sum of their hashes, so that the digests of adjacent ranges give that of both."""
    return as_digest(sum(map(hash_row, rows)))


def hash_row(row: Message) -> int:
    """Return a hash of a row's id, role and parts; 0 for a system row, which is never observed."""
    if row.role == "system":
        return 0
    content = [row.id, row.role, [part_to_dict(part) for part in row.parts]]
    return int.from_bytes(hashlib.sha256(dumps(content, sort_keys=True)).digest()[:16])


def as_digest(total: int) -> str:
    """Return the digest of rows whose hashes have this sum: 32 hexadecimal digits."""
    return f"{total % (1 << 128):032x}"


def join_sources(sources: Iterable[Source]) -> tuple[Source, ...]:
    """Return the sources, sorted by thread, with adjacent ones joined, so that a log does not grow with its thread."""
    found: list[Source] = []
    for source in sorted(sources, key=lambda source: (source.thread_id, source.first_seq)):
        if found and (found[-1].thread_id, found[-1].last_seq + 1) == (source.thread_id, source.first_seq):
            digest = as_digest(int(found[-1].digest, 16) + int(source.digest, 16))
            found[-1] = replace(found[-1], last_seq=source.last_seq, digest=digest)
        else:
            found.append(source)
    return tuple(found)


def sources_of(
    batch: Sequence[Message], raw: Sequence[Message], coverage: Coverage, thread_id: str
) -> tuple[Source, ...]:
    """Return the sources of a batch.

    Args:
        batch: Rows to cover, in order.
        raw: All visible uncovered rows, in order, including the batch.
        coverage: The rows that are covered already.
    """
    taken = {row.id for row in batch}
    pieces: list[tuple[int, list[Message]]] = []
    before, joins = 0, False
    for row in raw:
        seq = seq_of(row)
        if row.id in taken:
            end = coverage.end_before(seq)
            if joins and end <= before:
                pieces[-1][1].append(row)
            else:
                pieces.append((max(before, end) + 1, [row]))
        before, joins = seq, row.id in taken
    return tuple(
        Source(thread_id=thread_id, first_seq=first, last_seq=seq_of(rows[-1]), digest=digest_rows(rows))
        for first, rows in pieces
    )


# --- reading the rows ------------------------------------------------------------------------------------------


async def uncovered_rows(
    storage: Storage, coverage: Coverage, thread_id: str, *, before: int | None = None, run_id: str | None = None
) -> list[Message]:
    """Return the uncovered rows of a thread, in order, without system rows.

    Args:
        before: Only rows with a ``seq`` below this.
        run_id: A live run; its own rows are included.
    """
    rows: list[Message] = []
    for after, end in coverage.holes(before):
        rows += await storage.list_messages(thread_id, after=after, before=end, run_id=run_id)
    return [row for row in rows if row.role != "system"]


def changed_sources(sources: Sequence[Source], rows: Sequence[Message]) -> list[Source]:
    """Return the sources of a thread with rows that were changed or removed. ``rows``: the thread's rows now."""
    changed: list[Source] = []
    for source in sources:
        start, end = bisect_left(rows, source.first_seq, key=seq_of), bisect_right(rows, source.last_seq, key=seq_of)
        if digest_rows(rows[start:end]) != source.digest:
            changed.append(source)
    return changed
