"""The lines of a diary, each with the date it stands under.

A diary grows by an entry at a time, and each call of the Observer looks at all of it: the lines of an entry are kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

_BULLET = " \t-*•"


class DatedLine(NamedTuple):
    """A note; ``bare``: without its bullet."""

    heading: str
    text: str
    bare: str


def bare(line: str) -> str:
    """A line without its bullet."""
    return line.strip(_BULLET)


def dated_lines(entries: Iterable[str]) -> list[tuple[DatedLine, ...]]:
    """The notes of each of these entries' texts. A heading holds until the next, also in the entries that follow."""
    return [lines.notes for lines in _each(entries)]


class NotedBefore:
    """Which notes stand in a diary already: asked with heading and bare text."""

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


@lru_cache(maxsize=1024)
def _lines(text: str, heading: str) -> _Lines:
    notes: list[DatedLine] = []
    for line in text.splitlines():
        if line.startswith("Date:"):
            heading = line
        elif line.strip():
            notes.append(DatedLine(heading, line, bare(line)))
    return _Lines(tuple(notes), frozenset((note.heading, note.bare) for note in notes), heading)
