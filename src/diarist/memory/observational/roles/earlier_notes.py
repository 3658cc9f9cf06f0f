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


def select_notes(entries: Iterable[str], transcript: str, limit: int, count: Callable[[str], int]) -> str:
    """Return the notes if they have at most ``limit`` tokens, else the newest lines and those about the transcript.

    A quarter of the limit goes to the end of the log, the rest to the older lines that are nearest to the transcript by
    their words, and then to the newest marked 🔴 or ✅. Lines are whole, in order, and keep their date headings.
    """
    notes = list(dated_lines(entries))
    newest = range(len(notes) - 1, -1, -1)
    shown = _fill(notes, newest, limit, count, gaps=False)
    if len(shown) < len(notes):
        shown = _fill(notes, newest, limit // 4, count, gaps=False)
        older = _nearest(notes[: len(notes) - len(shown)], transcript)
        shown = _fill(notes, [*shown, *older], limit, count, gaps=True)
    out, heading = list[str](), ""
    for place in sorted(shown):
        note = notes[place]
        out += [note.text] if note.heading == heading else [note.heading, note.text]
        heading = note.heading
    return "\n".join(out)


def _fill(
    notes: Sequence[DatedLine], places: Iterable[int], room: int, count: Callable[[str], int], *, gaps: bool
) -> list[int]:
    """Return the first of the places whose lines fit into ``room`` tokens with their headings.

    Args:
        gaps: Leave out a line that does not fit, and go on with the next one.
    """
    changes = [before.heading != after.heading for before, after in pairwise(notes)]
    section = list(accumulate(changes, initial=0))  # lines of one heading; it is written once
    taken, headed = list[int](), set[int]()
    for place in places:
        line, new = notes[place], section[place] not in headed
        size = count(line.text) + 1 + (count(line.heading) + 1 if new else 0)
        if size <= room:
            room -= size
            taken.append(place)
            headed.add(section[place])
        elif not gaps:
            break
    return taken


def _nearest(notes: Sequence[DatedLine], transcript: str) -> list[int]:
    """Return the places of the lines that share words with the transcript or are marked, nearest first.

    Nearness is the cosine of the words, weighted by how few of the lines have each (tf-idf, as search engines do).
    """
    words = [_words(note.bare) for note in notes]
    weights = {word: log(len(notes) / lines) ** 2 for word, lines in Counter(chain.from_iterable(words)).items()}
    said = _words(transcript)
    ranks: list[tuple[float, bool, int]] = []
    for place, note in enumerate(notes):
        shared = sum([weights[word] for word in words[place] & said])
        marked = note.bare.startswith(("🔴", "✅"))
        if shared or marked:
            nearness = shared / sqrt(sum([weights[word] for word in words[place]])) if shared else 0
            ranks.append((nearness, marked, place))
    return [place for _, _, place in sorted(ranks, reverse=True)]


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))
