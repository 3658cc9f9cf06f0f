"""Loops of language models."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from diarist.memory.observational.roles.answer_checks import deduplicate, is_degenerate
from tests.properties import examples

DIARY = "Date: 2026-03-02\n" + "\n".join(
    f"- 🟡 {hour:02}:{minute:02} User asked about item {hour * 60 + minute} of the list"
    for hour in range(8, 20)
    for minute in range(0, 60, 7)
)


def test_a_long_diary_is_no_loop() -> None:
    assert len(DIARY) > 2_000
    assert not is_degenerate(DIARY)


def test_below_2000_characters_nothing_is_a_loop() -> None:
    assert not is_degenerate("a" * 1_999)
    assert is_degenerate("a" * 2_000)


def test_a_loop_of_any_length_shows() -> None:
    for length in (1, 7, 73, 399, 1_201):
        unit = "".join(f"{number} " for number in range(length))[:length]
        assert is_degenerate((unit * 5_000)[: max(4_000, 3 * length)])


def test_more_than_two_fifths_of_the_windows_must_repeat() -> None:
    fresh = "".join(f"{number:05}" for number in range(2_000))
    assert not is_degenerate(fresh + fresh[: int(len(fresh) * 0.6)])
    assert is_degenerate(fresh + fresh[: int(len(fresh) * 0.75)])


def test_more_than_half_of_twenty_long_lines_must_repeat() -> None:
    fresh = [f"- line number {number} {'with some words ' * 8}{number}" for number in range(20)]
    repeated = ["- the very same line again"] * 21
    assert is_degenerate("\n".join([*fresh[:18], *repeated]))
    assert not is_degenerate("\n".join([*fresh, *repeated[:3]]))


def test_one_endless_line_is_degenerate() -> None:
    assert is_degenerate("".join(f"{number} " for number in range(20_000)))


def test_deduplicating_keeps_each_line_once_under_its_date() -> None:
    text = "Date: 2026-03-02\n- one\n- two\nDate: 2026-03-03\n- one\nDate: 2026-03-02\n- three\n- two"
    assert deduplicate(text) == "Date: 2026-03-02\n- one\n- two\nDate: 2026-03-02\n- three"


def test_a_loop_inside_a_line_is_cut() -> None:
    line = "- 🔴 User lives in Turku, works at the bridge office and " + "likes rye bread and " * 500
    kept = deduplicate(line)
    assert kept.startswith("- 🔴 User lives in Turku, works at the bridge office and likes rye bread")
    assert len(kept) < 2_000


def test_a_diary_without_a_loop_stays_as_it_is() -> None:
    assert deduplicate(DIARY) == DIARY


pieces = st.lists(
    st.tuples(st.text(min_size=1, max_size=30), st.integers(1, 400), st.sampled_from(["", " ", "\n", "\n- "])),
    max_size=6,
)


@settings(max_examples=examples(50), deadline=None)
@given(pieces)
def test_deduplicated_notes_do_not_count_as_repetition(pieces: list[tuple[str, int, str]]) -> None:
    text = "\n".join((piece + end) * times for piece, times, end in pieces)
    kept = deduplicate(text)
    assert not is_degenerate(kept)
    assert len(kept) <= len(text) + 3 * len(pieces) + 3
