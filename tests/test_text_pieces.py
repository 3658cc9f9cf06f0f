"""A long text in pieces: together they are the text, and what is made of each adds up."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarist import Message, tokens
from diarist.storage import words
from diarist.tokens import default_counter, pieces
from tests.properties import examples

SIGNS = [*"aé字。😀ｱ_'ß\n.!“ \"", "Bc", "don't", "x1", "12", "  ", "e\u0301"]


def small_pieces(text: str, size: int) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "_PIECE_LENGTH", size)
        return list(pieces(text))


texts = st.one_of(st.lists(st.sampled_from(SIGNS)).map("".join), st.text())


@settings(max_examples=examples(400))
@given(texts, st.integers(0, 8))
def test_pieces_give_the_same_result_as_the_whole_text(text: str, size: int) -> None:
    found, count = small_pieces(text, size), default_counter().count
    assert "".join(found) == text
    assert sum(map(count, found)) == count(text)
    assert set[str]().union(*map(words.text_terms, found)) == words.text_terms(text)


@pytest.mark.parametrize("unit", ["word ", "今天天气很好。", "1, ", "line\n"])
def test_pieces_are_about_as_long_as_they_should_be(unit: str) -> None:
    found = list(pieces(unit * 100_000))
    assert len(found) > 1
    assert max(map(len, found)) <= tokens._PIECE_LENGTH + len(unit)


def test_a_text_without_an_end_of_a_word_is_one_piece() -> None:
    assert list(pieces("x" * 200_000)) == ["x" * 200_000]


def test_finding_the_words_of_a_long_text_takes_little_memory() -> None:
    message = Message.user("word and another word, " * 200_000)
    tracemalloc.start()
    terms = words.message_terms(message)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert terms == {"word", "and", "another"}
    assert peak < len(message.text)
