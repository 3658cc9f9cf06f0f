"""One hook of one processor, the errors it raises, and the state of a run's hooks."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from diarist.chunks import DataChunk
from diarist.encoding import jsonable
from diarist.exceptions import (
    ConfigError,
    InputError,
    ProcessorAbort,
    ProcessorError,
    ProcessorResultError,
    StorageError,
    described,
)
from diarist.message_list import MessageList
from diarist.messages import Json
from diarist.processors.base import Processor, ProcessorArgs
from diarist.run_context import RunContext, Writer

logger = logging.getLogger("diarist")

SKIPPED: Any = object()
"""Result of a failed hook whose processor fails open."""


class BadHookResult(Exception):
    """Tells why a hook's result cannot be used; ``Hook.bad_result`` adds the processor, the hook and the step.

    Attributes:
        value: The value of a wrong type, if that is the reason.
    """

    value: Any = None


def wrong_type(value: Any, allowed: str) -> BadHookResult:
    """Return the error for a value of a type that is not allowed."""
    bad = BadHookResult(f"{type(value).__name__}; {allowed}")
    bad.value = value
    return bad


@dataclass(frozen=True, slots=True)
class Hook:
    """A bound hook.

    Attributes:
        parts: For a composition, the hooks of its parts; None for a part without this hook.
    """

    processor: Processor[Any]
    name: str
    function: Callable[[Any], Any]
    is_async: bool
    parts: tuple[Hook | None, ...] = ()

    @classmethod
    def of(
        cls,
        processor: Processor[Any],
        name: str,
        function: Callable[[Any], Any] | None = None,
        parts: tuple[Hook | None, ...] = (),
    ) -> Hook:
        """Bind a hook; ``function`` replaces the processor's own method."""
        bound: Callable[[Any], Any] = function or getattr(processor, name)
        return cls(processor, name, bound, inspect.iscoroutinefunction(bound), parts)

    def leaves(self) -> Generator[Hook]:
        """Yield this hook; for a composition, the hooks of the processors in it."""
        if not self.parts:
            yield self
        for part in self.parts:
            if part is not None:
                yield from part.leaves()

    @property
    def key(self) -> int:
        """Identifies the processor within a run."""
        return id(self.processor)

    @property
    def attributes(self) -> dict[str, Any]:
        """Span attributes."""
        return {
            "diarist.processor.id": self.processor.id,
            "diarist.processor.hook": self.name,
            "diarist.processor.description": self.processor.description or None,
        }

    async def call(self, args: ProcessorArgs[Any], step: int | None) -> Any:
        """Call the hook; return its result, or ``SKIPPED`` if it failed open. Raises its errors as ``failed`` does."""
        try:
            result = self.function(args)
            return await result if self.is_async or inspect.isawaitable(result) else result
        except (Exception, asyncio.CancelledError) as error:
            return self.failed(error, args.writer, step)

    @property
    def fails_open(self) -> bool:
        return self.processor.on_error == "continue"

    def failed(self, error: BaseException, writer: Writer, step: int | None) -> Any:
        """Raise the error, with processor, hook and step added. If the processor fails open, report it instead."""
        named = self._named(error, step)
        if self.fails_open and isinstance(named, ProcessorError | StorageError):
            logger.warning("%s; the run continues without it", named, exc_info=error)
            data = {"processorId": self.processor.id, "hook": self.name, "error": str(named)}
            writer.custom(DataChunk("data-processor-error", data, transient=True))
            return SKIPPED
        if named is error:
            raise error
        raise named from error

    def raised(self, error: ProcessorError) -> bool:
        """Return True if the error came from this hook."""
        return (error.processor_id, error.hook) == (self.processor.id, self.name)

    @contextmanager
    def naming(self, step: int | None) -> Generator[None]:
        """Add processor, hook and step to errors of the block, which calls a function of the application."""
        try:
            yield
        except (Exception, asyncio.CancelledError) as error:
            named = self._named(error, step)
            if named is error:
                raise
            raise named from error

    def _named(self, error: BaseException, step: int | None) -> BaseException:
        """Return the error with processor, hook and step added.

        ProcessorAbort keeps its type. Errors that callers handle by type, such as ThreadBusyError, keep theirs and get
        a note. A CancelledError counts as a failure of the hook if the task was not cancelled.
        """
        match error:
            case ProcessorAbort():
                error.processor_id = error.processor_id or self.processor.id
                error.hook = self.name
                return error
            case ProcessorError():
                return error
            case BadHookResult():
                return self.bad_result(error, step)
            case StorageError() | InputError():
                error.add_note(f"raised by processor {self.processor.id!r} in {self._where(step)}")
                return error
            case asyncio.CancelledError() if (task := asyncio.current_task()) and task.cancelling():
                return error
            case _:
                message = f"processor {self.processor.id!r} failed in {self._where(step)}: {described(error)}"
                return ProcessorError(message, processor_id=self.processor.id, hook=self.name, step=step)

    def bad_result(
        self, what: str | BadHookResult, step: int | None, *, did: str = "returned from"
    ) -> ProcessorResultError:
        """Return the error for a result that the hook does not allow, with a hint for a forgotten ``await``."""
        if isinstance(what, BadHookResult) and inspect.isawaitable(what.value):
            if inspect.iscoroutine(what.value):
                what.value.close()
            remedy = "write `await` before it" if self.is_async else "make the hook async def and await it there"
            what = f"a {type(what.value).__name__} that was not awaited; {remedy}"
        message = f"processor {self.processor.id!r} {did} {self._where(step)}: {what}"
        return ProcessorResultError(message, processor_id=self.processor.id, hook=self.name, step=step)

    def _where(self, step: int | None) -> str:
        return self.name if step is None else f"{self.name} at step {step}"


