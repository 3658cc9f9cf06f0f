"""Built-in patterns find the same in pieces as in the whole text, and their cheap test never rules out a match."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from diarist.processors.guardrails.pii_patterns import (
    _CANDIDATES,  # pyright: ignore[reportPrivateUsage]
    DETECTION_TYPES,
    PIIPatterns,
)
from diarist.processors.guardrails.system_prompt_scrubber import ANNOUNCEMENTS, literal
from diarist.processors.patterns import PRESETS, KnownPattern, PatternSet
from diarist.processors.streaming_redaction import Redactor

KNOWN: list[KnownPattern] = [
    *(pattern for preset in PRESETS.values() for pattern in preset.values()),
    *(pattern for patterns in _CANDIDATES.values() for pattern in patterns),
    *ANNOUNCEMENTS.values(),
    literal("lion"),
    literal("Red Heron"),
    literal("code-7 x"),
]
PII = PIIPatterns(DETECTION_TYPES)
ALL = PatternSet({str(number): pattern for number, pattern in enumerate(KNOWN)})

alphabet = st.sampled_from(" \n.:-_/@=+#()<>|019aAbBcdDeEfikKlmsStxyzſßẞıİé\u212a天")
matching = st.sampled_from(KNOWN).flatmap(lambda pattern: st.from_regex(pattern.source, alphabet=None))
texts = st.lists(st.one_of(st.text(alphabet, max_size=12), matching), max_size=3).map("".join)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", KNOWN, ids=lambda pattern: pattern.source[:24])
@given(st.data())
def test_a_match_begins_where_its_cheap_test_matches(pattern: KnownPattern, data: st.DataObject) -> None:
    text = data.draw(st.tuples(st.text(alphabet, max_size=3), st.from_regex(pattern.source)).map("".join))
    begins = pattern.begins if pattern.inside_words else rf"(?<!\w)(?:{pattern.begins})"
    for match in regex.finditer(pattern.source, text):
        assert regex.compile(begins).match(text, match.start()), match


@given(texts, st.lists(st.integers(0, 60), max_size=6))
def test_known_patterns_find_the_same_wherever_the_text_is_cut(text: str, places: list[int]) -> None:
    run = Redactor(ALL.look, lambda matched, span: "#")
    edges = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    out = "".join(run.feed(text[start:end]) for start, end in pairwise(edges)) + run.flush()
    assert out == run.redact(text)


@given(texts, st.data())
def test_text_is_held_from_where_a_match_may_begin(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    _, held = ALL.look(text[:cut], 0, False)
    for pattern in KNOWN:
        for match in regex.finditer(pattern.source, text):
            assert not match.start() < cut < match.end() or cut - held <= match.start()


@given(texts)
def test_known_patterns_find_what_plain_ones_find(text: str) -> None:
    plain = PatternSet({str(number): pattern.source for number, pattern in enumerate(KNOWN) if not pattern.overlapping})
    found = [span for span in ALL.look(text)[0] if not KNOWN[int(span.label)].overlapping]
    assert sorted(found, key=str) == sorted(plain.look(text)[0], key=str)


def test_flags_mean_what_they_mean_in_python() -> None:
    ascii_only = Redactor(PatternSet({"word": re.compile(r"\w+!", re.ASCII)}).look, lambda matched, span: "#")
    assert ascii_only.feed("naïve! é! so!") + ascii_only.flush() == "naï# é! #"


def test_a_long_run_without_a_match_is_released() -> None:
    run = Redactor(PatternSet(PRESETS["pii"]).look, lambda matched, span: "#")
    sent = "".join(run.feed("天气很好") for _ in range(100))
    assert len(sent) >= 400 - 64


UNITS = ["482 ", "2024-03-05 ", "AB12 ", "DE89 3704 ", "+49 30 ", "030 12 ", "4111 1111 1111 1111 ", "212-555-"]


@pytest.mark.parametrize("unit", UNITS)
def test_each_chunk_of_numbers_is_searched_with_little_text_before_it(unit: str) -> None:
    looked = 0

    def look(text: str, start: int, final: bool) -> Any:
        nonlocal looked
        looked += len(text) - start
        return PII.look(text, start, final)

    run = Redactor(look, lambda matched, span: "#")
    for _ in range(500):
        run.feed(unit)
    assert looked <= 500 * (len(unit) + 70)  # an IBAN with spaces has 68 characters


def test_a_long_open_match_is_searched_in_linear_time() -> None:
    run = Redactor(ALL.look, lambda matched, span: "#")
    assert run.feed("see " + "sk-" * 50_000) == "see "
    assert run.flush() == "#"
