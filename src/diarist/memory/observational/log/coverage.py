"""Which rows of a thread the log covers. Derived from the entries' sources, never remembered elsewhere.

A source is a closed range of rows that were read together. Its first row number lies right behind the
row before it: numbers in between belong to rows that are gone (a discarded run, a deleted message), and
with them inside the range the covered part of a thread stays one piece.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace

from diarist.encoding import dumps
from diarist.memory.observational.log.transitions import derive_hints
from diarist.messages import Message, part_to_dict
from diarist.storage.records import Observation, ObservationLog, Source, Tombstone


class Coverage:
    """The rows of one thread that some entries, or some tombstones, cover.

    Attributes:
        ranges: First and last row of each covered piece, in order; pieces do not touch.
    """

    def __init__(self, entries: Iterable[Observation], thread_id: str, stones: Iterable[Tombstone] = ()) -> None:
        found = [(s.first_seq, s.last_seq) for entry in entries for s in entry.sources if s.thread_id == thread_id]
        found += [(stone.first_seq, stone.last_seq) for stone in stones if stone.thread_id == thread_id]
        self.ranges: list[tuple[int, int]] = []
        start, end = 0, -2  # of the piece that is being put together; none yet
        for first, last in sorted(found):
            if first > end + 1:
                if start <= end:
                    self.ranges.append((start, end))
                start, end = first, last
            elif last > end:
                end = last
        if start <= end:
            self.ranges.append((start, end))
        self._firsts = [first for first, _ in self.ranges]

    def __contains__(self, seq: int) -> bool:
        return self.covers(seq, seq)

    def __ge__(self, other: Coverage) -> bool:
        """Whether everything that ``other`` covers is covered here too."""
        return all(self.covers(first, last) for first, last in other.ranges)

    def covers(self, first: int, last: int) -> bool:
        """Whether all rows from ``first`` to ``last`` are covered."""
        index = bisect_right(self._firsts, first) - 1
        return index >= 0 and last <= self.ranges[index][1]

    def meets(self, first: int, last: int) -> bool:
        """Whether any row from ``first`` to ``last`` is covered."""
        index = bisect_right(self._firsts, last) - 1
        return index >= 0 and first <= self.ranges[index][1]

    def holes(self, before: int | None = None) -> list[tuple[int, int | None]]:
        """What lies between the pieces, as the row before it and the row behind it; the last is open (None), or ends
        at ``before``. Before the thread there is row 0."""
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
        """The last covered row before ``seq``; 0 when there is none."""
        index = bisect_right(self._firsts, seq - 1) - 1
        return min(self.ranges[index][1], seq - 1) if index >= 0 else 0


def visible_log(log: ObservationLog, run_id: str | None, thread_id: str = "") -> ObservationLog:
    """The log as a run sees it: without entries that cover rows of another run that is still live.

    ``thread_id``: the run's thread. In a log of several threads its hints are those of this one.
    """
    entries = tuple(entry for entry in log.entries if entry.run_id in (None, run_id))
    whose = thread_id if log.scope == "resource" else ""
    if len(entries) == len(log.entries) and not whose:
        return log
    return replace(log, entries=entries, hints=derive_hints(entries, whose))


def digest_rows(rows: Iterable[Message]) -> str:
    """A hash of what the rows say: ids, roles and parts. System rows do not count; nobody observes them."""
    state = hashlib.sha256()
    for row in rows:
        if row.role != "system":
            content = [row.id, row.role, [part_to_dict(part) for part in row.parts]]
            state.update(dumps(content, sort_keys=True))
    return state.hexdigest()[:32]


def sources_of(
    batch: Sequence[Message], raw: Sequence[Message], coverage: Coverage, thread_id: str
) -> tuple[Source, ...]:
    """The sources of a batch.

    Args:
        batch: Rows to be covered, in order.
        raw: All rows that nothing covers and that the reader sees, in order; the batch among them.
        coverage: What is covered already.
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


def seq_of(row: Message) -> int:
    """The row's place in its thread; memory only ever sees rows that are stored."""
    if row.seq is None:
        raise ValueError(f"message {row.id!r} is not stored: it has no seq")
    return row.seq
