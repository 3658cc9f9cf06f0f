"""Notes of earlier calls: selects those that the Observer is shown, and removes repetitions from its answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from math import log, sqrt
from typing import NamedTuple

from diarist.byte_cache import cached
from diarist.memory.observational.roles.prompt_echo import under_headings

_BULLET = " \t-*•"
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


@cached(4_000_000, largest=4_000_000)
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


def select_notes(entries: Sequence[str], transcript: str, limit: int, count: Callable[[str], int]) -> str:
    """Return the notes if they have at most ``limit`` tokens, else the newest lines and those about the transcript.

    A quarter of the limit goes to the end of the log, the rest to the older lines that are nearest to the transcript by
    their words, and then to the newest marked 🔴 or ✅. Lines are whole, in order, and keep their date headings.
    """
    notes, text_tokens, heading_tokens, heading = list[DatedLine](), list[int](), list[int](), ""
    for entry in entries:
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
        nearest = [place for place in _nearest(notes, entries, transcript) if place < len(notes) - len(shown)]
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


def _nearest(notes: Sequence[DatedLine], entries: Sequence[str], transcript: str) -> list[int]:
    """Return the places of the lines that share words with the transcript or are marked, nearest first.

    Shared words weigh the more, the fewer lines have them (tf-idf, as in search engines); long lines are discounted.
    """
    words, said = [line for entry in entries for line in _words_of_lines(entry)], _words(transcript)
    shared = [line & said for line in words]
    weights = {word: log(len(notes) / lines) ** 2 for word, lines in Counter(chain.from_iterable(shared)).items()}
    ranks: list[tuple[float, bool, int]] = []
    for place, note in enumerate(notes):
        nearness = sum([weights[word] for word in shared[place]])
        marked = note.bare.startswith(("🔴", "✅"))
        if nearness or marked:
            ranks.append((nearness / sqrt(len(words[place]) or 1), marked, place))
    return [place for _, _, place in sorted(ranks, reverse=True)]


def _size_of_words(entry: str) -> int:
    return 20 * len(entry)  # a word of six letters takes about 100 bytes, with its place in the set


@cached(8_000_000, largest=8_000_000, size=_size_of_words)
def _words_of_lines(entry: str) -> tuple[frozenset[str], ...]:
    return tuple([_words(note.bare) for note in _lines(entry, "")])


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(" ".join(set(text.casefold().split()))))  # most words of a long text repeat
