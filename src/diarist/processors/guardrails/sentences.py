"""Text deltas, gathered into spans that are long enough to be judged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from diarist.chunks import ReasoningDelta, TextDelta

Delta = TextDelta | ReasoningDelta

_END = re.compile(r"[.!?…]+[\"'”’»)\]]*\s+|[。！？]+[”’」』）]*\s*|\n+")
"""The end of a sentence or line, with the space after it."""

_STRETCH = 4
"""How much longer than asked for a span may become while no sentence ends."""


@dataclass(frozen=True, slots=True)
class HeldSpan:
    """A piece of one block of text or reasoning, to be judged."""

    text: str
    like: Delta

    def delta(self, text: str) -> Delta:
        """``text`` as a chunk in this span's place."""
        return replace(self.like, payload=replace(self.like.payload, text=text))


class SentenceBuffer:
    """Holds deltas back: ``feed`` each one, ``flush`` before anything else is let through.

    Args:
        span_chars: A span ends with the first sentence or line that ends after this many characters, or at a
            space (at the worst inside a word) when it is four times as long. None: only where the block ends.
    """

    def __init__(self, span_chars: int | None) -> None:
        self._least = span_chars
        self._text = ""
        self._like: Delta | None = None

    def feed(self, delta: Delta) -> Iterator[HeldSpan]:
        """Spans that are complete with this delta."""
        if self._like is not None and not _same_block(self._like, delta):
            yield from self.flush()
        self._like = delta
        self._text += delta.payload.text
        while (end := self._end()) is not None:
            text, self._text = self._text[:end], self._text[end:]
            yield HeldSpan(text, delta)

    def flush(self) -> Iterator[HeldSpan]:
        """What is left, as one span; nothing where nothing is held."""
        text, like = self._text, self._like
        self.clear()
        if text and like is not None:
            yield HeldSpan(text, like)

    def clear(self) -> None:
        """Forget what is held."""
        self._text, self._like = "", None

    def _end(self) -> int | None:
        least = self._least
        if least is None or len(self._text) < least:
            return None
        most = least * _STRETCH
        for match in _END.finditer(self._text):
            # An end that the text so far ends with may go on: dots, quotes, spaces.
            if least <= match.end() <= most and match.end() < len(self._text):
                return match.end()
        if len(self._text) <= most:
            return None
        space = self._text.rfind(" ", least, most)
        return space + 1 if space >= 0 else most


def _same_block(first: Delta, second: Delta) -> bool:
    return type(first) is type(second) and first.payload.id == second.payload.id
