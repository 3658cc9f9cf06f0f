"""Converts messages of LangChain. Pure functions: the given messages are never changed."""

from __future__ import annotations

from base64 import b64encode
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any, cast

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from diarist.integrations.conversations.building import Builder
from diarist.integrations.conversations.content import FILES, ContentReader
from diarist.integrations.conversations.langchain import CALL_BLOCKS
from diarist.integrations.conversations.loading import as_list, fields_of
from diarist.integrations.history import History
from diarist.messages import (
    FilePart,
    Json,
    Message,
    Part,
    Prompt,
    PromptMessage,
    TextPart,
    ToolCallPart,
    ToolPart,
    ToolResultPart,
)
from diarist.prompting import build_prompt


def to_neutral(
    messages: Sequence[BaseMessage], *, ids: bool = True, after: History[int] | None = None, start: int = 0
) -> History[int]:
    """Return the history; a place is an index of ``messages``.

    Args:
        ids: Take the messages' ids over. Without a checkpointer, LangGraph gives new ids to messages in each call.
        after: The history of the first ``start`` messages: the others are added to it, and it is returned.
    """
    history = History[int]() if after is None else after
    builder = Builder(zone=UTC, scope="langchain")
    reader = ContentReader(builder, files=FILES, unknown=history.note)
    for place, message in enumerate(messages[start:], start):
        own = message.id if ids else None
        content = cast(Json, message.content)
        match message:
            case HumanMessage():
                history.add("user", reader.parts(content), [place], own)
            case AIMessage():
                history.add("assistant", _answer(message, reader, builder), [place], own)
            case ToolMessage():
                state = "error" if message.status == "error" else "result"
                history.answer(place, message.tool_call_id, message.name or "", reader.result(content), state)
            case SystemMessage():
                pass
            case _:
                history.note(message.type)
    return history


def outline(messages: Sequence[BaseMessage]) -> dict[str, list[int]]:
    """Return the places of messages that the thread has already, by id: of an answer with calls, those of its results,
    too. Messages with open calls are left out."""
    found: dict[str, list[int]] = {}
    waiting: dict[str | None, str] = {}
    for place, message in enumerate(messages):
        match message:
            case ToolMessage() if (asked := waiting.pop(message.tool_call_id, None)) is not None:
                found[asked].append(place)
            case AIMessage() | HumanMessage() | ToolMessage() if message.id is not None:
                found[message.id] = [place]
                if isinstance(message, AIMessage):
                    waiting |= dict.fromkeys(_call_ids(message), message.id)
            case _:
                pass
    for message_id in set(waiting.values()):
        del found[message_id]
    return found


