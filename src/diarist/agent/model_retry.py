"""Decides what to try after a failed model call: a processor's repair, another try, or the next model."""

from __future__ import annotations

from collections.abc import Sequence

from diarist.agent.response import CallFailed
from diarist.exceptions import ModelError, ProcessorError, described
from diarist.message_list import MessageList
from diarist.models.base import Model
from diarist.models.fallbacks import ModelEntry
from diarist.processors.base import StepResult
from diarist.processors.hook_calls import OnError
from diarist.processors.pipeline import PipelineRun

MAX_REPAIRS = 10
"""Retries that ``process_api_error`` may ask for per step."""


class ModelRetry:
    """The retries of one step.

    Args:
        entries: The models, the preferred one first.
    """

    def __init__(self, pipeline: PipelineRun, messages: MessageList, entries: Sequence[ModelEntry]) -> None:
        self._pipeline = pipeline
        self._messages = messages
        self._entries = entries
        self._current = 0  # index in ``entries``
        self._retries = 0  # of the current model
        self._repairs = 0  # of the step
        self._failures: list[str] = []  # the last one of each earlier model

    @property
    def model(self) -> Model:
        """The model of the next attempt."""
        return self._entries[self._current].model

    async def after(self, failed: CallFailed, steps: list[StepResult]) -> float:
        """Prepare another attempt and return the seconds to wait before it.

        Raises the call's error if nothing is left to try, with a note for each earlier model. Raises ProcessorAbort if
        ``process_api_error`` calls ``abort()``, with or without ``retry``.
        """
        delay = await self._repair(failed, steps)
        if delay is not None:
            return delay
        delay = self._entries[self._current].delay(failed.error, self._retries)
        self._retries += 1
        if delay is not None:
            return delay
        if self._current + 1 < len(self._entries):
            self._failures.append(f"{failed.model.id} failed before: {described(failed.error)}")
            self._current, self._retries = self._current + 1, 0
            return 0.0
        for failure in self._failures:
            failed.error.add_note(failure)
        raise failed.error from failed.error.__cause__

    async def _repair(self, failed: CallFailed, steps: list[StepResult]) -> float | None:
        """Call ``process_api_error``, and mark the remembered messages that it changed, so that memory stores them."""
        if not self._pipeline.has(OnError.hook) or self._repairs >= MAX_REPAIRS:
            return None
        error = failed.error
        if not isinstance(error, ModelError):
            error = ModelError(described(error))
            error.__cause__ = failed.error
        messages = self._messages
        call = OnError(messages=messages, error=error, model=failed.model, steps=steps, retry_count=self._repairs)
        before = {message.id: message.to_dict() for message in messages.remembered}
        try:
            await self._pipeline.ask(call)
        except ProcessorError as broken:
            message = f"{broken}; it was asked about {type(error).__name__}: {error}"
            raise type(broken)(message, processor_id=broken.processor_id, hook=broken.hook, step=broken.step) from (
                broken.__cause__ or error
            )
        if not call.retry:
            return None
        self._repairs += 1
        present = {message.id: message for message in messages.all}
        for message_id, content in before.items():
            if message_id not in present:
                messages.dropped.add(message_id)
            elif present[message_id].to_dict() != content:
                messages.repaired.add(message_id)
        return call.delay
