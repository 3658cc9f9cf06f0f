"""The state of a run's hooks: each processor's own state, the current step, and the retries so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from diarist.exceptions import ConfigError, ProcessorError, StorageError
from diarist.message_list import MessageList
from diarist.messages import Json
from diarist.processors.base import Processor
from diarist.processors.hooks import Hook
from diarist.run_context import RunContext


class RunState:
    """One state per processor, made when first needed or loaded by ``resume``, and the counters that hooks see.

    Attributes:
        retry_count: Attempts of the current step that were rejected.
        step_number: The current step; None outside the steps.
        silent, answering: Slots of processors whose stream hook has ever returned None / anything else. A slot is a
            processor's index in the list of all.
    """

    def __init__(self, processors: Sequence[Processor[Any]], context: RunContext[Any]) -> None:
        self._processors = processors
        self._context = context
        self._states: dict[int, Any] = {}
        self._without: set[int] = set()
        self.writer = context.writer
        self.silent: set[int] = set()
        self.answering: set[int] = set()
        self.retry_count = 0
        self.step_number: int | None = None

    def args(self, hook: Hook, messages: MessageList | None = None) -> dict[str, Any]:
        """Return the arguments that every hook gets."""
        return {
            "context": self._context,
            "message_list": self._context.messages if messages is None else messages,
            "processor_id": hook.processor.id,
            "state": self.of(hook.slot) if hook.slot >= 0 else {},
            "retry_count": self.retry_count,
        }

    def of(self, slot: int) -> Any:
        """Return the processor's state. Raises ProcessorError if ``create_state`` fails."""
        if slot not in self._states:
            self._states[slot] = self._ask(slot, "create_state", lambda processor: processor.create_state())
        return self._states[slot]

    def ready(self, hook: Hook) -> bool:
        """Return False if the hook's processor fails open and its ``create_state`` failed: it is left out of the run.

        Raises ProcessorError if it does not fail open.
        """
        if hook.slot in self._states or hook.slot < 0:
            return True
        if hook.slot in self._without:
            return False
        try:
            self.of(hook.slot)
        except (ProcessorError, StorageError) as error:
            Hook.of(hook.processor, "create_state", hook.slot).failed(error, self.writer, None)
            self._without.add(hook.slot)
            return False
        return True

    def dump(self) -> list[dict[str, Json]]:
        """Return each processor's id, and its state if it dumps one. Raises ProcessorError, ProcessorResultError."""
        out: list[dict[str, Json]] = [{"id": processor.id} for processor in self._processors]
        for slot, state in self._states.items():
            if dumps(self._processors[slot]):
                out[slot]["state"] = self._ask(
                    slot, "dump_state", lambda processor, state=state: _dumped(processor, state)
                )
        return out

    def load(self, dumped: Sequence[dict[str, Json]]) -> None:
        """Load what ``dump`` returned for the same processors. Raises ProcessorError."""
        for slot, entry in enumerate(dumped):
            if "state" in entry:
                data = deepcopy(entry["state"])
                self._states[slot] = self._ask(
                    slot, "load_state", lambda processor, data=data: processor.load_state(data)
                )

    def _ask(self, slot: int, method: str, ask: Callable[[Processor[Any]], Any]) -> Any:
        processor = self._processors[slot]
        try:
            return ask(processor)
        except Exception as error:
            named = Hook.of(processor, method, slot).named(error, None)
            if named is error:
                raise
            raise named from error


def dumps(processor: Processor[Any]) -> bool:
    """Return True if the processor's state outlives a suspended run. Raises ConfigError for dump or load alone."""
    dump, load = (
        getattr(type(processor), name) is not getattr(Processor, name) for name in ("dump_state", "load_state")
    )
    if dump != load:
        has, lacks = ("dump_state", "load_state") if dump else ("load_state", "dump_state")
        raise ConfigError(f"processor {processor.id!r} has {has} without {lacks}: override both or neither")
    return dump


def _dumped(processor: Processor[Any], state: Any) -> Json:
    return Hook.of(processor, "dump_state", -1).as_json(processor.dump_state(state), None)
