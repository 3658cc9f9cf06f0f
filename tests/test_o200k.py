"""The bundled encoding: its file, and counts that only it could get wrong. See also test_tokens.py.

``packed`` makes the file from the published ranks.
"""

from __future__ import annotations

import random
import sys
import zlib
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarist import tokens
from diarist.tokens import FIRST_CUT, SLOTS, TOKENS, O200k
from tests.properties import examples
from tests.test_tokens import REFERENCE

ENCODING = O200k()
PUBLISHED = [REFERENCE.decode_single_token_bytes(rank) for rank in range(TOKENS)]


def packed(tokens: list[bytes]) -> bytes:
    """Make the content of the bundled file from the tokens by rank."""
    slots = array("I", bytes(4 * SLOTS))
    joined = set[str]()
    for rank, token in enumerate(tokens):
        code = zlib.crc32(token)
        slot = code % SLOTS
        while slots[slot]:
            slot = (slot + 1) % SLOTS
        slots[slot] = code >> 18 << 18 | rank + 1
        joined |= neighbours(token)
    if sys.byteorder == "big":
        slots.byteswap()
    return slots.tobytes() + bytes(map(len, tokens)) + b"".join(tokens) + " ".join(sorted(joined)).encode()


def neighbours(token: bytes) -> set[str]:
    """The pairs of characters in a token, and the characters that it may have next to a part of another."""
    text = token.decode(errors="surrogateescape")  # the bytes of an incomplete character become surrogates
    found = set[str]()
    for at in range(1, len(text)):
        left, right = text[at - 1], text[at]
        match is_part(left), is_part(right):
            case False, False:
                found.add(left + right)
            case False, True:
                found.add(left)
            case True, False:
                found.add(right)
            case True, True if right >= "\udcc0":  # the end of one character and the beginning of another
                found |= starting_with(text[at:].encode(errors="surrogateescape"))
            case _:
                pass
    return {each for each in found if min(each) >= FIRST_CUT}


def is_part(character: str) -> bool:
    return "\udc80" <= character <= "\udcff"


def starting_with(beginning: bytes) -> set[str]:
    """The characters whose UTF-8 begins with these bytes."""
    if beginning < FIRST_CUT.encode()[: len(beginning)]:
        return set()
    every = (chr(code) for code in (*range(ord(FIRST_CUT), 0xD800), *range(0xE000, 0x110000)))
    return {each for each in every if each.encode().startswith(beginning)}


def exact(text: str) -> int:
    return len(REFERENCE.encode_ordinary(text))


@pytest.mark.slow
def test_the_file_is_made_of_the_published_ranks() -> None:
    assert zlib.decompress(tokens._FILE.read_bytes()) == packed(PUBLISHED)


def test_each_token_has_its_rank_and_nothing_else_has_one() -> None:
    assert [ENCODING.rank(token) for token in PUBLISHED] == list(range(TOKENS))
    known = set(PUBLISHED)
    for token in PUBLISHED[::7]:
        for other in (token + b"\x00", token[::-1], token[:-1]):
            assert (ENCODING.rank(other) >= 0) == (other in known)


@pytest.mark.parametrize("step", [64 * 41, pytest.param(64 * 4, marks=pytest.mark.slow)])
def test_characters_of_every_block_are_counted_exactly(step: int) -> None:
    for first in range(0, 0x110000, step):
        characters = [chr(code) for code in range(first, first + 64) if not 0xD800 <= code < 0xE000]
        text = "".join(f"a{each}b {each}1 {each}\u5b57{each}A{each}{each}\n" for each in characters)
        assert ENCODING.count(text) == exact(text), hex(first)


def test_tokens_in_any_order_are_counted_exactly() -> None:
    order = random.Random(1)
    texts = [token.decode(errors="ignore") for token in PUBLISHED]
    for _ in range(3_000):
        text = "".join(order.choices(texts, k=8))
        assert ENCODING.count(text) == exact(text), text


def test_chinese_japanese_and_korean_are_counted_exactly() -> None:
    order = random.Random(2)
    texts = [text for token in PUBLISHED if (text := token.decode(errors="ignore")) and max(text) >= FIRST_CUT]
    for _ in range(3_000):
        tokens = order.choices(texts, k=6)
        for text in ("".join(tokens), "".join(order.sample("".join(tokens), len("".join(tokens))))):
            assert ENCODING.count(text) == exact(text), text


@settings(max_examples=examples(300), deadline=None)
@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_ascii_is_split_as_any_text(text: str) -> None:
    assert tokens._SPLIT_ASCII.findall(text) == tokens._split_unicode().findall(text)
    assert ENCODING.count(text) == exact(text)


@settings(max_examples=examples(1_000), deadline=None)
@given(st.lists(st.sampled_from([*"  ab.1'/\n\r\t\u00a0\u3000é字🟡", "\x1c", "\u0301", "it's", "DON'T"])).map("".join))
def test_a_text_may_be_cut_at_its_blanks(text: str) -> None:
    assert ENCODING.count(text) == exact(text)


@pytest.mark.parametrize("letters", ["abcdefghijklmnopqrstuvwxyz", "ACGT", "=-", "กขคงจ", "0123456789abcdef"])
def test_long_pieces_are_counted_exactly(letters: str) -> None:
    text = "".join(random.Random(3).choices(letters, k=8_000))
    assert ENCODING.count(text) == exact(text)


@pytest.mark.slow
def test_kept_counts_take_little_memory() -> None:
    order = random.Random(4)
    for _ in range(100):
        ENCODING.count(" ".join("".join(order.choices("abcdefghij", k=10)) for _ in range(1_000)))
        for counts in (ENCODING._pieces, ENCODING._words):
            assert sys.getsizeof(counts) + sum(map(sys.getsizeof, counts)) < 5_000_000
