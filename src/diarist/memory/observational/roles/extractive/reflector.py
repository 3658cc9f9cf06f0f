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

RANKS = {"🔴": 2, "✅": 2, "🟡": 1, "🟢": 0}
"""Importance of the marks. Lines of rank 0 are dropped first, those of rank 2 never."""

_LENGTHS = (160, 100, 60)

_LINE = re.compile(r"(?P<indent>\s*)(?:[-*•]\s+)?(?:(?P<mark>[🔴✅🟡🟢])\s*)?(?:(?P<time>\d\d?:\d\d)\s+)?(?P<text>.*)")
_MEANING = re.compile(r"\s?\(meaning[^()]*\)")
_SIGNS = re.compile(r"[\W_]+")
_SPEAKER = re.compile(r"^Assistant called\s|^[^:]{1,80}? (?:stated|said|asked|requested|answered):\s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One note: its heading, its mark (a key of ``RANKS``), its time ``09:12``; each empty if there is none.

    A ``detail`` is indented below the line before it.
    """

    date: str
    mark: str
    time: str
    text: str
    detail: bool = False

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
        elif raw.strip() and (found := _LINE.fullmatch(raw)):
            mark, time, words = found["mark"] or "", found["time"] or "", found["text"].strip()
            yield Line(date=date, mark=mark, time=time, text=words, detail=len(found["indent"]) >= 2)


def body(text: str) -> str:
    """Return a note without its speaker and without computed dates."""
    return _MEANING.sub("", _SPEAKER.sub("", text))


def fingerprint(text: str) -> str:
    """Return the same string for texts that differ only in case, blanks and punctuation."""
    return _SIGNS.sub(" ", text.casefold()).strip()


class ExtractiveReflector:
    """Condenses a log by leaving out lines, by fixed rules.

    Puts notes of one day under one heading, and keeps only the newest of equal notes. Then drops lines, the oldest
    first, until the rest is below the target: lines marked 🟢, then 🟡 or unmarked ones. A detail without a mark is
    dropped like the line above it. Lines marked 🔴 or ✅ stay; if these are still too long, they are cut to 160, then
    100, then 60 characters.

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
        for line in read_lines("\n".join(entry.text for entry in entries)):
            said = fingerprint(body(line.text)) or line.text
            newest.pop(said, None)
            newest[said] = line
        if not newest:
            raise RoleError("there are no notes to reflect on")
        days: dict[str, list[Line]] = {}
        for line in newest.values():
            days.setdefault(line.date, []).append(line)
        lines = [line for day in days.values() for line in day]
        ranks: list[int] = []
        for line in lines:
            ranks.append(RANKS.get(line.mark, min([1, *ranks[-1:]]) if line.detail else 1))
        excess = self._counter.count(write_lines(lines)) - target_tokens
        dropped: set[int] = set()
        for place in sorted(range(len(lines)), key=ranks.__getitem__):
            if ranks[place] < 2 and excess >= 0:
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
