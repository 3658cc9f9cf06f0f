"""Renumbers the rows of a copied or exported thread, and adapts diaries to them. Pure functions."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from diarist.memory.observational.log.edits import Erasure, erase, erase_past, tombstones_of
from diarist.memory.observational.log.removal import WHOLE
from diarist.storage.records import Observation, ObservationLog, Source, Tombstone


class Numbering:
    """Maps old row numbers to new ones, which are 1, 2, 3, …

    Attributes:
        thread_id: The thread that is copied.
        end: Old number of the last row read.
        copied: Old numbers of the copied rows, in order.
    """

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        self.end = 0
        self.copied = array("q")
        self._left_out = array("q")

    def add(self, seq: int, *, copied: bool) -> None:
        """Record whether the next row is copied."""
        (self.copied if copied else self._left_out).append(seq)
        self.end = seq

    @property
    def missing(self) -> tuple[Tombstone, ...]:
        """Ranges of rows that are not in the copy: those left out, and all rows after the last one read."""
        after = Tombstone(thread_id=self.thread_id, first_seq=self.end + 1, last_seq=WHOLE)
        return (*tombstones_of(self.thread_id, self._left_out), after)

    def count_to(self, seq: int) -> int:
        """Return the number of copied rows up to ``seq``: the new number of the last one."""
        return bisect_right(self.copied, seq)

    def moved(self, source: Source) -> list[Source]:
        """Return the source with new row numbers; an empty list if none of its rows was copied."""
        first, last = bisect_left(self.copied, source.first_seq) + 1, self.count_to(source.last_seq)
        return [replace(source, first_seq=first, last_seq=last)] if first <= last else []


def sources_in(logs: Iterable[ObservationLog]) -> set[Source]:
    """Return everything that the entries of a diary were made from."""
    return {source for log in logs for entry in log.every_entry for source in entry.sources}


def cut(logs: Sequence[ObservationLog], missing: Sequence[Tombstone]) -> list[ObservationLog]:
    """Remove the entries of a diary that were made from missing rows. In place of a removed reflection, the entries
    that it replaced come back.

    Args:
        logs: The earlier generations, oldest first, and the current one.
    """
    if not logs:
        return []
    erasure = Erasure(missing)
    *history, head = logs
    if any(erasure.reaches(entry) for entry in head.every_entry):
        head = replace(erase(head, history, erasure), erasures=head.erasures)
    return [replace(log, tombstones=()) for log in (*(erase_past(log, erasure) for log in history), head)]


def renumbered(log: ObservationLog, numberings: Mapping[str, Numbering]) -> ObservationLog:
    """Return the log with new row numbers in its sources. A source without copied rows is left out."""

    def move_all(entry: Observation) -> Observation:
        moved = [new for old in entry.sources for new in numberings[old.thread_id].moved(old)]
        return replace(entry, sources=tuple(moved))

    return map_entries(log, move_all)


def map_entries(log: ObservationLog, change: Callable[[Observation], Observation]) -> ObservationLog:
    """Apply a function to every entry of a log, including a buffered reflection."""
    pending = log.reflection
    return replace(
        log,
        entries=tuple(change(entry) for entry in log.entries),
        reflection=None if pending is None else replace(pending, entry=change(pending.entry)),
    )
