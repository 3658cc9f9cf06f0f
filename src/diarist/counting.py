"""Tokens of a message, part by part, as a model sees it."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from diarist.messages import FilePart, Message, Part, ReasoningPart, TextPart, ToolPart, as_text
from diarist.tokens import TokenCounter, count_image


def count_parts(message: Message, counter: TokenCounter) -> tuple[int, ...]:
    """Tokens of each part: text and reasoning by their text, a tool part by name, arguments and result, an
    image by its provider's formula, everything that no model sees as 0."""
    return tuple(_count(part, counter) for part in message.parts)


def ensure_counted(messages: Iterable[Message], counter: TokenCounter) -> None:
    """Count the parts of messages that nobody has counted yet."""
    for message in messages:
        if message.part_tokens is None:
            message.part_tokens = count_parts(message, counter)


def message_tokens(message: Message) -> int:
    """Tokens of a counted message, with the block that memory sent along; 0 for one that was never counted."""
    parts = sum(message.part_tokens or ())
    return parts if message.sent is None else parts + message.sent.tokens


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


def _size(part: FilePart) -> tuple[int | None, int | None]:
    """Width and height of a PNG or GIF, read from its header; unknown for others."""
    data = part.data or b""
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        width, height = struct.unpack(">II", data[16:24])
        return width, height
    if data[:4] == b"GIF8" and len(data) >= 10:
        width, height = struct.unpack("<HH", data[6:10])
        return width, height
    return None, None
