"""The Reflector that needs no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diarist.chunks import Usage
from diarist.memory.observational.roles.base import Reflected, RoleError
from diarist.memory.observational.roles.extractive.lines import (
    Line,
    body,
    fingerprint,
    read_lines,
    write_lines,
)
from diarist.memory.observational.roles.extractive.observer import MODEL
from diarist.memory.observational.roles.extractive.sentences import shorten
from diarist.storage.records import Observation
from diarist.tokens import TokenCounter, default_counter

_LENGTHS = (160, 100, 60)


class ExtractiveReflector:
    """Condenses a log by leaving out lines, by fixed rules.

    Notes of one day come under one heading; of notes that say the same only the newest stays. Then,
    the oldest first and only until the rest is below the target, it drops lines marked 🟢, lines
    marked 🟡 or not at all, and details; what the user stated, 🔴 and ✅ always stay. If they
    alone are too much they are cut to 160, 100 and at last 60 characters.

    It cannot put two notes into one sentence or see that one contradicts another; a model can.

    Args:
        counter: Counts the result; o200k_base by default.
    """

    def __init__(self, *, counter: TokenCounter | None = None) -> None:
        self._counter = counter or default_counter()

    async def reflect(
        self, entries: Sequence[Observation], *, target_tokens: int, guidance: str | None = None
    ) -> Reflected:
        """See ``ReflectorRole``. Guidance is not understood: a warning says so."""
        lines = _merged([line for entry in entries for line in read_lines(entry.text)])
        if not lines:
            raise RoleError("there are no notes to reflect on")
        lines = self._drop(lines, target_tokens)
        lines = self._cut(lines, target_tokens)
        text = write_lines(lines)
        warnings: list[str] = []
        if guidance:
            warnings.append("the extractive Reflector does not follow guidance")
        if (tokens := self._counter.count(text)) >= target_tokens:
            warnings.append(f"{tokens:,} tokens are left; no more may be dropped without a model")
        return Reflected(text=text, usage=Usage(), model=MODEL, calls=0, warnings=tuple(warnings))

    def _drop(self, lines: list[Line], target: int) -> list[Line]:
        costs = [self._counter.count(f"{line}\n") for line in lines]
        excess = self._counter.count(write_lines(lines)) - target
        dropped: set[int] = set()
        for rank in (0, 1, 2):
            for index, line in enumerate(lines):
                if excess < 0:
                    return _without(lines, dropped)
                if index not in dropped and _rank(line) == rank:
                    gone = {index, *_details(lines, index)} - dropped
                    excess -= sum(costs[each] for each in gone)
                    dropped |= gone
        return _without(lines, dropped)

    def _cut(self, lines: list[Line], target: int) -> list[Line]:
        for length in _LENGTHS:
            if self._counter.count(write_lines(lines)) < target:
                break
            lines = [replace(line, text=shorten(line.text, length)) for line in lines]
        return lines


def _merged(lines: list[Line]) -> list[Line]:
    """Days in the order of their first line, each with its lines in their order, without doubles."""
    newest = {_key(line): index for index, line in enumerate(lines)}
    kept = [line for index, line in enumerate(lines) if newest[_key(line)] == index]
    days: dict[str, list[Line]] = {}
    for line in kept:
        days.setdefault(line.date, []).append(line)
    return [line for day in days.values() for line in day]


def _key(line: Line) -> str:
    return fingerprint(body(line.text)) or line.text


def _rank(line: Line) -> int:
    """Which round drops it; 3 is never."""
    if line.mark in ("🔴", "✅"):
        return 3 if not line.detail or line.mark == "✅" else 2
    if line.text.startswith("User stated"):
        return 3
    return 0 if line.mark == "🟢" else 1


def _details(lines: list[Line], index: int) -> list[int]:
    """The details below a line that go with it: none of a detail, and none that must stay."""
    found: list[int] = []
    if lines[index].detail:
        return found
    for below in range(index + 1, len(lines)):
        if not lines[below].detail:
            break
        if _rank(lines[below]) < 3:
            found.append(below)
    return found


def _without(lines: list[Line], dropped: set[int]) -> list[Line]:
    return [line for index, line in enumerate(lines) if index not in dropped]
