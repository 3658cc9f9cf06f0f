"""Queries over all generations of a log: one entry by id, and the token usage. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from diarist.chunks import Usage
from diarist.storage.records import Observation, ObservationLog


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
