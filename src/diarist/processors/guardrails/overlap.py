"""Where a text repeats another one word by word, also while it is still being written."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from diarist.processors.streaming_redaction import Span

_EAST_ASIAN = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_EAST_ASIAN}]|[^\W{_EAST_ASIAN}]+")
"""Words; in scripts without spaces between them, characters."""

_LONGEST_KNOWN, _MOST_KNOWN = 48, 5_000
"""Short texts, and how many of them, whose answer is remembered: words come again and again."""


def words_of(text: str) -> list[str]:
    """The words of a text, as an ``Overlap`` counts and compares them."""
    return [match[0].casefold() for match in _WORD.finditer(text)]


class Overlap:
    """Passages of some secret texts; ``look`` is for a ``Redactor``.

    Case, punctuation and white space do not count.

    Args:
        texts: The secret texts.
        words: A passage is at least this many words in their order. A text with fewer words is ignored.
        label: The label of what is found.
    """

    def __init__(self, texts: Sequence[str], *, words: int, label: str) -> None:
        self._size = words
        self._label = label
        self._passages: set[tuple[str, ...]] = set()
        self._next: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
        """After each run of fewer words than a passage: the words that may follow."""
        self._known: dict[str, int | None] = {}
        for text in texts:
            self._add(words_of(text))
        self._words = frozenset(self._next.get((), ()))
        self._beginnings = frozenset(word[:end] for word in self._words for end in range(1, len(word) + 1))

    def __bool__(self) -> bool:
        return bool(self._passages)

    def look(self, text: str, start: int = 0, final: bool = True) -> tuple[Sequence[Span], int]:
        """All passages, where those that overlap are one to whoever merges them; and how much at the end may become
        a passage, or go on with one."""
        found = list(_WORD.finditer(text, start))
        said = [match[0].casefold() for match in found]
        passages = list(self._find(found, said)) if len(said) >= self._size else ()
        return passages, 0 if final else self._keep(text, found, said)

    def skim(self) -> OverlapSkim:
        """The same for one text that comes in pieces, where nothing is found in it."""
        return OverlapSkim(self)

    def still_open(self, text: str) -> int | None:
        """How much at the end of ``text`` may become a passage; None where there is one."""
        if text in self._known:
            return self._known[text]
        passages, held = self.look(text, 0, False)
        if len(text) <= _LONGEST_KNOWN:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[text] = None if passages else held
        return None if passages else held

    def _find(self, found: Sequence[re.Match[str]], said: Sequence[str]) -> Iterator[Span]:
        for index in range(len(said) - self._size + 1):
            if tuple(said[index : index + self._size]) in self._passages:
                yield Span(found[index].start(), found[index + self._size - 1].end(), self._label)

    def _keep(self, text: str, found: Sequence[re.Match[str]], said: Sequence[str]) -> int:
        if not found:
            return 0
        open_word = found[-1].end() == len(text)
        if said[-1] not in (self._beginnings if open_word else self._words):
            return 0
        for length in range(min(len(said), self._size), 0, -1):
            run = said[-length:]
            if self._may_go_on(run[:-1], run[-1]) if open_word else self._goes_on(run):
                return len(text) - found[-length].start()
        return 0

    def _add(self, said: list[str]) -> None:
        if len(said) < self._size:
            return
        for index in range(len(said)):
            for length in range(min(self._size, len(said) - index)):
                self._next[tuple(said[index : index + length])].add(said[index + length])
            if index + self._size <= len(said):
                self._passages.add(tuple(said[index : index + self._size]))

    def _goes_on(self, run: Sequence[str]) -> bool:
        """Whether the words stand in a text like this; of as many as a passage has, the last ones decide."""
        *before, last = run[-self._size :]
        return last in self._next.get(tuple(before), ())

    def _may_go_on(self, before: Sequence[str], begun: str) -> bool:
        if not before:
            return begun in self._beginnings
        following = self._next.get(tuple(before[-(self._size - 1) :]), ())
        return any(word.startswith(begun) for word in following)


class OverlapSkim:
    """A look along one text; see ``Skim``."""

    def __init__(self, overlap: Overlap) -> None:
        self._overlap = overlap
        self._open: str | None = ""

    def feed(self, piece: str) -> int | None:
        if self._open is None:
            return None
        text = self._open + piece
        held = self._overlap.still_open(text)
        self._open = None if held is None else text[len(text) - held :]
        return held

    def restart(self, text: str) -> None:
        self._open = ""
        self.feed(text)
