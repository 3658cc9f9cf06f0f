"""What the Observer refuses for good: found by halving, then written off, so that the diary goes on. Pure.

The log keeps which rows a refused call was about. So every process makes the same of it, and what is refused in one
thread of a resource does not touch the others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from pydantic_core import ValidationError

from diarist.exceptions import BadRequestError, ContentFilterError
from diarist.memory.observational.log.coverage import Coverage, seq_of
from diarist.memory.observational.roles.base import RoleError
from diarist.memory.observational.window import is_unit
from diarist.messages import Message
from diarist.storage.records import ObservationLog, Source

PATIENCE = 3
"""So many times the same rows are refused before fewer are asked for, and before a unit alone is given up."""

_NOT_FOUND = 404
_Unit = Sequence[Message]


def is_refusal(error: BaseException) -> bool:
    """Whether an error is about what was asked, and not about who was asked.

    Only what says so counts: a content filter, a bad request (but no unknown model), an answer without notes, a
    ValueError of an Observer of one's own. An outage, a wrong key, an answer that cannot be read, a hook that fails
    or what nobody knows never does.
    """
    if isinstance(error, RoleError):
        return error.__cause__ is None
    if isinstance(error, ValueError):
        return not isinstance(error, json.JSONDecodeError | UnicodeError | ValidationError)
    if isinstance(error, BadRequestError):
        return error.status != _NOT_FOUND
    return isinstance(error, ContentFilterError)


def narrow(units: Sequence[_Unit], refused: Sequence[Source]) -> list[list[_Unit]]:
    """The units of a batch as several, in order: what was refused together too often comes in two halves.

    ``units`` come back as they are, in one piece, where nothing of them was.
    """
    pieces: list[list[_Unit]] = []
    for among, group in groupby(units, key=lambda unit: _too_often(unit, refused)):
        together = list(group)
        half = (len(together) + 1) // 2 if among else len(together)
        pieces += [part for part in (together[:half], together[half:]) if part]
    return pieces


def is_suspect(unit: _Unit, refused: Sequence[Source]) -> bool:
    """Whether calls that this unit was among were refused too often."""
    return bool(_too_often(unit, refused))


def is_given_up(rows: Sequence[Message], sources: Sequence[Source], refused: Sequence[Source]) -> bool:
    """Whether these rows are a unit that was refused too often when it was asked for alone."""
    return is_unit(rows) and all(refused.count(source) >= PATIENCE for source in sources)


def without_covered(log: ObservationLog) -> ObservationLog:
    """The log without refusals of what it covers by now."""
    refused = log.observer_failures.refused
    left = tuple(s for s in refused if not Coverage(log.entries, s.thread_id).covers(s.first_seq, s.last_seq))
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
