"""Running the tool calls of a step, at most ten at once. Whatever goes wrong is text for the model."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from diarist.agent.failures import text_of
from diarist.agent.threads import in_thread
from diarist.chunks import ToolErrorChunk, ToolErrorPayload, ToolResultChunk, ToolResultPayload
from diarist.concurrency import being_cancelled, side_by_side
from diarist.exceptions import ProcessorResultError, ToolError, TripWire, message_of
from diarist.messages import MAX_NESTING, Json, ToolPart, too_deep
from diarist.processors.pipeline import PipelineRun
from diarist.processors.tool_cases import ToolCallCase, ToolResultCase
from diarist.run_context import RunContext
from diarist.tools import Tool, ToolContext
from diarist.tracing import span

MAX_PARALLEL = 10

WaitsFor = Literal["approval", "client_tool"]

CANCELLED = "cancelled"
"""The result of a call that was cut short, as the model sees it in a later run."""

logger = logging.getLogger("diarist")


class ToolCalls:
    """The tool calls of one step: which wait for somebody, and running the others.

    Args:
        args_errors: Per call id, why the model's arguments could not be read.

    Attributes:
        started: The function of some tool was called: what it does cannot be undone.
    """

    def __init__(
        self,
        calls: Sequence[ToolPart],
        tools: Mapping[str, Tool],
        context: RunContext[Any],
        pipeline: PipelineRun,
        args_errors: Mapping[str, str] | None = None,
    ) -> None:
        self._calls = calls
        self._tools = tools
        self._context = context
        self._pipeline = pipeline
        self._args_errors = dict(args_errors or {})
        self._running = asyncio.Semaphore(MAX_PARALLEL)
        self._done: set[str] = set()
        self.started = False

    async def consider(self) -> None:
        """``process_tool_call`` for every call, before any tool runs: a processor may change the arguments, answer
        for the tool, refuse the call, or block the run."""
        if not self._pipeline.has("process_tool_call"):
            return
        for call in self._calls:
            case = ToolCallCase(
                messages=self._context.messages,
                step=self._pipeline.step_number,
                call=call,
                tool=self._tools.get(call.name),
                args_error=self._args_errors.get(call.call_id),
            )
            await self._pipeline.ask(case)
            if case.args_error is None:
                self._args_errors.pop(call.call_id, None)

    def waiting(self) -> dict[str, WaitsFor]:
        """Calls that cannot run now, by id: for approval, or for the client."""
        out: dict[str, WaitsFor] = {}
        for call in self._calls:
            tool = self._tools.get(call.name)
            if call.state != "call" or tool is None or call.call_id in self._args_errors:
                continue
            if tool.function is None:
                out[call.call_id] = "client_tool"
            elif self._must_be_approved(tool, call):
                out[call.call_id] = "approval"
        return out

    def _must_be_approved(self, tool: Tool, call: ToolPart) -> bool:
        try:
            return tool.must_be_approved(call.args)
        except Exception as error:  # whatever that function raises: the tool does not run, and the model sees why
            logger.warning("needs_approval of tool %s failed", tool.name, exc_info=error)
            _fail(call, error)
            return False

    async def run(self, *, but: Collection[str] = ()) -> None:
        """Run all calls but those, fill in their results, and write a chunk for each as it finishes."""
        await side_by_side([self._one(call) for call in self._calls if call.call_id not in but])

    def cut_short(self) -> None:
        """Give an end to the calls that have none, and to those whose result was not judged yet."""
        for call in self._calls:
            if call.call_id not in self._done:
                call.state, call.result = "error", CANCELLED

    async def _one(self, call: ToolPart) -> None:
        async with self._running:
            if call.state == "call":
                attributes = {
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": call.name,
                    "gen_ai.tool.call.id": call.call_id,
                }
                with span(f"execute_tool {call.name}", **attributes) as current:
                    if (error := await self._run(call)) is not None:
                        current.fail(error, kind="tool_error")
            if self._pipeline.has("process_tool_result"):
                await self._judge(call)
            self._done.add(call.call_id)
            self._context.writer.put(_chunk(call))

    async def _run(self, call: ToolPart) -> BaseException | None:
        """Run one call and fill in its result; whatever goes wrong is a result too, and is returned."""
        try:
            result = plain(await self._invoke(call))
        except asyncio.CancelledError as error:
            if being_cancelled():
                raise
            _fail(call, error)  # the tool waited for something that others cancelled
            return error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever a tool raises is for the model to see, SystemExit of argparse too
            if not isinstance(error, ToolError):
                logger.warning("tool %s failed", call.name, exc_info=error)
            _fail(call, error)
            return error
        call.state, call.result = "result", result
        return None

    async def _invoke(self, call: ToolPart) -> Any:
        if args_error := self._args_errors.get(call.call_id):
            raise ToolError(f"the arguments of {call.name} cannot be used: {args_error}")
        tool = self._tools.get(call.name)
        if tool is None:
            raise ToolError(f"there is no tool {call.name!r}; available: {', '.join(self._tools) or 'none'}")
        bound = tool.bind(call.args, ToolContext(run=self._context, call_id=call.call_id, tool_name=call.name))
        self.started = True
        limit = asyncio.timeout(tool.timeout)
        try:
            async with limit:
                value = bound() if tool.is_async else await in_thread(bound)
                return await value if inspect.isawaitable(value) else value
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ToolError(f"{call.name} took longer than {tool.timeout:g} s and was stopped") from error

    async def _judge(self, call: ToolPart) -> None:
        step, tool = self._pipeline.step_number, self._tools.get(call.name)
        try:
            await self._pipeline.ask(ToolResultCase(messages=self._context.messages, step=step, call=call, tool=tool))
        except TripWire as wire:
            if wire.retry:
                raise ProcessorResultError(
                    f"processor {wire.processor_id!r} asked for a retry from process_tool_result at step {step}; the "
                    "tool has run, so that the step cannot be repeated: block, or return another result",
                    processor_id=wire.processor_id,
                    hook="process_tool_result",
                    step=step,
                ) from wire
            raise


def _fail(call: ToolPart, error: BaseException) -> None:
    call.state, call.result = "error", message_of(error) if isinstance(error, ToolError) else text_of(error)


def _chunk(call: ToolPart) -> ToolResultChunk | ToolErrorChunk:
    if call.state == "result":
        return ToolResultChunk(
            payload=ToolResultPayload(
                tool_call_id=call.call_id, tool_name=call.name, args=call.args, result=call.result
            )
        )
    return ToolErrorChunk(
        payload=ToolErrorPayload(tool_call_id=call.call_id, tool_name=call.name, args=call.args, error=call.result_text)
    )


def plain(value: Any) -> Json:
    """A tool's return value as JSON: models and dataclasses become dictionaries.

    Raises ToolError for what has no JSON form.
    """
    if value is None or isinstance(value, str | int | float | bool):
        return value
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        result = to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise ToolError(f"the result has no JSON form: {error}") from error
    if too_deep(result):
        raise ToolError(f"the result is nested more than {MAX_NESTING} deep")
    return result
