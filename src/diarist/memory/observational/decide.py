"""What to do now. Pure: sizes in, an action out. All thresholds are inclusive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

from diarist.memory.observational.limits import Limits
from diarist.memory.observational.log.transitions import cycle_id, replaced_by
from diarist.memory.observational.window import Window
from diarist.storage.records import Observation, ObservationLog, Replaced, Source

_OVERSHOOT = 0.95
_LEAST_LEFT = 1_000
_LOG_AFTER_REFLECTION = 0.6
_MUST_SHRINK_TO = 0.9


class Action(Enum):
    """What memory does before a step, for observation and reflection each.

    ``BUFFER`` starts work in the background, ``ACTIVATE`` takes in what such work has made; ``OBSERVE`` and
    ``REFLECT`` call the model now, and the turn waits.
    """

    WAIT = "wait"
    BUFFER = "buffer"
    ACTIVATE = "activate"
    OBSERVE = "observe"
    REFLECT = "reflect"


def decide_observation(window: Window, limits: Limits) -> Action:
    """What to do about the raw rows.

    The turn waits only where the window has reached ``block_tokens`` and no chunk is left (without buffering:
    where it has reached ``message_tokens``), and only if enough may be observed: otherwise a large pinned
    input, or a chunk that may not be activated yet, would call the Observer at every step for nearly nothing.
    Notes of other threads join the diary where that costs no cache, or once they stand for much.
    """
    if choose_chunks(window.chunks, window.message_tokens, limits, cold=window.cold):
        return Action.ACTIVATE
    free = window.cold or window.opening
    if window.foreign_tokens >= (1 if free else limits.message_tokens):
        return Action.ACTIVATE
    full, worth_it = window.message_tokens >= limits.block_tokens, window.fresh_tokens >= limits.least_tokens
    if full and worth_it and window.observer_ready and window.may_wait:
        return Action.OBSERVE
    return Action.BUFFER if worth_buffering(window, limits) else Action.WAIT


def worth_buffering(window: Window, limits: Limits) -> bool:
    """Whether the Observer should be called in the background, whatever else is due."""
    if limits.buffer_tokens is None or window.observing or not window.observer_ready:
        return False
    return window.fresh_tokens >= buffer_step(window.message_tokens, limits)


def may_be_worth_buffering(unnoted_tokens: int, limits: Limits) -> bool:
    """Whether the sizes need to be known to say so: at most the tokens of rows that no entry covers are fresh."""
    return limits.buffer_tokens is not None and unnoted_tokens >= limits.buffer_tokens / 2


def buffer_step(message_tokens: int, limits: Limits) -> float:
    """Tokens that are worth a call in the background: half as many shortly before the window is full."""
    assert limits.buffer_tokens is not None
    near = message_tokens >= limits.message_tokens - 1.1 * limits.buffer_tokens
    return limits.buffer_tokens / 2 if near else limits.buffer_tokens


def choose_chunks(chunks: Sequence[int], message_tokens: int, limits: Limits, *, cold: bool = False) -> int:
    """How many of the oldest chunks to activate; 0 below the threshold.

    ``retained_tokens`` should stay raw. The smallest number of chunks that gets there is taken unless it goes too
    far below; then one less, so that more stays; whatever remains, at least one chunk is taken at the threshold.

    Args:
        chunks: Tokens of the rows that each chunk covers, oldest first.
        cold: Activate below the threshold as well, since the provider's cache is lost anyway.
    """
    full = message_tokens >= limits.message_tokens
    excess = message_tokens - limits.retained_tokens
    if not chunks or excess <= 0 or not (full or cold):
        return 0
    sums = list(accumulate(chunks))
    over = next((count for count, taken in enumerate(sums, start=1) if taken >= excess), None)
    under = len(sums) if over is None else over - 1
    least_left = min(_LEAST_LEFT, limits.retained_tokens)

    def leaves_enough(count: int) -> bool:
        return message_tokens - sums[count - 1] >= least_left

    if over is not None and leaves_enough(over):
        overshoot = sums[over - 1] - excess
        if message_tokens >= limits.block_tokens or overshoot <= _OVERSHOOT * limits.retained_tokens:
            return over
    if under and leaves_enough(under):
        return under
    return over or 1


def decide_reflection(window: Window, limits: Limits) -> Action:
    """What to do about the log."""
    tokens, ready = window.observation_tokens, window.reflectable and window.reflector_ready
    if window.reflection_waits and tokens >= limits.observation_tokens:
        return Action.ACTIVATE
    if tokens >= limits.reflection_block_tokens and ready and window.may_wait:
        return Action.REFLECT
    if limits.buffer_tokens is None or window.reflecting or window.reflection_waits or not ready:
        return Action.WAIT
    return Action.BUFFER if tokens >= limits.reflection_start_tokens else Action.WAIT


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectionPlan:
    """Entries to be replaced, and how small their replacement should be.

    Every step asks whether there is one; what only its work needs is made then.

    Attributes:
        key: Of the log.
        limit_tokens: A replacement must be below this to be worth a new generation.
    """

    key: str
    entries: tuple[Observation, ...]
    tokens: int
    target_tokens: int

    @property
    def sources(self) -> tuple[Source, ...]:
        """The rows that the entries were made from, thread by thread."""
        return tuple(sorted((s for e in self.entries for s in e.sources), key=lambda s: (s.thread_id, s.first_seq)))

    @property
    def cycle_id(self) -> str:
        return cycle_id(self.key, "reflection", self.sources, [entry.cycle_id for entry in self.entries])

    @property
    def replaces(self) -> tuple[Replaced, ...]:
        """The entries as the log must still have them when their replacement comes."""
        return replaced_by(self.entries)

    @property
    def limit_tokens(self) -> float:
        return _MUST_SHRINK_TO * self.tokens


def plan_reflection(log: ObservationLog, observation_tokens: int) -> ReflectionPlan | None:
    """The oldest active entries, as many as it takes to bring the log to 0.6 of its threshold at half their size.

    Below the threshold, in the background, this is planned for the log that will have reached it. Entries of a
    live run are left alone. None where nothing is left to condense: fewer than two entries,
    unless the one was never reflected; or a selection that did not shrink before.
    """
    entries = tuple(entry for entry in log.active if entry.run_id is None)
    excess = max(log.tokens, observation_tokens) - int(_LOG_AFTER_REFLECTION * observation_tokens)
    sums = list(accumulate(entry.tokens for entry in entries))
    count = next((n for n, tokens in enumerate(sums, start=1) if tokens >= 2 * excess), len(entries))
    chosen = entries[: max(count, 2)]
    tokens = sum(entry.tokens for entry in chosen)
    if tokens == 0 or (len(chosen) == 1 and chosen[0].kind == "reflection"):
        return None
    target = max(tokens - excess, tokens // 4, 1)
    plan = ReflectionPlan(key=log.key, entries=chosen, tokens=tokens, target_tokens=target)
    return None if log.suppressed and plan.cycle_id in log.suppressed else plan
