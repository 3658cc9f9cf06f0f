"""The thresholds that are in force, as numbers of tokens. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from diarist.memory.observational.config import ObservationalMemoryConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Thresholds in tokens.

    Attributes:
        message_tokens: Raw rows at which buffered chunks are activated.
        retained_tokens: Raw rows that stay then.
        block_tokens: Raw rows at which a turn waits for the Observer; without buffering ``message_tokens``.
        buffer_tokens: Observable rows that are worth a call in the background; None: nothing is buffered.
        least_tokens: For fewer observable rows no turn waits.
        batch_tokens: What one call of the Observer takes; up to a quarter more, where the rest is not worth a call.
        observation_tokens: Log at which a finished reflection takes its place.
        reflection_start_tokens: Log at which the Reflector is started in the background.
        reflection_block_tokens: Log at which a turn waits for the Reflector.
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
        """A smaller piece goes along with the call before it, or waits: at most a quarter of what a call takes."""
        return min(self.least_tokens, self.batch_tokens / 4)


def limits_of(config: ObservationalMemoryConfig, *, message_tokens: int = 0, observation_tokens: int = 0) -> Limits:
    """The thresholds of a configuration.

    With ``share_token_budget``, raw rows and log may each use what the other leaves of the whole budget.

    Args:
        message_tokens: Tokens of the raw rows now.
        observation_tokens: Tokens of the log now.
    """
    observation, reflection = config.observation, config.reflection
    limits = Limits(
        message_tokens=observation.message_tokens,
        retained_tokens=observation.retained_tokens,
        block_tokens=observation.block_tokens,
        buffer_tokens=observation.buffered_tokens,
        least_tokens=observation.least_tokens,
        batch_tokens=observation.batch_tokens,
        observation_tokens=reflection.observation_tokens,
        reflection_start_tokens=reflection.start_tokens,
        reflection_block_tokens=reflection.block_tokens,
    )
    if limits.buffer_tokens is not None:
        return limits
    if config.share_token_budget:
        limits = _shared(limits, message_tokens, observation_tokens, scales=observation.buffer_activation <= 1)
    return replace(limits, block_tokens=limits.message_tokens, reflection_block_tokens=limits.observation_tokens)


def _shared(limits: Limits, message_tokens: int, observation_tokens: int, *, scales: bool) -> Limits:
    budget = limits.message_tokens + limits.observation_tokens
    messages = max(limits.message_tokens, budget - observation_tokens)
    return replace(
        limits,
        message_tokens=messages,
        retained_tokens=limits.retained_tokens * messages // limits.message_tokens
        if scales
        else limits.retained_tokens,
        observation_tokens=max(limits.observation_tokens, budget - max(message_tokens, limits.message_tokens)),
    )
