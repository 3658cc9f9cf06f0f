"""Find passages of secret texts that a new text repeats word by word, while the new text is still being written."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from diarist.processors.streaming_redaction import Span

_EAST_ASIAN = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_EAST_ASIAN}]|[^\W{_EAST_ASIAN}]+")
"""A word; in scripts without spaces, a character."""

_OF_A_WORD = 2_800
"""Measured size of an index, in bytes per word of its texts."""

_LONGEST_KNOWN, _MOST_KNOWN = 48, 5_000
"""Maximum length of a piece of text, and number of pieces, whose result is cached, since models repeat words."""


def words_of(text: str) -> list[str]:
    """Return the words of a text, case-folded, as ``Overlap`` compares them."""
    return [match[0].casefold() for match in _WORD.finditer(text)]


class Overlap:
    """Finds passages of secret texts; pass ``look`` to a ``Redactor``.

    Ignores case, punctuation and white space.

    Args:
        texts: The secret texts. Texts with fewer than ``words`` words are ignored.
        words: Shortest passage, in words.
        label: Label of the matches.

    Attributes:
        size: Approximate size in bytes.
    """

    def __init__(self, texts: Sequence[str], *, words: int, label: str) -> None:
        self._size = words
        self._label = label
        self._passages: set[tuple[str, ...]] = set()
        self._next: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
        """For each sequence of words shorter than a passage, the words that may follow it."""
        self._known: dict[str, int] = {}
        self.size = _LONGEST_KNOWN * _MOST_KNOWN
        for text in texts:
            said = words_of(text)
            self.size += _OF_A_WORD * len(said)
            for index in range(len(said) if len(said) >= words else 0):
                for length in range(min(words, len(said) - index)):
                    self._next[tuple(said[index : index + length])].add(said[index + length])
                if index + words <= len(said):
                    self._passages.add(tuple(said[index : index + words]))
        self._words = frozenset(self._next.get((), ()))
        self._beginnings = frozenset(word[:end] for word in self._words for end in range(1, len(word) + 1))

    def look(self, text: str, start: int = 0, final: bool = True) -> tuple[Sequence[Span], int]:
        """Return the passages, which may overlap, and how many characters at the end may become part of a passage."""
        piece = text[start:]
        if not final and piece in self._known:
            return (), self._known[piece]
        found = list(_WORD.finditer(text, start))
        said = [match[0].casefold() for match in found]
        passages = [
            Span(found[index].start(), found[index + self._size - 1].end(), self._label)
            for index in range(len(said) - self._size + 1)
            if tuple(said[index : index + self._size]) in self._passages
        ]
        if final:
            return passages, 0
        held = self._keep(text, found, said)
        if not passages and len(piece) <= _LONGEST_KNOWN:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[piece] = held
        return passages, held

    def _keep(self, text: str, found: Sequence[re.Match[str]], said: Sequence[str]) -> int:
        if not found:
            return 0
        open_word = found[-1].end() == len(text)
        if said[-1] not in (self._beginnings if open_word else self._words):
            return 0
        for length in range(min(len(said), self._size), 1, -1):
            *before, last = said[-length:]
            following = self._next.get(tuple(before), ())
            if any(word.startswith(last) for word in following) if open_word else last in following:
                return len(text) - found[-length].start()
        return len(text) - found[-1].start()
