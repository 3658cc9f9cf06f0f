"""Runs the tool calls of a step, at most ten at once. Errors of tools become text for the model."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Literal, cast

from diarist.agent.held_output import result_chunk
from diarist.agent.result import AgentResult
from diarist.chunks import Chunk
from diarist.concurrency import being_cancelled, gather_or_cancel
from diarist.encoding import jsonable
from diarist.exceptions import ProcessorAbort, ProcessorResultError, ToolError, described, message_of
from diarist.messages import MAX_NESTING, Json, ToolPart, too_deep
from diarist.processors.hook_calls import OnToolCall, OnToolResult
from diarist.processors.pipeline import PipelineRun
from diarist.run_context import RunContext
from diarist.tools import Tool, ToolContext
from diarist.tracing import span

MAX_PARALLEL = 10

WaitsFor = Literal["approval", "client_tool"]

CANCELLED = "cancelled"
"""The result of a cancelled tool call, as the model sees it in a later run."""

logger = logging.getLogger("diarist")


def cancel(calls: Iterable[ToolPart]) -> None:
    """Give each call the result of a cancelled call."""
    for call in calls:
        call.state, call.result = "error", CANCELLED


class ToolCalls:
    """The tool calls of one step: finds the calls that have to wait, and runs the others.

    Args:
        send: Sends the chunk of a finished call.
        args_errors: Per call id, why the model's arguments could not be read.

    Attributes:
        started: True once a tool's function was called (a tool cannot be undone).
    """

    def __init__(
        self,
        calls: Sequence[ToolPart],
        tools: Mapping[str, Tool],
        context: RunContext[Any],
        pipeline: PipelineRun,
        send: Callable[[Chunk], Awaitable[None]],
        args_errors: Mapping[str, str] | None = None,
    ) -> None:
        self._send = send
        self._calls = calls
        self._tools = tools
        self._context = context
        self._pipeline = pipeline
        self._args_errors = dict(args_errors or {})
        self._slots = asyncio.Semaphore(MAX_PARALLEL)
        self._judged: set[str] = set()  # ids of calls with a final result
        self.started = False

    async def ask_processors(self) -> None:
        """Run the ``process_tool_call`` hooks for every call, before any tool runs.

        A processor may change the arguments, answer for the tool, deny the call, or block the run.
        """
        if not self._pipeline.has("process_tool_call"):
            return
        for call in self._calls:
            hook_call = OnToolCall(
                messages=self._context.messages,
                call=call,
                tool=self._tools.get(call.name),
                args_error=self._args_errors.get(call.call_id),
            )
            await self._pipeline.ask(hook_call)
            if hook_call.args_error is None:
                self._args_errors.pop(call.call_id, None)

    def find_waiting(self) -> dict[str, WaitsFor]:
        """Return the calls that cannot run now, by id: they wait for approval, or for the client.

        A call that may need approval gets an error as its result if its arguments are invalid, or ``needs_approval``
        fails.
        """
        waiting: dict[str, WaitsFor] = {}
        for call in self._calls:
            tool = self._tools.get(call.name)
            if call.state != "call" or tool is None or call.call_id in self._args_errors:
                continue
            if tool.function is None:
                waiting[call.call_id] = "client_tool"
                continue
            try:
                if tool.must_be_approved(call.args):
                    waiting[call.call_id] = "approval"
            except Exception as error:  # tell the model, do not run the tool
                if not isinstance(error, ToolError):
                    logger.warning("needs_approval of tool %s failed", tool.name, exc_info=error)
                _fail(call, error)
        return waiting

    async def run(self, *, skip: Collection[str] = ()) -> None:
        """Run all calls except ``skip``, fill in their results, and send a chunk for each as it finishes."""
        await gather_or_cancel([self._run_one(call) for call in self._calls if call.call_id not in skip])

    def cut_short(self) -> None:
        """Mark the calls that have no judged result as cancelled."""
        cancel(call for call in self._calls if call.call_id not in self._judged)

    async def _run_one(self, call: ToolPart) -> None:
        """Run one call, ask the processors about its result, and send its chunk."""
        async with self._slots:
            if call.state == "call":
                attributes = {
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": call.name,
                    "gen_ai.tool.call.id": call.call_id,
                }
                with span(f"execute_tool {call.name}", **attributes) as current:
                    if (error := await self._execute(call)) is not None:
                        current.fail(error, kind="tool_error")
            if self._pipeline.has("process_tool_result"):
                await self._judge(call)
            self._judged.add(call.call_id)
            await self._send(result_chunk(call))

    async def _execute(self, call: ToolPart) -> BaseException | None:
        """Call the tool and fill in the result. An error becomes the result, and is also returned."""
        try:
            value = await self._invoke(call)
            try:
                result = plain(value)
            except ToolError as error:
                logger.warning("tool %s: %s", call.name, error)
                raise
        except asyncio.CancelledError as error:
            if being_cancelled():
                raise
            _fail(call, error)  # the tool waited for something that was cancelled
            return error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the model sees every error, also the SystemExit of argparse
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
                value = bound() if tool.is_async else await in_thread(lambda: _collected(bound()))
                if isinstance(value, AsyncGenerator):
                    return [item async for item in cast(AsyncGenerator[Any], value)]
                return await value if inspect.isawaitable(value) else value
        except TimeoutError as error:
            if not limit.expired():
                raise
            end = "was stopped" if tool.is_async else "may still be running"  # a thread cannot be stopped
            raise ToolError(f"{call.name} took longer than {tool.timeout:g} s and {end}") from error

    async def _judge(self, call: ToolPart) -> None:
        step, tool = self._pipeline.state.step_number, self._tools.get(call.name)
        try:
            await self._pipeline.ask(OnToolResult(messages=self._context.messages, call=call, tool=tool))
        except ProcessorAbort as abort:
            if abort.retry:
                raise ProcessorResultError(
                    f"processor {abort.processor_id!r} asked for a retry from process_tool_result at step {step}; the "
                    "step cannot be repeated after its tool has run: block, or return another result",
                    processor_id=abort.processor_id,
                    hook="process_tool_result",
                    step=step,
                ) from abort
            raise


def _fail(call: ToolPart, error: BaseException) -> None:
    call.state, call.result = "error", message_of(error) if isinstance(error, ToolError) else described(error)


def plain(value: Any) -> Json:
    """Return a tool's return value as JSON: models and dataclasses become dictionaries. Raises ToolError.

    Of another agent's result, also inside lists and dictionaries, only the answer is returned: the rest has prompts
    that the model must not see. If it has none, ToolError says why.
    """
    try:
        value = _answers(value)
        if value is None or isinstance(value, str | int | bool):
            return value
        result = jsonable(jsonable(value), inf_nan_mode="null")  # the mode does not reach into models
    except ValueError as error:  # an object that pydantic does not know, or one that contains itself
        raise ToolError(f"the result has no JSON form: {error}") from error
    except RecursionError as error:
        raise ToolError(f"the result contains itself, or is nested more than {MAX_NESTING} deep") from error
    if too_deep(result):
        raise ToolError(f"the result is nested more than {MAX_NESTING} deep")
    return result


def _answers(value: Any) -> Any:
    """Return the value with the answer of each ``AgentResult`` in its place. Raises ToolError."""
    match value:
        case AgentResult():
            result = cast(AgentResult[Any], value)
            if result.stopped_by != "answer":
                raise ToolError(f"the other agent gave no answer: stopped_by is {result.stopped_by!r}")
            return result.output if result.has_output else result.text
        case list() | tuple():
            return [_answers(item) for item in cast(Sequence[Any], value)]
        case dict():
            return {name: _answers(item) for name, item in cast(dict[Any, Any], value).items()}
        case _:
            return value


def _collected(value: Any) -> Any:
    """Return what a generator yields, as a list, and any other value unchanged."""
    return list(cast(Generator[Any], value)) if isinstance(value, Generator) else value


async def in_thread(function: Callable[[], Any]) -> Any:
    """Call a function in a daemon thread of its own, with the caller's context variables.

    A thread pool could deadlock: tools that call agents wait for each other. A cancellation does not stop the thread.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()
    context = copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is None:
            outcome.set_result(result)
        else:
            # StopIteration cannot be set on a future, and GeneratorExit would close the awaiting coroutine.
            ending = isinstance(error, StopIteration | GeneratorExit)
            outcome.set_exception(RuntimeError(repr(error)) if ending else error)

    def work() -> None:
        result, failure = None, None
        try:
            result = context.run(function)
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the loop is closed: the call was abandoned
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, name="diarist-tool", daemon=True).start()
    return await outcome
