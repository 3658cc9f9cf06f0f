"""Overrides: thresholds of one thread or resource that replace those of the configuration."""

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
"""Names of overrides, and the fields of ``ObservationConfig`` that they set."""

REFLECTION_OVERRIDES = {
    "observation_tokens": "observation_tokens",
    "reflection_buffer_activation": "buffer_activation",
    "reflection_block_after": "block_after",
}
"""Names of overrides, and the fields of ``ReflectionConfig`` that they set."""

_NAMES = (*OBSERVATION_OVERRIDES, *REFLECTION_OVERRIDES)
_TOKENS = ("message_tokens", "observation_tokens")

logger = logging.getLogger("diarist")


def apply_overrides(config: ObservationalMemoryConfig, overrides: Mapping[str, Json]) -> ObservationalMemoryConfig:
    """Return the configuration with these overrides, validated as a whole.

    Args:
        overrides: By the names of ``OBSERVATION_OVERRIDES`` and ``REFLECTION_OVERRIDES``. Values as in the
            configuration.

    Raises:
        ConfigError: A name is unknown, a value is not a number, or it contradicts the other options; the message
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
    """Raise ConfigError for an unknown name, or a value that is invalid in any configuration."""
    for name, value in overrides.items():
        _check(name, value)


def effective_config(config: ObservationalMemoryConfig, overrides: Mapping[str, Json]) -> ObservationalMemoryConfig:
    """Apply overrides like ``apply_overrides``, but ignore all of them with a warning if they are invalid.

    The configuration may have changed since they were stored.
    """
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
