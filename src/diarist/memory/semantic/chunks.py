"""A message's text in pieces that are embedded one by one."""

from __future__ import annotations

import re

from diarist.messages import Message

CHUNK_LENGTH = 1_500
"""About 400 tokens of English: embedding models with the shortest input take 512."""

_BREAKS = (re.compile(r"\n\s*\n"), re.compile(r"(?<=[.!?。！？])\s|\n"), re.compile(r"\s"))


def chunks_of(message: Message, length: int) -> list[str]:
    """The text of a user's or assistant's message, in order, in pieces of at most ``length`` characters.

    A piece ends where a paragraph does; else at the end of a sentence, or a word, in its second half. Nothing for
    messages without text: calls of tools and what they return are found by their words, not by their meaning.
    """
    text = message.text.strip() if message.role in ("user", "assistant") else ""
    text = text.encode("utf-8", "replace").decode()  # a lone surrogate, which tokenizers refuse, would stop its thread
    pieces: list[str] = []
    while text:
        end = len(text) if len(text) <= length else _end(text, length)
        pieces.append(text[:end].strip())
        text = text[end:].strip()
    return pieces


def _end(text: str, length: int) -> int:
    for pattern in _BREAKS:
        found = [match.start() for match in pattern.finditer(text, length // 2, length)]
        if found:
            return found[-1]
    return length
