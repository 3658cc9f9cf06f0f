"""One hook of one processor, and the errors it raises."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from diarist.chunks import Chunk, DataChunk, Start
from diarist.exceptions import InputError, ProcessorAbort, ProcessorError, ProcessorResultError, StorageError
from diarist.message_list import Kept
from diarist.processors.base import Processor, ProcessorArgs
from diarist.run_context import Writer

T = TypeVar("T")

logger = logging.getLogger("diarist")


class Skipped:
    """Result of a hook that failed and whose processor fails open."""


SKIPPED = Skipped()


@dataclass(frozen=True, slots=True)
class Hook:
    """A bound hook; ``slot`` is its processor's index in the list of states."""

    processor: Processor[Any]
    name: str
    function: Callable[[Any], Any]
    slot: int
    is_async: bool

    @classmethod
    def of(cls, processor: Processor[Any], name: str, slot: int, function: Callable[[Any], Any] | None = None) -> Hook:
        """Bind a hook; ``function`` replaces the processor's own method."""
        bound: Callable[[Any], Any] = function or getattr(processor, name)
        is_async = inspect.iscoroutinefunction(bound)
        if name == "process_output_stream" and processor.on_error == "continue":
            bound = _unharming(bound, is_async=is_async)
        return cls(processor, name, bound, slot, is_async)

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

    async def guarded(self, work: Awaitable[T], step: int | None) -> T:
        """Await ``work`` for this hook; its errors get the hook's name."""
        try:
            return await work
        except (Exception, asyncio.CancelledError) as error:
            raise self.named(error, step) from error

    @property
    def fails_open(self) -> bool:
        return self.processor.on_error == "continue"

    def failed(self, error: BaseException, writer: Writer, step: int | None) -> Skipped:
        """Raise the error with processor, hook and step in it. If the processor fails open, report it instead."""
        named = self.named(error, step)
        if self.fails_open and isinstance(named, ProcessorError | StorageError):
            logger.warning("%s; the run goes on without it", named, exc_info=error)
            data = {"processorId": self.processor.id, "hook": self.name, "error": str(named)}
            writer.custom(DataChunk("data-processor-error", data, transient=True))
            return SKIPPED
        if named is error:
            raise error
        raise named from error

    def named(self, error: BaseException, step: int | None) -> BaseException:
        """Return the error with processor, hook and step in it.

        ProcessorAbort keeps its type, and so do errors that callers handle by type, such as ThreadBusyError, which get
        a note. A CancelledError without a cancellation of the task is a failure of the hook.
        """
        match error:
            case ProcessorAbort():
                error.processor_id = error.processor_id or self.processor.id
                error.hook = self.name
                return error
            case ProcessorError():
                return error
            case StorageError() | InputError():
                error.add_note(f"raised by processor {self.processor.id!r} in {self._where(step)}")
                return error
            case asyncio.CancelledError() if (task := asyncio.current_task()) and task.cancelling():
                return error
            case _:
                what = f"{type(error).__name__}: {error}".removesuffix(": ")
                message = f"processor {self.processor.id!r} failed in {self._where(step)}: {what}"
                return ProcessorError(message, processor_id=self.processor.id, hook=self.name, step=step)

    def bad_result(self, what: str, step: int | None) -> ProcessorResultError:
        """Return the error for a result that the hook does not allow."""
        message = f"processor {self.processor.id!r} returned from {self._where(step)}: {what}"
        return ProcessorResultError(message, processor_id=self.processor.id, hook=self.name, step=step)

    def bad_edit(self, what: str, step: int | None) -> ProcessorResultError:
        """Return the error for an invalid change that the hook made in place."""
        message = f"processor {self.processor.id!r} left in {self._where(step)}: {what}"
        return ProcessorResultError(message, processor_id=self.processor.id, hook=self.name, step=step)

    def not_allowed(self, value: Any, allowed: str, step: int | None) -> ProcessorResultError:
        """Return the error for a value of the wrong type, with a hint for a forgotten ``await``."""
        if not inspect.isawaitable(value):
            return self.bad_result(f"{type(value).__name__}; {allowed}", step)
        if inspect.iscoroutine(value):
            value.close()
        remedy = "write `await` before it" if self.is_async else "make the hook async def and await it there"
        return self.bad_result(f"a {type(value).__name__} that was not awaited; {remedy}", step)

    def text(self, values: Mapping[str, Any], name: str, step: int | None) -> str:
        """Return the text under a name in the hook's result."""
        if not isinstance(value := values[name], str):
            raise self.not_allowed(value, f"allowed as {name!r}: a text", step)
        return value

    def as_json(self, value: Any, step: int | None) -> Any:
        """Return a hook's result as JSON: models, dates and the like take their JSON form."""
        from pydantic_core import PydanticSerializationError, to_jsonable_python

        try:
            return to_jsonable_python(value)
        except PydanticSerializationError as error:
            raise self.bad_result(f"{type(value).__name__} that has no JSON form: {error}", step) from error

    def _where(self, step: int | None) -> str:
        return self.name if step is None else f"{self.name} at step {step}"


def _unharming(function: Callable[[Any], Any], *, is_async: bool) -> Callable[[Any], Any]:
    """Wrap a stream hook so that its edits of a chunk are undone if it fails."""

    def plain(args: Any) -> Any:
        kept = _kept(args.part)
        try:
            return function(args)
        except Exception:
            _put_back(kept)
            raise

    async def awaited(args: Any) -> Any:
        kept = _kept(args.part)
        try:
            return await function(args)
        except (Exception, asyncio.CancelledError):
            _put_back(kept)
            raise

    return awaited if is_async else plain


def _kept(part: Chunk) -> list[Kept]:
    says = [part] if isinstance(part, DataChunk | Start) else [part, part.payload]
    return [Kept.of(item) for item in says]


def _put_back(kept: list[Kept]) -> None:
    for item in kept:
        item.put_back()
