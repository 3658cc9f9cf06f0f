"""Collect text deltas into spans that are long enough to be judged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from diarist.chunks import ReasoningDelta, TextDelta

Delta = TextDelta | ReasoningDelta

_END = re.compile(r"[.!?…]+[\"'”’»)\]]*\s+|[。！？]+[”’」』）]*\s*|\n+")
"""The end of a sentence or line, with the space after it."""

_STRETCH = 4
"""Longest span without a sentence end, as a multiple of ``span_chars``."""


class SentenceBuffer:
    """Collects deltas into spans: ``feed`` each one, ``flush`` before other chunks. A span is one delta.

    Args:
        span_chars: A span ends with the first sentence or line that ends after this many characters. Without one, it
            ends at the last space before four times as many, if need be inside a word. None: only with its block.
    """

    def __init__(self, span_chars: int | None) -> None:
        self._least = span_chars
        self._text = ""
        self._like: Delta | None = None

    def feed(self, delta: Delta) -> Iterator[Delta]:
        """Yield the spans that this delta completes."""
        last = self._like
        if last is not None and (type(last), last.payload.id) != (type(delta), delta.payload.id):  # another block
            yield from self.flush()
        self._like = delta
        self._text += delta.payload.text
        while (end := self._end()) is not None:
            text, self._text = self._text[:end], self._text[end:]
            yield with_text(delta, text)

    def flush(self) -> Iterator[Delta]:
        """Yield the rest as one span, if there is any."""
        text, like = self._text, self._like
        self.clear()
        if text and like is not None:
            yield with_text(like, text)

    def clear(self) -> None:
        """Discard held text."""
        self._text, self._like = "", None

    def _end(self) -> int | None:
        least = self._least
        if least is None or len(self._text) < least:
            return None
        most = least * _STRETCH
        for match in _END.finditer(self._text):
            # At the end of the text, dots, quotes and spaces may still follow.
            if least <= match.end() <= most and match.end() < len(self._text):
                return match.end()
        if len(self._text) <= most:
            return None
        space = self._text.rfind(" ", least, most)
        return space + 1 if space >= 0 else most


def with_text(delta: Delta, text: str) -> Delta:
    """Return a delta of the same block with another text."""
    return replace(delta, payload=replace(delta.payload, text=text))
