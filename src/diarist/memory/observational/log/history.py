"""Queries over all generations of a log: its entries at a given time, one entry by id, and the token usage. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise

from diarist.chunks import Usage
from diarist.memory.observational.log.transitions import derive_hints
from diarist.storage.records import Failures, Observation, ObservationLog


@dataclass(frozen=True, slots=True, kw_only=True)
class DiaryUsage:
    """Tokens of the model calls that made a diary, and the number of observations and reflections."""

    observer: Usage = field(default_factory=Usage)
    reflector: Usage = field(default_factory=Usage)
    observations: int = 0
    reflections: int = 0

    @property
    def total(self) -> Usage:
        return self.observer + self.reflector


def log_as_of(generations: Sequence[ObservationLog], moment: datetime) -> ObservationLog:
    """Return the log as of ``moment``: the generation in force then, with the entries noted by then.

    Args:
        generations: All generations of the log, oldest first, the current one last.
    """
    log = generations[0]
    for before, after in pairwise(generations):
        # A generation begins when its reflection was made; if that is gone, when the last entry before it was made.
        known = {entry.id for entry in before.entries}
        new = [entry for entry in after.entries if entry.kind == "reflection" and entry.id not in known]
        begun = max((entry.observed_at for entry in new or before.entries), default=moment)
        if begun > moment:
            break
        log = after
    entries = tuple(entry for entry in log.entries if entry.observed_at <= moment)
    return replace(
        log,
        entries=entries,
        hints=derive_hints(entries),
        tombstones=(),
        reflection=None,
        observer_failures=Failures(),
        reflector_failures=Failures(),
        suppressed=(),
    )


def find_entry(generations: Sequence[ObservationLog], observation_id: str) -> Observation | None:
    """Return the newest version of an entry, including buffered and replaced ones; None if there is none."""
    entries = (entry for log in reversed(generations) for entry in log.every_entry)
    return next((entry for entry in entries if entry.id == observation_id), None)


def usage_of(generations: Sequence[ObservationLog]) -> DiaryUsage:
    """Return the sum over all entries ever made, each counted once.

    Args:
        generations: All generations of the log, including the current one.
    """
    made = {entry.cycle_id: entry for log in generations for entry in log.every_entry}
    observations = [entry for entry in made.values() if entry.kind == "observation"]
    reflections = [entry for entry in made.values() if entry.kind == "reflection"]
    return DiaryUsage(
        observer=sum((entry.usage for entry in observations), Usage()),
        reflector=sum((entry.usage for entry in reflections), Usage()),
        observations=len(observations),
        reflections=len(reflections),
    )
