"""What a user sets on observational memory: frozen values, contradictions refused at construction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from diarist.exceptions import ConfigError
from diarist.memory.observational.transcript import load_zone
from diarist.models.base import Model, ModelSettings

ModelChoice = str | Model | None
"""A model's id (``"openai/gpt-5-mini"``), a model, ``"extractive"`` (no model at all), ``"default"``, or None."""

_ABSOLUTE_ACTIVATION = 1000
_UNBUFFERED_BATCH_TOKENS = 10_000
_UNBUFFERED_LEAST_TOKENS = 1_000
_OBSERVER_SETTINGS = ModelSettings(temperature=0.3, max_output_tokens=100_000)
_REFLECTOR_SETTINGS = ModelSettings(temperature=0.0, max_output_tokens=100_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationConfig:
    """When messages are observed, how many at once, and by whom.

    Attributes:
        model: The Observer's model, where it is not the one of ``ObservationalMemoryConfig``.
        message_tokens: Tokens of raw messages at which the Observer is called.
        buffer_tokens: Tokens of messages that one piece of work should have: below 1 a share of
            ``message_tokens``, else absolute. A call of the Observer takes at most twice that, and in a
            run none is made for less than half of it. False: calls of at most 10,000 tokens, none for
            less than 1,000 (or a tenth of ``message_tokens``, if that is less).
        buffer_activation: How much leaves the window: 0.8 leaves 20% of ``message_tokens`` raw; from
            1,000 on it is the number of tokens that stay.
        block_after: Tokens of raw messages past which a turn waits for the Observer even where it works
            in the background: below 2 a multiple of ``message_tokens``, else absolute. Since every
            observation is awaited at ``message_tokens`` so far, the window seldom gets there.
        observer_batch_tokens: The most that one call of the Observer takes, where ``buffer_tokens``
            should not decide it. A longer message goes alone, cut with a note.
        previous_observer_tokens: How much of the log the Observer sees of what it noted before.
        tool_result_tokens: Longer tool results are cut to this for the Observer.
        model_settings: Over temperature 0.3 and 100,000 output tokens.
        instruction: Appended to the Observer's instructions.

    Raises:
        ConfigError: Names the option and what is wrong with it.
    """

    model: ModelChoice = None
    message_tokens: int = 30_000
    buffer_tokens: float | Literal[False] = 0.2
    buffer_activation: float = 0.8
    block_after: float = 1.2
    observer_batch_tokens: int | None = None
    previous_observer_tokens: int = 8_000
    tool_result_tokens: int = 5_000
    model_settings: ModelSettings = field(default_factory=ModelSettings)
    instruction: str | None = None

    def __post_init__(self) -> None:
        _require_positive("message_tokens", self.message_tokens)
        _require_positive("tool_result_tokens", self.tool_result_tokens)
        if self.previous_observer_tokens < 0:
            raise ConfigError(f"previous_observer_tokens must not be negative, not {self.previous_observer_tokens}")
        if self.observer_batch_tokens is not None:
            _require_positive("observer_batch_tokens", self.observer_batch_tokens)
        self._check_buffer()
        self._check_activation()
        _check_block("block_after", self.block_after, "message_tokens", self.message_tokens)
        object.__setattr__(self, "model_settings", self.model_settings.over(_OBSERVER_SETTINGS))

    def _check_buffer(self) -> None:
        if self.buffer_tokens is False:
            return
        if self.buffer_tokens is True or self.buffer_tokens <= 0:
            raise ConfigError(f"buffer_tokens must be a positive number or False, not {self.buffer_tokens!r}")
        if (tokens := self.buffered_tokens or 0) >= self.message_tokens:
            raise ConfigError(
                f"buffer_tokens is {tokens:,} tokens, which must be less than message_tokens ({self.message_tokens:,})"
            )

    def _check_activation(self) -> None:
        share = 0 < self.buffer_activation <= 1
        if not share and self.buffer_activation < _ABSOLUTE_ACTIVATION:
            raise ConfigError(
                "buffer_activation must be a share above 0 and up to 1, or the number of tokens to keep "
                f"({_ABSOLUTE_ACTIVATION:,} or more), not {self.buffer_activation!r}"
            )
        if self.retained_tokens >= self.message_tokens:
            raise ConfigError(
                f"buffer_activation keeps {self.retained_tokens:,} tokens, "
                f"which must be less than message_tokens ({self.message_tokens:,})"
            )

    @property
    def buffered_tokens(self) -> int | None:
        """``buffer_tokens`` as a number of tokens (at least 1); None when it is False."""
        if self.buffer_tokens is False:
            return None
        absolute = self.buffer_tokens >= 1
        return max(1, int(self.buffer_tokens if absolute else self.buffer_tokens * self.message_tokens))

    @property
    def retained_tokens(self) -> int:
        """Tokens that stay raw after an observation."""
        if self.buffer_activation >= _ABSOLUTE_ACTIVATION:
            return int(self.buffer_activation)
        return round(self.message_tokens * (1 - self.buffer_activation))

    @property
    def batch_tokens(self) -> int:
        """The most that one call of the Observer takes."""
        if self.observer_batch_tokens is not None:
            return self.observer_batch_tokens
        return 2 * self.buffered_tokens if self.buffered_tokens else _UNBUFFERED_BATCH_TOKENS

    @property
    def least_tokens(self) -> float:
        """For fewer observable tokens no run calls the Observer."""
        if self.buffered_tokens is not None:
            return self.buffered_tokens / 2
        return min(_UNBUFFERED_LEAST_TOKENS, self.message_tokens / 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectionConfig:
    """When the log is condensed, and by whom.

    Attributes:
        model: The Reflector's model, where it is not the one of ``ObservationalMemoryConfig``.
        observation_tokens: Tokens of the log at which the Reflector is called.
        model_settings: Over temperature 0 and 100,000 output tokens.
        instruction: Appended to the Reflector's instructions.

    Raises:
        ConfigError: Names the option and what is wrong with it.
    """

    model: ModelChoice = None
    observation_tokens: int = 40_000
    model_settings: ModelSettings = field(default_factory=ModelSettings)
    instruction: str | None = None

    def __post_init__(self) -> None:
        _require_positive("observation_tokens", self.observation_tokens)
        object.__setattr__(self, "model_settings", self.model_settings.over(_REFLECTOR_SETTINGS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationalMemoryConfig:
    """Observational memory as a whole.

    Attributes:
        enabled: False switches it off and keeps the rest of the configuration.
        model: Model of both roles. A role without a model takes this one, else the other role's.
        scope: ``thread``: one log per thread.
        language: Language of the notes, such as ``"German"``; the user's own by default.
        timezone: IANA name; all dates and times of the notes are in it.
        observe_timeout: Seconds that one run waits for the Observer and the Reflector, all calls
            together. What takes longer is given up and the turn goes on.

    Raises:
        ConfigError: Names the option and what is wrong with it.
    """

    enabled: bool = True
    model: ModelChoice = None
    scope: Literal["thread", "resource"] = "thread"
    observation: ObservationConfig = field(default_factory=ObservationConfig)
    reflection: ReflectionConfig = field(default_factory=ReflectionConfig)
    language: str | None = None
    timezone: str = "UTC"
    observe_timeout: float = 30.0

    def __post_init__(self) -> None:
        for name, value, kind in (
            ("observation", self.observation, ObservationConfig),
            ("reflection", self.reflection, ReflectionConfig),
        ):
            if not isinstance(value, kind):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"{name} must be {kind.__name__}(...), not {type(value).__name__}")
        if self.scope == "resource":
            raise ConfigError("scope='resource' is not available yet; use scope='thread'")
        if self.scope != "thread":
            raise ConfigError(f"scope must be 'thread', not {self.scope!r}")
        for role, model in (("observation", self.observation.model), ("reflection", self.reflection.model)):
            if self.model is not None and model is not None:
                raise ConfigError(f"set either model or {role}.model, not both")
        _require_positive("observe_timeout", self.observe_timeout)
        load_zone(self.timezone)

    @property
    def observer_model(self) -> ModelChoice:
        """The Observer's own model, else that of both, else the Reflector's; None when none is named."""
        return self.observation.model or self.model or self.reflection.model

    @property
    def reflector_model(self) -> ModelChoice:
        """The Reflector's own model, else that of both, else the Observer's; None when none is named."""
        return self.reflection.model or self.model or self.observation.model


def _require_positive(name: str, value: float) -> None:
    if isinstance(value, bool) or value <= 0:
        raise ConfigError(f"{name} must be positive, not {value!r}")


def _check_block(name: str, value: float, threshold_name: str, threshold: int) -> None:
    tokens = value * threshold if value < 2 else value
    if isinstance(value, bool) or tokens <= threshold:
        raise ConfigError(
            f"{name} must lie above {threshold_name} ({threshold:,}): a multiple between 1 and 2, "
            f"or a number of tokens; not {value!r}"
        )
