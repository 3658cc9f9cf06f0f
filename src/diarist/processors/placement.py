"""Checks that each processor is in a list that runs its hooks: a guard that never runs lets everything pass."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, cast

from diarist.exceptions import ConfigError
from diarist.processors.base import Processor
from diarist.processors.compose import ERROR_HOOKS, INPUT_HOOKS, OUTPUT_HOOKS, Composition, leaves

HOOKS = (*INPUT_HOOKS, *OUTPUT_HOOKS, *ERROR_HOOKS)

_LIST_HOOKS = {
    "input_processors": (*INPUT_HOOKS, *ERROR_HOOKS),
    "output_processors": (*OUTPUT_HOOKS, *ERROR_HOOKS),
    "error_processors": ERROR_HOOKS,
    "processors": HOOKS,
}

_OUTPUT = ("output_processors", "processors")
_OUTPUT_ONLY = ("output_processors", "error_processors")

_MISSPELT_FROM = 0.85
"""Similarity to a hook's name (1: equal) from which a method's name counts as misspelt. ``process_ouput_step`` has
0.95, ``process_output_chunk`` 0.61."""


def check_list(list_name: str, processors: Sequence[Any]) -> list[Processor[Any]]:
    """Return the processors of a list.

    Raises ConfigError for an object that is no processor, two processors with the same id, two that store the run, a
    misspelt hook, a hook that is set on an object, or an unknown ``on_error``.
    """
    seen: set[str] = set()
    for processor in processors:
        if not isinstance(processor, Processor):
            remedy = "subclass Processor and pass an instance"
            if inspect.isfunction(processor):
                remedy = "decorate it, such as with @processor.input_step"
            raise ConfigError(f"{list_name}: {processor!r} is no processor; {remedy}")
    for processor in leaves(processors):
        if processor.id in seen:
            raise ConfigError(f"{list_name}: two processors have the id {processor.id!r}; give one another id")
        seen.add(processor.id)
        who = f"{list_name}: processor {processor.id!r}"
        if cast(str, processor.on_error) not in ("fail", "continue"):
            raise ConfigError(f"{who} has on_error={processor.on_error!r}; allowed: 'fail', 'continue'")
        own: Mapping[str, Any] = getattr(processor, "__dict__", {})
        if on_object := [hook for hook in HOOKS if hook in own and not processor.handles(hook)]:
            decorator = on_object[0].removeprefix("process_")
            raise ConfigError(
                f"{who} has {on_object[0]} set on the object, where it never runs; override it in the class, or make "
                f"a processor of the function with @processor.{decorator}"
            )
        if misspelt := _misspelt(type(processor)):
            name, meant = misspelt
            raise ConfigError(
                f"{who} has a method {name}, which is no hook; is {meant} meant? If not, give it another name"
            )
    if len(storing := [repr(processor.id) for processor in leaves(processors) if processor.stores_run]) > 1:
        raise ConfigError(
            f"{list_name}: {' and '.join(storing)} would each store the run's messages; remove one of them "
            "(an agent's memory= adds one)"
        )
    return list(processors)


def check_places(lists: Mapping[str, Sequence[Processor[Any]]]) -> None:
    """Raise ConfigError if a list runs none of the hooks of a processor, or if an option has no effect in it.

    Processors in compositions are checked, too.

    Args:
        lists: The lists by name.
    """
    placed = [
        (name, processor, part)
        for name, processors in lists.items()
        for processor in processors
        for part in leaves([processor])
    ]
    on_input = {id(part) for name, _, part in placed if name not in _OUTPUT_ONLY}
    on_output = {id(part) for name, _, part in placed if name in _OUTPUT}
    asked = {id(part) for name, _, part in placed if any(map(part.handles, _LIST_HOOKS[name]))}
    for name, processor, part in placed:
        if isinstance(part, Composition):
            continue
        who = f"{name}: processor {part.id!r}{'' if part is processor else f' in {processor.id!r}'}"
        option = "hold_output" if part.hold_output else part.output_option
        if option and id(part) not in on_output:
            raise ConfigError(f"{who} has {option}, which has no effect there; {_REMEDY}")
        if part.input_option and id(part) not in on_input:
            raise ConfigError(f"{who} needs its input hooks too: pass {part.input_option}=, or {_REMEDY}")
        if part.hold_output or id(part) in asked:
            continue
        if any(map(part.handles, HOOKS)):
            hooks = ", ".join(_LIST_HOOKS[name])
            raise ConfigError(f"{who} has none of this list's hooks ({hooks}); {_REMEDY}")
        raise ConfigError(f"{who} has no hook, so it never runs; override one of {', '.join(HOOKS)}")


def check_history(processors: Sequence[Processor[Any]]) -> None:
    """Raise ConfigError if a processor of memory needs the thread's messages, and no processor loads them."""
    flat = leaves(processors)
    needing = [processor.id for processor in flat if processor.needs_history]
    if needing and not any(processor.loads_history for processor in flat):
        raise ConfigError(
            f"processor {needing[0]!r} needs one that loads and stores the messages: add MessageHistory(storage) "
            "or ObservationalMemory(storage), with the same storage, to the input_processors"
        )


_REMEDY = "put it into processors=, which is right for every processor"


@lru_cache(maxsize=512)
def _misspelt(kind: type[Processor[Any]]) -> tuple[str, str] | None:
    """Return the name of a method that looks like a misspelt hook, and the hook; None if there is none."""
    short = {hook.removeprefix("process_"): hook for hook in HOOKS}
    for name in dir(kind):
        if hasattr(Processor, name) or not name.startswith("process_") or not callable(getattr(kind, name)):
            continue
        if found := get_close_matches(name.removeprefix("process_"), short, n=1, cutoff=_MISSPELT_FROM):
            return name, short[found[0]]
    return None
