"""Processors made of processors: one after the other, side by side, or one of several.

They work in every hook and nest. What they mean is in ``plan``, which the pipeline runs; here stands only how
they are put together.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Any

from diarist.exceptions import ConfigError
from diarist.processors.base import Processor, ProcessorArgs

Condition = Callable[[Any], Any]
"""Gets the hook's arguments, and says whether its processor runs; sync or async."""

Merge = Callable[[list[Any]], Any]
"""Gets what each branch came to, in the form the hook returns, and returns what holds; sync or async."""


class Composition(Processor[Any]):
    """Base of ``Sequence``, ``Parallel`` and ``Branch``. Its parts keep ids and states of their own.

    Raises:
        ConfigError: No parts, or something that is no processor; a part with ``opens_run``; of the parts with
            ``process_input`` only some have ``run_in_parallel``.
    """

    def __init__(self, parts: Items[Any], *, id: str | None) -> None:
        if not parts:
            raise ConfigError(f"{type(self).__name__} needs at least one processor")
        for part in parts:
            if not isinstance(part, Processor):
                raise ConfigError(f"{type(self).__name__}: {part!r} is no processor")
        self.parts: tuple[Processor[Any], ...] = tuple(parts)
        if id is not None:
            self.id = id
        else:
            self.id = f"{type(self).id}({','.join(part.id for part in self.parts)})"
        self.hold_output = any(part.hold_output for part in self.parts)
        self.process_data_parts = any(part.process_data_parts for part in self.parts)
        self.run_in_parallel = self._runs_in_parallel()

    def _runs_in_parallel(self) -> bool:
        """Whether it runs beside the first model call. Raises ConfigError for parts that run at other times."""
        asked = [part for part in self.parts if part.handles("process_input")]
        for part in asked:
            if part.opens_run:
                raise ConfigError(
                    f"{self.id}: part {part.id!r} has opens_run, which counts only in a list of processors; put it "
                    "there by itself"
                )
        guards = [part for part in asked if part.run_in_parallel]
        if guards and (others := [part for part in asked if not part.run_in_parallel]):
            raise ConfigError(
                f"{self.id}: part {guards[0].id!r} has run_in_parallel, so that its process_input runs beside the "
                f"first model call, and {others[0].id!r} has not; a composition runs at one time: part them"
            )
        return bool(guards)

    def handles(self, hook: str) -> bool:
        """Whether any part has this hook."""
        return any(part.handles(hook) for part in self.parts)


class Sequence(Composition):
    """One after the other, as in a list: each sees what those before it changed."""

    id = "sequence"

    def __init__(self, *parts: Processor[Any], id: str | None = None) -> None:
        super().__init__(parts, id=id)


class Parallel(Composition):
    """Side by side: each branch has a copy of the messages, and the first that blocks cancels the others.

    Args:
        merge: Decides what holds. Without it branches may only look and block; one that changes something is a
            ProcessorResultError.
    """

    id = "parallel"

    def __init__(self, *parts: Processor[Any], merge: Merge | None = None, id: str | None = None) -> None:
        super().__init__(parts, id=id)
        self.merge = merge


class Branch(Composition):
    """The first processor whose condition holds, else ``default``, else none.

    Args:
        cases: Pairs of a condition and a processor. The condition gets the hook's arguments.
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


async def merge_of(merge: Merge, outcomes: list[Any]) -> Any:
    """Ask a merge, sync or async."""
    answer = merge(outcomes)
    return await answer if inspect.isawaitable(answer) else answer


async def holds(condition: Condition, args: ProcessorArgs[Any]) -> bool:
    """Ask a condition, sync or async."""
    answer = condition(args)
    return bool(await answer if inspect.isawaitable(answer) else answer)
