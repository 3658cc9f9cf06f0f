"""What people change in a log, as pure functions from log to log; ``transitions`` has what memory itself does.

As there, doing it twice is the same as doing it once, and a function that changes nothing returns its argument.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from diarist.exceptions import NotFoundError
from diarist.memory.observational.log.coverage import Coverage
from diarist.memory.observational.log.transitions import derive_hints, still_there
from diarist.storage.records import Failures, Hints, Observation, ObservationLog, Source, Tombstone
from diarist.storage.words import text_terms

_HINTS = {"current_task": None, "suggested_response": None, "thread_title": None}

# --- words -------------------------------------------------------------------------------------------------


def edit_text(log: ObservationLog, observation_id: str, text: str, tokens: int) -> ObservationLog:
    """Let an entry say something else; lines that stay keep their citations. A reflection that would replace it
    falls. An entry that loses a word is marked as ``cut``. Raises NotFoundError."""
    entry = find(log, observation_id)
    before, after = entry.text.splitlines(), text.splitlines()
    cited = dict(zip(before, entry.citations, strict=False))
    citations = tuple(cited.get(line, ()) for line in after) if cited else ()
    cut = entry.cut or bool(_words(entry.text) - _words(text))
    return _replace_entry(log, entry, replace(entry, text=text, tokens=tokens, citations=citations, cut=cut))


def _words(text: str) -> Counter[str]:
    """What a text says, however it is written: without case, punctuation and marks such as 🔴."""
    return Counter(term for piece in text.split() for term in text_terms(piece))


def delete_text(log: ObservationLog, observation_id: str) -> ObservationLog:
    """Let an entry say nothing; it goes on covering its rows, which would be observed anew otherwise.

    Raises NotFoundError.
    """
    entry = find(log, observation_id)
    return _replace_entry(log, entry, _emptied(entry))


def find(log: ObservationLog, observation_id: str) -> Observation:
    """The entry of this id. Raises NotFoundError."""
    for entry in log.entries:
        if entry.id == observation_id:
            return entry
    raise NotFoundError(
        f"the log {log.key!r} has no observation {observation_id!r}; where a reflection has replaced it, "
        "edit that: observations(...).entries has the ids"
    )


def empty(log: ObservationLog) -> ObservationLog:
    """The log without its entries, and without what follows from them. Work in flight does not bring them back."""
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
    entries = tuple(new if entry is old else entry for entry in log.entries)
    return _with_entries(log, entries)


# --- erasing -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Erasure:
    """Rows that are to be forgotten.

    Attributes:
        stones: Their ranges.
        words: Terms that only these rows say; an entry that says one has it from them, by whatever way.
    """

    stones: tuple[Tombstone, ...]
    words: frozenset[str] = frozenset()

    def reaches(self, entry: Observation) -> bool:
        """Whether an entry was made from the rows, or says a word that only they said."""
        if any(
            s.thread_id in self._gone and self._gone[s.thread_id].meets(s.first_seq, s.last_seq) for s in entry.sources
        ):
            return True
        hints = [getattr(one, name) for one in (entry, *entry.hints) for name in _HINTS]
        return self.is_said_in(entry.text, *filter(None, hints))

    def left_of(self, source: Source) -> list[Source]:
        """What of a source is not to be forgotten."""
        gone = self._gone.get(source.thread_id, Coverage((), ""))
        pieces: list[Source] = []
        for after, before in gone.holes(source.last_seq + 1):
            first, last = max(after + 1, source.first_seq), source.last_seq if before is None else before - 1
            pieces += [replace(source, first_seq=first, last_seq=last)] if first <= last else []
        return pieces

    @cached_property
    def _gone(self) -> dict[str, Coverage]:
        threads = {stone.thread_id for stone in self.stones}
        return {thread_id: Coverage((), thread_id, self.stones) for thread_id in threads}

    def is_said_in(self, *texts: str) -> bool:
        return any(not self.words.isdisjoint(text_terms(text)) for text in texts)


def tombstones_of(thread_id: str, seqs: Iterable[int]) -> tuple[Tombstone, ...]:
    """Ranges of rows that follow each other."""
    ranges: list[tuple[int, int]] = []
    for seq in sorted(set(seqs)):
        if ranges and seq == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], seq)
        else:
            ranges.append((seq, seq))
    return tuple(Tombstone(thread_id=thread_id, first_seq=first, last_seq=last) for first, last in ranges)


def row_stones(log: ObservationLog) -> tuple[Tombstone, ...]:
    """The tombstones that name rows; others name runs."""
    return tuple(stone for stone in log.tombstones if stone.run_id is None)


def without_stones(log: ObservationLog, stones: Collection[Tombstone]) -> ObservationLog:
    """The log when these rows are gone and nobody can bring them back."""
    gone = set(stones)
    left = tuple(stone for stone in log.tombstones if stone not in gone)
    return log if len(left) == len(log.tombstones) else replace(log, tombstones=left)


def touches(entry: Observation, stones: Collection[Tombstone]) -> bool:
    """Whether an entry was made from any of these rows."""
    return any(
        source.thread_id == stone.thread_id
        and source.first_seq <= stone.last_seq
        and stone.first_seq <= source.last_seq
        for source in entry.sources
        for stone in stones
    )


def erase(log: ObservationLog, history: Sequence[ObservationLog], erasure: Erasure) -> ObservationLog:
    """Mark rows as gone, and take out every entry that they reach.

    A reflection cannot be cut by words: what it replaced takes its place again, as far as ``history`` has it and
    it is not reached itself. The rows of what is taken out are raw again, but for those that are gone. An entry that
    a person took words out of is emptied, and goes on covering the rows that are left: these, or what it replaced,
    may say those words.
    """
    entries = tuple(kept for entry in log.entries for kept in _survivors(entry, history, erasure))
    known = set(log.tombstones)
    fresh = tuple(stone for stone in erasure.stones if stone not in known)
    pending = log.reflection
    if entries == log.entries and not fresh and not (pending and erasure.reaches(pending.entry)):
        return log
    log = replace(log, tombstones=(*log.tombstones, *fresh), erasures=log.erasures + bool(fresh))
    return _quiet(_with_entries(log, entries, erasure))


def erase_past(log: ObservationLog, erasure: Erasure) -> ObservationLog:
    """An earlier generation without the entries that erased rows reach, and without the texts of errors."""
    entries = tuple(kept for entry in log.entries for kept in _survivors(entry, (), erasure))
    cleaned = _quiet(_with_entries(log, entries, erasure))
    return log if cleaned == log else cleaned


def _survivors(entry: Observation, history: Sequence[ObservationLog], erasure: Erasure) -> list[Observation]:
    """The entry, or what of the entries that it replaced may stand again."""
    if not erasure.reaches(entry):
        return [entry]
    if entry.cut:
        sources = tuple(left for source in entry.sources for left in erasure.left_of(source))
        return [replace(_emptied(entry), sources=sources)] if sources else []
    if entry.kind == "observation":
        return []
    for index in range(len(history) - 1, -1, -1):
        parts = _parts(entry, history[index])
        if parts:
            return [kept for part in parts for kept in _survivors(part, history[:index], erasure)]
    return []


def _parts(reflection: Observation, log: ObservationLog) -> list[Observation]:
    """The entries of an earlier generation that a reflection replaced; none where that has not all of them."""
    if any(entry.id == reflection.id for entry in log.entries):
        return []
    covered = set(reflection.sources)
    parts = [entry for entry in log.entries if entry.sources and set(entry.sources) <= covered]
    whole = len(covered) == sum(len(entry.sources) for entry in parts)
    return [replace(entry, state="active", run_id=None) for entry in parts] if whole else []


def _with_entries(
    log: ObservationLog, entries: tuple[Observation, ...], erasure: Erasure | None = None
) -> ObservationLog:
    log = replace(log, entries=entries, hints=derive_hints(entries))
    pending = log.reflection
    if pending is not None:
        reached = erasure is not None and erasure.reaches(pending.entry)
        if reached or not still_there(log, pending.replaces):
            return replace(log, reflection=None)
    return log


def _quiet(log: ObservationLog) -> ObservationLog:
    """Without the texts of errors, which may quote what a model was told, and without what was refused."""
    return replace(
        log,
        observer_failures=replace(log.observer_failures, last_error="", refused=()),
        reflector_failures=replace(log.reflector_failures, last_error=""),
    )
