"""``Redactor``: text in pieces is redacted like the whole text, wherever it is cut."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diarist.exceptions import ConfigError
from diarist.processors.patterns import PatternSet
from diarist.processors.streaming_redaction import Redactor, Span, merge

PATTERNS = [
    "abc",
    "ab(?:ca)?",
    r"a+b",
    r"\ba\b",
    r"a\Bb",
    r"(?<=a)b+",
    r"(?<!c)ab?",
    r"a(?!b)",
    r"b(?=c)",
    r"a.*?c",
    r"(a|b)\1",
    r"(?i)ABa",
    r"a{2,4}",
    r"(?:ab|abcab)c",
    r"c$",
    r"(?m)c$",
    r"c\Z",
    r"^b",
    r"(?m)^a ",
    r"[]a]b",
    r"[^]a]c",
    r"(?x) a b  # two",
    r"a[\s\S]*",
    r"-\b\w+",
    r"\w+@\w+",
    r"(?s)a.b",
    r" ?a",
    r"(?=ab)a",
    r"a(?=bc)",
    r"a(?!bc)",
    r"a(?=b(?!c@))",
    r"a+(?=.*c)",
    r"c$\n?",
    r"(?:a$|b)\n",
    r"(?m)a$\n",
    r"a(?=b\Z)",
    r"b(?=.?\Z)",
    r"(?m)(?:^a|b$)",
    r"(?<=c(?=aa))a",
]

texts = st.text(alphabet="abcA @-\n", max_size=24)
cuts = st.lists(st.integers(min_value=0, max_value=24), max_size=6)


def redactor(patterns: list[str]) -> Redactor:
    found = PatternSet({str(number): pattern for number, pattern in enumerate(patterns)})
    return Redactor(found.look, lambda text, span: "#")


def pieces(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


def whole(text: str, patterns: list[str]) -> str:
    """Return the whole text redacted with Python's own ``re``."""
    spans = [Span(*match.span()) for pattern in patterns for match in re.finditer(pattern, text)]
    out, place = "", 0
    for span in merge(spans):
        out += text[place : span.start] + "#"
        place = span.end
    return out + text[place:]


@given(text=texts, places=cuts, patterns=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3, unique=True))
@example(text="abcab", places=[1, 2, 3, 4], patterns=["ab(?:ca)?", "abc"])
@example(text="a-abc", places=[2], patterns=[r"-\b\w+"])
@example(text="ab", places=[1], patterns=[r"a\Bb"])
@example(text="@@@@@@@@c\n@", places=[9, 10], patterns=[r"c$"])
@example(text="abc", places=[1, 2], patterns=[r"a(?=bc)"])
@example(text="abc", places=[1, 2], patterns=[r"a(?!bc)"])
@example(text="abc@", places=[1, 2, 3], patterns=[r"a(?=b(?!c@))"])
@example(text="a @ @ c", places=[1, 2, 3, 4], patterns=[r"a+(?=.*c)"])
@example(text="abb", places=[1, 2], patterns=[r"a(?=b\Z)"])
def test_the_result_is_the_same_wherever_the_text_is_cut(text: str, places: list[int], patterns: list[str]) -> None:
    run = redactor(patterns)
    out = [run.feed(piece) for piece in pieces(text, places)]
    assert "".join(out) + run.flush() == whole(text, patterns)


@given(text=texts, patterns=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2, unique=True))
def test_text_that_may_still_match_is_never_released(text: str, patterns: list[str]) -> None:
    """The released text is always a prefix of the redacted whole, however the text continues."""
    run = redactor(patterns)
    out = ""
    for char in text:
        out += run.feed(char)
        assert whole(text, patterns).startswith(out)


@given(text=st.text(max_size=60), places=st.lists(st.integers(0, 60), max_size=8))
def test_text_without_a_match_is_unchanged(text: str, places: list[int]) -> None:
    run = redactor([r"\d{4}-\d{4}-\d{4}-\d{4}-\d{4}-\d{4}-\d{4}", "never such a text"])
    assert "".join(run.feed(piece) for piece in pieces(text, places)) + run.flush() == text


@pytest.mark.parametrize("size", [1, 7, 1000, 5000])
def test_a_match_of_any_length_is_redacted_whole(size: int) -> None:
    secret = "<" + "x" * 50_000 + ">"
    text = "before " * 500 + secret + " after" * 500
    run = redactor(["<x+>"])
    out = [run.feed(text[place : place + size]) for place in range(0, len(text), size)]
    assert "".join(out) + run.flush() == text.replace(secret, "#")


def test_text_is_released_as_soon_as_it_is_decided() -> None:
    run = redactor([r"\bsecret-\d+"])
    assert run.feed("It is a s") == "It is a "
    assert run.feed("imple thing") == "simple thing"
    assert run.feed(", secret-1") == ", "
    assert run.feed("2") == ""
    assert run.feed(".") == "#."
    assert run.flush() == ""


@given(first=texts, second=texts, places=cuts)
def test_a_match_over_two_blocks_is_never_released_whole(first: str, second: str, places: list[int]) -> None:
    run = redactor(["abc", "b@+a"])
    out = "".join(run.feed(piece) for piece in pieces(first, places)) + run.flush()
    out += "".join(run.feed(piece) for piece in pieces(second, places)) + run.flush()
    if not re.search("abc|b@+a", out.replace("#", "\0")):
        return
    pytest.fail(out)


def test_invalid_patterns_are_refused() -> None:
    with pytest.raises(ConfigError, match="patterns: the pattern 'x' is no regular expression"):
        PatternSet({"x": "("})
    with pytest.raises(ConfigError, match="matches the empty text"):
        PatternSet({"x": r"\d*"})
    with pytest.raises(ConfigError, match="for bytes"):
        PatternSet({"x": re.compile(b"x")})  # type: ignore[dict-item]
