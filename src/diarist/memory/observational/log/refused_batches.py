"""Messages that the Observer's model refuses: found by halving a batch, then skipped so that observation goes on. Pure.

The log stores the sources of refused calls, so all processes narrow a batch the same way, and refusals in one thread of
a resource do not affect the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from diarist.memory.observational.log.coverage import Coverage
from diarist.memory.observational.message_units import is_unit
from diarist.memory.rows import seq_of
from diarist.messages import Message
from diarist.storage.records import ObservationLog, Source

PATIENCE = 3
"""Number of refusals after which a batch is first halved, and number after which a single unit is given up.

After the first halving, each further refusal halves the batch again."""

_Unit = Sequence[Message]


def narrow(units: Sequence[_Unit], refused: Sequence[Source]) -> list[tuple[list[_Unit], bool]]:
    """Split a batch into pieces, in order: a group of units that was refused too often is halved.

    Each piece comes with True if it is such a half. Without refusals, ``units`` are one piece.
    """
    pieces: list[tuple[list[_Unit], bool]] = []
    for among, group in groupby(units, key=lambda unit: _too_often(unit, refused)):
        together = list(group)
        half = (len(together) + 1) // 2 if among else len(together)
        pieces += [(part, bool(among)) for part in (together[:half], together[half:]) if part]
    return pieces


def is_suspect(rows: Sequence[Message], refused: Sequence[Source]) -> bool:
    """Return True if these rows were refused too often, so that ``narrow`` made the batch smaller."""
    return bool(_too_often(rows, refused))


def is_given_up(rows: Sequence[Message], sources: Sequence[Source], refused: Sequence[Source]) -> bool:
    """Return True if these rows are a unit that was refused too often on its own."""
    return is_unit(rows) and all(refused.count(source) >= PATIENCE for source in sources)


def without_covered(log: ObservationLog) -> ObservationLog:
    """Drop the refusals of rows that the log now covers."""
    refused = log.observer_failures.refused
    covered = {thread_id: Coverage(log.entries, thread_id) for thread_id in {source.thread_id for source in refused}}
    left = tuple(s for s in refused if not covered[s.thread_id].covers(s.first_seq, s.last_seq))
    return log if left == refused else replace(log, observer_failures=replace(log.observer_failures, refused=left))


def _too_often(unit: _Unit, refused: Sequence[Source]) -> tuple[int, ...]:
    """Return the indexes of the refusals that include a unit; empty if there are fewer than ``PATIENCE``."""
    thread_id, first, last = unit[0].thread_id, seq_of(unit[0]), seq_of(unit[-1])
    among = tuple(
        place
        for place, source in enumerate(refused)
        if source.thread_id == thread_id and source.first_seq <= last and first <= source.last_seq
    )
    return among if len(among) >= PATIENCE else ()
