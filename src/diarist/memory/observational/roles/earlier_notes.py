"""Notes of earlier calls: selects those that the Observer is shown, and removes repetitions from its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from diarist.byte_cache import cached
from diarist.memory.observational.roles.prompt_echo import under_headings
from diarist.storage.records import Observation

_BULLET = " \t-*•"
_HIGHLIGHT_SHARE = 0.25


class DatedLine(NamedTuple):
    """A note with its date heading; ``bare`` is the note without its bullet."""

    heading: str
    text: str
    bare: str


def dated_lines(entries: Iterable[str]) -> Iterator[DatedLine]:
    """Yield the notes of entries. A heading applies until the next one, also in later entries."""
    heading = ""
    for entry in entries:
        lines = _lines(entry, heading)
        yield from lines
        heading = lines[-1].heading if lines else heading


@cached(4_000_000)
def _lines(text: str, heading: str) -> tuple[DatedLine, ...]:
    notes: list[DatedLine] = []
    for line in text.splitlines():
        if line.startswith("Date:"):
            heading = line
        elif line.strip():
            notes.append(DatedLine(heading, line, line.strip(_BULLET)))
    return tuple(notes)


def without_repeats(text: str, earlier: Sequence[str]) -> str:
    """Return ``text`` without lines that are in ``earlier`` under the same date; empty if none is left."""
    known, heading = {(note.heading, note.bare) for note in dated_lines(earlier)}, ""
    kept: list[str] = []
    for line in text.splitlines():
        if line.startswith("Date:"):
            heading = line
        if line.startswith("Date:") or (heading, line.strip(_BULLET)) not in known:
            kept.append(line)
    return under_headings(kept)


def shorten_log(entries: Sequence[Observation], limit: int, count: Callable[[str], int]) -> str:
    """Return the entries' notes if they have at most ``limit`` tokens, else the newest and most important lines.

    Three quarters of the limit go to the end of the log, the last quarter to the newest of the older lines marked
    🔴 or ✅. Lines are whole and keep their date headings.
    """
    notes = list(dated_lines(entry.text for entry in entries))
    tail, older = _newest(notes, limit, count)
    highlights: Sequence[DatedLine] = ()
    if older:
        highlights_room = int(limit * _HIGHLIGHT_SHARE)
        tail, older = _newest(notes, limit - highlights_room, count)
        marked = [line for line in older if line.bare.startswith(("🔴", "✅"))]
        highlights, _ = _newest(marked, highlights_room, count)
    shown, out = "", list[str]()
    for date, line, _ in [*highlights, *tail]:
        out += [line] if date == shown else [date, line]
        shown = date
    return "\n".join(out)


def _newest(
    lines: Sequence[DatedLine], room: int, count: Callable[[str], int]
) -> tuple[Sequence[DatedLine], Sequence[DatedLine]]:
    """Return the last lines that fit into ``room`` tokens, and the lines before them."""
    start, heading = len(lines), ""
    while start:
        date, line, _ = lines[start - 1]
        room -= count(line) + 1 + (count(date) + 1 if date != heading else 0)
        if room < 0:
            break
        start, heading = start - 1, date
    return lines[start:], lines[:start]
