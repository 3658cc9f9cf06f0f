"""Checks of the options of built-in processors: each error names the processor and the option."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from diarist.exceptions import ConfigError


def positive(processor: str, option: str, value: float) -> None:
    """Raise ConfigError unless ``value`` is more than 0."""
    _number(processor, option, value)
    if not value > 0:
        raise ConfigError(f"{processor}: {option} must be more than 0, not {value!r}")


def not_negative(processor: str, option: str, value: float) -> None:
    """Raise ConfigError for a value below 0."""
    _number(processor, option, value)
    if not value >= 0:
        raise ConfigError(f"{processor}: {option} must not be negative, not {value!r}")


def one_of(processor: str, option: str, value: Any, allowed: Sequence[str]) -> None:
    """Raise ConfigError for a value that is not among ``allowed``."""
    if value not in allowed:
        raise ConfigError(f"{processor}: {option} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


def whole(processor: str, option: str, value: Any, *, least: int) -> None:
    """Raise ConfigError for anything but a whole number from ``least`` on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{processor}: {option} must be a whole number from {least} on, not {value!r}")


def share(processor: str, option: str, value: Any) -> None:
    """Raise ConfigError for anything but a number above 0 and at most 1."""
    if not _is_number(value) or not 0 < value <= 1:
        raise ConfigError(f"{processor}: {option} must be a number above 0 and at most 1, not {value!r}")


def flags(processor: str, **options: Any) -> None:
    """Raise ConfigError for an option that is neither True nor False."""
    for option, value in options.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{processor}: {option} must be True or False, not {value!r}")


def texts(processor: str, **options: Any) -> None:
    """Raise ConfigError for an option that is no text."""
    for option, value in options.items():
        if not isinstance(value, str):
            raise ConfigError(f"{processor}: {option} must be a text, not {value!r}")


def text_list(processor: str, option: str, value: Any) -> tuple[str, ...]:
    """The texts of a list, in any iterable form. Raises ConfigError for a single text, and for anything else."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        listed = tuple(cast(Iterable[Any], value))
        if all(isinstance(item, str) for item in listed):
            return listed
    raise ConfigError(f"{processor}: {option} must be a list of texts, not {value!r}")


def function(processor: str, option: str, value: Any) -> None:
    """Raise ConfigError for what is neither None nor can be called."""
    if value is not None and not callable(value):
        raise ConfigError(f"{processor}: {option} must be a function, not {value!r}")


def function_list(processor: str, option: str, value: Any) -> tuple[Any, ...]:
    """The functions of a list, in any iterable form. Raises ConfigError for anything else."""
    if isinstance(value, Iterable):
        listed = tuple(cast(Iterable[Any], value))
        if all(callable(item) for item in listed):
            return listed
    raise ConfigError(f"{processor}: {option} must be a list of functions, not {value!r}")


def has_methods(processor: str, option: str, value: Any, *names: str) -> None:
    """Raise ConfigError for an object without one of these methods."""
    if missing := [name for name in names if not callable(getattr(value, name, None))]:
        raise ConfigError(f"{processor}: {option} must be an object with the method {missing[0]!r}, not {value!r}")


def _number(processor: str, option: str, value: Any) -> None:
    if not _is_number(value):
        raise ConfigError(f"{processor}: {option} must be a number, not {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
