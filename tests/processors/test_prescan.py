"""The quick look never says that a pattern cannot match where it can."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist.processors.builtin.presets import PRESETS
from diarist.processors.guardrails.pii_detectors import (
    _CANDIDATES,  # pyright: ignore[reportPrivateUsage]
)
from diarist.processors.patterns import (
    PatternSet,
    _compiled,  # pyright: ignore[reportPrivateUsage]
)
from diarist.processors.prescan import Prescan
from diarist.processors.streaming_redaction import Redactor

KNOWN = [
    re.compile(pattern)
    for patterns in [*(preset.values() for preset in PRESETS.values()), *_CANDIDATES.values()]
    for pattern in patterns
]
UNUSUAL = [
    re.compile(r"(?i)straße|[^a-z]ſ\d"),
    re.compile(r"(?a)\w+é"),
    re.compile(r"(?is)K.{2}(?-i:K)"),
    re.compile(r"(?x) ı  [k-m]{6,}? # end"),
    re.compile(r"(?:a|b(?>c+|d)*+){2,3}e", re.ASCII),
    re.compile(r"[^\W\d_]\S\D(?:x?)*y"),
]
PATTERNS = KNOWN + UNUSUAL
SCAN = Prescan(PATTERNS)
ENGINE = [_compiled(pattern.pattern, pattern) for pattern in PATTERNS]  # its \w is not quite that of re

alphabet = st.sampled_from(" \n.:-_/@=+#()019aAbBcdDeEfikKlmsStxyzſßẞıİé\u212a天")
matching = st.sampled_from(PATTERNS).flatmap(lambda pattern: st.from_regex(pattern, alphabet=None))
texts = st.lists(st.one_of(st.text(alphabet, max_size=12), matching), max_size=3).map("".join)


def promising(text: str, start: int = 0) -> tuple[set[int], int]:
    """The patterns that the scan wants tried, and where a match of the others may begin."""
    tried: set[int] = set()
    while isinstance(found := SCAN.without(tried).look(text, start), frozenset):
        assert found
        assert not found & tried
        tried |= found
    return tried, found


def test_every_known_pattern_can_be_scanned() -> None:
    assert SCAN.left_out == frozenset()


@given(texts)
def test_a_pattern_that_matches_is_never_passed_over(text: str) -> None:
    tried, _ = promising(text)
    for number, pattern in enumerate(ENGINE):
        assert number in tried or pattern.search(text) is None


@given(texts, st.data())
def test_a_match_that_is_going_on_is_held_from_its_beginning(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    tried, first = promising(text[:cut])
    for number, pattern in enumerate(ENGINE):
        for match in pattern.finditer(text):
            assert number in tried or not match.start() < cut <= match.end() or first <= match.start()


@given(texts, st.lists(st.integers(0, 60), max_size=6))
def test_known_patterns_see_the_same_in_pieces(text: str, places: list[int]) -> None:
    found = PatternSet({str(number): pattern for number, pattern in enumerate(KNOWN)})
    run = Redactor(found.look, lambda matched, span: "#", found.skim())
    edges = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    out = "".join(run.feed(text[edges[i] : edges[i + 1]]) for i in range(len(edges) - 1)) + run.flush()
    assert out == run.redact(text)


@pytest.mark.parametrize("source", [r"(a)\1", r"(a)?(?(1)b|c)", "x{,y}"])
def test_what_it_cannot_follow_is_always_tried(source: str) -> None:
    scan = Prescan([re.compile("never"), re.compile(source)])
    assert scan.left_out == {1}
    assert scan.look("some text", 0) == 9


def test_states_are_forgotten_and_found_again() -> None:
    scan = Prescan([re.compile("a[^b]{20}b")])
    for code in range(0x4E00, 0x4E00 + 15_000):
        assert scan.look(f"ca{chr(code)}", 0) == 1
    assert scan.look("ca" + "x" * 20 + "b", 0) == {0}


def test_flags_mean_what_they_mean_in_python() -> None:
    ascii_only = Redactor(PatternSet({"word": re.compile(r"\w+!", re.ASCII)}).look, lambda matched, span: "#")
    assert ascii_only.feed("naïve! é! so!") + ascii_only.flush() == "naï# é! #"


def test_a_long_run_without_a_match_is_let_go() -> None:
    found = PatternSet(PRESETS["pii"])
    run = Redactor(found.look, lambda matched, span: "#")
    sent = "".join(run.feed("天气很好") for _ in range(100))
    assert len(sent) >= 400 - 64


class Unreadable:
    """Python's parser of patterns as another version may have it."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def parse(self, *given: Any) -> Any:
        return self._answer


@pytest.mark.parametrize(
    "parser",
    [
        None,
        object(),
        Unreadable(None),
        Unreadable([("LITERAL",)]),
        Unreadable([("LITERAL", "a")]),
        Unreadable([("SUBPATTERN", [1, 2])]),
        Unreadable([("MAX_REPEAT", (None, 1, []))]),
    ],
    ids=["is gone", "has no parse", "says nothing", "short", "another value", "another shape", "another number"],
)
def test_where_python_reads_patterns_otherwise_they_are_always_tried(
    parser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "re._parser", parser)
    known = Prescan(KNOWN)
    found = PatternSet(PRESETS["pii"])
    monkeypatch.undo()
    assert known.left_out == set(range(len(KNOWN)))
    run = Redactor(found.look, lambda matched, span: "#", found.skim())
    out = [run.feed(char) for char in "Write to ada@example.com, or call +39 06 555 0182 today."]
    assert "".join(out) + run.flush() == "Write to #, or call # today."
