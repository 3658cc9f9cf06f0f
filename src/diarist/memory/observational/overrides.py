"""Thresholds of one thread or resource, over those of the configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from diarist.exceptions import ConfigError
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.role_config import require_number
from diarist.messages import Json

OBSERVATION_OVERRIDES = {
    "message_tokens": "message_tokens",
    "buffer_tokens": "buffer_tokens",
    "buffer_activation": "buffer_activation",
    "block_after": "block_after",
}
"""Names of overrides, and what they set in ``ObservationConfig``."""

REFLECTION_OVERRIDES = {
    "observation_tokens": "observation_tokens",
    "reflection_buffer_activation": "buffer_activation",
    "reflection_block_after": "block_after",
}
"""Names of overrides, and what they set in ``ReflectionConfig``."""

_NAMES = (*OBSERVATION_OVERRIDES, *REFLECTION_OVERRIDES)
_TOKENS = ("message_tokens", "observation_tokens")

logger = logging.getLogger("diarist")


def apply_overrides(config: ObservationalMemoryConfig, overrides: Mapping[str, Json]) -> ObservationalMemoryConfig:
    """The configuration with these thresholds instead of its own, checked as a whole.

    Args:
        overrides: By the names of ``OBSERVATION_OVERRIDES`` and ``REFLECTION_OVERRIDES``. Values as in the
            configuration.

    Raises:
        ConfigError: An unknown name, a value that is no number, or one that contradicts the rest; the message
            names the option.
    """
    if not overrides:
        return config
    check_overrides(overrides)
    observation = {field: overrides[name] for name, field in OBSERVATION_OVERRIDES.items() if name in overrides}
    reflection = {field: overrides[name] for name, field in REFLECTION_OVERRIDES.items() if name in overrides}
    return replace(
        config,
        observation=replace(config.observation, **observation),
        reflection=replace(config.reflection, **reflection),
    )


def check_overrides(overrides: Mapping[str, Json]) -> None:
    """Raises ConfigError for an unknown name, and for a value that no configuration takes."""
    for name, value in overrides.items():
        _check(name, value)


def effective_config(config: ObservationalMemoryConfig, overrides: Mapping[str, Json]) -> ObservationalMemoryConfig:
    """As ``apply_overrides``; but overrides that contradict the configuration, which may have changed since they
    were written, are left out with a warning."""
    try:
        return apply_overrides(config, overrides)
    except ConfigError as error:
        logger.warning("the overrides %s are without effect: %s", dict(overrides), error)
        return config


def _check(name: str, value: Json) -> None:
    if name not in _NAMES:
        raise ConfigError(f"{name!r} cannot be overridden; what can: {', '.join(_NAMES)}")
    if name == "buffer_tokens" and value is False:
        return
    kind = int if name in _TOKENS else int | float
    if isinstance(value, bool) or not isinstance(value, kind):
        raise ConfigError(f"{name} must be a {'whole number' if name in _TOKENS else 'number'}, not {value!r}")
    require_number(name, value)
    if value <= 0:
        raise ConfigError(f"{name} must be positive, not {value!r}")
