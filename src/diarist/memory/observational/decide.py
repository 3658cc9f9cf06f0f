"""What to do now, and with what. Pure: sizes in, an action or a selection out. All thresholds are inclusive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, groupby

from diarist.memory.observational.config import ObservationalMemoryConfig, ObservationConfig
from diarist.memory.observational.transitions import cycle_id
from diarist.memory.observational.window import Window, tokens_of
from diarist.messages import Message
from diarist.storage.records import Observation, ObservationLog, Source

_OVERSHOOT = 0.95
_LOG_AFTER_REFLECTION = 0.6
_MUST_SHRINK_TO = 0.9


class Action(Enum):
    """What memory does before a step, for observation and reflection each."""

    WAIT = "wait"
    OBSERVE = "observe"
    REFLECT = "reflect"


def decide_observation(window: Window, config: ObservationalMemoryConfig) -> Action:
    """Observe when the raw rows have reached their threshold and enough of them may be observed.

    Without the second condition, a large pinned input would call the Observer at every step for nearly
    nothing.
    """
    observation = config.observation
    due = window.message_tokens >= observation.message_tokens
    worth_it = window.observable_tokens > 0 and window.observable_tokens >= observation.least_tokens
    return Action.OBSERVE if due and worth_it and window.observer_ready else Action.WAIT


def decide_reflection(window: Window, config: ObservationalMemoryConfig) -> Action:
    """Reflect when the log has reached its threshold and something in it can be condensed."""
    due = window.observation_tokens >= config.reflection.observation_tokens
    return Action.REFLECT if due and window.reflectable and window.reflector_ready else Action.WAIT


def select_rows(
    raw: Sequence[Message], units: Sequence[Sequence[Message]], config: ObservationConfig
) -> list[list[Message]]:
    """The oldest units that bring the raw rows down to ``retained_tokens``, all units if that is too few.

    What stays should begin with a user's message. So the rest of a turn is taken along while that is not
    much (0.95 of what stays); else the turn is left whole, if without it the rows are below their
    threshold; else the turn is cut.
    """
    if not units:
        return []
    total = tokens_of(raw)
    need = total - config.retained_tokens
    sums = list(accumulate(tokens_of(unit) for unit in units))
    enough = next((count for count, taken in enumerate(sums, start=1) if taken >= need), len(units))
    clean = _clean_cuts(raw, units)
    for count in range(enough, len(units) + 1):
        if sums[count - 1] - need > _OVERSHOOT * config.retained_tokens:
            break
        if clean[count - 1]:
            return [list(unit) for unit in units[:count]]
    for count in range(enough - 1, 0, -1):
        below = total - sums[count - 1] < config.message_tokens
        if clean[count - 1] and below and sums[count - 1] >= config.least_tokens:
            return [list(unit) for unit in units[:count]]
    return [list(unit) for unit in units[:enough]]


def leave_newest(units: Sequence[Sequence[Message]], raw: Sequence[Message], tokens: int) -> list[list[Message]]:
    """The oldest units without which at least ``tokens`` of raw rows remain."""
    room = tokens_of(raw) - tokens
    return [
        list(unit)
        for unit, taken in zip(units, accumulate(tokens_of(unit) for unit in units), strict=True)
        if taken <= room
    ]


def split_batches(
    units: Sequence[Sequence[Message]], limit: int, run_id: str | None, *, least: float = 0
) -> list[list[Message]]:
    """One list of rows per call of the Observer, of about ``limit`` tokens each.

    A unit that is larger is not cut. What would be a call for less than ``least`` tokens goes along with the
    call before or after it. Rows of the run ``run_id``, which may still be discarded, never share a call with
    others.
    """
    batches: list[list[Message]] = []
    sizes: list[int] = []
    owner = False
    for unit in units:
        for own, rows in groupby(unit, key=lambda row: row.run_id == run_id):
            piece = list(rows)
            size = tokens_of(piece)
            full = bool(sizes) and sizes[-1] + size > limit and sizes[-1] >= least
            if not batches or own is not owner or full:
                batches.append([])
                sizes.append(0)
                owner = own
            batches[-1] += piece
            sizes[-1] += size
    if len(batches) > 1 and sizes[-1] < least and (batches[-2][-1].run_id == run_id) is owner:
        rest = batches.pop()
        batches[-1] += rest
    return batches


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectionPlan:
    """Entries to be replaced, and how small their replacement should be.

    Attributes:
        limit_tokens: A replacement must be below this to be worth a new generation.
    """

    cycle_id: str
    entries: tuple[Observation, ...]
    sources: tuple[Source, ...]
    tokens: int
    target_tokens: int

    @property
    def limit_tokens(self) -> float:
        return _MUST_SHRINK_TO * self.tokens


def plan_reflection(log: ObservationLog, observation_tokens: int) -> ReflectionPlan | None:
    """The oldest entries, as many as it takes to bring the log to 0.6 of its threshold at half their size.

    Entries of a live run are left alone. None where nothing is left to condense: fewer than two entries,
    unless the one was never reflected; or a selection that did not shrink before.
    """
    entries = tuple(entry for entry in log.entries if entry.run_id is None)
    excess = log.tokens - int(_LOG_AFTER_REFLECTION * observation_tokens)
    sums = list(accumulate(entry.tokens for entry in entries))
    count = next((n for n, tokens in enumerate(sums, start=1) if tokens >= 2 * excess), len(entries))
    chosen = entries[: max(count, 2)]
    tokens = sum(entry.tokens for entry in chosen)
    if tokens == 0 or (len(chosen) == 1 and chosen[0].kind == "reflection"):
        return None
    sources = tuple(sorted((s for e in chosen for s in e.sources), key=lambda s: (s.thread_id, s.first_seq)))
    cycle = cycle_id(log.key, "reflection", sources, [entry.cycle_id for entry in chosen])
    if cycle in log.suppressed:
        return None
    target = max(tokens - excess, tokens // 4, 1)
    return ReflectionPlan(cycle_id=cycle, entries=chosen, sources=sources, tokens=tokens, target_tokens=target)


def _clean_cuts(raw: Sequence[Message], units: Sequence[Sequence[Message]]) -> list[bool]:
    """For each number of units taken: whether the first row that stays is a user's (or none stays)."""
    taken: set[str] = set()
    first = 0
    clean: list[bool] = []
    for unit in units:
        taken |= {row.id for row in unit}
        while first < len(raw) and raw[first].id in taken:
            first += 1
        clean.append(first == len(raw) or raw[first].role == "user")
    return clean
