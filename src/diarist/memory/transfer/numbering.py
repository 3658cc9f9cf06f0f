"""Renumbers the rows of a copied or exported thread, and adapts diaries to them. Pure functions."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from diarist.memory.observational.log.edits import Erasure, erase, erase_past, touches
from diarist.memory.observational.log.transitions import derive_hints
from diarist.storage.records import (
    Failures,
    Forgotten,
    Observation,
    ObservationLog,
    PendingReflection,
    Source,
    Tombstone,
)

_BEYOND = 1 << 62


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
        """Copy the next row."""
        self.count += 1
        if not self._firsts or seq - self._firsts[-1] != self.count - self._places[-1]:
            self._firsts.append(seq)
            self._places.append(self.count)
        self.end = seq

    def leave_out(self, seq: int) -> None:
        """Leave out the next row."""
        last = self._left_out[-1] if self._left_out else None
        first = last.first_seq if last is not None and last.last_seq == self.end else seq
        if first != seq:
            self._left_out.pop()
        self._left_out.append(Tombstone(thread_id=self.thread_id, first_seq=first, last_seq=seq))
        self.end = seq

    @property
    def missing(self) -> tuple[Tombstone, ...]:
        """Ranges of rows that the copy does not have, including those stored later."""
        return (
            *self._left_out,
            Tombstone(thread_id=self.thread_id, first_seq=self.end + 1, last_seq=_BEYOND),
        )

    def range_of(self, first: int, last: int) -> tuple[int, int] | None:
        """Return the new range of the copied rows of a range; None if there are none."""
        start, end = self._count_to(first - 1) + 1, self._count_to(last)
        return (start, end) if start <= end else None

    def of_forgotten(self, messages: Sequence[Forgotten]) -> list[Forgotten]:
        """Return deleted messages with the new numbers of the rows before them."""
        return [row._replace(seq=self._count_to(row.seq), rank=rank) for rank, row in enumerate(messages)]

    def _count_to(self, seq: int) -> int:
        """Return the number of copied rows up to ``seq``."""
        index = bisect_right(self._firsts, seq) - 1
        if index < 0:
            return 0
        following = self._places[index + 1] if index + 1 < len(self._places) else self.count + 1
        return min(self._places[index] + seq - self._firsts[index], following - 1)


def cut(log: ObservationLog, history: Sequence[ObservationLog], missing: Sequence[Tombstone]) -> ObservationLog:
    """Remove entries made from missing rows from a log; entries that a removed reflection replaced return."""
    if _has_none_of(log, missing):
        return replace(log, tombstones=())
    return replace(erase(log, history, Erasure(tuple(missing))), tombstones=(), erasures=log.erasures)


def cut_past(log: ObservationLog, missing: Sequence[Tombstone]) -> ObservationLog:
    """Remove entries made from missing rows from an earlier generation."""
    return replace(erase_past(log, Erasure(tuple(missing))), tombstones=())


def _has_none_of(log: ObservationLog, missing: Sequence[Tombstone]) -> bool:
    return not any(touches(entry, missing) for entry in log.every_entry)


def renumbered(log: ObservationLog, numberings: Mapping[str, Numbering]) -> ObservationLog:
    """Return the log with new row numbers in its sources. A source without copied rows is left out."""

    def move(source: Source) -> Source | None:
        place = numberings[source.thread_id].range_of(source.first_seq, source.last_seq)
        return None if place is None else replace(source, first_seq=place[0], last_seq=place[1])

    def move_all(entry: Observation) -> Observation:
        return replace(entry, sources=tuple(moved for source in entry.sources if (moved := move(source))))

    return map_entries(log, move_all)


def map_entries(log: ObservationLog, change: Callable[[Observation], Observation]) -> ObservationLog:
    """Apply a function to every entry of a log, a waiting reflection included."""
    pending = log.reflection
    return replace(
        log,
        entries=tuple(change(entry) for entry in log.entries),
        reflection=None if pending is None else replace(pending, entry=change(pending.entry)),
    )


class Renaming:
    """Adapts a diary to a copied thread: new ids, new digests of the rows, a new key.

    Args:
        digests: Digests of the copy's rows by their range.
    """

    def __init__(self, source: str, target: str, digests: Mapping[tuple[int, int], str]) -> None:
        self._source, self._target, self._digests = source, target, digests

    def message_id(self, old: str) -> str:
        """Return the id of a copied message: the same for the same copy."""
        return f"msg_{_hash(self._target, old)[:32]}"

    def log(self, log: ObservationLog) -> ObservationLog:
        """Return a renumbered log as that of the copy."""
        renamed = map_entries(log, self._entry)
        pending = renamed.reflection
        return replace(
            renamed,
            key=f"thread:{self._target}",
            version=0,
            hints=derive_hints(renamed.entries),
            reflection=None if pending is None else self._pending(pending),
            suppressed=tuple(self._cycle(cycle) for cycle in log.suppressed),
            observer_failures=Failures(),
            reflector_failures=Failures(),
            erasures=0,
        )

    def _entry(self, entry: Observation) -> Observation:
        return replace(
            entry,
            id=self._entry_id(entry.id),
            cycle_id=self._cycle(entry.cycle_id),
            sources=tuple(self._moved(source) for source in entry.sources),
            citations=tuple(tuple(self.message_id(old) for old in line) for line in entry.citations),
        )

    def _pending(self, pending: PendingReflection) -> PendingReflection:
        replaces = tuple(old._replace(id=self._entry_id(old.id)) for old in pending.replaces)
        return replace(pending, replaces=replaces)

    def _moved(self, source: Source) -> Source:
        digest = self._digests[source.first_seq, source.last_seq]
        return replace(source, thread_id=self._target, digest=digest)

    def _entry_id(self, old: str) -> str:
        prefix, _, cycle = old.partition("_")
        return f"{prefix}_{self._cycle(cycle)}"

    def _cycle(self, old: str) -> str:
        return _hash(f"thread:{self._target}", old)[:24]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
