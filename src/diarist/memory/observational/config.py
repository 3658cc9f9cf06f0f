"""Options of observational memory. Invalid combinations raise ConfigError at construction."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import Literal, get_args

from diarist.checks import flags, instance, one_of, positive, seconds, share, texts, whole
from diarist.exceptions import ConfigError
from diarist.memory.observational.roles.hooks import MemoryHooks
from diarist.memory.observational.roles.transcript import load_zone
from diarist.messages import Json
from diarist.models.base import Model, ModelSettings
from diarist.models.fallbacks import ModelEntry
from diarist.storage.records import Scope

FixedModel = str | Model | ModelEntry | Sequence[str | Model | ModelEntry]
"""A model, or a list of models to try one after the other. A ``ModelEntry`` has its own retries."""

ModelChoice = FixedModel | Callable[[int], FixedModel] | Literal[True] | None
"""A model id (``"openai/gpt-5-mini"``), a model, a ``ModelEntry``, or a list of these. Or a function that returns one
of these; it is called before each call, with the number of input tokens. Or ``"extractive"``: no model; ``"default"``
or True: the default model; None: not set."""

DebugCallback = Callable[[Mapping[str, Json]], None]
"""Function that receives each debug event: a mapping with its ``type`` and further fields."""

_ABSOLUTE_ACTIVATION = 1000
_UNBUFFERED_BATCH_TOKENS = 10_000
_ENDLESS = 1e300  # multiples of smaller numbers stay finite
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smh])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


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
        whole("", "message_tokens", self.message_tokens, least=1)
        whole("", "max_tokens_per_batch", self.max_tokens_per_batch, least=1)
        whole("", "tool_result_tokens", self.tool_result_tokens, least=1)
        whole("", "previous_observer_tokens", self.previous_observer_tokens, least=0)
        if self.observer_batch_tokens is not None:
            whole("", "observer_batch_tokens", self.observer_batch_tokens, least=1)
        if self.buffer_tokens is not False:
            _finite("buffer_tokens", self.buffer_tokens)
            positive("", "buffer_tokens", self.buffer_tokens)
            if (tokens := self.buffered_tokens or 0) >= self.message_tokens:
                raise ConfigError(
                    f"buffer_tokens is {tokens:,} tokens, which must be less than message_tokens "
                    f"({self.message_tokens:,})"
                )
        _finite("buffer_activation", self.buffer_activation)
        if not 0 < self.buffer_activation <= 1 and self.buffer_activation < _ABSOLUTE_ACTIVATION:
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
        instance("", "model_settings", self.model_settings, ModelSettings)
        flags("", observe_attachments=self.observe_attachments or False, thread_title=self.thread_title)
        texts("", instruction=self.instruction or "")

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
    def batch_tokens(self) -> int:
        """Maximum tokens of one call of the Observer. An Observer that is behind can note all that is due at once."""
        if self.observer_batch_tokens is not None:
            return self.observer_batch_tokens
        if self.buffered_tokens is None:
            return _UNBUFFERED_BATCH_TOKENS
        return max(2 * self.buffered_tokens, self.message_tokens - self.retained_tokens)


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
        whole("", "observation_tokens", self.observation_tokens, least=1)
        share("", "buffer_activation", self.buffer_activation)
        _check_block("observation_tokens", self.observation_tokens, self.block_after)
        instance("", "model_settings", self.model_settings, ModelSettings)
        texts("", instruction=self.instruction or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalConfig:
    """Options of the ``recall`` tool, with which the model looks up original messages.

    Attributes:
        max_tokens: Maximum size of one answer.
        search: True: the tool can also search; False: it only browses.

    Raises:
        ConfigError: ``max_tokens`` is below 200, which holds no message and the way to the next; or an option is
            invalid.
    """

    max_tokens: int = 2_000
    search: bool = True

    def __post_init__(self) -> None:
        whole("", "retrieval.max_tokens", self.max_tokens, least=200)
        flags("", **{"retrieval.search": self.search})


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationalMemoryConfig:
    """All options of observational memory.

    Attributes:
        enabled: False switches it off and keeps the rest of the configuration.
        model: Model of the Observer and the Reflector. Without it, a role that has no model uses the other role's.
        scope: ``thread``: one log per thread; ``resource``: one log for all threads of a resource.
        share_token_budget: Messages and log share the sum of ``message_tokens`` and ``observation_tokens``. Requires
            ``observation=ObservationConfig(buffer_tokens=False)``.
        obscure_thread_ids: True: models see hashes instead of thread ids. None: only in resource scope.
        activate_after_idle: Pause in seconds (or ``"90s"``, ``"5m"``, ``"1h"``) after which a turn activates
            buffered notes, since the provider's cache has expired; ``"auto"``: the provider's cache lifetime. None
            disables this.
        activate_on_provider_change: Activate buffered notes also when a turn uses another provider or model than the
            previous turn.
        temporal_markers: Name pauses of ten minutes or more before a user's message, for the Observer and in the
            memory note.
        retrieval: Give the model a tool to look up original messages; True for ``RetrievalConfig()``.
        hooks: Functions around the Observer and the Reflector.
        language: Language of the notes, such as ``"German"``; the user's own by default.
        timezone: IANA name; all dates and times of the notes are in it.
        observe_timeout: Seconds that one run waits for the Observer and the Reflector, all calls together. After
            that an event reports this, the turn continues, and so does the call, in the background. Without buffering
            the call is cancelled.
        background_timeout: Time limit of one call in the background, or of one that a turn waits for, in seconds.
        on_debug_event: Function that receives, as a flat mapping, each ``data-om-*`` event, also of background work and
            manual calls, and each decision with its inputs (type ``decision``). It must not be async; its errors are
            logged.

    Raises:
        ConfigError: An option is invalid; the message names it.
    """

    enabled: bool = True
    model: ModelChoice = None
    scope: Scope = "thread"
    observation: ObservationConfig = field(default_factory=ObservationConfig)
    reflection: ReflectionConfig = field(default_factory=ReflectionConfig)
    share_token_budget: bool = False
    obscure_thread_ids: bool | None = None
    activate_after_idle: float | str | None = None
    activate_on_provider_change: bool = False
    temporal_markers: bool = False
    retrieval: bool | RetrievalConfig = False
    hooks: MemoryHooks = field(default_factory=MemoryHooks)
    language: str | None = None
    timezone: str = "UTC"
    observe_timeout: float = 30.0
    background_timeout: float = 300.0
    on_debug_event: DebugCallback | None = None

    def __post_init__(self) -> None:
        instance("", "observation", self.observation, ObservationConfig)
        instance("", "reflection", self.reflection, ReflectionConfig)
        instance("", "hooks", self.hooks, MemoryHooks)
        flags("", enabled=self.enabled, share_token_budget=self.share_token_budget)
        flags("", activate_on_provider_change=self.activate_on_provider_change, temporal_markers=self.temporal_markers)
        flags("", obscure_thread_ids=self.obscure_thread_ids or False)
        texts("", language=self.language or "")
        if not isinstance(self.retrieval, bool | RetrievalConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"retrieval must be a bool or RetrievalConfig(...), not {type(self.retrieval).__name__}")
        one_of("", "scope", self.scope, get_args(Scope))
        if self.share_token_budget and self.buffers:
            raise ConfigError("share_token_budget needs observation=ObservationConfig(buffer_tokens=False)")
        for role, model in (("observation", self.observation.model), ("reflection", self.reflection.model)):
            if self.model is not None and model is not None:
                raise ConfigError(f"set either model or {role}.model, not both")
        seconds("", "observe_timeout", self.observe_timeout)
        seconds("", "background_timeout", self.background_timeout)
        if self.on_debug_event is not None and (
            iscoroutinefunction(self.on_debug_event) or not callable(self.on_debug_event)
        ):
            raise ConfigError(f"on_debug_event must be a plain function, not {self.on_debug_event!r}")
        _seconds("activate_after_idle", self.activate_after_idle)
        load_zone(self.timezone)

    @property
    def observer_model(self) -> ModelChoice:
        """The Observer's own model, else the shared one, else the Reflector's; None if none is configured."""
        return _first(self.observation.model, self.model, self.reflection.model)

    @property
    def reflector_model(self) -> ModelChoice:
        """The Reflector's own model, else the shared one, else the Observer's; None if none is configured."""
        return _first(self.reflection.model, self.model, self.observation.model)

    @property
    def buffers(self) -> bool:
        """True if the Observer and the Reflector work in the background."""
        return self.observation.buffer_tokens is not False

    @property
    def idle_seconds(self) -> float | Literal["auto"] | None:
        """``activate_after_idle`` in seconds, ``"auto"`` for the provider's cache lifetime, or None for never."""
        return _seconds("activate_after_idle", self.activate_after_idle)

    @property
    def obscures_threads(self) -> bool:
        """True if models see hashes instead of thread ids."""
        return self.scope == "resource" if self.obscure_thread_ids is None else self.obscure_thread_ids

    @property
    def retrieves(self) -> RetrievalConfig | None:
        """Options of the recall tool; None if it is disabled."""
        if isinstance(self.retrieval, RetrievalConfig):
            return self.retrieval
        return RetrievalConfig() if self.retrieval else None


