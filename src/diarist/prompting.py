"""Build the prompt for a provider from the messages of a run. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import chain

from diarist.message_list import SystemMessage
from diarist.messages import (
    Derived,
    FilePart,
    Message,
    Prompt,
    PromptMessage,
    PromptPart,
    ReasoningPart,
    Rendered,
    TextPart,
    ToolCallPart,
    ToolPart,
    ToolResultPart,
    copy_json,
)

FEEDBACK_TAG = "processor-retry-feedback"

APPROVED_KEY = "diarist_approved"
"""Metadata key of a message: ids of its calls that were approved and started, so that none runs twice."""

DECLINED = "The user declined this call."
"""The stored result of a call that was declined without a reason."""

_RESULT_LOST = "This call was approved and started, but its run failed, so its result is unknown."

_CUT = "[The user stopped your answer here.]"

Content = TextPart | ReasoningPart | FilePart


def build_prompt(
    system: Sequence[SystemMessage],
    messages: Sequence[Message],
    *,
    feedback: str | None = None,
    cache_breakpoints: bool = False,
    reuse: bool = False,
) -> Prompt:
    """Return the prompt.

    Calls without a result, data parts and sources are left out. A call and its result become an assistant message
    and a tool message right after it. A short note in the user role follows an answer that the user stopped.

    Args:
        feedback: Comes last, in the user role: some providers move system messages to the front, which would break the
            cached prefix.
        cache_breakpoints: Sets up to four breakpoints, see ``_set_breakpoints``.
        reuse: Nothing changes messages in place, so each is rendered only once, and all prompts share its prompt
            messages.
    """
    prompts: list[list[PromptMessage]] = []  # of each message
    for message in messages if reuse else ():  # nearly always all but the newest
        rendered = message.rendered
        if rendered is None or rendered.sent is not message.sent:
            break
        prompts.append(rendered.prompt)
    known = len(prompts)
    newer = join_results(messages[known:])
    prompts += [_rendered(message) if reuse else _from_message(message) for message in newer]
    out = [PromptMessage(role="system", parts=[TextPart(text=item.text)]) for item in system]
    out.extend(chain.from_iterable(prompts))
    if cache_breakpoints and len(out) > len(system):
        _set_breakpoints(out, system, [*messages[:known], *newer], prompts)
    if feedback is not None:
        text = f"<{FEEDBACK_TAG}>\n{feedback}\n</{FEEDBACK_TAG}>"
        out.append(PromptMessage(role="user", parts=[TextPart(text=text)]))
    return Prompt(messages=out)


def _set_breakpoints(
    out: list[PromptMessage],
    system: Sequence[SystemMessage],
    messages: Sequence[Message],
    prompts: Sequence[Sequence[PromptMessage]],
) -> None:
    """Set breakpoints after the instructions, the last system message, the last message of the previous request, and
    the last message. ``prompts`` has the prompt messages of each of ``messages``."""
    instructions = [index for index, item in enumerate(system) if item.tag is None]
    places = {*instructions[-1:], len(system) - 1, len(out) - 1}
    previous = _previous_length(messages)
    if previous < len(messages):
        places.add(len(out) - sum(map(len, prompts[previous:])) - 1)
    for place in places - {-1}:
        out[place] = replace(out[place], cache=True)


def _previous_length(messages: Sequence[Message]) -> int:
    """Return the number of leading messages that the previous request contained.

    Within a run, the messages of its last step are newer. At its start, the input and the previous run's answer are.
    Messages without a run id (added by processors, or from a history that is not stored) count as the current run's.
    """
    end = len(messages)
    if end and messages[-1].role != "assistant":
        run_id = next((message.run_id for message in reversed(messages) if message.run_id is not None), None)
        while end:
            last = messages[end - 1]
            is_input = last.role != "assistant" if last.run_id is None else last.run_id == run_id
            if not is_input:
                break
            end -= 1
    return end - 1 if end and messages[end - 1].role == "assistant" else end


def join_results(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with results from later ``tool`` messages merged into their calls.

    A new user message closes the open calls. A result that arrives later, or without its call, becomes text in the
    user role, since providers refuse a result without its call. A call that was approved and started but has no
    result becomes an error that says so. The given messages are not changed.
    """
    out: list[Message] = []
    waiting: dict[str, tuple[int, int]] = {}  # by call id: index of the message in ``out``, and of its part
    for message in messages:
        if message.role == "tool":
            late = _join(message, out, waiting)
            if late:
                out.append(replace(message, role="user", parts=[TextPart(text="\n\n".join(late))], sent=None))
            continue
        if message.role == "user":
            waiting.clear()
        for index, part in enumerate(message.parts):
            if isinstance(part, ToolPart) and part.state == "call":
                waiting[part.call_id] = (len(out), index)
        out.append(_with_lost_results(message) if message.metadata else message)
    return out


