"""From the messages of a run to the prompt that a provider gets. Pure, and the only place that does it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

from diarist.message_list import SystemMessage
from diarist.messages import (
    FilePart,
    Message,
    Prompt,
    PromptMessage,
    PromptPart,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolPart,
    ToolResultPart,
    copy_json,
)

FEEDBACK_TAG = "processor-retry-feedback"

APPROVED_KEY = "diarist_approved"
"""Metadata of a message: the ids of its calls that were approved and begun, so that none runs twice."""

_NOT_KEPT = "This call was approved and begun, but its run did not end well: what came of it is not known."

Content = TextPart | ReasoningPart | FilePart


def build_prompt(
    system: Sequence[SystemMessage],
    messages: Sequence[Message],
    *,
    feedback: str | None = None,
    cache_breakpoints: bool = False,
) -> Prompt:
    """Assemble a prompt.

    Calls without a result, data parts and sources are left out; a call and its result become an assistant
    message and the tool message right after it. ``feedback`` stands at the very end, in the user role, since
    some providers hoist system messages to the front and would break the cached prefix. With
    ``cache_breakpoints``, breakpoints stand after the instructions, after the last system message, after what the
    request before ended with, and after the last message: four at most.
    """
    out = [PromptMessage(role="system", parts=[TextPart(text=item.text)]) for item in system]
    marks = [*[i for i, item in enumerate(system) if item.tag is None][-1:], len(out) - 1]
    joined = join_results(messages)
    sent_before = _sent_before(joined)
    for place, message in enumerate(joined):
        if place == sent_before:
            marks.append(len(out) - 1)
        out.extend(_from_message(message))
    if cache_breakpoints and len(out) > len(system):
        for index in {*marks, len(out) - 1} - {-1}:
            out[index].cache = True
    if feedback is not None:
        text = f"<{FEEDBACK_TAG}>\n{feedback}\n</{FEEDBACK_TAG}>"
        out.append(PromptMessage(role="user", parts=[TextPart(text=text)]))
    return Prompt(messages=out)


def _sent_before(messages: Sequence[Message]) -> int:
    """How many of the messages the request before this one had.

    What has come since: within a run its newest step; at its beginning its input, and the last answer of the run
    before, unless that got none. Rows without a run (what processors add, a history that is not stored) count as
    the run's own.
    """
    end = len(messages)
    if end and messages[-1].role != "assistant":
        present = next((message.run_id for message in reversed(messages) if message.run_id is not None), None)
        while end and _is_input(messages[end - 1], present):
            end -= 1
    return end - 1 if end and messages[end - 1].role == "assistant" else end


def _is_input(message: Message, run_id: str | None) -> bool:
    return message.role != "assistant" if message.run_id is None else message.run_id == run_id


def join_results(messages: Sequence[Message]) -> list[Message]:
    """Messages with the results that came in later messages of role ``tool`` put into their calls.

    A call that the user talked past stays unanswered; a result that comes after that, or whose call is not here, is
    shown as text of the user's role, since no provider takes a result without its call. A call that was approved
    and begun, and has no result, is an error that says so. The given messages are not changed.
    """
    out: list[Message] = []
    waiting: dict[str, tuple[int, int]] = {}
    for message in messages:
        if message.role == "tool":
            late = _join(message, out, waiting)
            if late:
                out.append(replace(message, role="user", parts=[TextPart(text="\n\n".join(late))], sent=None))
            continue
        if message.role == "user":
            waiting.clear()
        for place, part in enumerate(message.parts):
            if isinstance(part, ToolPart) and part.state == "call":
                waiting[part.call_id] = (len(out), place)
        out.append(_with_begun(message) if message.metadata else message)
    return out


def _with_begun(message: Message) -> Message:
    begun = message.metadata.get(APPROVED_KEY)
    if not begun:
        return message
    parts = [
        replace(part, state="error", result=_NOT_KEPT)
        if isinstance(part, ToolPart) and part.state == "call" and part.call_id in begun
        else part
        for part in message.parts
    ]
    return replace(message, parts=parts)


def _join(results: Message, out: list[Message], waiting: dict[str, tuple[int, int]]) -> list[str]:
    """Put each result where its call is; returns the texts of those that have none."""
    late: list[str] = []
    for part in results.tool_parts:
        place = waiting.pop(part.call_id, None)
        if place is None:
            name = f" of {part.name}" if part.name else ""
            late.append(f"[Late result{name}, call {part.call_id}]\n{part.result_text}")
            continue
        message = out[place[0]]
        call = message.parts[place[1]]
        assert isinstance(call, ToolPart)
        parts = list(message.parts)
        parts[place[1]] = replace(call, state=part.state, result=part.result)
        out[place[0]] = replace(message, parts=parts)
    return late


def open_calls(messages: Sequence[Message], message: Message) -> list[ToolPart]:
    """The calls of ``message`` that still wait for a result: none came, none was approved and begun, and the user has
    not talked past them."""
    index = next(i for i, other in enumerate(messages) if other is message)
    after = messages[index + 1 :]
    if any(other.role == "user" for other in after):
        return []
    answered = {part.call_id for other in after if other.role == "tool" for part in other.tool_parts}
    answered.update(message.metadata.get(APPROVED_KEY, ()))
    return [
        part
        for part in message.tool_parts
        if part.state == "call" and not part.provider_executed and part.call_id not in answered
    ]


def _from_message(message: Message) -> list[PromptMessage]:
    if message.role in ("user", "system"):
        parts = _user_parts(message)
        return [PromptMessage(role=message.role, parts=parts, message_id=message.id)] if parts else []
    if len(message.parts) == 1 and isinstance(part := message.parts[0], TextPart):  # nearly always
        return [PromptMessage(role="assistant", parts=[_own(part)], message_id=message.id)]
    return _assistant_messages(message)


def _user_parts(message: Message) -> list[PromptPart]:
    note = message.sent.text if message.sent is not None else ""  # without a text it is a record of what was known
    if len(message.parts) == 1 and isinstance(said := message.parts[0], TextPart):  # nearly always
        return [_own(said) if not note else TextPart(text=f"{note}\n\n{said.text}")]
    parts: list[PromptPart] = [_own(part) for part in message.parts if isinstance(part, (TextPart, FilePart))]
    first = parts[0] if parts else None
    if note and isinstance(first, TextPart):  # one text, since some servers take a single string only
        parts[0] = TextPart(text=f"{note}\n\n{first.text}")
    elif note:
        parts.insert(0, TextPart(text=note))
    return parts


def _assistant_messages(message: Message) -> list[PromptMessage]:
    """Usually one assistant message and one tool message; more where text follows a tool's result."""
    out: list[PromptMessage] = []
    said: list[PromptPart] = []
    results: list[PromptPart] = []

    def close() -> None:
        if said:
            out.append(PromptMessage(role="assistant", parts=list(said), message_id=message.id))
        if results:
            out.append(PromptMessage(role="tool", parts=list(results), message_id=message.id))
        said.clear()
        results.clear()

    for part in message.parts:
        match part:
            case TextPart() | ReasoningPart() | FilePart():
                if results:
                    close()
                said.append(_own(part))
            case ToolPart() if part.state != "call":
                said.append(
                    ToolCallPart(
                        call_id=part.call_id,
                        name=part.name,
                        args=copy_json(part.args),
                        provider_executed=part.provider_executed,
                        provider_data=copy_json(part.provider_data),
                    )
                )
                result = ToolResultPart(
                    call_id=part.call_id,
                    name=part.name,
                    text=part.result_text,
                    is_error=part.state != "result",
                    provider_executed=part.provider_executed,
                    provider_data=copy_json(part.provider_data) if part.provider_executed else None,
                )
                (said if part.provider_executed else results).append(result)
            case _:
                pass
    close()
    # Thinking alone, its call left out: no provider takes that.
    return [m for m in out if not all(isinstance(part, ReasoningPart) for part in m.parts)]


def _own(part: Content) -> Content:
    """A copy: who edits a prompt does not edit the conversation."""
    if isinstance(part, TextPart):  # by far the most, and ``copy`` and ``replace`` take ten times as long
        return TextPart(
            text=part.text, provider_data=None if part.provider_data is None else copy_json(part.provider_data)
        )
    if isinstance(part, FilePart):
        return copy(part)
    return replace(part, provider_data=copy_json(part.provider_data))


def common_prefix(first: str, second: str) -> str:
    """What both texts begin with: how much of a prompt a provider's cache can reuse after another."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return first[:low]
