"""Taking spans out of a text that comes in pieces, without ever letting one slip through between two pieces.

``SpanBuffer`` is the engine, ``Redactor`` the same for text alone: they let text go only as far as nothing in it
can still turn out to be part of a match. What a match is, others decide: ``PatternSet`` in
``diarist.processors.patterns`` for regular expressions, or any function of the kind ``Look``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Never, Protocol, TypeVar

T = TypeVar("T")

CONTEXT = 1024
"""Characters already let go that a ``Look`` still sees before ``start``, for look-behinds."""

_MOST_KEPT = 2 * CONTEXT
"""Characters already let go that are kept before they are cut down to ``CONTEXT``."""

_OFTEN = 2048
"""Up to this many held characters every piece is looked at; beyond, only when an eighth has been added, so
that a very long match costs time in proportion to its length and not to its square."""


@dataclass(frozen=True, slots=True)
class Span:
    """A match: ``text[start:end]``, and what it is (``"email"``)."""

    start: int
    end: int
    label: str = ""


Look = Callable[[str, int, bool], tuple[Sequence[Span], int]]
"""``look(text, start, final)``: all matches in ``text`` that begin at ``start`` or later, in any order, and they may
overlap; and how many characters at the end of ``text[start:]`` may still become part of a match, or of a longer
one, when more text follows. Every match that begins before those must be certain by now; matches in them are
ignored. ``final``: nothing follows, and the number does not count."""


class Skim(Protocol):
    """A quick look that goes along with one text and remembers where it is."""

    def feed(self, piece: str) -> int | None:
        """The next piece: how many characters at the end may still become part of a match. None: there may be a match
        in it, so that a ``Look`` is needed, and again for every piece until ``restart``."""
        ...

    def restart(self, text: str) -> None:
        """What has come before is decided, but for ``text``."""
        ...


class BothSkims:
    """Two quick looks at one text."""

    def __init__(self, first: Skim, second: Skim) -> None:
        self._first, self._second = first, second

    def feed(self, piece: str) -> int | None:
        one, other = self._first.feed(piece), self._second.feed(piece)
        if one is None or other is None:
            return None
        return max(one, other)

    def restart(self, text: str) -> None:
        self._first.restart(text)
        self._second.restart(text)


MakeSkim = Callable[[], Skim | None]


def no_skim() -> None:
    """For a ``Look`` that nothing quick is known for."""


Replace = Callable[[str, Span], str]
"""``replace(matched, span)``: what stands in the place of a match. It may raise, to block."""


class SpanBuffer(Generic[T]):
    """A text in pieces with other things between them, in their order: what goes in comes out, spans replaced.

    Args:
        skim: Spares the ``look`` at pieces without a match. One for this text alone.

    Attributes:
        holding: Whether some text has not been let go yet; what is ``put`` then waits behind it.
    """

    def __init__(self, look: Look, replace: Replace, skim: Skim | None = None) -> None:
        self._look, self._replace, self._skim = look, replace, skim
        self._text = ""
        self._start = 0  # matches that begin before are decided
        self._sent = 0  # let go up to here; ahead of _start only after a flush
        self._waiting: list[tuple[int, T]] = []
        self._next_look = 0

    @property
    def holding(self) -> bool:
        return self._sent < len(self._text)

    def feed(self, text: str) -> list[str | T]:
        """The next piece in; out comes what is safe by now, possibly nothing."""
        if not text:
            return []
        self._text += text
        held = None if self._skim is None else self._skim.feed(text)
        if held is None:
            return self._look_closely()
        end = len(self._text) - held
        if self._waiting or end > _MOST_KEPT:
            return self._decide((), end)
        self._start = end
        if end <= self._sent:
            return []
        begin, self._sent = self._sent, end
        return [self._text[begin:end]]  # nearly always

    def _look_closely(self) -> list[str | T]:
        if len(self._text) < self._next_look:
            return []
        found, held = self._look(self._text, self._start, False)
        out = self._decide(merge(found), len(self._text) - held)
        if self._skim is not None:
            self._skim.restart(self._text[self._start :])
        return out

    def _decide(self, spans: Sequence[Span], end: int) -> list[str | T]:
        """Let go what is certain now, which is what begins before ``end``."""
        for span in reversed(spans):
            if span.start < end < span.end:
                end = span.start
        out = self._let_go(spans, end)
        self._start = end
        self._trim()
        held = len(self._text) - self._start
        self._next_look = len(self._text) + held // 8 if held > _OFTEN else 0
        return out

    def put(self, item: T) -> list[str | T]:
        """Something that is no text: out at once, or behind the text before it."""
        if not self.holding:
            return [item]
        self._waiting.append((len(self._text), item))
        return []

    def flush(self) -> list[str | T]:
        """The rest, as if the text ended here."""
        self._next_look = 0
        if not self.holding:
            return []
        found, _ = self._look(self._text, self._start, True)
        return self._let_go(merge(found), len(self._text))

    def _let_go(self, spans: Sequence[Span], end: int) -> list[str | T]:
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
            self._pass(max(span.start, self._sent), out)
            out.append(self._replace(self._text[span.start : span.end], span))
            self._sent = span.end
        self._pass(end, out)
        return out

    def _pass(self, end: int, out: list[str | T]) -> None:
        """Text up to ``end`` as it is, with what waits there."""
        while self._waiting and self._waiting[0][0] <= end:
            place, item = self._waiting.pop(0)
            if place > self._sent:
                out.append(self._text[self._sent : place])
                self._sent = place
            out.append(item)
        if end > self._sent:
            out.append(self._text[self._sent : end])
            self._sent = end

    def _trim(self) -> None:
        cut = self._start - CONTEXT
        if self._start > _MOST_KEPT:
            self._text = self._text[cut:]
            self._start -= cut
            self._sent -= cut
            self._waiting = [(place - cut, item) for place, item in self._waiting]


class Redactor:
    """One text, piece by piece: ``feed`` each piece, ``flush`` at the end; join what they return.

    However the text is cut into pieces, the joined result is the same. Spans that overlap become one, with the
    label of the first. What is held back is bounded by what can still match, not by a number of characters: a
    pattern that matches without end holds until ``flush``.

    After ``flush`` the text may go on (a second block of text in the same answer). A match that straddles the
    flush is then taken out as far as it has not been let go.
    """

    def __init__(self, look: Look, replace: Replace, skim: Skim | None = None) -> None:
        self._look, self._replace = look, replace
        self._buffer: SpanBuffer[Never] = SpanBuffer(look, replace, skim)

    @property
    def holding(self) -> bool:
        """Whether some text has not been let go yet."""
        return self._buffer.holding

    def feed(self, text: str) -> str:
        """The next piece in; out comes what is safe by now, possibly nothing."""
        return "".join(self._buffer.feed(text))

    def flush(self) -> str:
        """The rest, as if the text ended here."""
        return "".join(self._buffer.flush())

    def redact(self, text: str) -> str:
        """A whole text at once, apart from what was fed."""
        found, _ = self._look(text, 0, True)
        out, place = "", 0
        for span in merge(found):
            out += text[place : span.start] + self._replace(text[span.start : span.end], span)
            place = span.end
        return out + text[place:] if place else text


def merge(spans: Iterable[Span]) -> list[Span]:
    """In order and without overlap: spans that overlap become one, labelled as the first (of two that begin at
    the same place, the longer). Empty ones are dropped."""
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
