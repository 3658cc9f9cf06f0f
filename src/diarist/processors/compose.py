"""Compositions of processors, and the plan of a hook that is compiled from them.

``Sequence``, ``Parallel`` and ``Branch`` work in every hook and nest. The pipeline runs the compiled nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Any, TypeVar

from diarist.checks import function
from diarist.exceptions import ConfigError
from diarist.processors.base import Processor, call_sync_or_async
from diarist.processors.hooks import Hook

T = TypeVar("T")

Condition = Callable[[Any], Any]
"""Takes the hook's arguments and returns True to run its processor; sync or async."""

Merge = Callable[[list[Any]], Any]
"""Takes the outcome of each branch, in the form of the hook's return value, and returns the one to use; sync or
async."""


class Composition(Processor[Any]):
    """Base of ``Sequence``, ``Parallel`` and ``Branch``. Each part keeps its own id and state.

    Raises:
        ConfigError: No parts; a part that is no processor, or has ``opens_run``; ``run_in_parallel`` in only some of
            the parts with ``process_input``.
    """

    def __init__(self, parts: Items[Any], *, id: str | None) -> None:
        if not parts:
            raise ConfigError(f"{type(self).__name__} needs at least one processor")
        for part in parts:
            if not isinstance(part, Processor):
                raise ConfigError(f"{type(self).__name__}: {part!r} is no processor")
        self.parts: tuple[Processor[Any], ...] = tuple(parts)
        self.id = f"{type(self).id}({','.join(part.id for part in self.parts)})" if id is None else id
        self.hold_output = any(part.hold_output for part in self.parts)
        self.process_data_parts = any(part.process_data_parts for part in self.parts)
        asked = [part for part in self.parts if part.handles("process_input")]
        for part in asked:
            if part.opens_run:
                raise ConfigError(
                    f"{self.id}: part {part.id!r} has opens_run, which has no effect in a composition; put the part "
                    "itself into the list of processors"
                )
        guards = [part for part in asked if part.run_in_parallel]
        if guards and (others := [part for part in asked if not part.run_in_parallel]):
            raise ConfigError(
                f"{self.id}: part {guards[0].id!r} has run_in_parallel, so its process_input runs during the "
                f"first model call, but {others[0].id!r} has not; put them into separate compositions"
            )
        self.run_in_parallel = bool(guards)

    def handles(self, hook: str) -> bool:
        """Return True if any part has this hook."""
        return any(part.handles(hook) for part in self.parts)


class Sequence(Composition):
    """Runs its parts one after the other, as in a list: each sees the changes of the parts before it."""

    id = "sequence"

    def __init__(self, *parts: Processor[Any], id: str | None = None) -> None:
        super().__init__(parts, id=id)


class Parallel(Composition):
    """Runs its parts at the same time, each on a copy of the messages. The first that blocks cancels the others.

    Args:
        merge: Chooses the outcome to use. Without it, parts may only read and block; a part that changes something
            raises ProcessorResultError.
    """

    id = "parallel"

    def __init__(self, *parts: Processor[Any], merge: Merge | None = None, id: str | None = None) -> None:
        super().__init__(parts, id=id)
        function("Parallel", "merge", merge)
        self.merge = merge


class Branch(Composition):
    """Runs the first processor with a true condition. If there is none, runs ``default``, if given.

    Args:
        cases: Pairs of a condition and a processor. The condition takes the hook's arguments.
    """

    id = "branch"

    def __init__(
        self,
        *cases: tuple[Condition, Processor[Any]],
        default: Processor[Any] | None = None,
        id: str | None = None,
    ) -> None:
        for case in cases:
            if not isinstance(case, tuple) or len(case) != 2 or not callable(case[0]):  # pyright: ignore[reportUnnecessaryIsInstance, reportUnnecessaryComparison]
                raise ConfigError(f"Branch: {case!r} is no pair of a condition and a processor")
        parts = [part for _, part in cases] + ([default] if default is not None else [])
        super().__init__(parts, id=id)
        self.conditions: tuple[Condition, ...] = tuple(condition for condition, _ in cases)
        self.default = default

    async def chosen(self, args: Any, parts: Items[T | None]) -> T | None:
        """Return the item of ``parts`` to run; ``parts`` has one item per part of this branch, in order."""
        for condition, part in zip(self.conditions, parts, strict=False):
            if await call_sync_or_async(condition, args):
                return part
        return parts[-1] if self.default is not None else None


# -- plans

INPUT_HOOKS = ("process_input", "process_input_step", "process_llm_request", "process_llm_response")
OUTPUT_HOOKS = (
    "process_output_stream",
    "process_output_step",
    "process_tool_call",
    "process_tool_result",
    "process_output_result",
)
ERROR_HOOKS = ("process_api_error",)


def leaves(processors: Items[Processor[Any]]) -> list[Processor[Any]]:
    """Return all processors, including compositions and their parts."""
    out: list[Processor[Any]] = []
    for processor in processors:
        out.append(processor)
        if isinstance(processor, Composition):
            out += leaves(processor.parts)
    return out


def compile_plan(processors: Items[Processor[Any]], hook: str) -> tuple[Hook, ...]:
    """Return one hook of each processor that has it, in order."""
    return tuple(bound for processor in processors if (bound := _bound(processor, hook)) is not None)


def _bound(processor: Processor[Any], hook: str) -> Hook | None:
    if not processor.handles(hook):
        return None
    parts = processor.parts if isinstance(processor, Composition) else ()
    return Hook.of(processor, hook, parts=tuple(_bound(part, hook) for part in parts))
