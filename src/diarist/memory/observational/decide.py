"""Decide what memory does before a step. Pure: sizes in, an action out. All thresholds are inclusive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate

from diarist.memory.observational.config import ObservationalMemoryConfig, block_tokens
from diarist.memory.observational.log.coverage import join_sources
from diarist.memory.observational.log.transitions import cycle_id, replaced_by
from diarist.storage.records import Observation, ObservationLog, Replaced, Source

_OVERSHOOT = 0.95
"""How far below ``retained_tokens`` the raw rows may come, as a share of it."""
_LEAST_LEFT = 1_000
"""Tokens of raw rows that an activation leaves, if ``retained_tokens`` is not smaller."""
_LEAST_UNBUFFERED = 1_000
"""Upper bound of ``Limits.least_tokens`` without buffering."""
_LOG_AFTER_REFLECTION = 0.6
"""Size of the log after a reflection, as a share of ``observation_tokens``, if the reflection reaches its target."""
_MUST_SHRINK_TO = 0.9
"""A reflection of at least this share of its entries is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Thresholds in tokens.

    Attributes:
        message_tokens: Size of the raw rows at which buffered chunks are activated.
        retained_tokens: Size of the raw rows that remain after an activation.
        block_tokens: Size of the raw rows at which a turn waits for the Observer; ``message_tokens`` without buffering.
        buffer_tokens: Size of the observable rows that justifies a background call; None disables buffering.
        least_tokens: Minimum size of the observable rows for which a turn waits.
        batch_tokens: Size of one batch. It may be up to a quarter larger, if the remaining rows are too few for a call.
        observation_tokens: Size of the log at which a buffered reflection is activated.
        reflection_start_tokens: Size of the log at which the Reflector is called in the background.
        reflection_block_tokens: Size of the log at which a turn waits for the Reflector.
    """

    message_tokens: int
    retained_tokens: int
    block_tokens: int
    buffer_tokens: int | None
    least_tokens: float
    batch_tokens: int
    observation_tokens: int
    reflection_start_tokens: int
    reflection_block_tokens: int

    @property
    def least_batch_tokens(self) -> float:
        """Minimum size of a batch, at most a quarter of ``batch_tokens``; smaller ones are joined or wait."""
        return min(self.least_tokens, self.batch_tokens / 4)


def limits_of(config: ObservationalMemoryConfig, *, message_tokens: int = 0, observation_tokens: int = 0) -> Limits:
    """Return the thresholds of a configuration.

    With ``share_token_budget``, raw rows and log may each use the part of the total budget that the other leaves free.

    Args:
        message_tokens: Current size of the raw rows.
        observation_tokens: Current size of the log.
    """
    observation, reflection = config.observation, config.reflection
    buffer = observation.buffered_tokens
    limits = Limits(
        message_tokens=observation.message_tokens,
        retained_tokens=observation.retained_tokens,
        block_tokens=block_tokens(observation.block_after, observation.message_tokens),
        buffer_tokens=buffer,
        least_tokens=min(_LEAST_UNBUFFERED, observation.message_tokens / 10) if buffer is None else buffer / 2,
        batch_tokens=observation.batch_tokens,
        observation_tokens=reflection.observation_tokens,
        reflection_start_tokens=max(1, int(reflection.observation_tokens * reflection.buffer_activation)),
        reflection_block_tokens=block_tokens(reflection.block_after, reflection.observation_tokens),
    )
    if buffer is not None:
        return limits
    if config.share_token_budget:
        budget = limits.message_tokens + limits.observation_tokens
        shared, retained = max(limits.message_tokens, budget - observation_tokens), limits.retained_tokens
        if observation.buffer_activation <= 1:  # a share, which grows with the threshold
            retained = retained * shared // limits.message_tokens
        limits = replace(
            limits,
            message_tokens=shared,
            retained_tokens=retained,
            observation_tokens=max(limits.observation_tokens, budget - max(message_tokens, limits.message_tokens)),
        )
    return replace(limits, block_tokens=limits.message_tokens, reflection_block_tokens=limits.observation_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The input of the decisions: sizes in tokens, and flags.

    Attributes:
        message_tokens: Size of all raw rows, with their sent blocks.
        fresh_tokens: Size of the raw rows that may be observed and that no entry covers.
        chunks: Size of the raw rows of each buffered entry that may be activated, oldest first.
        held_chunks: Size of the raw rows of each later buffered entry, which may not be activated yet.
        gap: Rows that may be observed and that no entry covers lie before one of ``chunks``.
        foreign_tokens: Size of the messages of other threads that buffered entries cover (resource scope).
        opening: The thread begins with this run and has no answer yet, so there is no cached prompt to keep.
        buffered_tokens: Size of the notes of all buffered entries.
        observation_tokens: Size of the active entries of the log as this run sees it.
        reflectable: There is a reflection plan that is not suppressed.
        reflection_waits: There is a buffered reflection. Its size is ``reflection_tokens``; it replaces entries of
            ``reflection_input_tokens``.
        observing, reflecting: A background job of this process is running.
        observer_ready, reflector_ready: The role is not backing off after a failure.
        may_wait: The run has not used up its time for waiting.
        cold: The provider's prompt cache of this conversation has expired.
    """

    message_tokens: int
    fresh_tokens: int = 0
    chunks: tuple[int, ...] = ()
    held_chunks: tuple[int, ...] = ()
    gap: bool = False
    foreign_tokens: int = 0
    opening: bool = False
    buffered_tokens: int = 0
    observation_tokens: int = 0
    reflectable: bool = False
    reflection_waits: bool = False
    reflection_tokens: int = 0
    reflection_input_tokens: int = 0
    observing: bool = False
    reflecting: bool = False
    observer_ready: bool = True
    reflector_ready: bool = True
    may_wait: bool = True
    cold: bool = False


