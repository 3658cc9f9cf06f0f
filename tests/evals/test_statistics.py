"""The averages, intervals and tests agree with hand-made tables and with their definitions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import comb
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist.evals.statistics import (
    Interval,
    bootstrap,
    can_bootstrap,
    difference,
    joined,
    kendall_tau_b,
    macro,
    mcnemar,
    micro,
    sign_flip,
    wilson,
)

BY_TYPE = {
    "knowledge-update": (75, 78),
    "multi-session": (116, 133),
    "single-session-assistant": (53, 56),
    "single-session-preference": (30, 30),
    "single-session-user": (67, 70),
    "temporal-reasoning": (127, 133),
}
"""Right answers and questions by type: a division that gives both published averages of one result on LongMemEval."""


def values(right: int, total: int) -> list[float]:
    return [1.0] * right + [0.0] * (total - right)


def test_468_of_500_is_93_6_micro_and_94_87_macro() -> None:
    groups = [values(*counts) for counts in BY_TYPE.values()]
    assert (sum(map(sum, groups)), sum(map(len, groups))) == (468, 500)
    assert round(100 * micro(groups), 2) == 93.6
    assert round(100 * macro(groups), 2) == 94.87


def test_empty_groups_do_not_count() -> None:
    assert macro([[1.0], [], [0.0]]) == 0.5


class TestWilson:
    @pytest.mark.parametrize(
        ("successes", "total", "low", "high"),
        [
            (81, 263, 0.2553, 0.3662),  # Newcombe 1998, Statistics in Medicine 17, table I, method 3
            (15, 148, 0.0624, 0.1605),
            (0, 20, 0.0, 0.1611),
            (1, 29, 0.0061, 0.1718),
        ],
    )
    def test_the_published_table(self, successes: int, total: int, low: float, high: float) -> None:
        found = wilson(successes, total)
        assert (round(found.low, 4), round(found.high, 4)) == (low, high)

    @given(st.integers(0, 300), st.integers(1, 300))
    def test_it_holds_the_share_and_stays_in_bounds(self, successes: int, more: int) -> None:
        total = successes + more
        found = wilson(successes, total)
        assert 0 <= found.low <= successes / total <= found.high <= 1

    def test_without_trials_anything_is_possible(self) -> None:
        assert (wilson(0, 0).low, wilson(0, 0).high) == (0, 1)


class TestJoined:
    def test_one_part_keeps_its_interval(self) -> None:
        found, expected = joined([(0.8, wilson(8, 10))]), wilson(8, 10)
        assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))

    def test_it_is_narrower_than_its_parts_and_never_empty(self) -> None:
        one = wilson(30, 30)
        found = joined([(1.0, one)] * 4)
        assert one.low < found.low < found.high == 1

    def test_a_hand_made_pair(self) -> None:
        found = joined([(0.8, Interval(0.7, 0.9)), (0.6, Interval(0.4, 0.65))])
        assert found.low == pytest.approx(0.7 - (0.01 + 0.04) ** 0.5 / 2)
        assert found.high == pytest.approx(0.7 + (0.01 + 0.0025) ** 0.5 / 2)


class TestMcNemar:
    @pytest.mark.parametrize(
        ("first_only", "second_only", "p"),
        [(0, 0, 1.0), (0, 5, 0.0625), (5, 0, 0.0625), (1, 9, 0.021484375), (3, 3, 1.0), (2, 8, 0.109375)],
    )
    def test_hand_made_tables(self, first_only: int, second_only: int, p: float) -> None:
        first = [True] * first_only + [False] * second_only + [True, False]
        second = [False] * first_only + [True] * second_only + [True, False]
        found = mcnemar(first, second)
        assert (found.first_only, found.second_only) == (first_only, second_only)
        assert found.p == pytest.approx(p)

    @given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60))
    def test_it_is_symmetric_and_the_binomial_test(self, pairs: Sequence[tuple[bool, bool]]) -> None:
        first, second = [a for a, _ in pairs], [b for _, b in pairs]
        found, back = mcnemar(first, second), mcnemar(second, first)
        assert found.p == back.p
        n, k = found.first_only + found.second_only, found.first_only
        extreme = sum(comb(n, i) for i in range(n + 1) if comb(n, i) <= comb(n, k)) / 2**n
        assert found.p == pytest.approx(min(1.0, extreme))


class TestSignFlip:
    @pytest.mark.parametrize(
        ("first", "second"),
        [([0.9, 0.8, 0.4, 0.7, 0.6], [0.5, 0.7, 0.5, 0.2, 0.3]), ([0.2, 0.5, 1.0], [0.1, 0.6, 0.3])],
    )
    def test_the_p_value_is_close_to_the_share_of_all_signs(self, first: list[float], second: list[float]) -> None:
        pairs = [a - b for a, b in zip(first, second, strict=True)]
        seen = abs(sum(pairs)) - 1e-9
        sums = [
            abs(sum(sign * d for sign, d in zip(s, pairs, strict=True))) for s in product((1, -1), repeat=len(pairs))
        ]
        exact = sum(each >= seen for each in sums) / len(sums)
        assert sign_flip(first, second) == pytest.approx(exact, abs=0.04)

    @given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=40))
    def test_it_is_the_same_both_ways_and_between_0_and_1(self, pairs: list[tuple[float, float]]) -> None:
        first, second = [a for a, _ in pairs], [b for _, b in pairs]
        assert 0 < sign_flip(first, second) == sign_flip(second, first) <= 1

    def test_equal_scores_are_no_evidence_and_many_better_ones_are(self) -> None:
        scores = [number / 100 for number in range(100)]
        assert sign_flip(scores, scores) == 1
        assert sign_flip([each + 0.1 for each in scores], scores) < 0.001


class TestBootstrap:
    def test_the_same_values_give_the_same_interval(self) -> None:
        assert bootstrap(values(7, 10)) == bootstrap(values(7, 10))

    def test_it_is_close_to_wilson_for_a_share(self) -> None:
        found, expected = bootstrap(values(300, 500)), wilson(300, 500)
        assert found.low == pytest.approx(expected.low, abs=0.01)
        assert found.high == pytest.approx(expected.high, abs=0.01)

    @pytest.mark.parametrize(
        ("values", "can"), [([0.1, 0.2] * 15, True), ([0.1, 0.2] * 14, False), ([0.5] * 60, False)]
    )
    def test_it_needs_enough_values_that_differ(self, values: list[float], can: bool) -> None:
        assert can_bootstrap(values) is can


class TestDifference:
    def test_of_many_scores(self) -> None:
        found = difference([0.5, 0.9, 0.4] * 20, [0.4, 0.7, 0.3] * 20)
        assert (found.mean, found.method) == (pytest.approx(0.4 / 3), "bootstrap")
        assert 0.1 < found.interval.low < found.mean < found.interval.high < 0.2

    def test_the_published_formula(self) -> None:
        """Of 100 pairs, one is right in 30, the other in 10: ((31 - 11) ± z √(42 - 20²/102)) / 102."""
        found = difference([1.0] * 30 + [0.0] * 70, [0.0] * 30 + [1.0] * 10 + [0.0] * 60)
        half = 1.959964 * (42 - 400 / 102) ** 0.5 / 102
        assert (found.mean, found.method) == (pytest.approx(0.2), "Bonett-Price")
        assert found.interval.low == pytest.approx(20 / 102 - half)
        assert found.interval.high == pytest.approx(20 / 102 + half)

    def test_one_question_shows_nothing(self) -> None:
        found = difference([1.0], [0.0]).interval
        assert (found.low < 0, found.high) == (True, 1)

    @pytest.mark.parametrize(("pairs", "width"), [(10, 0.24), (500, 0.006)])
    def test_equal_scores_are_no_proof_of_equality(self, pairs: int, width: float) -> None:
        found = difference([0.5] * pairs, [0.5] * pairs)
        assert found.interval.high == -found.interval.low == pytest.approx(width, rel=0.1)

    @pytest.mark.parametrize("pairs", [1, 2, 3, 5, 10, 30])
    def test_the_interval_holds_the_true_difference(self, pairs: int) -> None:
        chance = Random(pairs)
        held = 0
        for _ in range(300):
            found = difference(*([chance.random() < share for _ in range(pairs)] for share in (0.8, 0.6)))
            held += found.interval.low <= 0.2 <= found.interval.high
        assert held >= 0.93 * 300


class TestKendall:
    @pytest.mark.parametrize(
        ("first", "second", "tau"),
        [
            ([1, 2, 3, 4], [1, 2, 3, 4], 1.0),
            ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
            ([1, 2, 3, 4], [1, 2, 4, 3], 4 / 6),
            ([1, 2, 3, 4, 5], [3, 4, 1, 2, 5], 0.2),
            ([1, 1, 2, 3], [1, 2, 3, 4], 5 / (5 * 6) ** 0.5),  # one tie in the first
            ([1, 1], [1, 2], None),
        ],
    )
    def test_hand_made_rankings(self, first: list[float], second: list[float], tau: float | None) -> None:
        found = kendall_tau_b(first, second)
        assert found == (None if tau is None else pytest.approx(tau))
