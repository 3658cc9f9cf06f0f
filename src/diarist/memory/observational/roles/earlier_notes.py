"""Notes of earlier calls: selects those that the Observer is shown, and removes repetitions from its answer."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from math import log, sqrt
from sys import intern
from typing import NamedTuple

from diarist.byte_cache import cached
from diarist.memory.observational.roles.prompt_echo import under_headings

_BULLET = " \t-*•"
_MARKED = ("🔴", "✅")
_WORD = re.compile(r"\w{3,}")


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


def _size_of_lines(text: str, heading: str) -> int:
    return 12 * len(text)  # each line twice, with up to four bytes a character


@cached(4_000_000, largest=4_000_000, size=_size_of_lines)
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
    lines = text.splitlines()
    bare = {line.strip(_BULLET) for line in lines}
    known, heading = {(note.heading, note.bare) for note in dated_lines(earlier) if note.bare in bare}, ""
    kept: list[str] = []
    for line in lines:
        if line.startswith("Date:"):
            heading = line
        if line.startswith("Date:") or (heading, line.strip(_BULLET)) not in known:
            kept.append(line)
    return under_headings(kept)


def select_notes(entries: Sequence[str], transcript: str, limit: int, count: Callable[[str], int]) -> str:
    """Return the notes if they have at most ``limit`` tokens, else the newest lines and those about the transcript.

    A quarter of the limit goes to the end of the log, the rest to the older lines that are nearest to the transcript by
    their words, and then to the newest marked 🔴 or ✅. Lines are whole, in order, and keep their date headings.
    """
    notes, text_tokens, heading_tokens = list[DatedLine](), list[int](), list[int]()
    headed, heading = list[tuple[str, str]](), ""  # entries with the headings before them
    for entry in entries:
        headed.append((entry, heading))
        notes += (found := _lines(entry, heading))
        text_tokens += (sizes := _sizes(entry, heading, count)).text_tokens
        heading_tokens += sizes.heading_tokens
        heading = found[-1].heading if found else heading
    changes = [before.heading != after.heading for before, after in pairwise(notes)]
    lines = _Lines(text_tokens, heading_tokens, list(accumulate(changes, initial=0)))
    newest = range(len(notes) - 1, -1, -1)
    shown = lines.fill(newest, limit, gaps=False)
    if len(shown) < len(notes):
        shown = lines.fill(newest, limit // 4, gaps=False)
        nearest = [place for place in _nearest(notes, headed, transcript) if place < len(notes) - len(shown)]
        shown = lines.fill([*shown, *nearest], limit, gaps=True)
    out, heading = list[str](), ""
    for place in sorted(shown):
        note = notes[place]
        out += [note.text] if note.heading == heading else [note.heading, note.text]
        heading = note.heading
    return "\n".join(out)


class _Sizes(NamedTuple):
    """The sizes of lines and of their headings in tokens, with a line break each."""

    text_tokens: Sequence[int]
    heading_tokens: Sequence[int]


@cached(2_000_000, largest=2_000_000)
def _sizes(entry: str, heading: str, count: Callable[[str], int]) -> _Sizes:
    notes = _lines(entry, heading)
    headings = {heading: count(heading) + 1 for heading in {note.heading for note in notes}}
    return _Sizes([count(note.text) + 1 for note in notes], [headings[note.heading] for note in notes])


class _Lines(NamedTuple):
    """The sizes of lines in tokens, and the number of the section of each: lines of one heading, written once."""

    text_tokens: Sequence[int]
    heading_tokens: Sequence[int]
    section: Sequence[int]

    def fill(self, places: Iterable[int], room: int, *, gaps: bool) -> list[int]:
        """Return the first of the places whose lines fit into ``room`` tokens with their headings.

        Args:
            gaps: Leave out a line that does not fit, and go on with the next one.
        """
        taken, headed = list[int](), set[int]()
        for place in places:
            section = self.section[place]
            size = self.text_tokens[place] + (0 if section in headed else self.heading_tokens[place])
            if size <= room:
                room -= size
                taken.append(place)
                headed.add(section)
            elif not gaps:
                break
        return taken


def _nearest(notes: Sequence[DatedLine], entries: Iterable[tuple[str, str]], transcript: str) -> list[int]:
    """Return the places of the lines that share words with the transcript or are marked, nearest first.

    Shared words weigh the more, the fewer lines have them (tf-idf, as in search engines); long lines are discounted.
    """
    said, indexes = _words(transcript), [_index(entry, heading) for entry, heading in entries]
    shared = [[found for found in index.places.items() if found[0] in said] for index in indexes]
    having = defaultdict[str, int](int)
    for word, places in chain.from_iterable(shared):
        having[word] += len(places)
    # Whole numbers: their sum does not depend on the order of the words.
    weights = {lines: round(1e6 * log(len(notes) / lines) ** 2) for lines in set(having.values())}
    nearness: list[float] = []
    for index, found in zip(indexes, shared, strict=True):
        sums = [0] * len(index.roots)
        for word, places in found:
            weight = weights[having[word]]
            for place in places:
                sums[place] += weight
        nearness += [total / root for total, root in zip(sums, index.roots, strict=True)]
    ranks = [(near, notes[place].bare.startswith(_MARKED), place) for place, near in enumerate(nearness)]
    return [place for near, marked, place in sorted(ranks, reverse=True) if near or marked]


class _Index(NamedTuple):
    """The words of an entry's lines.

    Attributes:
        roots: The square root of the number of words of each line, at least 1.
        places: For each word, the places in the entry of the lines that have it.
    """

    roots: Sequence[float]
    places: Mapping[str, Sequence[int]]


def _size_of_index(entry: str, heading: str) -> int:
    return 20 * len(entry)  # a word of six letters takes about 100 bytes, with its places


@cached(8_000_000, largest=8_000_000, size=_size_of_index)
def _index(entry: str, heading: str) -> _Index:
    roots, places = list[float](), dict[str, list[int]]()
    for place, note in enumerate(_lines(entry, heading)):
        words = set(_WORD.findall(note.bare.casefold()))
        roots.append(sqrt(len(words) or 1))
        for word in words:
            places.setdefault(intern(word), []).append(place)
    return _Index(roots, places)


def _words(text: str) -> frozenset[str]:
    words = " ".join(set(text.split())).casefold()  # most words of a long text repeat
    return frozenset(_WORD.findall(words))
