"""Changes that memory makes to an observation log, as pure functions from log to log.

All functions are idempotent, so after a lost race the log is read and changed again. A function that changes nothing
returns its argument.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from diarist.storage.records import (
    Failures,
    Hints,
    Observation,
    ObservationLog,
    PendingReflection,
    Replaced,
    Source,
    Tombstone,
)

Operation = Literal["observation", "reflection"]

MAX_TOMBSTONES = 256
"""Maximum number of tombstones. Each is needed until its rows are removed, and fewer removals run at a time."""

MAX_HINTS = 50
"""Maximum number of threads whose hints a reflection keeps."""
_FIRST_DELAY = timedelta(seconds=30)
_LONGEST_DELAY = timedelta(minutes=10)


def cycle_id(key: str, operation: Operation, sources: Sequence[Source], inputs: Sequence[str] = ()) -> str:
    """Return the id of a cycle, which is the same in every process for the same input.

    Args:
        inputs: The cycle ids of the entries that a reflection replaces.
    """
    parts = [key, operation, *(f"{s.thread_id}:{s.first_seq}-{s.last_seq}:{s.digest}" for s in sources), *inputs]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def why_rejected(log: ObservationLog, entry: Observation, run_ids: Collection[str] = ()) -> str | None:
    """Return the reason why the log must reject an observation; None if it may add it, or has it already.

    Args:
        run_ids: The runs that its rows belong to.
    """
    if has_cycle(log, entry.cycle_id):
        return None
    for stone in log.tombstones:
        if stone.run_id is not None and (stone.run_id == entry.run_id or stone.run_id in run_ids):
            return f"run {stone.run_id!r} was discarded"
        if stone.run_id is None and any(_overlap(stone, source) for source in entry.sources):
            return "the messages were erased"
    covered = (source for other in log.entries for source in other.sources)
    if any(_overlap(mine, theirs) for theirs in covered for mine in entry.sources):
        return "another entry covers these messages already"
    return None


def has_cycle(log: ObservationLog, cycle: str) -> bool:
    """Return True if the log has an entry made by this cycle."""
    return any(entry.cycle_id == cycle for entry in log.entries)


def add_observation(log: ObservationLog, entry: Observation) -> ObservationLog:
    """Add an entry after the active ones; a buffered entry goes last.

    Changes nothing if the log has it already, or ``why_rejected`` gives a reason. A new active entry clears
    ``suppressed``, so that the Reflector may try again.
    """
    if has_cycle(log, entry.cycle_id) or why_rejected(log, entry) is not None:
        return log
    if entry.state == "buffered":
        return replace(log, entries=(*log.entries, entry))
    return with_entries(replace(log, suppressed=()), (*log.active, entry, *log.buffered))


def activate(log: ObservationLog, ids: Collection[str]) -> ObservationLog:
    """Activate buffered entries: move them after the active ones. Ignores ids that are gone."""
    chosen = tuple(replace(entry, state="active") for entry in log.buffered if entry.id in ids)
    if not chosen:
        return log
    rest = tuple(entry for entry in log.buffered if entry.id not in ids)
    return with_entries(replace(log, suppressed=()), (*log.active, *chosen, *rest))


def add_reflection(log: ObservationLog, entry: Observation, replaces: Sequence[Replaced]) -> ObservationLog:
    """Replace entries by a reflection and begin a new generation.

    Changes nothing if a replaced entry is no longer active, or has another text.
    """
    if has_cycle(log, entry.cycle_id) or not all_there(log.active, replaces):
        return log
    gone = {old.id for old in replaces}
    place = min(index for index, other in enumerate(log.entries) if other.id in gone)
    rest = [other for other in log.entries if other.id not in gone]
    return with_entries(
        replace(log, generation=log.generation + 1, suppressed=(), reflection=None),
        (*rest[:place], entry, *rest[place:]),
    )


def hold_reflection(log: ObservationLog, pending: PendingReflection) -> ObservationLog:
    """Buffer a finished reflection until it is due; changes nothing if an entry that it replaces has changed."""
    if has_cycle(log, pending.entry.cycle_id) or not all_there(log.active, pending.replaces):
        return log
    return replace(log, reflection=pending)


def activate_reflection(log: ObservationLog) -> ObservationLog:
    """Activate the buffered reflection and begin a new generation; changes nothing if there is none."""
    pending = log.reflection
    return log if pending is None else add_reflection(log, pending.entry, pending.replaces)


def replaced_by(entries: Sequence[Observation]) -> tuple[Replaced, ...]:
    """Return the references to the entries that a reflection replaces, with hashes of their texts."""
    return tuple(Replaced(entry.id, hashlib.sha256(entry.text.encode()).hexdigest()[:32]) for entry in entries)


def suppress(log: ObservationLog, cycle: str) -> ObservationLog:
    """Record that this reflection hardly shortens the log. An added entry clears the record."""
    return log if cycle in log.suppressed or not log.active else replace(log, suppressed=(*log.suppressed, cycle))


def drop_run(log: ObservationLog, run_id: str, thread_id: str, rows: Sequence[Tombstone] = ()) -> ObservationLog:
    """Remove the entries of a discarded run, and add a tombstone that rejects its late results.

    Args:
        rows: The ranges of its rows. If another process has noted them because the run had expired, they become
            tombstones too, so that those notes are removed.
    """
    if not any(stone.run_id == run_id for stone in log.tombstones):
        others = [source for entry in log.entries if entry.run_id != run_id for source in entry.sources]
        noted = any(_overlap(stone, source) for stone in rows for source in others)
        stones = (*log.tombstones, *(rows if noted else ()), Tombstone(thread_id=thread_id, run_id=run_id))
        log = replace(log, tombstones=stones[-MAX_TOMBSTONES:])
    return drop_entries(log, {entry.id for entry in log.entries if entry.run_id == run_id})


def close_entries(log: ObservationLog, ids: Collection[str], *, stale: Collection[str] = ()) -> ObservationLog:
    """Detach entries from their run after it has ended and their rows were checked.

    Args:
        stale: Ids of entries to remove, since their rows were rewritten or removed at the end.
    """
    log = drop_entries(log, stale)
    if not any(entry.run_id and entry.id in ids for entry in log.entries):
        return log
    return replace(log, entries=tuple(replace(e, run_id=None) if e.id in ids else e for e in log.entries))


def drop_entries(log: ObservationLog, ids: Collection[str]) -> ObservationLog:
    """Remove entries; their rows become raw again."""
    entries = tuple(entry for entry in log.entries if entry.id not in ids)
    return log if len(entries) == len(log.entries) else with_entries(log, entries)


def record_failure(log: ObservationLog, operation: Operation, *, at: datetime, error: str) -> ObservationLog:
    """Count a failed cycle. The same failure (time and error) is not counted twice."""
    before = failures_of(log, operation)
    if before.last_at == at and before.last_error == error:
        return log
    return _with_failures(log, operation, Failures(count=before.count + 1, last_at=at, last_error=error))


def record_success(log: ObservationLog, operation: Operation) -> ObservationLog:
    """Reset the failures of this operation."""
    return log if failures_of(log, operation).count == 0 else _with_failures(log, operation, Failures())


def failures_of(log: ObservationLog, operation: Operation) -> Failures:
    return log.observer_failures if operation == "observation" else log.reflector_failures


def backing_off(failures: Failures, now: datetime) -> bool:
    """Return True if it is too early to retry: 30 s after the first failure, doubling up to 10 minutes. A failure
    that lies further in the future than the delay comes from a wrong clock, and is ignored."""
    if failures.count == 0 or failures.last_at is None:
        return False
    delay = min(_FIRST_DELAY * 2 ** min(failures.count - 1, 10), _LONGEST_DELAY)
    return failures.last_at - delay < now < failures.last_at + delay


def derive_hints(entries: Sequence[Observation], thread_id: str = "") -> Hints:
    """Return the newest hints among the active entries. Arguments as for ``newest_hints``."""
    return newest_hints([entry for entry in entries if entry.state == "active"], thread_id)


def newest_hints(entries: Sequence[Observation], thread_id: str = "") -> Hints:
    """Return the newest current task, suggested response and title among the entries.

    Args:
        thread_id: Only hints of this thread, in a log of several threads.
    """
    said, none = [hints for entry in reversed(entries) if (hints := _hints_of(entry, thread_id))], Hints()
    task = next((hints for hints in said if hints.current_task is not None), none)
    response = next((hints for hints in said if hints.suggested_response is not None), none)
    title = next((hints for hints in said if hints.thread_title), none)
    return Hints(
        current_task=task.current_task,
        suggested_response=response.suggested_response,
        thread_title=title.thread_title,
        updated_at=max([hints.updated_at for hints in (task, response, title) if hints.updated_at], default=None),
        thread_id=thread_id,
    )


def hints_of_threads(entries: Sequence[Observation], threads: Sequence[str]) -> tuple[Hints, ...]:
    """Return the hints of each thread, for a reflection to keep; at most those of the last fifty threads."""
    known = (derive_hints(entries, thread_id) for thread_id in threads[-MAX_HINTS:])
    return tuple(hints for hints in known if hints.updated_at is not None)


def threads_of_entries(entries: Sequence[Observation]) -> list[str]:
    """Return the threads that entries were made from, the most recently noted last."""
    newest_first = (source.thread_id for entry in reversed(entries) for source in reversed(entry.sources))
    return list(dict.fromkeys(newest_first))[::-1]


def _hints_of(entry: Observation, thread_id: str) -> Hints | None:
    """Return the hints of an entry for a thread; None if it has none. Without a thread, return the entry's own
    hints."""
    if not thread_id or all(source.thread_id == thread_id for source in entry.sources):
        return Hints(
            current_task=entry.current_task,
            suggested_response=entry.suggested_response,
            thread_title=entry.thread_title,
            updated_at=entry.observed_at,
        )
    return next((hints for hints in entry.hints if hints.thread_id == thread_id), None)


def with_entries(log: ObservationLog, entries: tuple[Observation, ...]) -> ObservationLog:
    """Return the log with these entries; drops the buffered reflection if an entry that it replaces is gone."""
    pending = log.reflection
    if pending is not None and not all_there(entries, pending.replaces):
        pending = None
    return replace(log, entries=entries, hints=derive_hints(entries), reflection=pending)


def all_there(entries: Sequence[Observation], replaces: Sequence[Replaced]) -> bool:
    """Return True if all replaced entries are among these, active and with unchanged text."""
    return bool(replaces) and set(replaces) <= set(replaced_by([e for e in entries if e.state == "active"]))


def _with_failures(log: ObservationLog, operation: Operation, failures: Failures) -> ObservationLog:
    if operation == "observation":
        return replace(log, observer_failures=failures)
    return replace(log, reflector_failures=failures)


def _overlap(one: Source | Tombstone, other: Source | Tombstone) -> bool:
    same = one.thread_id == other.thread_id
    return same and one.first_seq <= other.last_seq and other.first_seq <= one.last_seq
