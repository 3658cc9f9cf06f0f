"""Messages with pieces taken out of all their texts; the caller's own objects stay as they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diarist.messages import DataPart, Message, Part, ReasoningPart, SourcePart, TextPart, ToolPart
from diarist.processors.builtin.provider_text import identity
from diarist.processors.builtin.redacting_stream import RedactingStream


def redacted_messages(messages: Sequence[Message], stream: RedactingStream, *, tools: bool) -> list[Message] | None:
    """All of them redacted; None where nothing is to be taken out."""
    redacted = [redacted_message(message, stream, tools=tools) for message in messages]
    changed = any(new is not old for new, old in zip(redacted, messages, strict=True))
    return redacted if changed else None


def redacted_message(message: Message, stream: RedactingStream, *, tools: bool) -> Message:
    """The message with every part redacted; the same object where nothing is to be taken out."""
    parts = [_redacted(part, stream, tools=tools) for part in message.parts]
    if all(new is old for new, old in zip(parts, message.parts, strict=True)):
        return message
    return replace(message, parts=parts, part_tokens=None)


def _redacted(part: Part, stream: RedactingStream, *, tools: bool) -> Part:
    match part:
        case TextPart():
            text = stream.redact(part.text)
            attached = part.provider_data if text == part.text else identity(part.provider_data)
            data = stream.redact_attached(attached)
            same = text == part.text and data is part.provider_data
            return part if same else replace(part, text=text, provider_data=data)
        case ReasoningPart():
            text = stream.redact(part.text)
            if text == part.text and stream.redact_attached(part.provider_data) is part.provider_data:
                return part
            return ReasoningPart(text=text)  # what its maker signed was another text
        case ToolPart() if tools:
            args, result = stream.redact_json(part.args), stream.redact_json(part.result)
            data = stream.redact_attached(part.provider_data)
            same = args == part.args and result == part.result and data is part.provider_data
            return part if same else replace(part, args=args, result=result, provider_data=data)
        case DataPart():
            data = stream.redact_json(part.data)
            return part if data == part.data else replace(part, data=data)
        case SourcePart():
            url, title = stream.redact(part.url), stream.redact(part.title)
            return part if (url, title) == (part.url, part.title) else replace(part, url=url, title=title)
        case _:
            return part
