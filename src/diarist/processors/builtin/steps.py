"""Small processors that act before each step."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from diarist.exceptions import ConfigError
from diarist.message_list import SystemMessage
from diarist.processors.base import InputStepHookResult, InputStepResult, ProcessInputStepArgs, Processor
from diarist.processors.builtin.options import positive

StepFunction = Callable[[ProcessInputStepArgs[Any]], InputStepHookResult | Awaitable[InputStepHookResult]]

_LAST_STEP = (
    "This is the last step: no tools are available any more. Answer now with what you have found out so far, and "
    "say plainly what is still open."
)


class PrepareStep(Processor[Any]):
    """A function as a processor: called before each model call, it returns what to change in this step.

    ``prepare_step=`` of a call does the same for that call, after all processors.

    Args:
        fn: ``def`` or ``async def``, of ``ProcessInputStepArgs``; returns None, messages, or a dictionary with
            ``model``, ``tools``, ``tool_choice``, ``active_tools``, ``model_settings``, ``system_messages`` and
            so on.
        id: Default ``"prepare-step"``; give each its own where there are several.

    Raises:
        ConfigError: fn cannot be called.

    Example::

        PrepareStep(lambda args: {"model": "openai/gpt-5"} if args.step_number else None)
    """

    def __init__(self, fn: StepFunction, *, id: str = "prepare-step") -> None:
        if not callable(fn):
            raise ConfigError(f"PrepareStep: fn must be a function, not {fn!r}")
        self._fn = fn
        self.id = id

    async def process_input_step(self, args: ProcessInputStepArgs[Any]) -> InputStepHookResult:
        """What the function returns."""
        result = self._fn(args)
        return await result if inspect.isawaitable(result) else result


class EnsureFinalResponse(Processor[Any]):
    """Makes the model answer in the last step that it is allowed, where it might have called a tool and said nothing.

    In that step there are no tools, and a system message at the end asks for an answer from what is known.

    Args:
        max_steps: The same number as the agent's or the call's ``max_steps``.
        text: What the model is told in the last step.

    Raises:
        ConfigError: max_steps below 1, or an empty text.

    Example::

        Agent(model="openai/gpt-5-mini", max_steps=8, input_processors=[EnsureFinalResponse(8)])
    """

    edits_in_place = False

    def __init__(self, max_steps: int, *, text: str = _LAST_STEP) -> None:
        positive("EnsureFinalResponse", "max_steps", max_steps)
        if not text:
            raise ConfigError("EnsureFinalResponse: text must not be empty")
        self._max_steps = max_steps
        self._text = text

    def process_input_step(self, args: ProcessInputStepArgs[Any]) -> InputStepResult | None:
        """No tools and a hint, in the last step."""
        if args.step_number < self._max_steps - 1:
            return None
        system = [*args.system_messages, SystemMessage(self._text, self.id)]
        return {"tools": {}, "tool_choice": "none", "system_messages": system}
