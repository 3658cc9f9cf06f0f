"""How many tokens a text is: o200k_base, offline.

The ranks of the encoding ship with the package. They and the library that uses them load at the
first count (about 0.2 s, once per process), not when this module is imported.
"""

from __future__ import annotations

import hashlib
import zlib
from functools import cache
from itertools import pairwise
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from diarist.exceptions import ConfigError

if TYPE_CHECKING:
    import regex
    import tiktoken

_RANKS_FILE = Path(__file__).parent / "data" / "o200k_base.ranks.zlib"
_RANKS_COUNT = 199_998
_RANKS_SHA256 = "440741350e7cfa1c0f4869ce742d1b043550adbda5187adcac9e787edac6fba9"
_MAX_RUN = 8192

# How o200k_base splits a text before merging bytes, from openai_public.py of tiktoken.
_SPLIT = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)

# What one piece of that split can be long in: blanks, letters, and signs with line ends.
# Digits come in threes.
_RUN_CLASSES = (
    r"\p{White_Space}",
    r"[\p{L}\p{M}]",
    r"[[^\p{White_Space}\p{L}\p{N}]\r\n]",
)


class TokenCounter(Protocol):
    """What ``token_counter=`` accepts anywhere in the library.

    Attributes:
        name: Stored beside each count, so that counts of another tokenizer are not mixed in.
    """

    name: str

    def count(self, text: str) -> int:
        """The number of tokens of ``text``; 0 for an empty one."""
        ...


class O200kCounter:
    """Counts as OpenAI's o200k_base does. Safe to share between threads.

    Text that looks like a special token (``<|endoftext|>``) counts as ordinary text. Runs of more
    than 8192 characters of one kind (blanks, letters without a break, signs) are cut into pieces of
    8192 first, because tiktoken panics on a million spaces. Each cut may add a few tokens; a text
    without such a run is counted exactly.

    Raises:
        ConfigError: At the first count, when the bundled ranks are missing or damaged.
    """

    name = "o200k_base"

    def count(self, text: str) -> int:
        """The number of tokens of ``text``; 0 for an empty one."""
        encode = _encoding().encode_ordinary
        if not _may_have_long_run(text):
            return len(encode(text))
        return sum(len(encode(text[start:end])) for start, end in pairwise(_cuts(text)))


def default_counter() -> TokenCounter:
    """The counter that is used where none is given; always the same object."""
    return _DEFAULT


def count_image(width: int | None, height: int | None, detail: str = "auto") -> int:
    """Tokens of an image by OpenAI's tile formula, without opening or fetching it.

    Low detail is 85 tokens. Otherwise the image is scaled down to fit 2048 x 2048, then down to a
    shorter side of 768, and costs 85 plus 170 for each tile of 512 x 512 it touches. Source: OpenAI
    platform documentation, guide "Images and vision", section "Calculating costs" (for GPT-4o;
    newer models count by other constants, so take it as an estimate for them).

    Args:
        width: In pixels; None or 0 where it is not known.
        height: In pixels; None or 0 where it is not known. An image of unknown size counts as one
            of 1024 x 1024: 765 tokens.
        detail: ``low``; every other word counts as ``high``, as does ``auto`` at the provider.
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


def _may_have_long_run(text: str) -> bool:
    """Whether a run of more than 8192 characters is possible: a glance at each half of that.

    A run that long fills at least one aligned block of 4096 characters, and in an ordinary text a
    block is refused after a few characters, so this costs next to nothing.
    """
    if len(text) <= _MAX_RUN:
        return False
    block = _run_patterns()[0]
    return any(block.match(text, start) for start in range(0, len(text), _MAX_RUN // 2))


def _cuts(text: str) -> list[int]:
    """Where to cut ``text``, from 0 to its length, so that no run is longer than 8192."""
    cuts = {0, len(text)}
    for pattern in _run_patterns()[1:]:
        for run in pattern.finditer(text):
            cuts.update(range(run.start() + _MAX_RUN, run.end(), _MAX_RUN))
    return sorted(cuts)


@cache
def _run_patterns() -> tuple[regex.Pattern[str], ...]:
    """A block of one class, then for each class its long runs (entered at their start only)."""
    import regex

    block = "|".join(f"{kind}{{{_MAX_RUN // 2}}}" for kind in _RUN_CLASSES)
    runs = [f"(?<!{kind}){kind}{{{_MAX_RUN + 1},}}" for kind in _RUN_CLASSES]
    return tuple(regex.compile(pattern, regex.V1) for pattern in [block, *runs])


def _encoding() -> tiktoken.Encoding:
    global _loaded
    if _loaded is None:
        with _LOCK:
            if _loaded is None:
                _loaded = _load()
    return _loaded


def _load() -> tiktoken.Encoding:
    import tiktoken

    return tiktoken.Encoding(name="o200k_base", pat_str=_SPLIT, mergeable_ranks=_read_ranks(), special_tokens={})


def _read_ranks() -> dict[bytes, int]:
    """The bundled ranks: each token's length in one byte, then all tokens in the order of rank."""
    try:
        raw = zlib.decompress(_RANKS_FILE.read_bytes())
    except (OSError, zlib.error) as error:
        raise ConfigError(f"cannot read {_RANKS_FILE}; install diarist again") from error
    if hashlib.sha256(raw).hexdigest() != _RANKS_SHA256:
        raise ConfigError(f"{_RANKS_FILE} is damaged; install diarist again")
    tokens = Struct("%ds" * _RANKS_COUNT % tuple(raw[:_RANKS_COUNT]))  # cuts them faster than slices do
    return dict(zip(tokens.unpack_from(raw, _RANKS_COUNT), range(_RANKS_COUNT), strict=True))


_LOCK = Lock()
_loaded: tiktoken.Encoding | None = None
_DEFAULT = O200kCounter()