# --- checks -----------------------------------------------------------------------------------------------


def _finite(name: str, value: object) -> None:
    """Raise ConfigError if ``value`` is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} must be a number, not {value!r}")
    if not abs(value) < _ENDLESS:
        raise ConfigError(f"{name} must be a finite number, not {value!r}")


def block_tokens(value: float, threshold: int) -> int:
    """Return ``block_after`` as a number of tokens."""
    return round(value * threshold) if value < 2 else int(value)


def _check_block(threshold_name: str, threshold: int, value: float) -> None:
    _finite("block_after", value)
    if block_tokens(value, threshold) <= threshold:
        raise ConfigError(
            f"block_after must lie above {threshold_name} ({threshold:,}): a multiple between 1 and 2, "
            f"or a number of tokens; not {value!r}"
        )


def _first(*models: ModelChoice) -> ModelChoice:
    return next((model for model in models if model is not None), None)


def _seconds(name: str, value: float | str | None) -> float | Literal["auto"] | None:
    if value is None or value == "auto":
        return value
    if isinstance(value, str):
        if not (match := _DURATION.fullmatch(value.strip())):
            raise ConfigError(f"{name} must be a number of seconds, '90s', '5m', '1h' or 'auto', not {value!r}")
        value = float(match[1]) * _SECONDS[match[2]]
    seconds("", name, value)
    return float(value)
