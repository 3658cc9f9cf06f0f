"""Token counts of messages, part by part."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable

from diarist.messages import FilePart, Message, Part, ReasoningPart, TextPart, ToolPart, as_text
from diarist.tokens import TokenCounter, count_image

_LONG = 20_000
"""Messages of more characters are counted in a thread: counting so many takes up to 50 ms."""


def count_parts(message: Message, counter: TokenCounter) -> tuple[int, ...]:
    """Return the tokens of each part. Counts the text of text and reasoning, the name, arguments and result of a tool
    part, and images by OpenAI's formula. Parts that are not sent to models have 0."""
    return tuple(_count(part, counter) for part in message.parts)


async def count_messages(messages: Iterable[Message], counter: TokenCounter) -> None:
    """Count the parts of messages. Long messages are counted in a thread, so that they do not block the event loop."""
    for message in messages:
        if sum(map(_length, message.parts)) > _LONG:
            message.part_tokens = await asyncio.to_thread(count_parts, message, counter)
        else:
            message.part_tokens = count_parts(message, counter)


def ensure_counted(messages: Iterable[Message], counter: TokenCounter) -> list[int]:
    """Count the parts of messages that have no counts yet. Return ``message_tokens`` of each message."""
    sizes: list[int] = []
    for message in messages:  # of a whole window in each turn, hence without a call
        counts, sent = message.part_tokens, message.sent
        if counts is None:
            counts = message.part_tokens = count_parts(message, counter)
        tokens = counts[0] if len(counts) == 1 else sum(counts)
        sizes.append(tokens if sent is None else tokens + sent.tokens)
    return sizes


def message_tokens(message: Message) -> int:
    """Return the tokens of a counted message, including the block that memory added; 0 if it was never counted."""
    parts, sent = message.part_tokens, message.sent
    tokens = parts[0] if parts is not None and len(parts) == 1 else sum(parts or ())
    return tokens if sent is None else tokens + sent.tokens


def _count(part: Part, counter: TokenCounter) -> int:
    match part:
        case TextPart() | ReasoningPart():
            return counter.count(part.text)
        case ToolPart():
            call = counter.count(part.name) + counter.count(as_text(part.args))
            return call + counter.count(part.result_text)
        case FilePart():
            width, height = _size(part) if part.media_type.startswith("image/") else (None, None)
            return count_image(width, height)
        case _:
            return 0


def _length(part: Part) -> int:
    """Return the number of characters of a part."""
    match part:
        case TextPart() | ReasoningPart():
            return len(part.text)
        case ToolPart():
            return len(as_text(part.args)) + len(part.result_text)
        case _:
            return 0


def _size(part: FilePart) -> tuple[int | None, int | None]:
    """Return width and height of a PNG or GIF, read from its header; None and None for other files."""
    data = part.data or b""
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        width, height = struct.unpack(">II", data[16:24])
        return width, height
    if data[:4] == b"GIF8" and len(data) >= 10:
        width, height = struct.unpack("<HH", data[6:10])
        return width, height
    return None, None
