"""Options of the Observer and the Reflector. Invalid combinations raise ConfigError at construction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from diarist.exceptions import ConfigError
from diarist.models.base import Model, ModelSettings
from diarist.models.fallbacks import ModelEntry

FixedModel = str | Model | ModelEntry | Sequence[str | Model | ModelEntry]
"""A model, or a list of models to try one after the other. A ``ModelEntry`` has its own retries."""

ModelChoice = FixedModel | Callable[[int], FixedModel] | Literal[True] | None
"""A model id (``"openai/gpt-5-mini"``), a model, a ``ModelEntry``, or a list of these. Or a function that returns one
of these; it is called before each call, with the number of input tokens. Or ``"extractive"``: no model; ``"default"``
or True: the default model; None: not set."""

_ABSOLUTE_ACTIVATION = 1000
_UNBUFFERED_BATCH_TOKENS = 10_000
_UNBUFFERED_LEAST_TOKENS = 1_000
_ENDLESS = 1e300  # multiples of smaller numbers stay finite
_OBSERVER_SETTINGS = ModelSettings(temperature=0.3, max_output_tokens=100_000)
_REFLECTOR_SETTINGS = ModelSettings(temperature=0.0, max_output_tokens=100_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationConfig:
    """Options of the Observer: its model, and when and in what portions messages are observed.

    Attributes:
        model: The Observer's model. Cannot be combined with ``ObservationalMemoryConfig.model``.
        message_tokens: Tokens of raw messages at which notes replace them.
        buffer_tokens: Tokens of new messages after which the Observer is called in the background: below 1 a share of
            ``message_tokens``, else absolute. False disables background calls: a call is awaited at
            ``message_tokens`` and takes at most 10,000 tokens, and none is made for less than 1,000 (or a tenth of
            ``message_tokens``, if that is less).
        buffer_activation: Share of ``message_tokens`` that leaves the window: 0.8 leaves 20% raw. A value of 1,000 or
            more is the number of tokens that stay.
        block_after: Tokens of raw messages at which a turn waits for background observation: below 2 a multiple of
            ``message_tokens``, else absolute. No effect if ``buffer_tokens`` is False.
        observer_batch_tokens: Maximum tokens of one call of the Observer; by default what leaves the window at once,
            and at least twice ``buffer_tokens``. A longer message goes alone, cut with a note.
        max_tokens_per_batch: Maximum tokens of several threads in one call, in resource scope.
        previous_observer_tokens: Maximum tokens of earlier notes in the Observer's prompt: of a longer diary its end,
            and the lines nearest to the messages by their words.
        tool_result_tokens: Longer tool results are cut to this for the Observer.
        observe_attachments: None or True: send images and files if the Observer's model takes them. False: only name
            them.
        thread_title: The Observer names the thread.
        model_settings: Settings that override the defaults: temperature 0.3, 100,000 output tokens.
        instruction: Appended to the Observer's instructions.

    Raises:
        ConfigError: An option is invalid; the message names it.
    """

    model: ModelChoice = None
    message_tokens: int = 30_000
    buffer_tokens: float | Literal[False] = 0.2
    buffer_activation: float = 0.8
    block_after: float = 1.2
    observer_batch_tokens: int | None = None
    max_tokens_per_batch: int = 10_000
    previous_observer_tokens: int = 4_000
    tool_result_tokens: int = 5_000
    observe_attachments: bool | None = None
    thread_title: bool = False
    model_settings: ModelSettings = field(default_factory=ModelSettings)
    instruction: str | None = None

    def __post_init__(self) -> None:
        require_whole("message_tokens", self.message_tokens)
        require_positive("max_tokens_per_batch", self.max_tokens_per_batch)
        require_positive("tool_result_tokens", self.tool_result_tokens)
        require_number("previous_observer_tokens", self.previous_observer_tokens)
        if self.previous_observer_tokens < 0:
            raise ConfigError(f"previous_observer_tokens must not be negative, not {self.previous_observer_tokens}")
        if self.observer_batch_tokens is not None:
            require_positive("observer_batch_tokens", self.observer_batch_tokens)
        if self.buffer_tokens is not False:
            require_number("buffer_tokens", self.buffer_tokens)
            if self.buffer_tokens is True or self.buffer_tokens <= 0:
                raise ConfigError(f"buffer_tokens must be a positive number or False, not {self.buffer_tokens!r}")
            if (tokens := self.buffered_tokens or 0) >= self.message_tokens:
                raise ConfigError(
                    f"buffer_tokens is {tokens:,} tokens, which must be less than message_tokens "
                    f"({self.message_tokens:,})"
                )
        require_number("buffer_activation", self.buffer_activation)
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
        _check_block("message_tokens", self.message_tokens, self.block_after)
        object.__setattr__(self, "model_settings", self.model_settings.over(_OBSERVER_SETTINGS))

    @property
    def buffered_tokens(self) -> int | None:
        """``buffer_tokens`` as a number of tokens (at least 1); None if it is False."""
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
    def block_tokens(self) -> int:
        """Tokens of raw messages at which a turn waits for the Observer: ``block_after`` as a number of tokens, or
        ``message_tokens`` without background calls."""
        return self.message_tokens if self.buffer_tokens is False else _absolute(self.block_after, self.message_tokens)

    @property
    def batch_tokens(self) -> int:
        """Maximum tokens of one call of the Observer. An Observer that is behind can note all that is due at once."""
        if self.observer_batch_tokens is not None:
            return self.observer_batch_tokens
        if self.buffered_tokens is None:
            return _UNBUFFERED_BATCH_TOKENS
        return max(2 * self.buffered_tokens, self.message_tokens - self.retained_tokens)

    @property
    def least_tokens(self) -> float:
        """Minimum observable tokens for which a run calls the Observer."""
        if self.buffered_tokens is not None:
            return self.buffered_tokens / 2
        return min(_UNBUFFERED_LEAST_TOKENS, self.message_tokens / 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectionConfig:
    """Options of the Reflector: its model, and when it condenses the log.

    Attributes:
        model: The Reflector's model. Cannot be combined with ``ObservationalMemoryConfig.model``.
        observation_tokens: Tokens of the log at which its oldest part is replaced by a shorter text.
        buffer_activation: Share of ``observation_tokens`` at which the Reflector is called in the background.
        block_after: Tokens of the log at which a turn waits for background reflection: below 2 a multiple of
            ``observation_tokens``, else absolute. This option and ``buffer_activation`` have no effect if
            ``observation.buffer_tokens`` is False: then the Reflector is awaited at ``observation_tokens``.
        model_settings: Settings that override the defaults: temperature 0, 100,000 output tokens.
        instruction: Appended to the Reflector's instructions.

    Raises:
        ConfigError: An option is invalid; the message names it.
    """

    model: ModelChoice = None
    observation_tokens: int = 40_000
    buffer_activation: float = 0.5
    block_after: float = 1.2
    model_settings: ModelSettings = field(default_factory=ModelSettings)
    instruction: str | None = None

    def __post_init__(self) -> None:
        require_whole("observation_tokens", self.observation_tokens)
        require_number("buffer_activation", self.buffer_activation)
        if isinstance(self.buffer_activation, bool) or not 0 < self.buffer_activation <= 1:
            raise ConfigError(
                f"buffer_activation must be a share of observation_tokens above 0 and up to 1, "
                f"not {self.buffer_activation!r}"
            )
        _check_block("observation_tokens", self.observation_tokens, self.block_after)
        object.__setattr__(self, "model_settings", self.model_settings.over(_REFLECTOR_SETTINGS))

    @property
    def start_tokens(self) -> int:
        """Tokens of the log at which the Reflector is called in the background."""
        return max(1, int(self.observation_tokens * self.buffer_activation))

    @property
    def block_tokens(self) -> int:
        """``block_after`` as a number of tokens."""
        return _absolute(self.block_after, self.observation_tokens)


def require_positive(name: str, value: float) -> None:
    """Raise ConfigError if ``value`` is not a positive number."""
    require_number(name, value)
    if isinstance(value, bool) or value <= 0:
        raise ConfigError(f"{name} must be positive, not {value!r}")


def require_whole(name: str, value: float) -> None:
    """Raise ConfigError if ``value`` is not a positive whole number."""
    require_positive(name, value)
    if not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number, not {value!r}")


def require_number(name: str, value: object) -> None:
    """Raise ConfigError if ``value`` is not a finite number."""
    if not isinstance(value, int | float):
        raise ConfigError(f"{name} must be a number, not {value!r}")
    if not abs(value) < _ENDLESS:
        raise ConfigError(f"{name} must be a finite number, not {value!r}")


def _absolute(value: float, threshold: int) -> int:
    return round(value * threshold) if value < 2 else int(value)


def _check_block(threshold_name: str, threshold: int, value: float) -> None:
    require_number("block_after", value)
    if isinstance(value, bool) or _absolute(value, threshold) <= threshold:
        raise ConfigError(
            f"block_after must lie above {threshold_name} ({threshold:,}): a multiple between 1 and 2, "
            f"or a number of tokens; not {value!r}"
        )
