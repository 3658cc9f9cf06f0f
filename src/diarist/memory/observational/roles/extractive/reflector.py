"""The Reflector that needs no model, and the diary lines that it and the extractive Observer write."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from diarist.chunks import Usage
from diarist.exceptions import RoleError
from diarist.memory.observational.roles.base import EXTRACTIVE, Reflected
from diarist.memory.observational.roles.extractive.tools import shorten_at_space
from diarist.storage.records import Observation
from diarist.tokens import TokenCounter, default_counter

RANKS = {"🔴": 3, "✅": 2, "🟡": 1, "🟢": 0}
"""Importance of the marks: lines of rank 0 are dropped first."""

_LINE = re.compile(r"(?P<indent>\s*)(?:[-*•]\s+)?(?:(?P<mark>[🔴✅🟡🟢])\s*)?(?:(?P<time>\d\d?:\d\d)\s+)?(?P<text>.*)")
_MEANING = re.compile(r"\s?\(meaning[^()]*\)")
_SIGNS = re.compile(r"[\W_]+")
_SPEAKER = re.compile(r"^Assistant called\s|^[^:]{1,80}? (?:stated|said|asked|requested|answered):\s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One note.

    Attributes:
        date: The heading above it; empty if there is none.
        mark: A key of ``RANKS``, or empty.
        time: ``09:12``, or empty.
        detail: The line is indented below the one before it.
    """

    date: str
    mark: str
    time: str
    text: str
    detail: bool = False

    @property
    def body(self) -> str:
        """The text without its speaker and without computed dates."""
        return _MEANING.sub("", _SPEAKER.sub("", self.text))

    def __str__(self) -> str:
        words = (part for part in (self.mark, self.time, self.text) if part)
        return f"{'  ' if self.detail else ''}- {' '.join(words)}"


def write_lines(lines: Iterable[Line]) -> str:
    """Join lines under their date headings."""
    out: list[str] = []
    date = ""
    for line in lines:
        out += [str(line)] if line.date == date else [line.date, str(line)]
        date = line.date
    return "\n".join(out)


def read_lines(text: str) -> Iterator[Line]:
    """Yield the lines of a diary, also if a model wrote it. Leaves out blank lines."""
    date = ""
    for raw in text.splitlines():
        if raw.startswith("Date:"):
            date = raw.strip()
        elif raw.strip() and (match := _LINE.fullmatch(raw)):
            mark, time, words = match["mark"] or "", match["time"] or "", match["text"].strip()
            yield Line(date=date, mark=mark, time=time, text=words, detail=len(match["indent"]) >= 2)


def fingerprint(text: str) -> str:
    """Return the same string for texts that differ only in case, blanks and punctuation."""
    return _SIGNS.sub(" ", text.casefold()).strip()


class ExtractiveReflector:
    """Condenses a log by leaving out lines, by fixed rules.

    Puts notes of one day under one heading, and keeps only the newest of equal notes. Then drops lines, the oldest
    first, until the rest is below the target: lines marked 🟢, then 🟡 or unmarked ones, details before the line that
    they belong to. If only lines marked 🔴 or ✅ are left, cuts them to 160 characters; then drops ✅, then
    🔴. At least one line stays. An important detail of a dropped line loses its indentation.

    Args:
        counter: Counts the result; o200k_base by default.
    """

    def __init__(self, *, counter: TokenCounter | None = None) -> None:
        self._counter = counter or default_counter()

    async def reflect(
        self, entries: Sequence[Observation], *, target_tokens: int, guidance: str | None = None
    ) -> Reflected:
        """See ``ReflectorRole``. Guidance has no effect except a warning."""
        noted = list(read_lines("\n".join(entry.text for entry in entries)))
        if not noted:
            raise RoleError("there are no notes to reflect on")
        parents: list[int] = []  # the place of the line that a detail belongs to; of other lines, their own
        ranks: list[int] = []
        days: dict[str, int] = {}
        for place, line in enumerate(noted):
            below = line.detail and place > 0 and noted[place - 1].date == line.date
            parents.append(parents[-1] if below else place)
            rank = RANKS.get(line.mark, 1)
            ranks.append(min(rank, ranks[parents[-1]]) if below and rank < 2 else rank)
            days.setdefault(line.date, place)
        newest = {fingerprint(line.body) or line.text: place for place, line in enumerate(noted)}
        places = sorted(newest.values(), key=lambda place: (days[noted[place].date], place))
        kept = {place: noted[place] for place in places}
        order = sorted(kept, key=lambda place: (ranks[place], parents[place], -place))
        kept = self._without(kept, [place for place in order if ranks[place] < 2], target_tokens)
        if self._counter.count(write_lines(kept.values())) >= target_tokens:
            kept = {place: replace(line, text=shorten_at_space(line.text, 160)) for place, line in kept.items()}
            kept = self._without(kept, [place for place in order if ranks[place] >= 2], target_tokens)
        details = {place for place in kept if parents[place] != place and parents[place] in kept}
        text = write_lines(replace(line, detail=place in details) for place, line in kept.items())
        warnings = ["the extractive Reflector does not follow guidance"] if guidance else []
        return Reflected(text=text, usage=Usage(), model=EXTRACTIVE, calls=0, warnings=tuple(warnings))

    def _without(self, lines: dict[int, Line], places: Sequence[int], target_tokens: int) -> dict[int, Line]:
        """Leave out lines in this order until the rest is below the target, or only one line is left."""

        def rest(dropped: int) -> dict[int, Line]:
            gone = set(places[:dropped])
            return {place: line for place, line in lines.items() if place not in gone}

        def fits(dropped: int) -> bool:
            return self._counter.count(write_lines(rest(dropped).values())) < target_tokens

        return rest(bisect_left(range(min(len(places), len(lines) - 1)), True, key=fits))