def without_half_pairs(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return the messages without answers that have open calls, and without results that have no call. The results of
    an answer follow it."""
    out: list[AnyMessage] = []
    results: list[ToolMessage] = []  # behind the current message, up to the next answer
    for message in reversed(messages):
        if isinstance(message, ToolMessage):
            results.append(message)
        elif isinstance(message, AIMessage):
            ids = _call_ids(message)
            own = [result for result in results if result.tool_call_id in ids]
            if ids <= {result.tool_call_id for result in own}:
                out += [*own, message]
            results.clear()
        else:
            out.append(message)
    return out[::-1]


def _call_ids(message: AIMessage) -> set[str | None]:
    return {call["id"] for call in [*message.tool_calls, *message.invalid_tool_calls]}


def arrange(
    messages: Sequence[AnyMessage],
    places: Mapping[str, Sequence[int]],
    *,
    order: Sequence[str],
    brought: Sequence[Message] = (),
    notes: Mapping[str, str] | None = None,
    always: Sequence[int] = (),
) -> list[AnyMessage]:
    """Return the messages to send, as a ``TurnView`` asks. Given messages are sent as they are, except for notes.

    Args:
        places: By id, the indexes of the given messages that can be sent.
        order, brought, notes: As in ``TurnView``. A message is brought only if it has no place.
        always: Indexes of messages to send in any case, each before the first later one that is sent.
    """
    ours = {message.id: message for message in brought}
    loose = deque(always)
    out: list[AnyMessage] = []
    for message_id in order:
        if message_id not in places:
            out += to_theirs([ours[message_id]])  # its note is inside
            continue
        first, *rest = places[message_id]
        while loose and loose[0] < first:
            out.append(messages[loose.popleft()])
        note = notes.get(message_id) if notes else None
        out.append(messages[first] if note is None else _with_note(messages[first], note))
        out += [messages[place] for place in rest]
    return out + [messages[place] for place in loose]


def with_texts(system: SystemMessage | None, texts: Sequence[str]) -> SystemMessage | None:
    """Return the system message with texts behind its own."""
    if not texts:
        return system
    if system is None:
        return SystemMessage("\n\n".join(texts))
    if isinstance(content := system.content, str):
        return system.model_copy(update={"content": "\n\n".join([content, *texts] if content else texts)})
    return system.model_copy(update={"content": [*content, *({"type": "text", "text": text} for text in texts)]})


def to_theirs(messages: Sequence[Message]) -> list[AnyMessage]:
    """Return stored messages in LangChain's form, without reasoning: its signatures belong to the provider's answer."""
    return from_prompt(build_prompt((), messages))


def from_prompt(prompt: Prompt) -> list[AnyMessage]:
    """Return the messages of a prompt in LangChain's form, without reasoning."""
    return [theirs for message in prompt for theirs in _from_prompt(message)]


def _answer(message: AIMessage, reader: ContentReader, builder: Builder) -> list[Part]:
    content = cast(Json, message.content)
    calls: list[Part] = [
        ToolPart(call_id=call["id"] or "", name=call["name"], args=call["args"]) for call in message.tool_calls
    ]
    calls += [
        ToolPart(call_id=call["id"] or "", name=call["name"] or "", args=builder.arguments(call["args"]))
        for call in message.invalid_tool_calls
    ]
    if (blocks := as_list(content)) is not None:
        content = [block for block in blocks if fields_of(block).get("type") not in CALL_BLOCKS]
    return [*reader.parts(content), *calls]


def _with_note(message: AnyMessage, note: str) -> AnyMessage:
    content = message.content
    blocks: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    return message.model_copy(update={"content": [{"type": "text", "text": note}, *blocks]})


def _from_prompt(message: PromptMessage) -> list[AnyMessage]:
    match message.role:
        case "system":
            return [SystemMessage(message.text)]
        case "tool":
            return [
                ToolMessage(
                    part.text,
                    tool_call_id=part.call_id,
                    name=part.name,
                    status="error" if part.is_error else "success",
                )
                for part in message.parts
                if isinstance(part, ToolResultPart)
            ]
        case "assistant":
            return [_from_answer(message)]
        case _:
            return [HumanMessage(_content(message), id=message.message_id)]


def _from_answer(message: PromptMessage) -> AIMessage:
    calls: list[Any] = [
        {"type": "tool_call", "id": part.call_id, "name": part.name, "args": part.args}
        for part in message.parts
        if isinstance(part, ToolCallPart) and not part.provider_executed
    ]
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    # A tool that the provider ran has no call in LangChain's neutral form: its result is told as text.
    texts += [
        f"[{part.name}] {part.text}"
        for part in message.parts
        if isinstance(part, ToolResultPart) and part.provider_executed
    ]
    return AIMessage("\n\n".join(text for text in texts if text), tool_calls=calls, id=message.message_id)


def _content(message: PromptMessage) -> str | list[str | dict[Any, Any]]:
    parts = [part for part in message.parts if isinstance(part, TextPart | FilePart)]
    if len(parts) == 1 and isinstance(part := parts[0], TextPart):
        return part.text
    return [_block(part) for part in parts]


def _block(part: TextPart | FilePart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    kind = part.media_type.partition("/")[0]
    block: dict[str, Any] = {
        "type": kind if kind in ("image", "audio", "video") else "file",
        "mime_type": part.media_type,
    }
    if part.name is not None:
        block["extras"] = {"filename": part.name}
    return block | ({"url": part.url} if part.data is None else {"base64": b64encode(part.data).decode()})
