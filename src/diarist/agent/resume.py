"""Tool calls that wait for an answer: for approval by ``resume``, or for a result that the client sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diarist.agent.options import Approvals
from diarist.agent.tools import WaitsFor
from diarist.exceptions import ConfigError, InputError
from diarist.message_list import MessageList
from diarist.messages import Json, Message, Part, ToolPart
from diarist.prompting import APPROVED_KEY, DECLINED
from diarist.run_context import RunContext
from diarist.tools import Tool

APPROVAL_KEY = "diarist_waits_for_approval"
"""Metadata of a message: the ids of the calls that waited for approval when its run ended."""

PROCESSORS_KEY = "diarist_processors"
"""Metadata of a message whose calls wait: the ``id`` and, if it dumps one, the ``state`` of each processor that is not
memory's."""


# -- approvals


def check_approvals(approvals: Any) -> dict[str, bool | str]:
    """Return the approvals given to ``resume`` as a dictionary. Raises InputError."""
    if not isinstance(approvals, Mapping):
        raise InputError(f"approvals must be a dictionary from call id to True, False or a reason, not {approvals!r}")
    answers: dict[str, bool | str] = dict(approvals)  # pyright: ignore[reportUnknownArgumentType]
    if not answers:
        raise InputError("resume needs an answer for at least one call of result.pending")
    for call_id, answer in answers.items():
        if not isinstance(answer, bool | str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(
                f"the answer to the call {call_id!r} must be True, False or a reason to decline it, not {answer!r}"
            )
    return answers


def suspend(messages: Sequence[Message], dumped: list[dict[str, Json]], waiting: Mapping[str, WaitsFor]) -> None:
    """Store the run's processors, their states, and the calls that wait for approval, in the message of the calls."""
    holder = next((message for message in reversed(messages) if message.tool_parts), None)
    if holder is None:  # a stream hook hides the calls from the client
        return
    holder.metadata[PROCESSORS_KEY] = dumped
    if ids := [call_id for call_id, awaited in waiting.items() if awaited == "approval"]:
        holder.metadata[APPROVAL_KEY] = ids


def suspended_states(messages: MessageList, ids: Sequence[str]) -> list[dict[str, Json]]:
    """Return the processors' states that ``suspend`` stored; none if no call waits any more.

    Raises ConfigError if ``ids``, the ids of this agent's processors, are not those that the run had.
    """
    if not waiting_calls(messages):
        return []
    holder = next((message for message in reversed(_history(messages)) if PROCESSORS_KEY in message.metadata), None)
    if holder is None:
        return []
    dumped: list[dict[str, Json]] = holder.metadata[PROCESSORS_KEY]
    ids_before = [entry["id"] for entry in dumped]
    if ids_before != list(ids):
        raise ConfigError(f"resume needs the processors that the run had, {ids_before}, but this agent has {list(ids)}")
    return dumped


def waiting_calls(messages: MessageList) -> dict[str, ToolPart]:
    """Return the tool calls that wait, by id."""
    return {call.call_id: call for _, call in _open_calls(_history(messages))}


def _open_calls(messages: Sequence[Message]) -> list[tuple[Message, ToolPart]]:
    """Return the calls that still wait for a result, each with its message.

    A call no longer waits if it was approved and started, or if a new user message follows.
    """
    waiting: dict[str, tuple[Message, ToolPart]] = {}
    for message in messages:
        match message.role:
            case "user":
                waiting.clear()
            case "tool":
                for part in message.tool_parts:
                    waiting.pop(part.call_id, None)
            case _:
                started = message.metadata.get(APPROVED_KEY, ())
                for part in message.tool_parts:
                    if part.state == "call" and not part.provider_executed and part.call_id not in started:
                        waiting[part.call_id] = message, part
    return list(waiting.values())


def missing_tools(answers: Approvals, calls: Mapping[str, ToolPart], tools: Mapping[str, Tool]) -> list[str]:
    """Return the names of the tools of approved calls that are missing."""
    approved = [calls[call_id].name for call_id, answer in answers.items() if answer is True and call_id in calls]
    return [name for name in approved if name not in tools]


def check_answers(
    answers: Approvals, calls: Mapping[str, ToolPart], tools: Mapping[str, Tool], messages: MessageList
) -> None:
    """Raise InputError if a call does not wait for approval, and ConfigError if its tool is missing."""
    if missing := missing_tools(answers, calls, tools):
        raise ConfigError(f"resume needs the tools {missing}, which this agent and its processors do not have")
    if unknown := sorted(answers.keys() - calls.keys()):
        why, waiting = _why_closed(unknown[0], messages), ", ".join(calls) or "none"
        raise InputError(f"no tool call {unknown} waits for approval: {why}; waiting: {waiting}")
    for call_id, answer in answers.items():
        call = calls[call_id]
        if answer is True and waits_for(call, tools) == "client_tool":
            raise InputError(
                f"the call {call_id!r} of {call.name} waits for the client's result, not for approval; "
                "send the result as a message of role 'tool'"
            )


def _why_closed(call_id: str, messages: MessageList) -> str:
    """Say why a call does not wait."""
    why = "there is no such call here; pass the thread= of the run that stopped, or its result as of="
    for message in _history(messages):
        part = next((part for part in message.tool_parts if part.call_id == call_id), None)
        if part is not None:
            answered = (
                message.role == "tool" or part.state != "call" or call_id in message.metadata.get(APPROVED_KEY, ())
            )
            why = "it was answered already" if answered else ""
        elif message.role == "user" and not why:
            why = "the user has written something else since, which closes open calls"
    return why


def waits_for(call: ToolPart, tools: Mapping[str, Tool]) -> WaitsFor:
    """Return the kind of answer an open call waits for."""
    tool = tools.get(call.name)
    return "client_tool" if tool is not None and tool.function is None else "approval"


async def answer_calls(context: RunContext[Any], answers: Approvals, calls: Mapping[str, ToolPart]) -> Message:
    """Add a message of role ``tool`` before the caller's new input, with a part per answered call, and return it.

    Approvals are stored first, so that no approved call runs twice, even if this run fails.
    """
    messages = context.messages
    if context.store_approval is not None:
        approved: dict[str, tuple[Message, list[str]]] = {}
        for message, call in _open_calls(_history(messages)):
            if answers.get(call.call_id) is True:
                approved.setdefault(message.id, (message, []))[1].append(call.call_id)
        for message, ids in approved.values():
            await context.store_approval(message, ids)
    parts: list[Part] = []
    for call_id, answer in answers.items():
        call = calls[call_id]
        part = ToolPart(call_id=call.call_id, name=call.name, args=dict(call.args))
        if answer is not True:
            part.state, part.result = "denied", answer or DECLINED
        parts.append(part)
    results = Message(role="tool", parts=parts, run_id=context.run_id)
    new_input = messages.input
    messages.remove([message.id for message in new_input])
    messages.add(results, "response")
    for message in new_input:
        messages.add(message, "input")
    return results


def _history(messages: MessageList) -> list[Message]:
    """Return the messages without the new input that comes with approvals: that input does not close open calls."""
    return [m for m in messages.all if m.role == "tool" or messages.origin_of(m.id) != "input"]


# -- results of client tools


def check_results(messages: MessageList) -> None:
    """Check the tool results in the input of this call.

    If no call waits, a result for an unknown call counts as late: memory may have loaded only a part of the thread.

    Raises InputError for a result of a call that waits for approval, and for an unknown call while others wait.
    """
    history: list[Message] = []
    results: list[ToolPart] = []
    answered_now: list[str] = []  # by the results at the end; earlier ones may answer calls that the caller left out
    for_approval = set[str]()  # calls that wait for approval; a later answer may have a call with the same id
    for message in messages.all:
        ids = [part.call_id for part in message.tool_parts]
        from_caller = message.run_id is None and messages.origin_of(message.id) == "input"
        if from_caller and message.role == "tool":
            results += message.tool_parts
            answered_now += ids
            continue
        history.append(message)
        answered_now.clear()
        if not from_caller:
            for_approval.difference_update(ids)
        for_approval.update(message.metadata.get(APPROVAL_KEY, ()))
        for_approval.difference_update(message.metadata.get(APPROVED_KEY, ()))
    known = {part.call_id for message in history if message.role != "tool" for part in message.tool_parts}
    waiting = _open_calls(history)
    for part in results:
        if part.call_id in for_approval and part.state != "denied":
            raise InputError(
                f"the call {part.call_id!r} waits for approval, and a message of role 'tool' cannot approve it; "
                f"answer it with agent.resume({{{part.call_id!r}: True or False}})"
            )
        if waiting and part.call_id in answered_now and part.call_id not in known:
            names = ", ".join(f"{call.call_id!r} of {call.name}" for _, call in waiting)
            raise InputError(f"there is no tool call {part.call_id!r} to answer; waiting: {names}")


def unanswered_calls(messages: MessageList, tools: Mapping[str, Tool]) -> list[ToolPart]:
    """Return the calls that still wait if the input ends with results; the model must not answer before them."""
    history = messages.all
    if not history or history[-1].role != "tool":
        return []
    return [
        call
        for message, call in _open_calls(history)
        if PROCESSORS_KEY in message.metadata or waits_for(call, tools) == "client_tool"
    ]