class Action(Enum):
    """An action of memory before a step, decided separately for observation and reflection.

    ``BUFFER`` starts background work, and ``ACTIVATE`` shows its result. ``OBSERVE`` and ``REFLECT`` call the model
    while the turn waits.
    """

    WAIT = "wait"
    BUFFER = "buffer"
    ACTIVATE = "activate"
    OBSERVE = "observe"
    REFLECT = "reflect"


def decide_observation(sizes: Sizes, limits: Limits) -> Action:
    """Decide what to do about the raw rows.

    With chunks of buffered notes:
        - They are activated at ``message_tokens``. Then the provider must read the rest of the prompt again.
        - So they wait while they cover less than half of the window, or while older rows have no notes yet: until
          ``block_tokens``, and beyond it while the Observer is at work.
        - They do not wait if the provider's cache has expired, or if the Observer is backing off.

    Without chunks the turn waits for the Observer only if the window has reached ``block_tokens`` (``message_tokens``
    without buffering) and enough rows may be observed. Otherwise a large pinned input, or a chunk that may not be
    activated yet, would cause an Observer call at every step for little text.

    Notes of other threads are activated when that does not invalidate a prompt cache, or when they cover at least
    ``message_tokens``.
    """
    full = sizes.message_tokens >= limits.block_tokens
    if count := choose_chunks(sizes.chunks, sizes.message_tokens, limits, cold=sizes.cold):
        enough = 2 * sum(sizes.chunks[:count]) >= sizes.message_tokens and not sizes.gap
        if enough or sizes.cold or not sizes.observer_ready:
            return Action.ACTIVATE
        if full:
            return Action.OBSERVE if sizes.observing and sizes.may_wait else Action.ACTIVATE
    free = sizes.cold or sizes.opening
    if sizes.foreign_tokens >= (1 if free else limits.message_tokens):
        return Action.ACTIVATE
    worth_it = sizes.fresh_tokens >= limits.least_tokens
    if full and worth_it and sizes.observer_ready and sizes.may_wait:
        return Action.OBSERVE
    return Action.BUFFER if worth_buffering(sizes, limits) else Action.WAIT


def worth_buffering(sizes: Sizes, limits: Limits) -> bool:
    """Return True if there are enough fresh rows for a background call, or some before a chunk, and the Observer is
    ready. Half of ``buffer_tokens`` is enough shortly before the window is full.
    """
    if limits.buffer_tokens is None or sizes.observing or not sizes.observer_ready:
        return False
    near = sizes.message_tokens >= limits.message_tokens - 1.1 * limits.buffer_tokens
    return sizes.gap or sizes.fresh_tokens >= (limits.buffer_tokens / 2 if near else limits.buffer_tokens)


def choose_chunks(chunks: Sequence[int], message_tokens: int, limits: Limits, *, cold: bool = False) -> int:
    """Return how many of the oldest chunks to activate; 0 below the threshold.

    Takes the smallest number that leaves at most ``retained_tokens`` raw, or one less if that would leave far too few.
    Takes at least one chunk at the threshold.

    Args:
        chunks: Size of the rows that each chunk covers, oldest first.
        cold: Activate below the threshold as well, since the provider's cache has expired.
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


def decide_reflection(sizes: Sizes, limits: Limits) -> Action:
    """Decide what to do about the log."""
    tokens, ready = sizes.observation_tokens, sizes.reflectable and sizes.reflector_ready
    if sizes.reflection_waits and tokens >= limits.observation_tokens:
        return Action.ACTIVATE
    if tokens >= limits.reflection_block_tokens and ready and sizes.may_wait:
        return Action.REFLECT
    if limits.buffer_tokens is None or sizes.reflecting or sizes.reflection_waits or not ready:
        return Action.WAIT
    return Action.BUFFER if tokens >= limits.reflection_start_tokens else Action.WAIT


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectionPlan:
    """The entries to replace by a reflection, and its target size.

    A plan is made at every step, so the expensive values are properties.

    Attributes:
        key: Key of the log.
        any_size: Keep the replacement regardless of its size, since the user gave guidance.
    """

    key: str
    entries: tuple[Observation, ...]
    tokens: int
    target_tokens: int
    any_size: bool = False

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources of the entries, sorted by thread; adjacent ones are joined."""
        return join_sources([source for entry in self.entries for source in entry.sources])

    @property
    def cycle_id(self) -> str:
        return cycle_id(self.key, "reflection", self.sources, [entry.cycle_id for entry in self.entries])

    @property
    def replaces(self) -> tuple[Replaced, ...]:
        """The entries that must be unchanged in the log when the reflection is saved."""
        return replaced_by(self.entries)

    @property
    def limit_tokens(self) -> float:
        """The replacement must be smaller than this, in tokens, to be worth a new generation."""
        return float("inf") if self.any_size else _MUST_SHRINK_TO * self.tokens


def plan_reflection(log: ObservationLog, observation_tokens: int) -> ReflectionPlan | None:
    """Plan to condense the oldest active entries, so that halving them brings the log to 0.6 of its threshold.

    Below the threshold (in the background) the plan assumes a log that has reached it. Entries of a live run are left
    out. Returns None if there is nothing to condense: no entries, a single reflection, or a suppressed selection.
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
