"""The states of a run's processors: each made when it is first needed, or loaded where a suspended run goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from diarist.exceptions import ConfigError, ProcessorError, StorageError
from diarist.messages import Json
from diarist.processors.base import Processor
from diarist.processors.hooks import Hook
from diarist.run_context import Writer


class States:
    """One state per processor. ``slot`` is a processor's place in the list of all.

    Args:
        writer: Where it is said that a processor without a state is left out.
    """

    def __init__(self, processors: Sequence[Processor[Any]], writer: Writer) -> None:
        self._processors = processors
        self._writer = writer
        self._states: dict[int, Any] = {}
        self._without: set[int] = set()

    def of(self, slot: int) -> Any:
        """The processor's state. Raises ProcessorError where ``create_state`` fails."""
        if slot not in self._states:
            self._states[slot] = self._ask(slot, "create_state", lambda processor: processor.create_state())
        return self._states[slot]

    def ready(self, hook: Hook) -> bool:
        """Whether this hook's processor can be asked: one that fails open and whose ``create_state`` fails is left out
        of the run. Raises ProcessorError where it does not fail open."""
        if hook.slot in self._states or hook.slot < 0:
            return True
        if hook.slot in self._without:
            return False
        try:
            self.of(hook.slot)
        except (ProcessorError, StorageError) as error:
            Hook.of(hook.processor, "create_state", hook.slot).failed(error, self._writer, None)
            self._without.add(hook.slot)
            return False
        return True

    def dump(self) -> list[dict[str, Json]]:
        """Per processor its id, and its state where it dumps one. Raises ProcessorError, ProcessorResultError."""
        out: list[dict[str, Json]] = [{"id": processor.id} for processor in self._processors]
        for slot, state in self._states.items():
            if dumps(self._processors[slot]):
                out[slot]["state"] = self._ask(
                    slot, "dump_state", lambda processor, state=state: _dumped(processor, state)
                )
        return out

    def load(self, dumped: Sequence[dict[str, Json]]) -> None:
        """Take over what ``dump`` gave for the same processors. Raises ProcessorError."""
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
    """Whether its state outlives a suspended run. Raises ConfigError where it dumps and cannot load, or loads what
    it never dumps."""
    dump, load = (
        getattr(type(processor), name) is not getattr(Processor, name) for name in ("dump_state", "load_state")
    )
    if dump != load:
        has, lacks = ("dump_state", "load_state") if dump else ("load_state", "dump_state")
        raise ConfigError(f"processor {processor.id!r} has {has} without {lacks}: override both or neither")
    return dump


def _dumped(processor: Processor[Any], state: Any) -> Json:
    return Hook.of(processor, "dump_state", -1).as_json(processor.dump_state(state), None)