def result_as_json(value: Any) -> Any:
    """Return a hook's result as JSON; models, dates and the like are converted. Raises BadHookResult."""
    try:
        return jsonable(value)
    except ValueError as error:  # of pydantic, or of bytes that are not UTF-8
        raise BadHookResult(f"{type(value).__name__} that has no JSON form: {error}") from error


# -- the state of a run's hooks


class PipelineState:
    """One state per processor, created at first use or loaded by ``resume``, and the counters that hooks get.

    Attributes:
        retry_count: Attempts of the current step that were rejected.
        step_number: The current step; None outside the steps.
        ids: The ids of the processors that a run must have when it is resumed, in order: without memory's, so
            that its configuration may change in between.
        chunks: Number of chunks that were streamed in this run, without data chunks.
        dropped: By processor key, the number of these chunks for which the stream hook returned None.
    """

    def __init__(self, processors: Sequence[Processor[Any]], context: RunContext[Any]) -> None:
        self._processors = [one for one in processors if not (one.loads_history or one.needs_history)]
        self.ids = [processor.id for processor in self._processors]
        self._context = context
        self._states: dict[int, Any] = {}
        self.writer = context.writer
        self.chunks = 0
        self.dropped: Counter[int] = Counter()
        self.retry_count = 0
        self.step_number: int | None = None

    def common_args(self, hook: Hook, messages: MessageList | None = None) -> dict[str, Any]:
        """Return the arguments that every hook gets. Raises ProcessorError if ``create_state`` fails."""
        key = hook.key
        if key not in self._states:
            self._states[key] = _call_state_method(hook.processor, "create_state")
        return {
            "context": self._context,
            "message_list": self._context.messages if messages is None else messages,
            "processor_id": hook.processor.id,
            "state": self._states[key],
            "retry_count": self.retry_count,
        }

    def dump(self) -> list[dict[str, Json]]:
        """Return each of ``ids``, with the state if it is dumped. Raises ProcessorError, ProcessorResultError."""
        out: list[dict[str, Json]] = []
        for processor in self._processors:
            entry: dict[str, Json] = {"id": processor.id}
            if id(processor) in self._states and dumps_state(processor):
                entry["state"] = _call_state_method(processor, "dump_state", self._states[id(processor)])
            out.append(entry)
        return out

    def load(self, dumped: Sequence[dict[str, Json]]) -> None:
        """Load what ``dump`` returned for the same processors. Raises ProcessorError."""
        for processor, entry in zip(self._processors, dumped, strict=False):
            if "state" in entry:
                self._states[id(processor)] = _call_state_method(processor, "load_state", deepcopy(entry["state"]))


def _call_state_method(processor: Processor[Any], method: str, *args: Any) -> Any:
    """Call ``create_state``, ``dump_state`` or ``load_state``; errors name the processor and the method."""
    hook = Hook.of(processor, method)
    with hook.naming(None):
        result = hook.function(*args)
        return result_as_json(result) if method == "dump_state" else result


def dumps_state(processor: Processor[Any]) -> bool:
    """Return True if the processor overrides ``dump_state`` and ``load_state``; only one of them is a ConfigError."""
    dump, load = (
        getattr(type(processor), name) is not getattr(Processor, name) for name in ("dump_state", "load_state")
    )
    if dump != load:
        has, lacks = ("dump_state", "load_state") if dump else ("load_state", "dump_state")
        raise ConfigError(f"processor {processor.id!r} has {has} without {lacks}: override both or neither")
    return dump
