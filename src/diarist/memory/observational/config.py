"""Options of observational memory. Invalid combinations raise ConfigError at construction."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import Literal

from diarist.exceptions import ConfigError
from diarist.memory.observational.role_config import ModelChoice, ObservationConfig, ReflectionConfig, require_positive
from diarist.memory.observational.roles.hooks import MemoryHooks
from diarist.memory.observational.roles.transcript import load_zone
from diarist.messages import Json

__all__ = [
    "DebugCallback",
    "ModelChoice",
    "ObservationConfig",
    "ObservationalMemoryConfig",
    "ReflectionConfig",
    "RetrievalConfig",
]

DebugCallback = Callable[[Mapping[str, Json]], None]
"""Function that receives each debug event: a mapping with its ``type`` and further fields."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smh])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalConfig:
    """Options of the ``recall`` tool, with which the model looks up original messages.

    Attributes:
        max_tokens: Maximum size of one answer.
        search: True: the tool can also search; False: it only browses.

    Raises:
        ConfigError: ``max_tokens`` is not positive.
    """

    max_tokens: int = 2_000
    search: bool = True

    def __post_init__(self) -> None:
        require_positive("retrieval.max_tokens", self.max_tokens)


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
            that the call is cancelled, or continues if it was started in the background. An event reports this, and
            the turn continues.
        background_timeout: Time limit of one background observation or reflection, in seconds.
        on_debug_event: Function that receives, as a flat mapping, each ``data-om-*`` event, also of background work and
            manual calls, and each decision with its inputs (type ``decision``). It must not be async; its errors are
            logged.

    Raises:
        ConfigError: An option is invalid; the message names it.
    """

    enabled: bool = True
    model: ModelChoice = None
    scope: Literal["thread", "resource"] = "thread"
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
        for name, value, kind in (
            ("observation", self.observation, ObservationConfig),
            ("reflection", self.reflection, ReflectionConfig),
            ("hooks", self.hooks, MemoryHooks),
        ):
            if not isinstance(value, kind):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"{name} must be {kind.__name__}(...), not {type(value).__name__}")
        if not isinstance(self.retrieval, bool | RetrievalConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"retrieval must be a bool or RetrievalConfig(...), not {type(self.retrieval).__name__}")
        if self.scope not in ("thread", "resource"):
            raise ConfigError(f"scope must be 'thread' or 'resource', not {self.scope!r}")
        if self.share_token_budget and self.buffers:
            raise ConfigError("share_token_budget needs observation=ObservationConfig(buffer_tokens=False)")
        for role, model in (("observation", self.observation.model), ("reflection", self.reflection.model)):
            if self.model is not None and model is not None:
                raise ConfigError(f"set either model or {role}.model, not both")
        require_positive("observe_timeout", self.observe_timeout)
        require_positive("background_timeout", self.background_timeout)
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


def _first(*models: ModelChoice) -> ModelChoice:
    return next((model for model in models if model is not None), None)


def _seconds(name: str, value: float | str | None) -> float | Literal["auto"] | None:
    if value is None or value == "auto":
        return value
    if isinstance(value, str):
        if not (match := _DURATION.fullmatch(value.strip())):
            raise ConfigError(f"{name} must be a number of seconds, '90s', '5m', '1h' or 'auto', not {value!r}")
        value = float(match[1]) * _SECONDS[match[2]]
    require_positive(name, value)
    return float(value)
