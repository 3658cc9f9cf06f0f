"""Call a function before each step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from diarist.exceptions import ConfigError
from diarist.processors.base import InputStepHookResult, ProcessInputStepArgs, Processor, returned

StepFunction = Callable[[ProcessInputStepArgs[Any]], InputStepHookResult | Awaitable[InputStepHookResult]]


class PrepareStep(Processor[Any]):
    """Calls a function before each model call; its result changes the step.

    ``prepare_step=`` of a call does the same for that call, after all processors.

    Args:
        fn: A sync or async function of ``ProcessInputStepArgs`` that returns None, messages, or a dictionary with
            ``model``, ``tools``, ``tool_choice``, ``active_tools``, ``model_settings``, ``system_messages`` and
            so on.
        id: Default ``"prepare-step"``; several in one agent need different ids.

    Raises:
        ConfigError: fn is not callable.

    Example::

        PrepareStep(lambda args: {"model": "openai/gpt-5"} if args.step_number else None)
    """

    def __init__(self, fn: StepFunction, *, id: str = "prepare-step") -> None:
        if not callable(fn):
            raise ConfigError(f"PrepareStep: fn must be a function, not {fn!r}")
        self._fn = fn
        self.id = id

    async def process_input_step(self, args: ProcessInputStepArgs[Any]) -> InputStepHookResult:
        """Return the function's result."""
        return await returned(self._fn, args)
