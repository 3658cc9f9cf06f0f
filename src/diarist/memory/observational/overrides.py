"""Overrides: thresholds of one thread or resource that replace those of the configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from diarist.exceptions import ConfigError
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.role_config import require_positive
from diarist.messages import Json

_OBSERVATION = ("message_tokens", "buffer_tokens", "buffer_activation", "block_after")
"""Overrides of fields of ``ObservationConfig``."""

_REFLECTION = {
    "observation_tokens": "observation_tokens",
    "reflection_buffer_activation": "buffer_activation",
    "reflection_block_after": "block_after",
}
"""Overrides of fields of ``ReflectionConfig``."""

logger = logging.getLogger("diarist")


def apply_overrides(config: ObservationalMemoryConfig, overrides: Mapping[str, Json]) -> ObservationalMemoryConfig:
    """Return the configuration with these overrides, validated as a whole.

    Raises ConfigError for an unknown name, and for a value that is not a number or contradicts the other options.
    """
    if not overrides:
        return config
    check_overrides(overrides)
    observation = {name: overrides[name] for name in _OBSERVATION if name in overrides}
    reflection = {field: overrides[name] for name, field in _REFLECTION.items() if name in overrides}
    return replace(
        config,
        observation=replace(config.observation, **observation),
        reflection=replace(config.reflection, **reflection),
    )


def check_overrides(overrides: Mapping[str, Json]) -> None:
    """Raise ConfigError for an unknown name, or a value that is invalid in any configuration."""
    for name, value in overrides.items():
        if name not in _OBSERVATION and name not in _REFLECTION:
            names = ", ".join((*_OBSERVATION, *_REFLECTION))
            raise ConfigError(f"{name!r} cannot be overridden; these can: {names}")
        if name == "buffer_tokens" and value is False:
            continue
        whole = name in ("message_tokens", "observation_tokens")
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise ConfigError(f"{name} must be a {'whole number' if whole else 'number'}, not {value!r}")
        require_positive(name, value)


def effective_config(config: ObservationalMemoryConfig, overrides: Mapping[str, Json]) -> ObservationalMemoryConfig:
    """Apply overrides as ``apply_overrides`` does. If they are invalid, log a warning and ignore all of them.

    The configuration may have changed since they were stored.
    """
    try:
        return apply_overrides(config, overrides)
    except ConfigError as error:
        logger.warning("the overrides %s have no effect: %s", dict(overrides), error)
        return config
