"""The tokens that a diary has cost so far. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from diarist.chunks import Usage
from diarist.storage.records import ObservationLog


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


def usage_of(generations: Sequence[ObservationLog]) -> DiaryUsage:
    """Return the sum over all entries ever made, each counted once.

    Args:
        generations: All generations of the log, including the current one.
    """
    made = {entry.cycle_id: entry for log in generations for entry in log.entries}
    made |= {log.reflection.entry.cycle_id: log.reflection.entry for log in generations if log.reflection}
    observations = [entry for entry in made.values() if entry.kind == "observation"]
    reflections = [entry for entry in made.values() if entry.kind == "reflection"]
    return DiaryUsage(
        observer=sum((entry.usage for entry in observations), Usage()),
        reflector=sum((entry.usage for entry in reflections), Usage()),
        observations=len(observations),
        reflections=len(reflections),
    )
