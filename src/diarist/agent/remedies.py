"""What is tried when a model call fails: the processors' repair, the entry's own retries, the next entry."""

from __future__ import annotations

from collections.abc import Sequence

from diarist.agent.failures import text_of
from diarist.agent.step_input import CallFailed
from diarist.exceptions import ModelError, ProcessorError
from diarist.message_list import MessageList
from diarist.models.base import Model
from diarist.models.entry import ModelEntry
from diarist.processors.base import StepResult
from diarist.processors.model_cases import ErrorCase
from diarist.processors.pipeline import PipelineRun

MAX_REPAIRS = 10
"""Retries that ``process_api_error`` may ask for per step."""


class Remedies:
    """The remedies of one step, in their order.

    Args:
        entries: The models, the preferred first.
    """

    def __init__(
        self,
        pipeline: PipelineRun,
        messages: MessageList,
        entries: Sequence[ModelEntry],
    ) -> None:
        self._pipeline = pipeline
        self._messages = messages
        self._entries = entries
        self._entry = 0
        self._retries = 0
        self._repairs = 0

    @property
    def model(self) -> Model:
        """The model whose turn it is."""
        return self._entries[self._entry].model

    async def after(self, failed: CallFailed, step: int, steps: list[StepResult]) -> float:
        """Seconds to wait before the next attempt. Raises the call's error where nothing is left to try, and
        TripWire where a processor blocks or asks for another attempt that way."""
        delay = await self._repair(failed, step, steps)
        if delay is None:
            delay = self._entries[self._entry].delay(failed.error, self._retries)
            self._retries += 1
        if delay is None and self._entry + 1 < len(self._entries):
            self._entry, self._retries, delay = self._entry + 1, 0, 0.0
        if delay is None:
            raise failed.error from failed.error.__cause__
        return delay

    async def _repair(self, failed: CallFailed, step: int, steps: list[StepResult]) -> float | None:
        """Ask the processors; what they change or remove of remembered messages is marked, so that memory stores it."""
        if not self._pipeline.has(ErrorCase.hook) or self._repairs >= MAX_REPAIRS:
            return None
        error = failed.error
        if not isinstance(error, ModelError):
            error = ModelError(text_of(error))
            error.__cause__ = failed.error
        case = ErrorCase(
            messages=self._messages,
            step=step,
            error=error,
            model=failed.model,
            steps=steps,
            retry_count=self._repairs,
        )
        before = {message.id: message.to_dict() for message in self._messages.remembered}
        try:
            await self._pipeline.ask(case)
        except ProcessorError as broken:
            what = f"{broken}; it was asked about {type(error).__name__}: {error}"
            told = type(broken)(what, processor_id=broken.processor_id, hook=broken.hook, step=broken.step)
            raise told from (broken.__cause__ or error)
        if not case.retry:
            return None
        self._repairs += 1
        self._mark(before)
        return case.delay

    def _mark(self, before: dict[str, dict[str, object]]) -> None:
        """Note which remembered messages a repair changed, and which it removed."""
        present = {message.id: message for message in self._messages.all}
        for message_id, content in before.items():
            if message_id not in present:
                self._messages.dropped.add(message_id)
            elif present[message_id].to_dict() != content:
                self._messages.repaired.add(message_id)
