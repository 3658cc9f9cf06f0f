"""Notes of earlier calls: selects those that the Observer is shown, and removes repetitions from its answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, pairwise
from math import log, sqrt
from sys import intern
from typing import NamedTuple

from diarist.byte_cache import cached
from diarist.memory.observational.roles.prompt_echo import under_headings

_BULLET = " \t-*•"
_MARKED = ("🔴", "✅")
_WORD = re.compile(r"\w{3,}")


class Note(NamedTuple):
    """A line of notes with its date heading; ``bare`` is the line without its bullet."""

    heading: str
    text: str
    bare: str
    words: frozenset[str]


def _size_of_notes(text: str, heading: str) -> int:
    return 40 * len(text)  # each line twice, with up to four bytes a character, and its words


@cached(12_000_000, largest=12_000_000, size=_size_of_notes)
def _notes_of(text: str, heading: str) -> tuple[Note, ...]:
    """Return the notes of an entry. ``heading``: the one that applies until the entry's first."""
    notes: list[Note] = []
    for line in text.splitlines():
        if line.startswith("Date:"):
            heading = line
        elif line.strip():
            bare = line.strip(_BULLET)
            notes.append(Note(heading, line, bare, frozenset(map(intern, _WORD.findall(bare.casefold())))))
    return tuple(notes)


@cached(2_000_000, largest=2_000_000)
def _sizes_of(text: str, heading: str, count: Callable[[str], int]) -> tuple[int, ...]:
    """Return the tokens of an entry's notes, with a line break each."""
    return tuple([count(note.text) + 1 for note in _notes_of(text, heading)])


def without_repeats(text: str, earlier: Sequence[str]) -> str:
    """Return ``text`` without lines that are in ``earlier`` under the same date; empty if none is left."""
    notes: list[Note] = []
    for entry in earlier:
        notes += _notes_of(entry, notes[-1].heading if notes else "")
    known, heading = {(note.heading, note.bare) for note in notes}, ""
    kept: list[str] = []
    for line in text.splitlines():
        if line.startswith("Date:"):
            heading = line
        if line.startswith("Date:") or (heading, line.strip(_BULLET)) not in known:
            kept.append(line)
    return under_headings(kept)


def select_notes(entries: Sequence[str], transcript: str, limit: int, count: Callable[[str], int]) -> str:
    """Return the notes if they have at most ``limit`` tokens, else the newest lines and those about the transcript.

    If there are more, the newest lines get a quarter of the limit. The rest goes to older lines: first those that share
    the most words with the transcript, then the newest marked 🔴 or ✅. Lines are whole, in order, and keep their date
    headings.
    """
    notes, sizes = list[Note](), list[int]()
    for entry in entries:
        heading = notes[-1].heading if notes else ""
        sizes += _sizes_of(entry, heading, count)
        notes += _notes_of(entry, heading)
    heading_sizes = {heading: count(heading) + 1 for heading in {note.heading for note in notes}}
    changes = [before.heading != after.heading for before, after in pairwise(notes)]
    sections = list(accumulate(changes, initial=0))  # the lines of a section share a heading, which is written once

    def fill(places: Iterable[int], room: int, *, gaps: bool) -> list[int]:
        """Return the first of the places whose lines fit into ``room`` tokens with their headings.

        Args:
            gaps: Leave out a line that does not fit, and go on with the next one.
        """
        taken, headed = list[int](), set[int]()
        for place in places:
            section = sections[place]
            size = sizes[place] + (0 if section in headed else heading_sizes[notes[place].heading])
            if size <= room:
                room -= size
                taken.append(place)
                headed.add(section)
            elif not gaps:
                break
        return taken

    newest = range(len(notes) - 1, -1, -1)
    shown = fill(newest, limit, gaps=False)
    if len(shown) < len(notes):
        shown = fill(newest, limit // 4, gaps=False)
        nearest = [place for place in _nearest(notes, transcript) if place < len(notes) - len(shown)]
        shown = fill([*shown, *nearest], limit, gaps=True)
    out, heading = list[str](), ""
    for place in sorted(shown):
        note = notes[place]
        out += [note.text] if note.heading == heading else [note.heading, note.text]
        heading = note.heading
    return "\n".join(out)


def _nearest(notes: Sequence[Note], transcript: str) -> list[int]:
    """Return the places of the lines that share words with the transcript or are marked, nearest first.

    Shared words weigh the more, the fewer lines have them (tf-idf, as in search engines); long lines are discounted.
    """
    said = set(_WORD.findall(" ".join(set(transcript.split())).casefold()))  # most words of a long text repeat
    shared = [note.words & said for note in notes]
    # Whole numbers: their sum does not depend on the order of the words.
    having = Counter(chain.from_iterable(shared))
    weights = {word: round(1e6 * log(len(notes) / lines) ** 2) for word, lines in having.items()}
    nearness = [
        sum([weights[word] for word in words]) / sqrt(len(note.words) or 1)
        for note, words in zip(notes, shared, strict=True)
    ]
    ranks = [(near, notes[place].bare.startswith(_MARKED), place) for place, near in enumerate(nearness)]
    return [place for near, marked, place in sorted(ranks, reverse=True) if near or marked]
