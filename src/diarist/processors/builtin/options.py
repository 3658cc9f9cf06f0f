"""Checks of the options of built-in processors: each error names the processor and the option."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diarist.exceptions import ConfigError


def positive(processor: str, option: str, value: float) -> None:
    """Raise ConfigError unless ``value`` is more than 0."""
    if isinstance(value, bool) or not value > 0:
        raise ConfigError(f"{processor}: {option} must be more than 0, not {value!r}")


def not_negative(processor: str, option: str, value: float) -> None:
    """Raise ConfigError for a value below 0."""
    if isinstance(value, bool) or not value >= 0:
        raise ConfigError(f"{processor}: {option} must not be negative, not {value!r}")


def one_of(processor: str, option: str, value: Any, allowed: Sequence[str]) -> None:
    """Raise ConfigError for a value that is not among ``allowed``."""
    if value not in allowed:
        raise ConfigError(f"{processor}: {option} must be one of {', '.join(map(repr, allowed))}, not {value!r}")
