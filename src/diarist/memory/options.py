"""Checks of options: each error names the option, what it must be, and what it is."""

from __future__ import annotations

import math
from os import PathLike
from typing import Any

from diarist.exceptions import ConfigError
from diarist.storage.base import Storage


def check_whole(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Raises ConfigError for anything but a whole number in these bounds."""
    if type(value) is not int or value < least or (most is not None and value > most):
        upto = "on" if most is None else f"to {most:,}"
        raise ConfigError(f"{name} must be a whole number from {least} {upto}, not {value!r}")


def check_number(name: str, value: Any, least: float, most: float) -> None:
    """Raises ConfigError for anything but a number in these bounds."""
    if type(value) not in (int, float) or not least <= value <= most:
        raise ConfigError(f"{name} must be a number from {least} to {most}, not {value!r}")


def check_seconds(name: str, value: Any, *, zero: bool = False) -> None:
    """Raises ConfigError for anything but a finite number of seconds above 0, or ``zero``."""
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        bound = "from 0 on" if zero else "above 0"
        raise ConfigError(f"{name} must be a number of seconds {bound}, not {value!r}")


def check_flags(**options: Any) -> None:
    """Raises ConfigError for an option that is neither True nor False."""
    for name, value in options.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be True or False, not {value!r}")


def checked_storage(value: Storage) -> Storage:
    """``value``. Raises ConfigError for anything but a storage."""
    methods = () if isinstance(value, type) else sorted(Storage.__abstractmethods__)
    if methods and all(callable(getattr(value, name, None)) for name in methods):  # also one that wraps another
        return value
    made = f"SQLiteStorage({value!r})" if isinstance(value, str | PathLike) else "SQLiteStorage('memory.db')"
    raise ConfigError(f"storage must be a storage, such as {made} from diarist.storage, not {value!r}")
