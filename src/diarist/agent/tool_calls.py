"""Running the tool calls of a step, at most ten at once. Whatever goes wrong is text for the model."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from diarist.agent.threads import in_thread
from diarist.agent.waiting import being_cancelled
from diarist.chunks import ToolErrorChunk, ToolErrorPayload, ToolResultChunk, ToolResultPayload
from diarist.exceptions import ToolError
from diarist.messages import Json, ToolPart
from diarist.run_context import RunContext
from diarist.tools import Tool, ToolContext

MAX_PARALLEL = 10

logger = logging.getLogger("diarist")


async def run_tools(
    calls: Sequence[ToolPart],
    tools: Mapping[str, Tool],
    context: RunContext[Any],
    args_errors: Mapping[str, str],
) -> None:
    """Run all calls, fill in their results, and write a chunk for each as it finishes."""
    limit = asyncio.Semaphore(MAX_PARALLEL)

    async def one(call: ToolPart) -> None:
        async with limit:
            await _run(call, tools, context, args_errors.get(call.call_id))

    async with asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(one(call))


async def _run(call: ToolPart, tools: Mapping[str, Tool], context: RunContext[Any], args_error: str | None) -> None:
    try:
        if args_error:
            raise ToolError(f"the arguments of {call.name} are no JSON object: {args_error}")
        tool = tools.get(call.name)
        if tool is None:
            raise ToolError(f"there is no tool {call.name!r}; available: {', '.join(tools) or 'none'}")
        result = plain(await _invoke(tool, call, context))
    except asyncio.CancelledError as error:
        if being_cancelled():
            raise
        _finish_failed(call, context, error)  # the tool waited for something that others cancelled
        return
    except Exception as error:  # whatever a tool raises is for the model to see
        if not isinstance(error, ToolError):
            logger.warning("tool %s failed", call.name, exc_info=error)
        _finish_failed(call, context, error)
        return
    call.state, call.result = "result", result
    context.writer.put(
        ToolResultChunk(
            payload=ToolResultPayload(tool_call_id=call.call_id, tool_name=call.name, args=call.args, result=result)
        )
    )


async def _invoke(tool: Tool, call: ToolPart, context: RunContext[Any]) -> Any:
    bound = tool.bind(call.args, ToolContext(run=context, call_id=call.call_id, tool_name=call.name))
    limit = asyncio.timeout(tool.timeout)
    try:
        async with limit:
            value = bound() if tool.is_async else await in_thread(bound)
            return await value if inspect.isawaitable(value) else value
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise ToolError(f"{call.name} took longer than {tool.timeout:g} s and was stopped") from error


def _finish_failed(call: ToolPart, context: RunContext[Any], error: BaseException) -> None:
    text = str(error) if isinstance(error, ToolError) else f"{type(error).__name__}: {error}".removesuffix(": ")
    call.state, call.result = "error", text
    context.writer.put(
        ToolErrorChunk(
            payload=ToolErrorPayload(tool_call_id=call.call_id, tool_name=call.name, args=call.args, error=text)
        )
    )


def plain(value: Any) -> Json:
    """A tool's return value as JSON: models and dataclasses become dictionaries.

    Raises ToolError for what has no JSON form.
    """
    if value is None or isinstance(value, str | int | float | bool):
        return value
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise ToolError(f"the result has no JSON form: {error}") from error
