"""The state of a run's hooks: each processor's own state, the current step, and the retries so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from diarist.exceptions import ConfigError
from diarist.message_list import MessageList
from diarist.messages import Json
from diarist.processors.base import Processor
from diarist.processors.hooks import Hook, as_json
from diarist.run_context import RunContext


class RunState:
    """One state per processor, created at first use or loaded by ``resume``, and the counters that hooks get.

    Attributes:
        retry_count: Attempts of the current step that were rejected.
        step_number: The current step; None outside the steps.
        chunks: Number of chunks that were streamed in this run, without data chunks.
        dropped: By processor key, the number of these chunks for which the stream hook returned None.
    """

    def __init__(self, processors: Sequence[Processor[Any]], context: RunContext[Any]) -> None:
        self._processors = processors
        self._context = context
        self._states: dict[int, Any] = {}
        self.writer = context.writer
        self.chunks = 0
        self.dropped: Counter[int] = Counter()
        self.retry_count = 0
        self.step_number: int | None = None

    def args(self, hook: Hook, messages: MessageList | None = None) -> dict[str, Any]:
        """Return the arguments that every hook gets. Raises ProcessorError if ``create_state`` fails."""
        if hook.key not in self._states:
            self._states[hook.key] = _ask(hook.processor, "create_state")
        return {
            "context": self._context,
            "message_list": self._context.messages if messages is None else messages,
            "processor_id": hook.processor.id,
            "state": self._states[hook.key],
            "retry_count": self.retry_count,
        }

    def dump(self) -> list[dict[str, Json]]:
        """Return each processor's id, and its state if it dumps one. Raises ProcessorError, ProcessorResultError."""
        out: list[dict[str, Json]] = []
        for processor in self._processors:
            entry: dict[str, Json] = {"id": processor.id}
            if id(processor) in self._states and dumps(processor):
                entry["state"] = _ask(processor, "dump_state", self._states[id(processor)])
            out.append(entry)
        return out

    def load(self, dumped: Sequence[dict[str, Json]]) -> None:
        """Load what ``dump`` returned for the same processors. Raises ProcessorError."""
        for processor, entry in zip(self._processors, dumped, strict=False):
            if "state" in entry:
                self._states[id(processor)] = _ask(processor, "load_state", deepcopy(entry["state"]))


def _ask(processor: Processor[Any], method: str, *given: Any) -> Any:
    hook = Hook.of(processor, method)
    with hook.naming(None):
        answer = getattr(processor, method)(*given)
        return as_json(answer) if method == "dump_state" else answer


def dumps(processor: Processor[Any]) -> bool:
    """Return True if the processor overrides ``dump_state`` and ``load_state``; only one of them is a ConfigError."""
    dump, load = (
        getattr(type(processor), name) is not getattr(Processor, name) for name in ("dump_state", "load_state")
    )
    if dump != load:
        has, lacks = ("dump_state", "load_state") if dump else ("load_state", "dump_state")
        raise ConfigError(f"processor {processor.id!r} has {has} without {lacks}: override both or neither")
    return dump
