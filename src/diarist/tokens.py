"""Token counts of texts and images, offline, in OpenAI's encoding o200k_base.

The encoding is part of the package, and loaded at the first count (about 40 ms, once per process).
"""

from __future__ import annotations

import hashlib
import re
import sys
import zlib
from array import array
from collections.abc import Callable, Iterator
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import accumulate
from math import log
from pathlib import Path
from sys import getsizeof
from typing import TYPE_CHECKING, Protocol

from diarist.exceptions import ConfigError

if TYPE_CHECKING:
    import regex

_MAX_RUN = 8192
"""Longest run of characters of one kind that is merged as a whole. Merging a million bytes takes seconds."""
_LOG_RANKS = log(200_000)
"""Logarithm of the number of tokens in o200k_base."""

_PIECE_LENGTH = 65_536
_CUT = re.compile(r"[^\W_](?=[\s.,;:!?()\"。，、！？])")
"""Where texts are cut: between a letter or digit and one of these characters. No word or token spans such a cut, and
the two characters do not combine."""
_LONGEST_PIECE = 2 * _PIECE_LENGTH
"""Counting longer pieces would take too much memory, and tiktoken panics on a million blanks."""


class TokenCounter(Protocol):
    """The interface of a token counter for ``token_counter=``.

    It must be safe to share between threads: memory counts long messages in another one, so that the event loop goes
    on.
    """

    def count(self, text: str) -> int:
        """Return the number of tokens of ``text``; 0 for an empty text."""
        ...


class O200kCounter:
    """Counts with OpenAI's encoding o200k_base. Safe to share between threads.

    Text that looks like a special token (``<|endoftext|>``) counts as ordinary text. Runs of more than 8192 characters
    of one kind (blanks, letters without a break, signs) are counted in pieces of 8192, and so is a text in pieces of
    131,072 where it has no ends of words. Each cut may add a few tokens; any other text is counted exactly.

    Raises:
        ConfigError: At the first count, when the bundled encoding is missing or damaged.
    """

    name = "o200k_base"

    def count(self, text: str) -> int:
        """Return the number of tokens of ``text``; 0 for an empty text."""
        count = _o200k().count
        return count(text) if len(text) <= _LONGEST_PIECE else sum(map(count, _slices(text)))


class TiktokenCounter:
    """Counts with another encoding of ``tiktoken``, such as ``cl100k_base``. Safe to share between threads.

    ``tiktoken`` downloads an encoding once, and keeps it in the folder ``TIKTOKEN_CACHE_DIR``.

    Raises:
        ConfigError: The encoding is unknown, or is missing in that folder and cannot be downloaded.
    """

    def __init__(self, name: str) -> None:
        import tiktoken

        known = tiktoken.list_encoding_names()
        if name not in known:
            raise ConfigError(f"encoding {name!r} is unknown; known: {', '.join(sorted(known))}")
        try:
            self._encoding = tiktoken.get_encoding(name)
        except (OSError, ValueError) as error:  # no connection; or a damaged download
            raise ConfigError(
                f"encoding {name!r} cannot be downloaded ({error}). Offline, use {_DEFAULT.name!r}, which is part of "
                "diarist, or set TIKTOKEN_CACHE_DIR to a folder in which tiktoken has stored the encoding"
            ) from error
        self.name = name

    def count(self, text: str) -> int:
        """Return the number of tokens of ``text``; 0 for an empty text."""
        return sum(len(self._encoding.encode_ordinary(piece)) for piece in _slices(text))


def counter_for(encoding: str) -> TokenCounter:
    """Return the counter of an encoding, by its name. Raises ConfigError as ``TiktokenCounter`` does."""
    return _DEFAULT if encoding == _DEFAULT.name else TiktokenCounter(encoding)


def default_counter() -> TokenCounter:
    """Return the default counter; always the same object."""
    return _DEFAULT


def checked_counter(owner: str, given: TokenCounter | None) -> TokenCounter:
    """Return the counter of an option ``token_counter``; for None, the default. Raises ConfigError for anything else,
    such as the name of an encoding."""
    if given is None:
        return default_counter()
    if isinstance(given, str) or not callable(getattr(given, "count", None)):  # a text has another ``count``
        raise ConfigError(f"{owner}: token_counter must be an object with count(text), not {given!r}")
    return given


def rarity(word: str) -> float:
    """Return how rare a word in lower case is: 0.0 for the most frequent, 1.0 for those that are not one token.

    This is the logarithm of its rank in o200k_base, whose tokens are sorted by frequency over texts of many languages.
    """
    rank = _o200k().rank(f" {word}".encode("utf-8", "replace"))
    return 1.0 if rank < 0 else log(rank + 1) / _LOG_RANKS


