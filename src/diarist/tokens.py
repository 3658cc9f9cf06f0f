"""Token counts of texts and images, offline, in OpenAI's encoding o200k_base.

The encoding is part of the package, and loaded at the first count (about 40 ms, once per process).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from math import log
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from diarist.exceptions import ConfigError
from diarist.text_pieces import piece_ends

if TYPE_CHECKING:
    import regex

    from diarist.o200k import O200k

_MAX_RUN = 8192
_LOG_RANKS = log(200_000)

# The kinds of characters that can form one long piece in OpenAI's split. (Digits cannot: they are split in threes.)
_RUN_CLASSES = (
    r"\p{White_Space}",
    r"[\p{L}\p{M}]",
    r"[[^\p{White_Space}\p{L}\p{N}]\r\n]",
)


class TokenCounter(Protocol):
    """The interface of a token counter for ``token_counter=``.

    It must be safe to share between threads: memory counts long messages in another one, so that the event loop goes
    on.

    Attributes:
        name: Stored with each count, so that counts of different tokenizers are not mixed.
    """

    name: str

    def count(self, text: str) -> int:
        """Return the number of tokens of ``text``; 0 for an empty text."""
        ...


class O200kCounter:
    """Counts with OpenAI's encoding o200k_base. Safe to share between threads.

    Text that looks like a special token (``<|endoftext|>``) counts as ordinary text. Runs of more
    than 8192 characters of one kind (blanks, letters without a break, signs) are cut into pieces of
    8192 first, because merging a million bytes takes seconds. Each cut may add a few tokens; a text
    without such a run is counted exactly.

    Raises:
        ConfigError: At the first count, when the bundled encoding is missing or damaged.
    """

    name = "o200k_base"

    def count(self, text: str) -> int:
        """Return the number of tokens of ``text``; 0 for an empty text."""
        return _count(_o200k().count, text)


class TiktokenCounter:
    """Counts with another encoding of ``tiktoken``, such as ``cl100k_base``. Safe to share between threads.

    ``tiktoken`` downloads an encoding once, and keeps it in the folder ``TIKTOKEN_CACHE_DIR``. Long runs of one kind
    are cut as ``O200kCounter`` cuts them, because tiktoken panics on a million spaces.

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
        return _count(lambda piece: len(self._encoding.encode_ordinary(piece)), text)


def counter_for(encoding: str) -> TokenCounter:
    """Return the counter of an encoding, by its name. Raises ConfigError as ``TiktokenCounter`` does."""
    return _DEFAULT if encoding == _DEFAULT.name else TiktokenCounter(encoding)


def default_counter() -> TokenCounter:
    """Return the default counter; always the same object."""
    return _DEFAULT


def rarity(word: str) -> float:
    """Return how rare a word in lower case is: 0.0 for the most frequent, 1.0 for those that are not one token.

    This is the logarithm of its rank in o200k_base, whose tokens are sorted by frequency over texts of many languages.
    """
    rank = _o200k().rank(f" {word}".encode("utf-8", "replace"))
    return 1.0 if rank < 0 else log(rank + 1) / _LOG_RANKS


def count_image(width: int | None, height: int | None, detail: str = "auto") -> int:
    """Return the tokens of an image by OpenAI's tile formula, without opening or fetching it.

    Low detail is 85 tokens. Otherwise the image is scaled down to fit 2048 x 2048, then down to a
    shorter side of 768, and costs 85 plus 170 for each tile of 512 x 512 that it touches. Source: OpenAI
    platform documentation, guide "Images and vision", section "Calculating costs" (for GPT-4o;
    newer models use other constants, so for them the result is an estimate).

    Args:
        width: Pixels; None or 0 if unknown.
        height: Pixels; None or 0 if unknown. An image of unknown size counts as 1024 x 1024: 765 tokens.
        detail: ``low``, or any other value for ``high``. (The provider counts ``auto`` as ``high``.)
    """
    if detail == "low":
        return 85
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


def _count(count: Callable[[str], int], text: str) -> int:
    if len(text) <= _MAX_RUN:
        return count(text)
    return sum(count(text[start:end]) for start, end in pairwise(_cuts(text)))


def _cuts(text: str) -> list[int]:
    """Return the places where ``text`` is cut, from 0 to its length.

    No piece has a run of more than 8192 characters of one kind, and none is so long that the list of its tokens takes
    much more memory than the text.
    """
    cuts = {0, len(text)}
    for start, end in _long_runs(text):
        cuts.update(range(start + _MAX_RUN, end, _MAX_RUN))
    cuts.update(piece_ends(text))
    return sorted(cuts)


def _long_runs(text: str) -> Iterator[tuple[int, int]]:
    """Yield the runs of more than 8192 characters of one kind.

    Such a run fills an aligned block of 4096 characters. In an ordinary text, a block is rejected after a few
    characters, so the search is cheap.
    """
    half = _MAX_RUN // 2
    for pattern in _run_patterns():
        end = 0
        for block in range(0, len(text) - half + 1, half):
            if block >= end and pattern.fullmatch(text, block, block + half):
                run = next(run for run in pattern.finditer(text, max(end, block - half)) if run.end() > block)
                end = run.end()
                if end - run.start() > _MAX_RUN:
                    yield run.span()


@cache
def _run_patterns() -> tuple[regex.Pattern[str], ...]:
    """Return a pattern for runs of each kind. The patterns contain no length, since ``regex`` unrolls counted
    repetitions, which took 15 MB."""
    import regex

    return tuple(regex.compile(f"{kind}++", regex.V1) for kind in _RUN_CLASSES)


def _o200k() -> O200k:
    global _loaded
    if _loaded is None:
        with _LOCK:
            if _loaded is None:
                from diarist.o200k import O200k

                _loaded = O200k()
    return _loaded


_LOCK = Lock()
_loaded: O200k | None = None
_DEFAULT = O200kCounter()
