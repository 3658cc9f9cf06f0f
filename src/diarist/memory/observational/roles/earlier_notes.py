"""Notes of earlier calls: shown to the Observer, and not repeated by it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from sys import getsizeof
from typing import NamedTuple

from diarist.byte_cache import ByteCache, cached
from diarist.memory.observational.roles.prompt_echo import under_headings
from diarist.storage.records import Observation
from diarist.tokens import TokenCounter

_BULLET = " \t-*•"
_HIGHLIGHT_SHARE = 0.25


class DatedLine(NamedTuple):
    """A note with its date heading; ``bare`` is the note without its bullet."""

    heading: str
    text: str
    bare: str


def bare(line: str) -> str:
    """Return a line without its bullet."""
    return line.strip(_BULLET)


def has_notes(text: str) -> bool:
    """Return whether there is any line besides headings."""
    return any(line.strip() and not line.startswith("Date:") for line in text.splitlines())


def dated_lines(entries: Iterable[str]) -> list[tuple[DatedLine, ...]]:
    """Return the notes of each entry. A heading applies until the next one, also in later entries."""
    return [lines.notes for lines in _each(entries)]


class NotedBefore:
    """The notes of a diary; ``(heading, bare text) in ...`` tests whether one is known."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._known = [lines.known for lines in _each(entries)]

    def __contains__(self, note: tuple[str, str]) -> bool:
        return any(note in known for known in self._known)


class _Lines(NamedTuple):
    notes: tuple[DatedLine, ...]
    known: frozenset[tuple[str, str]]
    last_heading: str


def _each(entries: Iterable[str]) -> Iterable[_Lines]:
    heading = ""
    for entry in entries:
        lines = _lines(entry, heading)
        heading = lines.last_heading
        yield lines


@cached(4_000_000)
def _lines(text: str, heading: str) -> _Lines:
    notes: list[DatedLine] = []
    for line in text.splitlines():
        if line.startswith("Date:"):
            heading = line
        elif line.strip():
            notes.append(DatedLine(heading, line, bare(line)))
    return _Lines(tuple(notes), frozenset((note.heading, note.bare) for note in notes), heading)


def only_repeats(text: str, earlier: Sequence[str]) -> bool:
    """Return whether ``text`` has lines and all of them are in ``earlier`` under the same date."""
    (lines,), known = dated_lines([text]), NotedBefore(earlier)
    return bool(lines) and all((line.heading, line.bare) in known for line in lines)


def without_repeats(text: str, earlier: Sequence[str]) -> str:
    """Return ``text`` without lines that are in ``earlier`` under the same date; all of it if none would be left."""
    known, heading = NotedBefore(earlier), ""
    kept: list[str] = []
    for line in text.splitlines():
        if line.startswith("Date:"):
            heading = line
        if line.startswith("Date:") or (heading, bare(line)) not in known:
            kept.append(line)
    return under_headings(kept) or text


def shorten_log(entries: Sequence[Observation], limit: int, counter: TokenCounter) -> str:
    """Return the entries' text if it has at most ``limit`` tokens, else its newest and most important lines.

    Three quarters of the limit go to the end of the log, the last quarter to the newest of the older lines marked
    🔴 or ✅. Lines are whole and keep their date headings.
    """
    texts = [entry.text for entry in entries]
    notes = dated_lines(texts)
    sizes = [_size(text, lines, counter) for text, lines in zip(texts, notes, strict=True)]
    if sum(sizes) <= limit:
        return "\n".join(texts)
    room = tail_room = limit - int(limit * _HIGHLIGHT_SHARE)
    start = len(notes)
    while sizes[start - 1] <= room:  # whole entries; not all of them fit
        start -= 1
        room -= sizes[start]
    part, rest = _newest(notes[start - 1], room, counter)
    older = chain.from_iterable((*notes[: start - 1], rest))
    marked = [line for line in older if line.bare.startswith(("🔴", "✅"))]
    highlights, _ = _newest(marked, limit - tail_room, counter)
    return "\n".join(_with_headings([*highlights, *part, *chain.from_iterable(notes[start:])]))


def _size(text: str, lines: Sequence[DatedLine], counter: TokenCounter) -> int:
    """Count the tokens of an entry, including a heading inherited from the entry before it."""
    heading = lines[0].heading if lines else ""
    inherited = counter.count(heading) + 1 if heading and not text.startswith(heading) else 0
    return counter.count(text) + 1 + inherited


def _newest(
    lines: Sequence[DatedLine], room: int, counter: TokenCounter
) -> tuple[Sequence[DatedLine], Sequence[DatedLine]]:
    """Return the last lines that fit into ``room`` tokens, and the lines before them."""
    start, heading = len(lines), ""
    while start:
        date, line, _ = lines[start - 1]
        room -= counter.count(line) + 1 + (counter.count(date) + 1 if date != heading else 0)
        if room < 0:
            break
        start, heading = start - 1, date
    return lines[start:], lines[:start]


def _with_headings(lines: list[DatedLine]) -> list[str]:
    shown, out = "", list[str]()
    for date, line, _ in lines:
        if date != shown:
            out.append(date)
            shown = date
        out.append(line)
    return out


class CachedCounter:
    """Counts earlier notes and remembers the counts, since each call counts mostly the same entries."""

    def __init__(self, counter: TokenCounter) -> None:
        self.name = counter.name
        self._counter = counter

    def count(self, text: str) -> int:
        key = self.name, text
        tokens = _counts.get(key)
        if tokens is None:
            tokens = self._counter.count(text)
            _counts.put(key, tokens, _OF_A_COUNT + getsizeof(text))
        return tokens


_counts: ByteCache[tuple[str, str], int] = ByteCache(1_000_000)
_OF_A_COUNT = 300
