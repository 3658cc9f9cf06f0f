"""Changes that a user makes to a log, as pure functions from log to log; ``transitions`` has those of memory itself.

All functions are idempotent, and return their argument if nothing changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from diarist.exceptions import NotFoundError
from diarist.memory.observational.log.coverage import Coverage, join_sources
from diarist.memory.observational.log.transitions import with_entries
from diarist.storage.records import Failures, Hints, Observation, ObservationLog, Source, Tombstone
from diarist.storage.words import text_terms

_HINTS = {"current_task": None, "suggested_response": None, "thread_title": None}

# --- words -------------------------------------------------------------------------------------------------


def edit_text(log: ObservationLog, observation_id: str, text: str, tokens: int) -> ObservationLog:
    """Replace the text of an entry; unchanged lines keep their citations. Raises NotFoundError.

    Drops a buffered reflection that would replace the entry. An entry that loses a word is marked as ``cut``.
    """
    entry = find(log, observation_id)
    before, after = entry.text.splitlines(), text.splitlines()
    cited = dict(zip(before, entry.citations, strict=False))
    citations = tuple(cited.get(line, ()) for line in after) if cited else ()
    cut = entry.cut or bool(_words(entry.text) - _words(text))
    return _replace_entry(log, entry, replace(entry, text=text, tokens=tokens, citations=citations, cut=cut))


def _words(text: str) -> Counter[str]:
    """Count the words of a text, ignoring case, punctuation and marks such as 🔴."""
    return Counter(term for piece in text.split() for term in text_terms(piece))


def delete_text(log: ObservationLog, observation_id: str) -> ObservationLog:
    """Empty the text of an entry. It still covers its rows, so they are not observed again. Raises NotFoundError."""
    entry = find(log, observation_id)
    return _replace_entry(log, entry, _emptied(entry))


def find(log: ObservationLog, observation_id: str) -> Observation:
    """Return the entry with this id. Raises NotFoundError."""
    for entry in log.entries:
        if entry.id == observation_id:
            return entry
    raise NotFoundError(
        f"the diary {log.key!r} has no observation {observation_id!r}; if a reflection has replaced it, "
        "edit the reflection: memory.diary.get(...).entries has the ids"
    )


def empty(log: ObservationLog) -> ObservationLog:
    """Remove all entries and everything derived from them. Results of calls that still run will be rejected."""
    if not log.entries and log.reflection is None:
        return log
    return replace(
        log,
        entries=(),
        reflection=None,
        hints=Hints(),
        observer_failures=Failures(),
        reflector_failures=Failures(),
        suppressed=(),
        erasures=log.erasures + 1,
    )


def _emptied(entry: Observation) -> Observation:
    return replace(entry, text="", tokens=0, citations=(), hints=(), cut=True, **_HINTS)


def _replace_entry(log: ObservationLog, old: Observation, new: Observation) -> ObservationLog:
    if new == old:
        return log
    return with_entries(log, tuple(new if entry is old else entry for entry in log.entries))


# --- erasing -----------------------------------------------------------------------------------------------


class Erasure:
    """The ranges of rows to forget."""

    def __init__(self, stones: Sequence[Tombstone]) -> None:
        self.stones = tuple(stones)
        threads = {stone.thread_id for stone in stones}
        self._gone = {thread_id: Coverage((), thread_id, stones) for thread_id in threads}

    def reaches(self, entry: Observation) -> bool:
        """Return True if an entry was made from these rows; a reflection has the sources of the entries it replaced."""
        return any(
            s.thread_id in self._gone and self._gone[s.thread_id].meets(s.first_seq, s.last_seq) for s in entry.sources
        )

    def left_of(self, source: Source) -> list[Source]:
        """Return the ranges of a source that are not forgotten."""
        gone = self._gone.get(source.thread_id, Coverage((), ""))
        pieces: list[Source] = []
        for after, before in gone.holes(source.last_seq + 1):
            first = max(after + 1, source.first_seq)
            last = source.last_seq if before is None else before - 1
            if first <= last:
                pieces.append(replace(source, first_seq=first, last_seq=last))
        return pieces


def tombstones_of(thread_id: str, seqs: Iterable[int]) -> tuple[Tombstone, ...]:
    """Return tombstones for rows, one per run of consecutive numbers."""
    rows = [Tombstone(thread_id=thread_id, first_seq=seq, last_seq=seq) for seq in seqs]
    ranges = Coverage((), thread_id, rows).ranges
    return tuple(Tombstone(thread_id=thread_id, first_seq=first, last_seq=last) for first, last in ranges)


def row_stones(log: ObservationLog) -> tuple[Tombstone, ...]:
    """Return the tombstones of rows; the other tombstones are of runs."""
    return tuple(stone for stone in log.tombstones if stone.run_id is None)


def without_stones(log: ObservationLog, stones: Collection[Tombstone]) -> ObservationLog:
    """Return the log without these tombstones. Call it once their rows cannot come back."""
    gone = set(stones)
    left = tuple(stone for stone in log.tombstones if stone not in gone)
    return log if len(left) == len(log.tombstones) else replace(log, tombstones=left)


def erase(log: ObservationLog, history: Sequence[ObservationLog], erasure: Erasure) -> ObservationLog:
    """Add tombstones for rows, and remove every entry that was made from them.

    In place of a removed reflection, the entries that it replaced come back, if ``history`` has them and they were made
    from other rows. The remaining rows of a removed entry become raw again. An entry marked as ``cut`` is emptied
    instead and still covers its remaining rows, which may contain the words that a person removed.
    """
    known = set(log.tombstones)
    if fresh := tuple(stone for stone in erasure.stones if stone not in known):
        log = replace(log, tombstones=(*log.tombstones, *fresh), erasures=log.erasures + 1)
    return erase_past(log, erasure, history)


def erase_past(log: ObservationLog, erasure: Erasure, history: Sequence[ObservationLog] = ()) -> ObservationLog:
    """Return an earlier generation without the entries made from erased rows; ``history``: as for ``erase``."""
    entries = tuple(kept for entry in log.entries for kept in _survivors(entry, history, erasure))
    pending = None if log.reflection is not None and erasure.reaches(log.reflection.entry) else log.reflection
    cleaned = with_entries(replace(log, reflection=pending), entries)
    return log if cleaned == log else cleaned


def _survivors(entry: Observation, history: Sequence[ObservationLog], erasure: Erasure) -> list[Observation]:
    """Return the entry if it may stay; otherwise those of the entries it replaced that may be restored."""
    if not erasure.reaches(entry):
        return [entry]
    if entry.cut:
        sources = tuple(left for source in entry.sources for left in erasure.left_of(source))
        return [replace(_emptied(entry), sources=sources)] if sources else []
    if entry.kind == "observation":
        return []
    sources = join_sources(entry.sources)
    covered = {source.thread_id: Coverage([entry], source.thread_id) for source in sources}
    for index in range(len(history) - 1, -1, -1):
        old = history[index].entries
        parts = [part for part in old if part.sources and _lies_in(part, covered)]
        # The generation must have all the entries that the reflection replaced, and not yet the reflection.
        found = join_sources([source for part in parts for source in part.sources])
        if found == sources and all(part.id != entry.id for part in old):
            restored = (replace(part, state="active", run_id=None) for part in parts)
            return [kept for part in restored for kept in _survivors(part, history[:index], erasure)]
    return []


def _lies_in(entry: Observation, covered: Mapping[str, Coverage]) -> bool:
    return all(s.thread_id in covered and covered[s.thread_id].covers(s.first_seq, s.last_seq) for s in entry.sources)
