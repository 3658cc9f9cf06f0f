"""The Reflector that needs no model, and the diary lines that it and the extractive Observer write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from diarist.chunks import Usage
from diarist.memory.observational.roles.base import Reflected, RoleError
from diarist.memory.observational.roles.extractive.tools import shorten
from diarist.storage.records import Observation
from diarist.tokens import TokenCounter, default_counter

MODEL = "extractive"
"""The value of ``Observed.model`` and ``Reflected.model``."""

MARKS = ("🔴", "✅", "🟡", "🟢")
"""The most important first."""

_LENGTHS = (160, 100, 60)
_STAYS = 3

_LINE = re.compile(r"(?P<indent>\s*)(?:[-*•]\s+)?(?:(?P<mark>🔴|🟡|🟢|✅)\s*)?(?:(?P<time>\d\d?:\d\d)\s+)?(?P<text>.*)")
_MEANING = re.compile(r"\s?\(meaning[^()]*\)")
_SIGNS = re.compile(r"[\W_]+")
_SPEAKER = re.compile(r"^Assistant called\s|^[^:]{1,80}? (?:stated|said|asked|requested|answered):\s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One note.

    Attributes:
        date: The heading above it; empty if there is none.
        mark: One of ``MARKS``, or empty.
        time: ``09:12``, or empty.
        detail: The line is indented below the one before it.
        messages: Places of the messages that it was made from; empty if unknown.
    """

    date: str
    mark: str
    time: str
    text: str
    detail: bool = False
    messages: tuple[int, ...] = ()

    def __str__(self) -> str:
        words = (part for part in (self.mark, self.time, self.text) if part)
        return f"{'  ' if self.detail else ''}- {' '.join(words)}"


def write_lines(lines: Iterable[Line]) -> str:
    """Join lines under their date headings."""
    out: list[str] = []
    date = ""
    for line in lines:
        if line.date != date:
            out.append(line.date)
            date = line.date
        out.append(str(line))
    return "\n".join(out)


def read_lines(text: str) -> Iterator[Line]:
    """Yield the lines of a diary, also if a model wrote it. Leaves out blank lines."""
    date = ""
    for raw in text.splitlines():
        if raw.startswith("Date:"):
            date = raw.strip()
        elif raw.strip() and (match := _LINE.fullmatch(raw)):
            indented = len(match["indent"]) >= 2
            mark, time, words = match["mark"] or "", match["time"] or "", match["text"].strip()
            yield Line(date=date, mark=mark, time=time, text=words, detail=indented)


def body(text: str) -> str:
    """Return a note without its speaker and without computed dates."""
    return _MEANING.sub("", _SPEAKER.sub("", text))


def fingerprint(text: str) -> str:
    """Return the same string for texts that differ only in case, blanks and punctuation."""
    return _SIGNS.sub(" ", text.casefold()).strip()


class ExtractiveReflector:
    """Condenses a log by leaving out lines, by fixed rules.

    Puts notes of one day under one heading, and keeps only the newest of equal notes. Then drops lines, the oldest
    first, until the rest is below the target: lines marked 🟢, then 🟡 or unmarked ones, then details. Lines marked 🔴
    or ✅ stay. If these are still too long, they are cut to 160, then 100, then 60 characters.

    Args:
        counter: Counts the result; o200k_base by default.
    """

    def __init__(self, *, counter: TokenCounter | None = None) -> None:
        self._counter = counter or default_counter()

    async def reflect(
        self, entries: Sequence[Observation], *, target_tokens: int, guidance: str | None = None
    ) -> Reflected:
        """See ``ReflectorRole``. Guidance has no effect except a warning."""
        newest: dict[str, Line] = {}
        days: dict[str, list[Line]] = {}
        for line in read_lines("\n".join(entry.text for entry in entries)):
            said = fingerprint(body(line.text)) or line.text
            if older := newest.get(said):
                days[older.date].remove(older)
            newest[said] = line
            days.setdefault(line.date, []).append(line)
        lines = [line for day in days.values() for line in day]
        if not lines:
            raise RoleError("there are no notes to reflect on")
        excess = self._counter.count(write_lines(lines)) - target_tokens
        dropped: set[int] = set()
        ranks: list[int] = []
        above = _STAYS
        for line in lines:
            rank = {"🟢": 0, "🔴": 2 if line.detail else _STAYS, "✅": _STAYS}.get(line.mark, 1)
            if not line.detail:
                above = rank
            elif rank != _STAYS:  # a detail is dropped no later than the line above it
                rank = min(rank, above)
            ranks.append(rank)
        for place in sorted(range(len(lines)), key=lambda place: ranks[place]):
            if ranks[place] < _STAYS and excess >= 0:
                dropped.add(place)
                excess -= self._counter.count(f"{lines[place]}\n")
        lines = [line for place, line in enumerate(lines) if place not in dropped]
        for length in _LENGTHS:
            if self._counter.count(write_lines(lines)) >= target_tokens:
                lines = [replace(line, text=shorten(line.text, length)) for line in lines]
        text = write_lines(lines)
        warnings = ["the extractive Reflector does not follow guidance"] if guidance else []
        if (tokens := self._counter.count(text)) >= target_tokens:
            warnings.append(f"{tokens:,} tokens are left; only a model could drop more")
        return Reflected(text=text, usage=Usage(), model=MODEL, calls=0, warnings=tuple(warnings))