def count_image(width: int | None, height: int | None) -> int:
    """Return the tokens of an image by OpenAI's tile formula for high detail, without opening or fetching it.

    The image is scaled down to fit 2048 x 2048, then down to a shorter side of 768, and costs 85 plus 170 for each
    tile of 512 x 512 that it touches. Source: OpenAI
    platform documentation, guide "Images and vision", section "Calculating costs" (for GPT-4o;
    newer models use other constants, so for them the result is an estimate).

    Args:
        width: Pixels; None or 0 if unknown.
        height: Pixels; None or 0 if unknown. An image of unknown size counts as 1024 x 1024: 765 tokens.
    """
    if not width or not height:
        width = height = 1024
    width, height = _fit(width, height, 2048, max(width, height))
    width, height = _fit(width, height, 768, min(width, height))
    return 85 + 170 * -(-width // 512) * -(-height // 512)


def _fit(width: int, height: int, limit: int, side: int) -> tuple[int, int]:
    """Scale down, never up, so that ``side`` is at most ``limit``."""
    if side <= limit:
        return width, height
    return max(1, width * limit // side), max(1, height * limit // side)


def pieces(text: str) -> Iterator[str]:
    """Yield the pieces of a text, somewhat more than 65,536 characters each; longer after long words. Joined, they
    equal the text."""
    start = 0
    while found := _CUT.search(text, start + _PIECE_LENGTH):
        yield text[start : found.end()]
        start = found.end()
    yield text[start:]


def _slices(text: str) -> Iterator[str]:
    """Yield the pieces of a text; those that are too long are cut anywhere."""
    for piece in pieces(text):
        yield from (piece[start : start + _LONGEST_PIECE] for start in range(0, len(piece), _LONGEST_PIECE))


# -- the encoding

TOKENS = 199_998
SLOTS = 1 << 19
FIRST_CUT = "\u3040"
"""The first of the characters between which pieces are cut: Hiragana. Chinese and Korean characters come after it."""

_FILE = Path(__file__).parent / "data" / "o200k_base.table.zlib"
_SHA256 = "9026f3bbd860654a6d90aa4ee0a3edef10cc2e68dddf023161dfca6721f4fcd6"
_RANK_BITS = 18
_MAX_CACHE_BYTES = 4_000_000
_ENTRY_BYTES = 110

# The pattern by which o200k_base splits a text before merging bytes, from openai_public.py of tiktoken.
_SPLIT = "|".join(
    [
        r"[^\r\n{letter}{digit}]?[{upper}]*[{lower}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n{letter}{digit}]?[{upper}]+[{lower}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[{digit}]{{1,3}}",
        r" ?[^\s{letter}{digit}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
_SPLIT_ASCII = re.compile(_SPLIT.format(letter="A-Za-z", upper="A-Z", lower="a-z", digit="0-9"), re.ASCII)

Rank = Callable[[bytes], int]
"""Returns the rank of a token; -1 for bytes that are no token."""


class O200k:
    """OpenAI's encoding o200k_base: counts exactly as ``tiktoken`` does, in 15 MB of memory at most, not 77.

    A text is split into pieces by a pattern. A piece that is a token counts 1; any other is merged: of all pairs of
    neighbours that together are a token, the one of the lowest rank becomes one part, until no pair is left. Pieces
    repeat, so their counts are kept. Words repeat too, and a blank before a word begins a piece; so where single blanks
    separate the words, their counts are kept and the pattern is not needed. Chinese, Japanese and Korean clauses do not
    repeat; they are cut between characters that stand side by side in no token, which changes no count.

    Safe to share between threads.

    Raises:
        ConfigError: The file with the tokens is missing or damaged.
    """

    def __init__(self) -> None:
        self.rank, self._joined = _read()
        self._pieces, self._words = _CountCache(self._of_piece), _CountCache(self._of_word)

    def count(self, text: str) -> int:
        """Return the number of tokens. A lone surrogate counts as U+FFFD."""
        try:
            count = self._by_words(text)
            return self._of_pieces(text) if count < 0 else count
        except UnicodeEncodeError:
            return self.count(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))

    def _by_words(self, text: str) -> int:
        """Count word by word. Negative if other white space stands before a blank, since the two may be one piece."""
        if " " not in text or "  " in text:
            return -1
        first, *words, last = text.split(" ")
        if first[-1:].isspace():
            return -1
        return self._of_pieces(first) + sum(map(self._words.__getitem__, words)) + self._of_pieces(f" {last}")

    def _of_pieces(self, text: str) -> int:
        split = _SPLIT_ASCII if text.isascii() else _split_unicode()
        return sum(map(self._pieces.__getitem__, split.findall(text)))

    def _of_word(self, word: str) -> int:
        """Count a word with the blank before it; negative if it ends in white space."""
        return -sys.maxsize if word[-1:].isspace() else self._of_pieces(f" {word}")

    def _of_piece(self, piece: str) -> int:
        if len(piece) > _MAX_RUN:
            parts = [piece[start : start + _MAX_RUN] for start in range(0, len(piece), _MAX_RUN)]
        else:
            parts = [piece] if piece.isascii() else list(_parts(piece, self._joined))
        return sum(map(self._pieces.__getitem__, parts)) if len(parts) > 1 else _merged(piece.encode(), self.rank)


class _CountCache(dict[str, int]):
    """Token counts of texts, made by ``count`` and kept. It forgets all when they take more than 4 MB."""

    def __init__(self, count: Callable[[str], int]) -> None:
        super().__init__()
        self._count = count
        self._size = 0

    def __missing__(self, text: str) -> int:
        count = self._count(text)
        self._size += _ENTRY_BYTES + getsizeof(text)
        if self._size > _MAX_CACHE_BYTES:
            self.clear()
            self._size = 0
        self[text] = count
        return count


def _parts(piece: str, joined: frozenset[str]) -> Iterator[str]:
    """Cut a piece between characters that stand side by side in no token."""
    start = 0
    for at in range(1, len(piece)):
        left, right = piece[at - 1], piece[at]
        if left >= FIRST_CUT <= right and joined.isdisjoint((left, right, left + right)):
            yield piece[start:at]
            start = at
    yield piece[start:]


def _merged(piece: bytes, rank: Rank) -> int:
    """Return how many tokens a piece becomes."""
    size = len(piece)
    if size == 1 or rank(piece) >= 0:
        return 1
    # A part is known by its start; `ends` has 0 for bytes at which no part starts.
    ends = [*range(1, size + 1), 0]
    before = [*range(-1, size)]
    pairs = [(found, start, start + 2) for start in range(size - 1) if (found := rank(piece[start : start + 2])) >= 0]
    heapify(pairs)
    while pairs:
        _, start, end = heappop(pairs)
        middle = ends[start]
        if not middle or ends[middle] != end:
            continue  # one of the two is already part of another pair
        ends[start], ends[middle], before[end] = end, 0, start
        size -= 1
        if (after := ends[end]) and (found := rank(piece[start:after])) >= 0:
            heappush(pairs, (found, start, after))
        if start and (found := rank(piece[before[start] : end])) >= 0:
            heappush(pairs, (found, before[start], end))
    return size


@cache
def _split_unicode() -> regex.Pattern[str]:
    import regex

    upper, lower = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
    return regex.compile(_SPLIT.format(letter=r"\p{L}", upper=upper, lower=lower, digit=r"\p{N}"))


def _read() -> tuple[Rank, frozenset[str]]:
    """Read the file. It has, compressed with zlib:

    - a hash table of 2^19 slots of four bytes, little-endian: the rank plus one in the lower 18 bits, the upper 14 bits
      of the token's CRC-32 above; 0 if empty. A token is in the slot of its CRC-32, or in the first free one after it;
    - the length of each token in one byte, and all tokens by rank;
    - in UTF-8, separated by blanks, the pairs of characters from ``FIRST_CUT`` on that stand side by side in a token,
      and the characters that stand in a token next to a part of a character.
    """
    try:
        raw = zlib.decompress(_FILE.read_bytes())
    except (OSError, zlib.error) as error:
        raise ConfigError(f"cannot read {_FILE}; install diarist again") from error
    if hashlib.sha256(raw).hexdigest() != _SHA256:
        raise ConfigError(f"{_FILE} is damaged; install diarist again")
    slots = array("I", raw[: 4 * SLOTS])
    if sys.byteorder == "big":
        slots.byteswap()
    first = 4 * SLOTS + TOKENS
    starts = array("I", accumulate(raw[4 * SLOTS : first], initial=0))
    tokens, joined = raw[first : first + starts[-1]], raw[first + starts[-1] :]

    hash_of, last_slot, rank_bits = zlib.crc32, SLOTS - 1, (1 << _RANK_BITS) - 1  # locals are faster

    def rank(token: bytes) -> int:
        code = hash_of(token)
        slot = code & last_slot
        while entry := slots[slot]:
            if (entry ^ code) >> _RANK_BITS == 0:
                found = (entry & rank_bits) - 1
                if tokens[starts[found] : starts[found + 1]] == token:
                    return found
            slot = (slot + 1) & last_slot
        return -1

    return rank, frozenset(joined.decode().split())


@cache
def _o200k() -> O200k:
    return O200k()


_DEFAULT = O200kCounter()
