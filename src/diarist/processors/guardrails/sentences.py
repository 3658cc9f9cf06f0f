"""Hold output until it was judged, in spans of whole sentences."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

from diarist.chunks import Chunk, DataChunk, ReasoningDelta, ReasoningEnd, TextDelta, TextEnd
from diarist.processors.builtin.redaction import provider_identity

Delta = TextDelta | ReasoningDelta

_END = re.compile(r"[.!?…]+[\"'”’»)\]]*\s+|[。！？]+[”’」』）]*\s*|\n+")
"""The end of a sentence or line, with the space after it."""

_STRETCH = 4
"""Longest span without a sentence end, as a multiple of ``span_chars``."""


def _with_text(delta: Delta, text: str) -> Delta:
    return replace(delta, payload=replace(delta.payload, text=text))


class SentenceBuffer:
    """Collects deltas into spans: ``feed`` each delta, ``flush`` before other chunks. A span becomes one delta.

    Args:
        span_chars: A span ends with the first sentence or line that ends after this many characters. If none ends
            before four times as many, the span ends there, at a space if possible. None: it ends with its block.
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
            yield _with_text(delta, text)

    def flush(self) -> Iterator[Delta]:
        """Yield the rest as one span, if there is any."""
        text, like = self._text, self._like
        self.clear()
        if text and like is not None:
            yield _with_text(like, text)

    def clear(self) -> None:
        """Discard held text."""
        self._text, self._like = "", None

    def _end(self) -> int | None:
        least = self._least
        if least is None or len(self._text) < least:
            return None
        most = least * _STRETCH
        for match in _END.finditer(self._text):
            # At the end of the text received so far, dots, quotes and spaces may still follow.
            if least <= match.end() <= most and match.end() < len(self._text):
                return match.end()
        if len(self._text) <= most:
            return None
        space = self._text.rfind(" ", least, most)
        return space + 1 if space >= 0 else most


class HeldOutput:
    """Holds the output's text for a guard, until the span that contains it was judged.

    Args:
        span_chars: As for ``SentenceBuffer``.
        window: Number of accepted spans to keep as context for the next.
        reasoning: True holds reasoning, too.

    Attributes:
        passed: The last accepted spans.
    """

    def __init__(self, span_chars: int | None, *, window: int = 0, reasoning: bool = True) -> None:
        self._spans = SentenceBuffer(span_chars)
        self._reasoning = reasoning
        self._changed: set[type[Chunk]] = set()  # kinds of delta with a change since their block began
        self._of: object = None
        self.passed: deque[str] = deque(maxlen=window)

    async def feed(self, part: Chunk, of: object, change: Callable[[str], Awaitable[str]]) -> list[Chunk]:
        """Return the chunks to send now that ``part`` has arrived.

        Args:
            part: The next chunk.
            of: Identifies the attempt, as ``stream_parts`` of a hook does. When another attempt begins, held chunks of
                the previous attempt are discarded.
            change: Returns the replacement of a span.
        """
        if self._of is not of:
            self._of = of
            self._spans.clear()
            self.passed.clear()
            self._changed.clear()
        if isinstance(part, DataChunk):
            return [part]
        delta = part if isinstance(part, TextDelta | ReasoningDelta) else None
        if isinstance(delta, ReasoningDelta) and not self._reasoning:
            delta = None
        out: list[Chunk] = []
        for span in self._spans.flush() if delta is None else self._spans.feed(delta):
            text = await change(span.payload.text)
            if text == span.payload.text:
                self.passed.append(text)
            else:
                self._changed.add(type(span))
            if text:
                out.append(_with_text(span, text))
        if delta is not None:
            return out
        # The data at a block's end refer to the text before its change: a signature, or citations that quote the text.
        if isinstance(part, ReasoningEnd) and ReasoningDelta in self._changed:
            self._changed.discard(ReasoningDelta)
            part = replace(part, payload=replace(part.payload, signature=None, provider=None, provider_data=None))
        elif isinstance(part, TextEnd) and TextDelta in self._changed:
            self._changed.discard(TextDelta)
            data = provider_identity(part.payload.provider_data)
            part = replace(part, payload=replace(part.payload, provider_data=data))
        return [*out, part]
