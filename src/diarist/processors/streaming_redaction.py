"""Replace matches in a text that arrives in pieces, including matches cut by the end of a piece.

``SpanBuffer`` holds text while it may still be part of a match; ``Redactor`` does the same for text alone. Matches are
found by a ``Look`` function, such as ``look`` of ``PatternSet`` in ``diarist.processors.patterns``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Generic, Never, TypeVar

T = TypeVar("T")

CONTEXT = 1024
"""Characters before ``start`` that a ``Look`` still sees, for look-behinds."""

_MOST_KEPT = 2 * CONTEXT
"""Released characters that are kept before they are trimmed to ``CONTEXT``."""

_OFTEN = 2048
"""Held characters up to which every piece is searched. Beyond, the text is searched when it has grown by an eighth, so
that the cost of a very long match is linear in its length."""


@dataclass(frozen=True, slots=True)
class Span:
    """A match, ``text[start:end]``, and its label, such as ``"email"``."""

    start: int
    end: int
    label: str = ""


Look = Callable[[str, int, bool], tuple[Sequence[Span], int]]
"""``look(text, start, final)`` returns the matches in ``text`` that begin at ``start`` or later, in any order and
possibly overlapping, and how many characters at the end may become part of a match, or of a longer one, when more text
follows. Matches that begin before those characters must be final; matches in them are ignored. If ``final`` is True,
no text follows and the number is ignored."""


Replace = Callable[[str, Span], str]
"""``replace(matched, span)`` returns the replacement of a match. It may raise, to block."""


class SpanBuffer(Generic[T]):
    """Replaces matches in a stream of text pieces and other items, and keeps their order.

    Attributes:
        holding: True if text is held; items that are ``put`` then wait behind it.
    """

    def __init__(self, look: Look, replace: Replace) -> None:
        self._look, self._replace = look, replace
        self._text = ""
        self._start = 0  # matches that begin before this position are final
        self._sent = 0  # text before this position is released; greater than _start only after a flush
        self._waiting: list[tuple[int, T]] = []
        self._next_look = 0

    @property
    def holding(self) -> bool:
        return self._sent < len(self._text)

    def feed(self, text: str) -> list[str | T]:
        """Add a piece, and return everything that is decided by now."""
        if not text:
            return []
        self._text += text
        if len(self._text) < self._next_look:
            return []
        found, held = self._look(self._text, self._start, False)
        spans, end = merge(found) if found else (), len(self._text) - held
        for span in reversed(spans):
            if span.start < end < span.end:
                end = span.start
        out = self._release(spans, end)
        self._start = end
        if end > _MOST_KEPT:
            cut = end - CONTEXT
            self._text = self._text[cut:]
            self._start -= cut
            self._sent -= cut
            self._waiting = [(place - cut, item) for place, item in self._waiting]
        held = len(self._text) - self._start
        self._next_look = len(self._text) + held // 8 if held > _OFTEN else 0
        return out

    def put(self, item: T) -> list[str | T]:
        """Add an item. Returns it at once, unless text before it is held: then a later call returns it."""
        if not self.holding:
            return [item]
        self._waiting.append((len(self._text), item))
        return []

    def discard(self) -> None:
        """Drop held text and the items behind it."""
        self._text = self._text[: self._sent]
        self._start = min(self._start, self._sent)
        self._waiting.clear()
        self._next_look = 0

    def flush(self) -> list[str | T]:
        """Release the rest, as if the text ended here."""
        self._next_look = 0
        if not self.holding:
            return []
        found, _ = self._look(self._text, self._start, True)
        return self._release(merge(found), len(self._text))

    def _release(self, spans: Sequence[Span], end: int) -> list[str | T]:
        if end <= self._sent:
            return []
        if not spans and not self._waiting:
            text, self._sent = self._text[self._sent : end], end
            return [text]
        out: list[str | T] = []
        for span in spans:
            if span.end <= self._sent:
                continue
            if span.start >= end:
                break
            self._copy(max(span.start, self._sent), out)
            out.append(self._replace(self._text[span.start : span.end], span))
            self._sent = span.end
        self._copy(end, out)
        return out

    def _copy(self, end: int, out: list[str | T]) -> None:
        """Release text up to ``end`` unchanged, with the items in between."""
        while self._waiting and self._waiting[0][0] <= end:
            place, item = self._waiting.pop(0)
            if place > self._sent:
                out.append(self._text[self._sent : place])
                self._sent = place
            out.append(item)
        if end > self._sent:
            out.append(self._text[self._sent : end])
            self._sent = end


class Redactor:
    """Redacts one text in pieces: ``feed`` each piece, ``flush`` at the end, and join the results.

    The joined result is the same for all ways to cut the text. Overlapping matches become one, with the label of the
    first. Text is held while a match is open, however long: a pattern without an end holds it until ``flush``.

    The text may continue after ``flush``, for example with a second block of the same answer. If a match spans the
    flush, only its part after the flush is redacted.
    """

    def __init__(self, look: Look, replace: Replace) -> None:
        self._look, self._replace = look, replace
        self._buffer: SpanBuffer[Never] = SpanBuffer(look, replace)

    def feed(self, text: str) -> str:
        """Add a piece, and return everything that is decided by now."""
        return "".join(self._buffer.feed(text))

    def flush(self) -> str:
        """Release the rest, as if the text ended here."""
        return "".join(self._buffer.flush())

    def redact(self, text: str) -> str:
        """Redact a complete text, independent of the pieces fed."""
        return self.redact_pieces([text])[0]

    def redact_pieces(self, pieces: Sequence[str]) -> list[str]:
        """Redact adjacent texts: matches within one text, and matches that span several.

        The replacement of a match is in the text in which the match begins.
        """
        whole, edges = "".join(pieces), [0, *accumulate(map(len, pieces))]
        spans = list(self._look(whole, 0, True)[0])
        for start, piece in zip(edges, pieces, strict=False) if len(pieces) > 1 else ():
            spans += [Span(start + s.start, start + s.end, s.label) for s in self._look(piece, 0, True)[0]]
        found = [(span, self._replace(whole[span.start : span.end], span)) for span in merge(spans)]
        redacted: list[str] = []
        for start, end in pairwise(edges):
            out, place = "", start
            for span, replaced in found:
                if span.end <= start or span.start >= end:
                    continue
                out += whole[place : max(span.start, place)] + (replaced if span.start >= start else "")
                place = min(span.end, end)
            redacted.append(out + whole[place:end])
        return redacted


def merge(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in order, without overlaps and without empty spans.

    Overlapping spans become one with the label of the first, or of the longer if both begin at the same place.
    """
    out: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if span.start == span.end:
            continue
        if out and span.start < out[-1].end:
            if span.end > out[-1].end:
                out[-1] = Span(out[-1].start, span.end, out[-1].label)
        else:
            out.append(span)
    return out
