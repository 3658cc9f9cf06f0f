"""What the Observer refuses for good: found by halving, then written off, so that the diary goes on. Pure.

The log keeps which rows a refused call was about. So every process makes the same of it, and what is refused in one
thread of a resource does not touch the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from diarist.memory.observational.log.coverage import Coverage, seq_of
from diarist.memory.observational.window import is_unit
from diarist.messages import Message
from diarist.storage.records import ObservationLog, Source

PATIENCE = 3
"""So many times the same rows are refused before fewer are asked for the first time, and before a unit alone is given
up. In between, where it is known that there is something, one refusal is enough to ask for fewer still."""

_Unit = Sequence[Message]


def narrow(units: Sequence[_Unit], refused: Sequence[Source]) -> list[tuple[list[_Unit], bool]]:
    """The units of a batch in pieces, in order: what was refused together too often comes in two halves.

    With each piece comes whether it is such a half. Where nothing was refused, ``units`` are one piece.
    """
    pieces: list[tuple[list[_Unit], bool]] = []
    for among, group in groupby(units, key=lambda unit: _too_often(unit, refused)):
        together = list(group)
        half = (len(together) + 1) // 2 if among else len(together)
        pieces += [(part, bool(among)) for part in (together[:half], together[half:]) if part]
    return pieces


def is_suspect(rows: Sequence[Message], refused: Sequence[Source]) -> bool:
    """Whether a batch is what ``narrow`` made of rows that were refused too often."""
    return bool(_too_often(rows, refused))


def is_given_up(rows: Sequence[Message], sources: Sequence[Source], refused: Sequence[Source]) -> bool:
    """Whether these rows are a unit that was refused too often when it was asked for alone."""
    return is_unit(rows) and all(refused.count(source) >= PATIENCE for source in sources)


def without_covered(log: ObservationLog) -> ObservationLog:
    """The log without refusals of what it covers by now."""
    refused = log.observer_failures.refused
    covered = {thread_id: Coverage(log.entries, thread_id) for thread_id in {source.thread_id for source in refused}}
    left = tuple(s for s in refused if not covered[s.thread_id].covers(s.first_seq, s.last_seq))
    return log if left == refused else replace(log, observer_failures=replace(log.observer_failures, refused=left))


def _too_often(unit: _Unit, refused: Sequence[Source]) -> tuple[int, ...]:
    """The places of the refusals that a unit was among; none where they are few."""
    thread_id, first, last = unit[0].thread_id, seq_of(unit[0]), seq_of(unit[-1])
    among = tuple(
        place
        for place, source in enumerate(refused)
        if source.thread_id == thread_id and source.first_seq <= last and first <= source.last_seq
    )
    return among if len(among) >= PATIENCE else ()