def _with_lost_results(message: Message) -> Message:
    """Return the message with an error for each call that was approved and started but has no result."""
    started = message.metadata.get(APPROVED_KEY)
    if not started:
        return message
    parts = [
        replace(part, state="error", result=_RESULT_LOST)
        if isinstance(part, ToolPart) and part.state == "call" and part.call_id in started
        else part
        for part in message.parts
    ]
    return replace(message, parts=parts)


def _join(results: Message, out: list[Message], waiting: dict[str, tuple[int, int]]) -> list[str]:
    """Merge each result into its call; return the texts of results without an open call."""
    late: list[str] = []
    for part in results.tool_parts:
        if part.call_id not in waiting:
            name = f" of {part.name}" if part.name else ""
            late.append(f"[Late result{name}, call {part.call_id}]\n{_result_text(part)}")
            continue
        message_index, part_index = waiting.pop(part.call_id)
        parts = list(out[message_index].parts)
        call = parts[part_index]
        assert isinstance(call, ToolPart)
        parts[part_index] = replace(call, state=part.state, result=part.result)
        out[message_index] = replace(out[message_index], parts=parts)
    return late


def _rendered(message: Message) -> list[PromptMessage]:
    """Render a message, and cache the result in it unless a later message may change the result."""
    prompt = _from_message(message)
    if message.role != "tool" and not message.metadata and all(part.state != "call" for part in message.tool_parts):
        for item in prompt:
            item.derived = Derived()
        message.rendered = Rendered(message.sent, prompt)
    return prompt


def _from_message(message: Message) -> list[PromptMessage]:
    if message.role in ("user", "system"):
        parts = _user_parts(message)
        return [PromptMessage(role=message.role, parts=parts, message_id=message.id)] if parts else []
    if len(message.parts) == 1 and isinstance(part := message.parts[0], TextPart):  # nearly always
        out = [PromptMessage(role="assistant", parts=[_copied(part)], message_id=message.id)]
    else:
        out = _assistant_messages(message)
    if message.is_cut and out:  # in the user role, so that the model does not imitate it
        out.append(PromptMessage(role="user", parts=[TextPart(text=_CUT)], message_id=message.id))
    return out


def _user_parts(message: Message) -> list[PromptPart]:
    note = message.sent.text if message.sent is not None else ""  # without text, the block only records its sources
    if len(message.parts) == 1 and isinstance(part := message.parts[0], TextPart):  # nearly always
        return [TextPart(text=f"{note}\n\n{part.text}") if note else _copied(part)]
    parts: list[PromptPart] = [_copied(part) for part in message.parts if isinstance(part, (TextPart, FilePart))]
    first = parts[0] if parts else None
    if note and isinstance(first, TextPart):  # one text, since some servers accept only a single string
        parts[0] = TextPart(text=f"{note}\n\n{first.text}")
    elif note:
        parts.insert(0, TextPart(text=note))
    return parts


def _assistant_messages(message: Message) -> list[PromptMessage]:
    """Return an assistant and a tool message; more if text follows a tool's result."""
    out: list[PromptMessage] = []
    answer: list[PromptPart] = []
    results: list[PromptPart] = []

    def close() -> None:
        if answer:
            out.append(PromptMessage(role="assistant", parts=list(answer), message_id=message.id))
        if results:
            out.append(PromptMessage(role="tool", parts=list(results), message_id=message.id))
        answer.clear()
        results.clear()

    for part in message.parts:
        match part:
            case TextPart() | ReasoningPart() | FilePart():
                if results:
                    close()
                answer.append(_copied(part))
            case ToolPart() if part.state != "call":
                answer.append(
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
                    text=_result_text(part),
                    is_error=part.state != "result",
                    provider_executed=part.provider_executed,
                    provider_data=copy_json(part.provider_data) if part.provider_executed else None,
                )
                (answer if part.provider_executed else results).append(result)
            case _:
                pass
    close()
    # Leave out a message that has only reasoning, because its call was left out: providers refuse it.
    return [m for m in out if not all(isinstance(part, ReasoningPart) for part in m.parts)]


def _result_text(part: ToolPart) -> str:
    """Return the result for the model. Of a denied call only the reason is stored, which may read like the tool's
    answer, and not all providers take a mark for it. A person or a processor may have denied the call."""
    if part.state != "denied":
        return part.result_text
    return f"This call was declined: {part.result_text}" if part.result not in (None, "", DECLINED) else DECLINED


def _copied(part: Content) -> Content:
    """Return a copy, so that edits of the prompt do not change the conversation."""
    if isinstance(part, TextPart):  # the most frequent kind; ``copy`` and ``replace`` are ten times slower
        return TextPart(
            text=part.text, provider_data=None if part.provider_data is None else copy_json(part.provider_data)
        )
    if isinstance(part, FilePart):
        return copy(part)
    return replace(part, provider_data=copy_json(part.provider_data))
