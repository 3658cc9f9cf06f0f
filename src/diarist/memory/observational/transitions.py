"""Every change of an observation log, as a pure function from log to log.

Applying a change twice is the same as applying it once, so a save that lost the race is simply read again
and applied again. A function that changes nothing returns the very log that it was given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from diarist.storage.records import Failures, Hints, Observation, ObservationLog, Source, Tombstone

Operation = Literal["observation", "reflection"]

MAX_TOMBSTONES = 256
"""A tombstone matters until the rows it names are removed; so many removals are never under way at once."""

_FIRST_DELAY = timedelta(seconds=30)
_LONGEST_DELAY = timedelta(minutes=10)


def cycle_id(key: str, operation: Operation, sources: Sequence[Source], inputs: Sequence[str] = ()) -> str:
    """The id of a piece of work: the same in every process that would do the same.

    ``inputs`` are the cycle ids of the entries that a reflection replaces.
    """
    parts = [key, operation, *(f"{s.thread_id}:{s.first_seq}-{s.last_seq}:{s.digest}" for s in sources), *inputs]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def refusal(log: ObservationLog, entry: Observation) -> str | None:
    """Why the log may not take this observation, in words; None if it may, or has it already."""
    if has_cycle(log, entry.cycle_id):
        return None
    for stone in log.tombstones:
        if stone.run_id is not None and stone.run_id == entry.run_id:
            return f"run {entry.run_id!r} was discarded"
        if stone.run_id is None and any(_overlap(stone, source) for source in entry.sources):
            return "the messages were erased"
    covered = (source for other in log.entries for source in other.sources)
    if any(_overlap(mine, theirs) for theirs in covered for mine in entry.sources):
        return "another entry covers these messages already"
    return None


def has_cycle(log: ObservationLog, cycle: str) -> bool:
    return any(entry.cycle_id == cycle for entry in log.entries)


def add_observation(log: ObservationLog, entry: Observation) -> ObservationLog:
    """Append an entry. Nothing changes when it is there already or ``refusal`` says no.

    A new entry is also a new chance for the Reflector: nothing stays suppressed.
    """
    if has_cycle(log, entry.cycle_id) or refusal(log, entry) is not None:
        return log
    return _with_entries(replace(log, suppressed=()), (*log.entries, entry))


def add_reflection(log: ObservationLog, entry: Observation, replaced: Sequence[Observation]) -> ObservationLog:
    """Put ``entry`` in the place of ``replaced`` and begin a new generation.

    Nothing changes unless every replaced entry is still there, word for word.
    """
    if has_cycle(log, entry.cycle_id) or not replaced or not all(old in log.entries for old in replaced):
        return log
    place = min(log.entries.index(old) for old in replaced)
    gone = {old.id for old in replaced}
    rest = [other for other in log.entries if other.id not in gone]
    return _with_entries(
        replace(log, generation=log.generation + 1, suppressed=()), (*rest[:place], entry, *rest[place:])
    )


def suppress(log: ObservationLog, cycle: str) -> ObservationLog:
    """Remember that this reflection does not pay, until an entry joins."""
    return log if cycle in log.suppressed else replace(log, suppressed=(*log.suppressed, cycle))


def drop_run(log: ObservationLog, run_id: str, thread_id: str) -> ObservationLog:
    """Take out the entries of a discarded run, and let none of its late results in."""
    if not any(stone.run_id == run_id for stone in log.tombstones):
        stones = (*log.tombstones, Tombstone(thread_id=thread_id, run_id=run_id))
        log = replace(log, tombstones=stones[-MAX_TOMBSTONES:])
    return drop_entries(log, {entry.id for entry in log.entries if entry.run_id == run_id})


def close_run(log: ObservationLog, run_id: str, *, stale: Collection[str] = ()) -> ObservationLog:
    """The run has ended well: its entries are like all others.

    ``stale`` are ids of entries whose rows were rewritten or removed at the end; these are taken out.
    """
    log = drop_entries(log, stale)
    if not any(entry.run_id == run_id for entry in log.entries):
        return log
    entries = tuple(replace(entry, run_id=None) if entry.run_id == run_id else entry for entry in log.entries)
    return replace(log, entries=entries)


def drop_entries(log: ObservationLog, ids: Collection[str]) -> ObservationLog:
    """Take entries out; their rows are raw again."""
    entries = tuple(entry for entry in log.entries if entry.id not in ids)
    return log if len(entries) == len(log.entries) else _with_entries(log, entries)


def record_failure(log: ObservationLog, operation: Operation, *, at: datetime, error: str) -> ObservationLog:
    """Count a failed cycle. The same failure (same time) is counted once."""
    before = failures_of(log, operation)
    if before.last_at == at and before.last_error == error:
        return log
    return _with_failures(log, operation, Failures(count=before.count + 1, last_at=at, last_error=error))


def record_success(log: ObservationLog, operation: Operation) -> ObservationLog:
    """Forget the failures of this kind of work."""
    return log if failures_of(log, operation).count == 0 else _with_failures(log, operation, Failures())


def failures_of(log: ObservationLog, operation: Operation) -> Failures:
    return log.observer_failures if operation == "observation" else log.reflector_failures


def backing_off(failures: Failures, now: datetime) -> bool:
    """Whether it is too early for another try: 30 s after the first failure, doubling up to 10 minutes."""
    if failures.count == 0 or failures.last_at is None:
        return False
    delay = min(_FIRST_DELAY * 2 ** min(failures.count - 1, 10), _LONGEST_DELAY)
    return now < failures.last_at + delay


def derive_hints(entries: Sequence[Observation]) -> Hints:
    """The newest known current task and suggested response; an entry that has none keeps the older ones."""
    task = next((e for e in reversed(entries) if e.current_task), None)
    response = next((e for e in reversed(entries) if e.suggested_response), None)
    times = [entry.observed_at for entry in (task, response) if entry is not None]
    return Hints(
        current_task=task.current_task if task else None,
        suggested_response=response.suggested_response if response else None,
        updated_at=max(times, default=None),
    )


def _with_entries(log: ObservationLog, entries: tuple[Observation, ...]) -> ObservationLog:
    return replace(log, entries=entries, hints=derive_hints(entries))


def _with_failures(log: ObservationLog, operation: Operation, failures: Failures) -> ObservationLog:
    if operation == "observation":
        return replace(log, observer_failures=failures)
    return replace(log, reflector_failures=failures)


def _overlap(one: Source | Tombstone, other: Source | Tombstone) -> bool:
    same = one.thread_id == other.thread_id
    return same and one.first_seq <= other.last_seq and other.first_seq <= one.last_seq
