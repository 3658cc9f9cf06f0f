"""Renumbers the rows of a copied or exported thread, and adapts diaries to them. Pure functions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from diarist.memory.observational.log.edits import Erasure, erase, erase_past
from diarist.memory.observational.log.removal import WHOLE
from diarist.storage.records import Forgotten, Observation, ObservationLog, Source, Tombstone


class Numbering:
    """Maps old row numbers to new ones, which are 1, 2, 3, …; stored as ranges, since there are few gaps.

    Args:
        thread_id: The thread that is copied.
    """

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        self.count = 0
        self.end = 0
        self._firsts: list[int] = []
        self._places: list[int] = []
        self._left_out: list[Tombstone] = []

    def take(self, seq: int) -> None:
        """Record that the next row is copied, and give it the next new number."""
        self.count += 1
        if not self._firsts or seq - self._firsts[-1] != self.count - self._places[-1]:
            self._firsts.append(seq)
            self._places.append(self.count)
        self.end = seq

    def leave_out(self, seq: int) -> None:
        """Record that the next row is not copied."""
        last = self._left_out[-1] if self._left_out else None
        first = last.first_seq if last is not None and last.last_seq == self.end else seq
        if first != seq:
            self._left_out.pop()
        self._left_out.append(Tombstone(thread_id=self.thread_id, first_seq=first, last_seq=seq))
        self.end = seq

    @property
    def missing(self) -> tuple[Tombstone, ...]:
        """Ranges of rows that are not in the copy: those left out, and all rows after the last one read."""
        return (
            *self._left_out,
            Tombstone(thread_id=self.thread_id, first_seq=self.end + 1, last_seq=WHOLE),
        )

    def range_of(self, first: int, last: int) -> tuple[int, int] | None:
        """Convert a range of old row numbers to new ones; None if none of its rows was copied."""
        start, end = self._count_to(first - 1) + 1, self._count_to(last)
        return (start, end) if start <= end else None

    def of_forgotten(self, messages: Sequence[Forgotten]) -> list[Forgotten]:
        """Return the forgotten messages; the ``seq`` of each is the new number of the last copied row before it."""
        return [row._replace(seq=self._count_to(row.seq), rank=rank) for rank, row in enumerate(messages)]

    def _count_to(self, seq: int) -> int:
        """Return the number of copied rows up to ``seq``."""
        index = bisect_right(self._firsts, seq) - 1
        if index < 0:
            return 0
        following = self._places[index + 1] if index + 1 < len(self._places) else self.count + 1
        return min(self._places[index] + seq - self._firsts[index], following - 1)


def threads_in(logs: Iterable[ObservationLog]) -> set[str]:
    """Return the ids of the threads that the entries of a diary were made from."""
    return {source.thread_id for log in logs for entry in log.every_entry for source in entry.sources}


def cut(logs: Sequence[ObservationLog], missing: Sequence[Tombstone]) -> list[ObservationLog]:
    """Remove the entries of a diary that were made from missing rows. In place of a removed reflection, the entries
    that it replaced come back.

    Args:
        logs: The earlier generations, oldest first, and the current one.
    """
    if not logs:
        return []
    erasure = Erasure(tuple(missing))
    *history, head = logs
    if any(erasure.reaches(entry) for entry in head.every_entry):
        head = replace(erase(head, history, erasure), erasures=head.erasures)
    return [replace(log, tombstones=()) for log in (*(erase_past(log, erasure) for log in history), head)]


def renumbered(log: ObservationLog, numberings: Mapping[str, Numbering]) -> ObservationLog:
    """Return the log with new row numbers in its sources. A source without copied rows is left out."""

    def move(source: Source) -> Source | None:
        place = numberings[source.thread_id].range_of(source.first_seq, source.last_seq)
        return None if place is None else replace(source, first_seq=place[0], last_seq=place[1])

    def move_all(entry: Observation) -> Observation:
        return replace(entry, sources=tuple(moved for source in entry.sources if (moved := move(source))))

    return map_entries(log, move_all)


def map_entries(log: ObservationLog, change: Callable[[Observation], Observation]) -> ObservationLog:
    """Apply a function to every entry of a log, including a buffered reflection."""
    pending = log.reflection
    return replace(
        log,
        entries=tuple(change(entry) for entry in log.entries),
        reflection=None if pending is None else replace(pending, entry=change(pending.entry)),
    )
