"""Options of an agent and of a call: what each must be."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from diarist.exceptions import ConfigError
from diarist.models.base import ModelSettings
from diarist.processors.setup import checked_provider_options
from diarist.run_context import CancelSignal


def check_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first option that is not what it must be: its name, its value and what is wanted."""
    for name, value in options.items():
        if name in _WANTED:
            holds, words = _WANTED[name]
            if not holds(value):
                raise ConfigError(f"{name} must be {words}, not {value!r}")
    checked_provider_options(options.get("provider_options", {}))
    if any(inspect.iscoroutinefunction(item) for item in _several(options.get("stop_when"))):
        raise ConfigError("stop_when takes plain functions of the steps, not async ones")


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _functions(value: Any) -> bool:
    return (callable(value) or isinstance(value, list | tuple)) and all(callable(item) for item in _several(value))


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(cast(list[Any], value)) if isinstance(value, list | tuple) else (value,)


def _names(value: Any) -> bool:
    return isinstance(value, list | tuple | set | frozenset) and all(
        isinstance(item, str) for item in cast(list[Any], value)
    )


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


_FUNCTION: tuple[Callable[[Any], bool], str] = (callable, "a function")

_WANTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "request_context": (_is(Mapping), "a dictionary"),
    "model_settings": (_is(ModelSettings), "ModelSettings(temperature=..., ...)"),
    "tool_choice": (_is(str), "'auto', 'none', 'required' or the name of a tool"),
    "active_tools": (_names, "a list of names of tools"),
    "max_steps": (_whole(1), "a whole number from 1 on"),
    "max_processor_retries": (_whole(0), "a whole number from 0 on"),
    "prepare_step": _FUNCTION,
    "stop_when": (_functions, "a function of the steps, or a list of such functions"),
    "cancel": (_is(CancelSignal), "a CancelSignal"),
    "on_step_finish": _FUNCTION,
    "on_finish": _FUNCTION,
    "on_error": _FUNCTION,
    "on_abort": _FUNCTION,
}
