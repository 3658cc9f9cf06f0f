"""Converts messages to the forms of OpenAI, Anthropic and user interfaces. Pure functions.

Each function takes the same input as ``agent.generate``: a text, a ``Message``, a dictionary with ``role`` and
``content``, or a list of these. An empty list is allowed. ``to_openai`` and ``to_anthropic`` also take a ``Prompt``,
such as the one of a turn. Each raises InputError for anything else.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace

from diarist.data_urls import url_of
from diarist.exceptions import BadRequestError, InputError
from diarist.message_list import MessageInput, to_messages
from diarist.messages import (
    DataPart,
    FilePart,
    Json,
    Message,
    Part,
    Prompt,
    PromptMessage,
    PromptPart,
    ReasoningPart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolPart,
    ToolResultPart,
)
from diarist.models.openai_chat.dialects import Dialect
from diarist.models.openai_chat.request import chat_messages
from diarist.prompting import build_prompt, join_results

__all__ = ["to_anthropic", "to_openai", "to_ui"]

_CHAT = Dialect(maker="openai", echoes_reasoning=False)
_OWN_KEYS = "diarist_"
"""Prefix of the library's keys in metadata."""


def to_openai(messages: MessageInput | Prompt) -> list[dict[str, Json]]:
    """Return messages in the form of chat completions: ``create(messages=to_openai(messages), ...)``.

    A tool call is followed by its result, in a message of role ``tool``. Calls without a result are left out, and so
    are reasoning, sources, data parts and memory notes. A ``Prompt`` keeps its memory notes.

    Raises InputError for a file without a form in chat completions: a video, audio other than WAV and MP3, and the
    address of a file other than an image. Other files are passed on, and the server decides.
    """
    try:
        return [form for item in _prompt(messages) for form in chat_messages(item, _CHAT, "openai", thought=False)]
    except BadRequestError as error:
        raise InputError(str(error)) from error


def to_anthropic(messages: MessageInput | Prompt) -> dict[str, Json]:
    """Return messages in Anthropic's form: ``create(**to_anthropic(messages), model=..., max_tokens=...)``.

    The dictionary has ``messages``, in which users and assistants alternate, and ``system`` if there are system
    messages. Results of tools are in the user message after their calls. Thinking is kept if Anthropic signed it. Calls
    without a result are left out, and so are calls that a provider ran, sources, data parts and memory notes. A
    ``Prompt`` keeps its memory notes.

    Raises InputError for a file other than an image, a PDF or text.
    """
    system: list[str] = []
    turns: list[dict[str, Json]] = []
    for message in _prompt(messages):
        if message.role == "system":
            system.append(message.text)
            continue
        role = "assistant" if message.role == "assistant" else "user"
        content = [block for part in message.parts if (block := _block(part)) is not None]
        if content and turns and turns[-1]["role"] == role:
            turns[-1]["content"] += content
        elif content:
            turns.append({"role": role, "content": content})
    return {"messages": turns, **({"system": "\n\n".join(system)} if system else {})}


def to_ui(messages: MessageInput) -> list[dict[str, Json]]:
    """Return messages in the form of the AI SDK's ``UIMessage``, as JSON values for a browser.

    The steps of a run become one message with a ``step-start`` part before each, with the id of the first. A tool call
    is one part with its result. ``metadata`` has the message's own metadata without the library's keys, ``createdAt``
    as an ISO time, and ``cut: True`` for an answer that the user stopped. Memory notes are left out.
    """
    out: list[dict[str, Json]] = []
    given = _given(messages)
    results = {message.id for message in given if message.role == "tool"}
    before: str | None = None  # the run of the assistant message before
    for message in join_results(given):
        if message.id in results:  # a late result: text for the model only
            continue
        parts = [_ui_part(part, number) for number, part in enumerate(message.parts)]
        metadata: dict[str, Json] = {
            key: value for key, value in message.metadata.items() if not key.startswith(_OWN_KEYS)
        }
        if message.created_at is not None:
            metadata["createdAt"] = message.created_at.isoformat()
        if message.is_cut:
            metadata["cut"] = True
        if message.role == "assistant":
            parts.insert(0, {"type": "step-start"})
        run_id = message.run_id if message.role == "assistant" else None
        if run_id is not None and run_id == before:
            out[-1]["parts"] += parts
            out[-1]["metadata"] = {**metadata, **out[-1]["metadata"]}
        else:
            out.append({"id": message.id, "role": message.role, "parts": parts, "metadata": metadata})
        before = run_id
    return out


def _given(messages: MessageInput) -> list[Message]:
    return to_messages(messages) if messages or not isinstance(messages, Sequence) else []


def _prompt(messages: MessageInput | Prompt) -> list[PromptMessage]:
    if isinstance(messages, Prompt):
        return messages.messages
    return build_prompt((), [replace(message, sent=None) for message in _given(messages)]).messages


def _block(part: PromptPart) -> dict[str, Json] | None:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text} if part.text.strip() else None
        case ReasoningPart():
            if part.provider != "anthropic" or not part.signature or not part.text:
                return None
            return {"type": "thinking", "thinking": part.text, "signature": part.signature}
        case ToolCallPart():
            if part.provider_executed:
                return None
            return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": part.args}
        case ToolResultPart():
            if part.provider_executed:
                return None
            block = {"type": "tool_result", "tool_use_id": part.call_id, "content": part.text}
            return {**block, "is_error": True} if part.is_error else block
        case FilePart():
            return _document(part)


def _document(part: FilePart) -> dict[str, Json]:
    kind, data = part.media_type.partition("/")[0], part.data
    if kind == "text" and data is not None:
        source = {"type": "text", "media_type": "text/plain", "data": data.decode("utf-8", "replace")}
    elif kind != "image" and part.media_type != "application/pdf":
        raise InputError(f"Anthropic's messages do not support {part.media_type} files")
    elif data is not None:
        source = {"type": "base64", "media_type": part.media_type, "data": b64encode(data).decode()}
    else:
        source = {"type": "url", "url": part.url}
    return {"type": "image" if kind == "image" else "document", "source": source}


def _ui_part(part: Part, number: int) -> dict[str, Json]:
    match part:
        case TextPart() | ReasoningPart():
            return {"type": part.type, "text": part.text, "state": "done"}
        case ToolPart():
            return _ui_call(part)
        case FilePart():
            name = {} if part.name is None else {"filename": part.name}
            return {"type": "file", "mediaType": part.media_type, "url": url_of(part), **name}
        case SourcePart():
            source = {"type": "source-url", "sourceId": part.id or f"source-{number}", "url": part.url}
            return {**source, "title": part.title} if part.title else source
        case DataPart():
            return {"type": part.type, "data": part.data, **({"id": part.id} if part.id else {})}


def _ui_call(part: ToolPart) -> dict[str, Json]:
    call: dict[str, Json] = {"type": f"tool-{part.name}", "toolCallId": part.call_id, "input": part.args}
    if part.provider_executed:
        call["providerExecuted"] = True
    match part.state:
        case "call":
            return {**call, "state": "input-available"}
        case "result":
            return {**call, "state": "output-available", "output": part.result}
        case _:
            return {**call, "state": "output-error", "errorText": part.result_text}
