"""Cut long texts into pieces, so that processing a piece needs little memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

_PIECE = 65_536
_END = re.compile(r"[^\W_](?=[\s.,;:!?()\"。，、！？])")
"""Where texts are cut: between a letter or digit and one of these characters. No word or token spans such a cut, and
the two characters do not combine."""


def piece_ends(text: str) -> Iterator[int]:
    """Yield the positions at which a text is cut, somewhat more than 65,536 characters apart; more after long words."""
    place = _PIECE
    while found := _END.search(text, place):
        yield found.end()
        place = found.end() + _PIECE


def pieces(text: str) -> Iterator[str]:
    """Yield the pieces of a text. Joined, they equal the text."""
    start = 0
    for end in piece_ends(text):
        yield text[start:end]
        start = end
    yield text[start:]
