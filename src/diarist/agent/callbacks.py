"""Telling the caller what happens, without letting its functions change or break the run."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from diarist.agent.options import CallOptions
from diarist.agent.result import AgentResult
from diarist.concurrency import contained
from diarist.processors.base import StepResult

logger = logging.getLogger("diarist")


class Callbacks:
    """``on_step_finish``, ``on_finish``, ``on_error`` and ``on_abort`` of one call; sync or async.

    One that raises is logged: the run is what counts.
    """

    def __init__(self, options: CallOptions) -> None:
        self._options = options

    async def step_finished(self, step: StepResult) -> None:
        await self._call("on_step_finish", step)

    async def ended(self, result: AgentResult[Any], error: Exception | None) -> None:
        """Exactly one of the three, once, when the run has ended and is stored."""
        if error is not None:
            await self._call("on_error", error)
        elif result.stopped_by == "cancelled":
            await self._call("on_abort", result)
        else:
            await self._call("on_finish", result)

    async def _call(self, name: str, value: Any) -> None:
        function: Callable[[Any], Any] | None = self._options.get(name)  # pyright: ignore[reportAssignmentType]
        if function is None:
            return
        try:
            answer = function(value)
            if inspect.isawaitable(answer):
                await contained(answer)
        except Exception:
            logger.exception("the callback %s failed; the run is not affected", name)
