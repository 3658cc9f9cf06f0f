"""Build the body of a chat completion from a request."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby, takewhile
from typing import Any, cast

from diarist.data_urls import url_of
from diarist.encoding import dumps
from diarist.exceptions import BadRequestError
from diarist.messages import (
    FilePart,
    Json,
    Prompt,
    PromptMessage,
    PromptPart,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from diarist.models.base import ModelRequest, OutputSchema
from diarist.models.openai_chat.dialects import Dialect, takes_sampling
from diarist.tools import ToolDefinition

_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
_TEXT = re.compile(r"text/|application/(.+\+)?(jsonl?|x-ndjson|xml|toml|(x-)?yaml)\b", re.IGNORECASE)
"""Media types of files that are sent as text. OpenAI accepts only PDF as a file."""
_NOT_BODY = ("extra_headers", "extra_body")


def build_body(request: ModelRequest, *, model: str, provider: str, dialect: Dialect) -> bytes:
    """Return the request as JSON.

    Raises:
        BadRequestError: The request has a file that the protocol does not support.
    """
    settings = request.settings
    options = request.provider_options.get(provider) or {}
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        dialect.max_tokens: settings.max_output_tokens,
        "seed": settings.seed,
        "stop": None if settings.stop is None else list(settings.stop),
    }
    if takes_sampling(model, options.get("reasoning_effort")):
        body["temperature"] = settings.temperature
        body["top_p"] = settings.top_p
    if request.tools:
        body["tools"] = [_tool(tool, dialect) for tool in request.tools]
        choice = request.tool_choice
        named = choice not in ("auto", "none", "required")
        body["tool_choice"] = {"type": "function", "function": {"name": choice}} if named else choice
        body["parallel_tool_calls"] = settings.parallel_tool_calls
    if request.output is not None and dialect.takes_schema(model):
        body["response_format"] = _response_format(request.output, dialect)
    body.update((name, value) for name, value in options.items() if name not in _NOT_BODY)
    body.update(options.get("extra_body") or {})
    rest = dumps({name: value for name, value in body.items() if value is not None})
    if "messages" in body:  # the caller's own messages
        return rest
    return b'{"messages":[%b],%b' % (b",".join(_messages(request.prompt, dialect, provider)), rest[1:])


def extra_headers(request: ModelRequest, provider: str) -> dict[str, str]:
    """Return the headers that the caller adds: ``provider_options[provider]["extra_headers"]``."""
    options = request.provider_options.get(provider) or {}
    return cast(dict[str, str], options.get("extra_headers") or {})


# --- messages ------------------------------------------------------------------------------------------


def _messages(prompt: Prompt, dialect: Dialect, provider: str) -> list[bytes]:
    """Return the messages, each encoded. Messages that never change are encoded only once."""
    leading = list(takewhile(lambda message: message.role == "system", prompt.messages))
    out: list[bytes] = []
    if text := "\n\n".join(text for message in leading if (text := message.text)):
        out.append(dumps({"role": "system", "content": text}))
    turns: list[tuple[PromptMessage, bytes]] = []
    thinks, thought = dialect.reasoning_field is not None, False
    key = (dialect, provider, thought)
    for message in prompt.messages[len(leading) :]:
        if thinks and not thought and any(isinstance(part, ReasoningPart) for part in message.parts):
            thought = True
            key = (dialect, provider, thought)
        derived = message.derived
        if derived is not None and derived.encoded is not None and derived.encoded[0] == key:
            encoded = derived.encoded[1]
        else:
            encoded = b",".join(map(dumps, chat_messages(message, dialect, provider, thought=thought)))
            if derived is not None:
                derived.encoded = (key, encoded)
        if encoded:
            turns.append((message, encoded))
    if not dialect.joins_users:
        return [*out, *(encoded for _, encoded in turns)]
    for role, run in groupby(turns, key=lambda turn: turn[0].role):
        same = list(run)
        if role == "user" and len(same) > 1:
            joined = _joined([message for message, _ in same])
            out.extend(map(dumps, _user(joined, dialect, provider)))
        else:
            out.extend(encoded for _, encoded in same)
    return out


def _joined(messages: list[PromptMessage]) -> PromptMessage:
    """Return user messages as one: with one text if they have only texts, else with their parts in order."""
    parts: list[PromptPart] = [part for message in messages for part in message.parts]
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    if len(texts) == len(parts):
        return PromptMessage(role="user", parts=[TextPart(text="\n\n".join(filter(None, texts)))])
    return PromptMessage(role="user", parts=parts)


def chat_messages(
    message: PromptMessage, dialect: Dialect, provider: str, *, thought: bool
) -> Iterable[dict[str, Any]]:
    """Yield the messages to send for one message. ``thought``: True if the conversation has reasoning up to here."""
    match message.role:
        case "assistant":
            yield from _answer(message, dialect, thought=thought)
        case "tool":
            for part in message.parts:
                if isinstance(part, ToolResultPart):
                    yield {"role": "tool", "tool_call_id": part.call_id, "content": part.text}
        case "user":
            yield from _user(message, dialect, provider)
        case "system":
            yield {"role": "system", "content": message.text}


def _user(message: PromptMessage, dialect: Dialect, provider: str) -> Iterable[dict[str, Any]]:
    found = [_content(part, dialect, provider) for part in message.parts]
    content = [item for item in found if item is not None]
    if len(content) == 1 and content[0]["type"] == "text":  # some servers accept only a string
        yield {"role": "user", "content": content[0]["text"]}
    elif content:
        yield {"role": "user", "content": content}


def _answer(message: PromptMessage, dialect: Dialect, *, thought: bool) -> Iterable[dict[str, Any]]:
    text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
    # Chat completions cannot carry calls of tools that a provider ran.
    calls = [
        {
            "id": part.call_id,
            "type": "function",
            "function": {"name": part.name, "arguments": dumps(part.args).decode()},
        }
        for part in message.parts
        if isinstance(part, ToolCallPart) and not part.provider_executed
    ]
    if not text and not calls:
        text = "\n".join(f"({part.media_type})" for part in message.parts if isinstance(part, FilePart))
        if not text:
            return
    out: dict[str, Any] = {"role": "assistant", "content": text or None}
    if dialect.echoes_reasoning:
        for part in message.parts:
            if isinstance(part, ReasoningPart) and part.provider == dialect.maker:
                _echo(out, part)
    if calls:
        out["tool_calls"] = calls
        if dialect.reasoning_field is not None and thought:
            out.setdefault(dialect.reasoning_field, "")
    yield out


def _echo(out: dict[str, Any], part: ReasoningPart) -> None:
    """Add reasoning in its original field, with a gateway's details, which prove it to the model's maker."""
    data = part.provider_data or {}
    field = data.get("id") or "reasoning_content"
    if part.text:
        out[field] = f"{out[field]}\n\n{part.text}" if field in out else part.text
    kept: dict[str, Any] = data.get("details") or {}
    if details := kept.get("reasoning_details"):
        out["reasoning_details"] = [*out.get("reasoning_details", ()), *details]


def _content(part: PromptPart, dialect: Dialect, provider: str) -> dict[str, Any] | None:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text} if part.text else None
        case FilePart():
            return _file(part, dialect, provider)
        case _:
            return None


def _file(part: FilePart, dialect: Dialect, provider: str) -> dict[str, Any]:
    kind = part.media_type.partition("/")[0]
    url = url_of(part)
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": url}}
    if part.media_type in _AUDIO and url.startswith("data:"):
        data = url.partition(";base64,")[2]
        return {"type": "input_audio", "input_audio": {"data": data, "format": _AUDIO[part.media_type]}}
    if _TEXT.match(part.media_type) and part.data is not None:
        name = f' name="{part.name}"' if part.name else ""
        text = part.data.decode("utf-8", "replace")
        return {"type": "text", "text": f"<file{name}>\n{text}\n</file>"}
    if kind not in ("audio", "video") and (url.startswith("data:") or dialect.file_urls):
        name = part.name or f"file.{part.media_type.rpartition('/')[2]}"
        return {"type": "file", "file": {"file_data": url, "filename": name}}
    how = "its bytes" if part.data is not None else "an address"
    raise BadRequestError(
        f"{provider} cannot be sent this request: chat completions do not support {part.media_type} as {how}",
        provider=provider,
    )


# --- tools and schemas ---------------------------------------------------------------------------------


def _tool(tool: ToolDefinition, dialect: Dialect) -> dict[str, Any]:
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    if dialect.strict and is_strict(tool.parameters):
        function["strict"] = True
    return {"type": "function", "function": function}


def _response_format(output: OutputSchema, dialect: Dialect) -> dict[str, Any]:
    wanted: dict[str, Any] = {"name": output.sent_name, "schema": output.schema}
    if dialect.strict and is_strict(output.schema):
        wanted["strict"] = True
    return {"type": "json_schema", "json_schema": wanted}


_STRICT_WORDS = frozenset(
    {
        "$defs",
        "$ref",
        "additionalProperties",
        "anyOf",
        "const",
        "description",
        "enum",
        "items",
        "properties",
        "required",
        "title",
        "type",
    }
)
_SAYS_WHAT = frozenset({"type", "anyOf", "const", "enum", "$ref"})


def is_strict(schema: Json) -> bool:
    """Return True if a schema satisfies OpenAI's strict mode: closed objects with all properties required, and no
    keyword that the mode does not know."""
    if not isinstance(schema, dict):
        return True
    node = cast(dict[str, Any], schema)
    if not node.keys() <= _STRICT_WORDS or not node.keys() & _SAYS_WHAT:
        return False
    properties: dict[str, Any] = node.get("properties", {})
    if node.get("type") == "object" or properties:
        closed = node.get("additionalProperties") is False
        if not closed or set(node.get("required", ())) != set(properties):
            return False
    inner = [*properties.values(), *node.get("$defs", {}).values(), *node.get("anyOf", ()), node.get("items")]
    return all(map(is_strict, inner))
