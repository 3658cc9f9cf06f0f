"""Change the setup of steps: by a function, or so that the model answers in the last one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

from diarist.checks import texts, whole
from diarist.exceptions import ConfigError
from diarist.message_list import SystemMessage
from diarist.processors.base import (
    InputStepHookResult,
    InputStepResult,
    ProcessInputStepArgs,
    Processor,
    call_sync_or_async,
)

StepFunction = Callable[[ProcessInputStepArgs[Any]], InputStepHookResult | Awaitable[InputStepHookResult]]


class PrepareStep(Processor[Any]):
    """Calls a function before each model call; its result changes the step.

    ``prepare_step=`` of a call does the same for that call, after all processors.

    Args:
        fn: A sync or async function of ``ProcessInputStepArgs`` that returns None, messages, or a dictionary with
            ``model``, ``tools``, ``tool_choice``, ``active_tools``, ``model_settings``, ``system_messages`` and
            so on.
        id: Default ``"prepare-step"``; several in one agent need different ids.

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
        return await call_sync_or_async(self._fn, args)


_LAST_STEP = (
    "This is the last step: no tools are available any more. Answer now with what you have found out so far, and "
    "say plainly what is still open."
)


class EnsureFinalResponse(Processor[Any]):
    """Makes the model answer in the last step, instead of calling another tool.

    In the last step, it removes all tools and adds a system message that asks for an answer.

    Args:
        max_steps: Number of model calls after which a run must have its answer. None: ``max_steps`` of the agent or
            of the call.
        text: The system message of the last step.

    Example::

        Agent(model="openai/gpt-5-mini", max_steps=8, input_processors=[EnsureFinalResponse()])
    """

    edits_in_place = False

    def __init__(self, max_steps: int | None = None, *, text: str = _LAST_STEP) -> None:
        if max_steps is not None:
            whole("EnsureFinalResponse", "max_steps", max_steps, least=1)
        texts("EnsureFinalResponse", text=text)
        if not text:
            raise ConfigError("EnsureFinalResponse: text must not be empty")
        self._max_steps = inf if max_steps is None else max_steps
        self._text = text

    def process_input_step(self, args: ProcessInputStepArgs[Any]) -> InputStepResult | None:
        """Remove the tools and add the system message in the last step."""
        calls = sum(step.request is not None for step in args.steps)  # the first step of a resumed run has none
        if not args.is_last and calls < self._max_steps - 1:
            return None
        system = [*args.system_messages, SystemMessage(self._text, self.id)]
        return {"tools": {}, "tool_choice": "none", "system_messages": system}
