"""Every boundary of every decision, as a table. 100 tokens are the threshold, 20 stay, B is 20, 120 block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist.counting import count_parts
from diarist.memory.observational.config import ObservationalMemoryConfig, ObservationConfig, ReflectionConfig
from diarist.memory.observational.decide import (
    Action,
    Limits,
    Sizes,
    choose_chunks,
    decide_observation,
    decide_reflection,
    limits_of,
    plan_reflection,
    worth_buffering,
)
from diarist.memory.observational.message_units import (
    free_chunks,
    newest_half,
    observable_units,
    select_rows,
    split_batches,
    tokens_of,
)
from diarist.messages import Message, SentBlock, ToolPart
from diarist.storage.records import Observation, ObservationLog, Source
from tests.memory.observational.harness import NOON, WordCounter, assistant, ids, small_config, user

WAIT, BUFFER, ACTIVATE, OBSERVE, REFLECT = Action


def limits(**observation: float) -> Limits:
    """Without buffering, unless ``buffer_tokens`` says otherwise."""
    return limits_of(small_config(**observation))  # type: ignore[arg-type]


BUFFERING = limits(buffer_tokens=20)
AWAITING = limits()


def window(p: int = 0, q: int = 0, o: int = 0, **more: object) -> Sizes:
    """``p`` tokens of raw rows; ``q`` that may be observed and that no chunk covers; ``o`` of notes."""
    more = {"reflectable": True, "fresh_tokens": q, **more}
    return Sizes(message_tokens=p, observation_tokens=o, **more)  # type: ignore[arg-type]


# -- thresholds


def test_the_defaults_as_numbers_of_tokens() -> None:
    assert limits_of(ObservationalMemoryConfig(model="extractive")) == Limits(
        message_tokens=30_000,
        retained_tokens=6_000,
        block_tokens=36_000,
        buffer_tokens=6_000,
        least_tokens=3_000,
        batch_tokens=24_000,
        observation_tokens=40_000,
        reflection_start_tokens=20_000,
        reflection_block_tokens=48_000,
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"buffer_tokens": 0.5}, {"buffer_tokens": 5_000, "least_tokens": 2_500, "batch_tokens": 10_000}),
        ({"buffer_tokens": 700}, {"buffer_tokens": 700, "least_tokens": 350, "batch_tokens": 8_000}),
        ({"buffer_tokens": 700, "observer_batch_tokens": 90}, {"buffer_tokens": 700, "batch_tokens": 90}),
        ({"block_after": 1.5}, {"block_tokens": 15_000}),
        ({"block_after": 1.999}, {"block_tokens": 19_990}),
        ({"block_after": 12_345}, {"block_tokens": 12_345}),
        ({"buffer_activation": 0.7}, {"retained_tokens": 3_000, "batch_tokens": 7_000}),
        ({"buffer_activation": 1}, {"retained_tokens": 0}),
        ({"buffer_activation": 1_000}, {"retained_tokens": 1_000}),  # from here on: what stays
        ({"buffer_activation": 9_999}, {"retained_tokens": 9_999, "batch_tokens": 4_000}),
        (
            {"buffer_tokens": False},
            {"buffer_tokens": None, "block_tokens": 10_000, "least_tokens": 1_000, "batch_tokens": 10_000},
        ),
        ({"buffer_tokens": False, "block_after": 5.0e4}, {"block_tokens": 10_000}),
    ],
)
def test_options_as_numbers_of_tokens(options: dict[str, float], expected: dict[str, float]) -> None:
    config = ObservationalMemoryConfig(
        model="extractive",
        observation=ObservationConfig(message_tokens=10_000, **options),  # type: ignore[arg-type]
    )
    made = limits_of(config)
    assert {name: getattr(made, name) for name in expected} == expected


def test_without_buffering_the_log_is_condensed_while_the_run_waits() -> None:
    assert (AWAITING.observation_tokens, AWAITING.reflection_block_tokens) == (1000, 1000)
    assert (BUFFERING.observation_tokens, BUFFERING.reflection_block_tokens) == (1000, 1200)


def shared(p: int, o: int, *, activation: float = 0.8) -> Limits:
    config = ObservationalMemoryConfig(
        model="extractive",
        observation=ObservationConfig(message_tokens=3_000, buffer_tokens=False, buffer_activation=activation),
        reflection=ReflectionConfig(observation_tokens=4_000),
        share_token_budget=True,
    )
    return limits_of(config, message_tokens=p, observation_tokens=o)


@pytest.mark.parametrize(
    ("p", "o", "messages", "observations"),
    [
        (0, 0, 7_000, 4_000),  # 3,000 of the budget stay for messages, in any case
        (3_000, 0, 7_000, 4_000),
        (3_500, 500, 6_500, 4_000),
        (0, 3_999, 3_001, 4_000),
        (0, 4_000, 3_000, 4_000),
        (0, 9_000, 3_000, 4_000),  # each keeps what is its own
        (9_000, 9_000, 3_000, 4_000),
    ],
)
def test_a_shared_budget_lends_what_the_other_side_leaves(p: int, o: int, messages: int, observations: int) -> None:
    made = shared(p, o)
    assert (made.message_tokens, made.block_tokens) == (messages, messages)
    assert (made.observation_tokens, made.reflection_block_tokens) == (observations, observations)
    assert made.retained_tokens == messages // 5  # a share of what is in force
    assert shared(p, o, activation=1_000).retained_tokens == 1_000  # a number stays what it is


@given(st.integers(0, 20_000), st.integers(0, 20_000))
def test_a_shared_budget_reduces_no_other_limit(p: int, o: int) -> None:
    made = shared(p, o)
    assert made.message_tokens == max(3_000, 7_000 - o)
    assert made.observation_tokens == max(4_000, 7_000 - max(p, 3_000)) == 4_000
    assert made.retained_tokens < made.message_tokens


# -- observing


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (window(99, 99), WAIT),
        (window(100, 100), OBSERVE),  # inclusive
        (window(100, 10), OBSERVE),  # a tenth of the threshold is worth it
        (window(100, 9), WAIT),
        (window(50_000, 9), WAIT),  # a large pinned input
        (window(50_000, 0), WAIT),
        (window(120, 120, observer_ready=False), WAIT),
        (window(120, 120, reflector_ready=False), OBSERVE),
        (window(120, 120, may_wait=False), WAIT),
        (window(120, 120, o=5_000), OBSERVE),
        (window(99, 99, chunks=(50,)), WAIT),
        (window(100, 50, chunks=(50,)), ACTIVATE),  # made while it was configured otherwise
    ],
)
def test_when_to_observe_while_the_run_waits(size: Sizes, expected: Action) -> None:
    assert decide_observation(size, AWAITING) is expected


@pytest.mark.parametrize(
    ("message_tokens", "observable", "expected"),
    [(30_000, 999, WAIT), (30_000, 1_000, OBSERVE), (100, 9, WAIT), (100, 10, OBSERVE)],
)
def test_the_amount_worth_observing_without_buffering(message_tokens: int, observable: int, expected: Action) -> None:
    made = limits(message_tokens=message_tokens)
    assert decide_observation(window(message_tokens, observable), made) is expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        # in the background: B, and half of it from T - 1.1 B = 78 on
        (window(19, 19), WAIT),
        (window(20, 20), BUFFER),
        (window(77, 19), WAIT),
        (window(77, 20), BUFFER),
        (window(78, 9), WAIT),
        (window(78, 10), BUFFER),
        (window(20, 20, observing=True), WAIT),
        (window(20, 20, reflecting=True), BUFFER),
        (window(20, 20, observer_ready=False), WAIT),
        (window(20, 20, reflector_ready=False), BUFFER),
        (window(20, 20, may_wait=False), BUFFER),  # it does not wait
        (window(60, 60, fresh_tokens=19, chunks=(41,)), WAIT),  # what a chunk covers does not count
        (window(60, 60, fresh_tokens=20, chunks=(40,)), BUFFER),
        # activation
        (window(99, 99, fresh_tokens=0, chunks=(40, 40)), WAIT),
        (window(100, 100, fresh_tokens=0, chunks=(40, 40)), ACTIVATE),
        (window(120, 9, chunks=(1,)), ACTIVATE),  # whatever there is
        (window(100, 100, chunks=(50,), observing=True), ACTIVATE),
        (window(100, 100, chunks=(50,), may_wait=False), ACTIVATE),
        (window(100, 100, chunks=(40,), observer_ready=False), ACTIVATE),
        (window(500, 500, chunks=(40,)), ACTIVATE),  # before anybody waits
        # between T and K T nobody waits
        (window(100, 100), BUFFER),
        (window(119, 119), BUFFER),
        (window(119, 119, observing=True), WAIT),
        (window(119, 9), WAIT),
        # at K T the run waits
        (window(120, 120), OBSERVE),
        (window(120, 120, observing=True), OBSERVE),  # for the job that runs, at first
        (window(120, 10), OBSERVE),
        (window(120, 9), WAIT),  # a large pinned input
        (window(50_000, 9), WAIT),
        (window(50_000, 50_000, fresh_tokens=9), WAIT),  # nor where a chunk waits that may not be activated yet
        (window(120, 120, observer_ready=False), WAIT),
        (window(120, 120, may_wait=False), BUFFER),
        (window(120, 120, may_wait=False, observing=True), WAIT),
        # a cold cache
        (window(60, 60, fresh_tokens=0, chunks=(40,)), WAIT),
        (window(60, 60, fresh_tokens=0, chunks=(40,), cold=True), ACTIVATE),
        (window(20, 20, chunks=(10,), cold=True), BUFFER),  # what stays is little enough
        (window(60, 60, cold=True), BUFFER),
        (window(10, 10, cold=True), WAIT),
    ],
)
def test_when_to_buffer_to_activate_and_to_wait(size: Sizes, expected: Action) -> None:
    assert decide_observation(size, BUFFERING) is expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (window(60, 1, chunks=(30,), gap=True), BUFFER),  # however small
        (window(60, 1, chunks=(30,), gap=True, observing=True), WAIT),
        (window(100, 1, chunks=(80,), gap=True), BUFFER),
        (window(100, 1, chunks=(80,), gap=True, observing=True), WAIT),
        (window(100, 1, chunks=(80,), gap=True, observer_ready=False), ACTIVATE),
        (window(100, 1, chunks=(80,), gap=True, cold=True), ACTIVATE),
        (window(120, 1, chunks=(80,), gap=True, observing=True), OBSERVE),
        (window(120, 1, chunks=(80,), gap=True, observing=True, may_wait=False), ACTIVATE),
        (window(120, 1, chunks=(80,), gap=True), ACTIVATE),
    ],
)
def test_notes_wait_for_those_of_older_rows(size: Sizes, expected: Action) -> None:
    assert decide_observation(size, BUFFERING) is expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        # half of the window leaves, or less
        (window(100, 50, chunks=(50,), observing=True), ACTIVATE),
        (window(100, 51, chunks=(49,), observing=True), WAIT),
        (window(119, 60, chunks=(30, 30), observing=True), ACTIVATE),
        (window(119, 60, chunks=(30, 29), observing=True), WAIT),
        # whether the Observer is at work, or not
        (window(100, 10, chunks=(49,)), BUFFER),
        (window(100, 9, chunks=(49,)), WAIT),
        (window(100, 0, chunks=(49,), observing=True), WAIT),
        (window(100, 51, chunks=(49,), observer_ready=False), ACTIVATE),
        (window(100, 51, chunks=(49,), observing=True, may_wait=False), WAIT),  # this wait takes no time
        # the window is full: the turn waits for what is under way, if it may
        (window(120, 61, chunks=(59,), observing=True), OBSERVE),
        (window(120, 61, chunks=(60,), observing=True), ACTIVATE),
        (window(120, 61, chunks=(59,), observing=True, may_wait=False), ACTIVATE),
        (window(120, 61, chunks=(59,)), ACTIVATE),
        # nothing is read again that would not be anyway
        (window(100, 51, chunks=(49,), observing=True, cold=True), ACTIVATE),
        (window(60, 10, chunks=(10,), observing=True, cold=True), ACTIVATE),
    ],
)
def test_notes_wait_for_more_where_less_leaves_than_stays(size: Sizes, expected: Action) -> None:
    assert decide_observation(size, BUFFERING) is expected


@pytest.mark.parametrize(
    ("buffer_tokens", "tokens", "expected"),
    [(20, 77, 20), (20, 78, 10), (20, 500, 10), (30, 66, 30), (30, 67, 15), (95, 0, 48), (0.2, 77, 20)],
)
def test_chunks_are_half_as_large_where_the_window_is_nearly_full(
    buffer_tokens: float, tokens: int, expected: int
) -> None:
    found = [
        worth_buffering(window(tokens, fresh), limits(buffer_tokens=buffer_tokens)) for fresh in range(expected + 1)
    ]
    assert found == [False] * expected + [True]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (window(19, 19), False),
        (window(20, 20), True),
        (window(110, 110, fresh_tokens=10, chunks=(100,)), True),  # although there is something to activate
        (window(500, 500), True),  # although the next step would wait
        (window(500, 500, observing=True), False),
        (window(500, 500, observer_ready=False), False),
    ],
)
def test_work_started_at_the_end_of_a_run(size: Sizes, expected: bool) -> None:
    assert worth_buffering(size, BUFFERING) is expected
    assert not worth_buffering(size, AWAITING)


@given(st.integers(0, 300), st.integers(0, 300), st.booleans(), st.booleans(), st.booleans())
def test_nothing_is_started_or_awaited_for_less_than_half_a_chunk(
    p: int, fresh: int, observing: bool, ready: bool, may_wait: bool
) -> None:
    size = window(p, p, fresh_tokens=fresh, observing=observing, observer_ready=ready, may_wait=may_wait)
    action = decide_observation(size, BUFFERING)
    if action in (BUFFER, OBSERVE):
        assert fresh >= 10
        assert ready
    if action is BUFFER:
        assert not observing
    if action is OBSERVE:
        assert p >= 120
        assert may_wait


# -- which chunks


@pytest.mark.parametrize(
    ("tokens", "chunks", "expected"),
    [
        (100, (), 0),
        (99, (99,), 0),
        (100, (80,), 1),  # exactly what has to go: 100 - 20
        (100, (40, 40), 2),
        (100, (40, 40, 10), 2),  # the smallest number that gets there
        (100, (40, 39), 2),  # not there, and all there is
        (100, (30,), 1),
        (110, (90, 10), 1),
        # too much would go (0.95 of 20 is 19): one less
        (150, (70, 79), 1),  # 149 go where 130 should, but only one token would stay
        (119, (60, 58), 1),  # 118 where 99 should: 19 too much, but one token would stay
        (119, (60, 39), 2),
        (119, (60, 40), 1),
    ],
)
def test_which_chunks_are_activated(tokens: int, chunks: tuple[int, ...], expected: int) -> None:
    assert choose_chunks(chunks, tokens, BUFFERING) == expected


LARGE = limits(message_tokens=30_000, buffer_tokens=6_000)  # 6,000 stay, 36,000 block; 0.95 of 6,000 is 5,700


@pytest.mark.parametrize(
    ("tokens", "chunks", "expected"),
    [
        (30_000, (10_000, 14_000), 2),
        (30_000, (10_000, 18_999), 2),  # 28,999: 4,999 too much, 1,001 stay
        (30_000, (10_000, 19_000), 2),  # 1,000 stay
        (30_000, (10_000, 19_001), 1),  # 999 would stay: one less
        (35_000, (10_000, 24_700), 1),  # 300 would stay
        (35_999, (10_000, 24_999), 2),
        (35_999, (10_000, 25_000), 1),  # 999 would stay
        (30_000, (29_001,), 1),  # 999 stay, but one less is none
        (30_000, (30_000,), 1),
        (30_000, (6_000,) * 5, 4),
    ],
)
def test_a_thousand_tokens_stay_where_one_less_will_do(tokens: int, chunks: tuple[int, ...], expected: int) -> None:
    assert choose_chunks(chunks, tokens, LARGE) == expected


HALF = limits(message_tokens=30_000, buffer_tokens=6_000, buffer_activation=0.5)  # 15,000 stay, 14,250 too much


@pytest.mark.parametrize(
    ("tokens", "chunks", "expected"),
    [
        (34_000, (10_000, 23_000), 2),  # 33,000 of 19,000: 14,000 too much, 1,000 stay
        (35_500, (10_000, 24_500), 2),  # 34,500 of 20,500: 14,000
        (35_500, (10_000, 24_750), 1),  # 14,250 too much, but only 750 would stay
        (36_000, (10_000, 25_000), 2),  # the window is full: nobody minds what goes beyond
        (36_000, (10_000, 25_001), 1),  # a thousand stay all the same
    ],
)
def test_how_far_the_reading_goes_beyond_the_due_messages(tokens: int, chunks: tuple[int, ...], expected: int) -> None:
    assert choose_chunks(chunks, tokens, HALF) == expected


ALL = limits(message_tokens=30_000, buffer_tokens=6_000, buffer_activation=25_000)  # 25,000 stay; 23,750 too much
TENTH = limits(message_tokens=100_000, buffer_tokens=6_000, buffer_activation=1_000)  # 1,000 stay; 950 too much


@pytest.mark.parametrize(
    ("made", "tokens", "chunks", "expected"),
    [
        (ALL, 30_000, (5_000, 6_000), 1),
        (ALL, 30_000, (4_000, 25_000), 1),  # 29,000 of 5,000 is 24,000 too much
        (ALL, 30_000, (4_000, 24_750), 2),  # 23,750
        (ALL, 30_000, (4_000, 24_751), 1),  # 23,751
        (ALL, 35_999, (4_000, 30_750), 1),
        (ALL, 36_000, (4_000, 30_751), 2),  # full: 23,751 are not too much
        (TENTH, 100_000, (50_000, 49_000), 2),
        (TENTH, 100_000, (50_000, 49_001), 1),
        (TENTH, 120_000, (50_000, 69_001), 1),
    ],
)
def test_an_absolute_activation_says_how_much_stays(
    made: Limits, tokens: int, chunks: tuple[int, ...], expected: int
) -> None:
    assert choose_chunks(chunks, tokens, made) == expected


@pytest.mark.parametrize(
    ("tokens", "chunks", "expected"),
    [
        (20, (10,), 0),  # nothing has to go
        (5, (5,), 0),
        (21, (1, 10), 1),
        (60, (40, 10), 1),
        (60, (20, 10), 2),
    ],
)
def test_a_cold_cache_activates_below_the_threshold(tokens: int, chunks: tuple[int, ...], expected: int) -> None:
    assert choose_chunks(chunks, tokens, BUFFERING, cold=True) == expected
    assert choose_chunks(chunks, tokens, BUFFERING) == 0


some_chunks = st.lists(st.integers(1, 12_000), max_size=8)
some_limits = st.sampled_from(
    [
        limits(message_tokens=30_000, buffer_activation=activation, buffer_tokens=buffer)
        for activation in (0.01, 0.5, 0.8, 0.99, 1.0, 1_000, 6_000, 29_999)
        for buffer in (3_000, 6_000, 20_000)
    ]
)


@given(some_chunks, st.integers(0, 20_000), some_limits, st.booleans())
def test_activation_makes_progress_and_keeps_what_it_can(
    chunks: list[int], rest: int, made: Limits, cold: bool
) -> None:
    tokens = sum(chunks) + rest
    count = choose_chunks(chunks, tokens, made, cold=cold)
    assert 0 <= count <= len(chunks)
    full, excess = tokens >= made.message_tokens, tokens - made.retained_tokens
    if not full and not cold:
        assert count == 0
    elif chunks and excess > 0:
        assert count >= 1
        assert count == 1 or sum(chunks[: count - 1]) < excess  # never one more than it takes
    if count and full:
        assert choose_chunks(chunks, tokens, made, cold=True) == count  # cold changes nothing where it is due


@given(some_chunks, st.integers(0, 20_000), some_limits)
def test_activation_ends_below_the_threshold_or_without_chunks(chunks: list[int], rest: int, made: Limits) -> None:
    left = list(chunks)
    while count := choose_chunks(left, sum(left) + rest, made):
        left = left[count:]
    assert not left or sum(left) + rest < made.message_tokens


# -- reflecting


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (window(o=999), WAIT),
        (window(o=1000), REFLECT),
        (window(o=1000, reflectable=False), WAIT),
        (window(o=1000, reflector_ready=False), WAIT),
        (window(o=1000, observer_ready=False), REFLECT),
        (window(o=1000, may_wait=False), WAIT),
        (window(o=1000, reflection_waits=True), ACTIVATE),
        (window(o=999, reflection_waits=True), WAIT),
    ],
)
def test_when_to_reflect_while_the_run_waits(size: Sizes, expected: Action) -> None:
    assert decide_reflection(size, AWAITING) is expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        # from half of the threshold on, in the background
        (window(o=499), WAIT),
        (window(o=500), BUFFER),
        (window(o=500, reflecting=True), WAIT),
        (window(o=500, observing=True), BUFFER),
        (window(o=500, reflection_waits=True), WAIT),
        (window(o=500, reflectable=False), WAIT),  # or did not pay before
        (window(o=500, reflector_ready=False), WAIT),
        (window(o=500, may_wait=False), BUFFER),
        (window(o=1000), BUFFER),
        (window(o=1199), BUFFER),
        (window(o=1199, reflecting=True), WAIT),
        # what waits is taken in at the threshold
        (window(o=999, reflection_waits=True), WAIT),
        (window(o=1000, reflection_waits=True), ACTIVATE),
        (window(o=1000, reflection_waits=True, reflecting=True), ACTIVATE),
        (window(o=1000, reflection_waits=True, reflector_ready=False, may_wait=False), ACTIVATE),
        (window(o=5000, reflection_waits=True, reflectable=False), ACTIVATE),
        # from 1.2 times the threshold on the run waits
        (window(o=1200), REFLECT),
        (window(o=1200, reflecting=True), REFLECT),  # for the job that runs, at first
        (window(o=1200, may_wait=False), BUFFER),
        (window(o=1200, may_wait=False, reflecting=True), WAIT),
        (window(o=1200, reflectable=False), WAIT),
        (window(o=1200, reflector_ready=False), WAIT),
    ],
)
def test_when_to_reflect_in_the_background(size: Sizes, expected: Action) -> None:
    assert decide_reflection(size, BUFFERING) is expected


# -- rows


def counted(*rows: Message) -> list[Message]:
    for seq, row in enumerate(rows, start=1):
        row.seq, row.part_tokens, row.run_id = seq, count_parts(row, WordCounter()), row.run_id or "old"
    return list(rows)


def turns(*sizes: int) -> list[Message]:
    """Turns of a user's and an assistant's message of the same size: ``u1 a1 u2 a2 …``."""
    pairs = ((user(f"u{n}", size), assistant(f"a{n}", size)) for n, size in enumerate(sizes, start=1))
    return counted(*(row for pair in pairs for row in pair))


def selected(raw: list[Message], pinned: tuple[str, ...] = (), **options: float) -> list[str]:
    units = select_rows(raw, observable_units(raw, pinned), limits(**options))
    return [row.id for unit in units for row in unit]


def test_the_oldest_rows_go_until_a_fifth_stays() -> None:
    raw = turns(10, 10, 10, 10, 10)
    assert selected(raw) == ids(raw[:8])  # 100 - 20 = 80


def test_a_turn_may_be_cut() -> None:
    raw = counted(user("u1", 10), *(assistant(f"a{n}", 30) for n in range(5)), user("u2", 30))
    assert tokens_of(raw) == 190
    assert selected(raw, ("u2",)) == ["u1", "a0", "a1", "a2", "a3", "a4"]
    raw = counted(user("u1", 10), *(assistant(f"a{n}", 45) for n in range(4)))
    assert selected(raw) == ["u1", "a0", "a1", "a2", "a3"]


def test_everything_goes_where_pinned_rows_fill_the_window() -> None:
    raw = counted(*turns(10), user("huge", 500))
    assert selected(raw, ("huge",)) == ["u1", "a1"]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20), st.data())
def test_a_selection_is_a_prefix_that_gets_below_the_threshold_where_it_can(
    sizes: list[int], data: st.DataObject
) -> None:
    roles = [data.draw(st.sampled_from([user, assistant])) for _ in sizes]
    raw = counted(*(role(f"m{n}", size) for n, (role, size) in enumerate(zip(roles, sizes, strict=True))))
    taken = selected(raw)
    assert taken == ids(raw[: len(taken)])
    assert taken
    if tokens_of(raw) >= 100:
        assert tokens_of(raw[len(taken) :]) < 100


def call(id: str, call_id: str, *, state: str = "call", role: str = "assistant") -> Message:
    part = ToolPart(call_id=call_id, name="ask", args={}, state=state, result=None if state == "call" else "yes")  # type: ignore[arg-type]
    return Message(id=id, role=role, parts=[part], created_at=NOON)  # type: ignore[arg-type]


def test_nothing_is_observed_from_a_pending_call_on() -> None:
    raw = counted(user("u1", 5), call("c1", "x"), assistant("a1", 5))
    assert observable_units(raw, ()) == [[raw[0]]]


def test_a_new_user_turn_closes_a_pending_call() -> None:
    raw = counted(user("u1", 5), call("c1", "x"), user("u2", 5))
    assert [ids(unit) for unit in observable_units(raw, ())] == [["u1"], ["c1"], ["u2"]]


def test_a_call_and_its_late_result_are_never_parted() -> None:
    raw = counted(user("u1", 5), call("c1", "x"), call("r1", "x", state="result", role="tool"), assistant("a1", 5))
    assert [ids(unit) for unit in observable_units(raw, ())] == [["u1"], ["c1", "r1"], ["a1"]]
    assert [ids(unit) for unit in observable_units(raw, ("r1",))] == [["u1"], ["a1"]]


def test_what_memory_sent_along_counts() -> None:
    rows = turns(10)
    rows[0].sent = SentBlock(text="note", tokens=7)
    assert tokens_of(rows) == 27


@given(st.lists(st.tuples(st.integers(0, 70), st.booleans()), max_size=30))
def test_batches_keep_order_size_and_owner(rows: list[tuple[int, bool]]) -> None:
    raw = [user(f"m{n}", size) for n, (size, _) in enumerate(rows)]
    for row, (_, own) in zip(raw, rows, strict=True):
        row.run_id = "mine" if own else "old"
    counted(*raw)
    batches = split_batches([[row] for row in raw], 40, "mine")
    assert [row for batch in batches for row in batch] == raw
    for batch in batches:
        assert tokens_of(batch) <= 40 or len([row for row in batch if tokens_of([row])]) == 1
        assert len({row.run_id for row in batch}) == 1


def test_a_small_rest_is_no_call_of_its_own() -> None:
    raw = [user("m0", 5), user("m1", 60), user("m2", 7), user("m3", 30), user("m4", 20), user("m5", 3)]
    counted(*raw)
    batches = split_batches([[row] for row in raw], 40, "mine", least=10)
    assert [[row.id for row in batch] for batch in batches] == [["m0", "m1"], ["m2", "m3"], ["m4", "m5"]]


def test_a_small_rest_never_joins_rows_of_another_owner() -> None:
    raw = [user("m0", 30), user("m1", 3)]
    raw[1].run_id = "mine"
    counted(*raw)
    assert len(split_batches([[row] for row in raw], 40, "mine", least=10)) == 2


# -- chunks that may be activated


def free(chunks: Sequence[int], raw: list[Message], pinned: tuple[str, ...] = (), limit: int = 100) -> int:
    """Chunks of so many rows each, from the oldest on."""
    ends = list(accumulate(chunks))
    return free_chunks([raw[end - count : end] for end, count in zip(ends, chunks, strict=True)], raw, pinned, limit)


@pytest.mark.parametrize(
    ("chunks", "pinned", "limit", "expected"),
    [
        ((2, 2, 2, 2), (), 60, 2),  # the newest two turns stay
        ((2, 2, 2, 2), (), 41, 2),
        ((2, 2, 2, 2), (), 40, 4),  # unless the others are not enough
        ((2, 2, 2, 2), ("a4",), 40, 3),
        ((4, 4), (), 60, 1),
        ((5, 3), (), 90, 0),  # a chunk that reaches into them
        ((5, 3), (), 40, 2),
        ((2, 2), ("u1",), 60, 0),
        ((2, 2), ("a2",), 60, 1),
        ((2, 2), ("u2", "u4"), 1, 1),  # never what is pinned, nor what comes after it
        ((), (), 1, 0),
    ],
)
def test_pinned_rows_and_the_newest_two_turns_stay(
    chunks: tuple[int, ...], pinned: tuple[str, ...], limit: int, expected: int
) -> None:
    assert free(chunks, turns(10, 10, 10, 10), pinned, limit) == expected  # 80 tokens


def test_a_conversation_of_one_turn_is_given_up_where_it_is_long() -> None:
    raw = counted(user("u1", 10), *(assistant(f"a{n}", 30) for n in range(4)))
    assert free((2, 2), raw, (), 200) == 0
    assert free((2, 2), raw, (), 100) == 2
    assert free((1, 2), raw, ("u1",), 100) == 0


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.lists(st.integers(1, 4), max_size=8),
    st.sets(st.integers(0, 11), max_size=2),
    st.integers(1, 300),
)
def test_free_chunks_are_the_oldest_and_never_pinned(
    sizes: list[int], chunks: list[int], pinned: set[int], limit: int
) -> None:
    raw = turns(*sizes)
    while sum(chunks) > len(raw):
        chunks = chunks[:-1]
    names = tuple(raw[index].id for index in pinned if index < len(raw))
    count = free(chunks, raw, names, limit)
    taken = ids(raw[: sum(chunks[:count])])
    assert not set(taken) & set(names)
    newest = {f"{role}{n}" for role in "ua" for n in (len(sizes), len(sizes) - 1)}
    if set(taken) & newest:
        ends = [end for end in accumulate(chunks) if not set(ids(raw[:end])) & newest]
        assert tokens_of(raw[max(ends, default=0) :]) >= limit  # the others were not enough


# -- a window that the provider takes


def test_the_newest_half_of_a_window_begins_with_a_question() -> None:
    raw = turns(10, 10, 10, 10)
    assert newest_half(raw, (), halvings=0) == raw
    assert ids(newest_half(raw, (), halvings=1)) == ["u3", "a3", "u4", "a4"]
    assert ids(newest_half(raw, (), halvings=2)) == ["u4", "a4"]
    assert ids(newest_half(raw, ("u1",), halvings=2)) == ["u1", "u4", "a4"]
    assert newest_half(raw, (), halvings=5) == []
    assert ids(newest_half(raw, ("a4",), halvings=5)) == ["a4-opening", "a4"]


def log_of(*tokens: int, **more: object) -> ObservationLog:
    entries = tuple(
        Observation(
            id=f"o{n}",
            text=f"note {n}",
            tokens=size,
            sources=(Source(thread_id="t", first_seq=n, last_seq=n, digest="0"),),
            message_tokens=size,
            message_count=1,
            observed_at=NOON,
            cycle_id=f"c{n}",
        )
        for n, size in enumerate(tokens, start=1)
    )
    return ObservationLog(key="thread:t", scope="thread", resource_id="r", entries=entries, **more)  # type: ignore[arg-type]


def test_a_reflection_takes_the_oldest_entries_and_aims_at_three_fifths() -> None:
    plan = plan_reflection(log_of(*[100] * 10), 1000)
    assert plan is not None
    assert [entry.id for entry in plan.entries] == [f"o{n}" for n in range(1, 9)]  # twice the 400 too many
    assert (plan.tokens, plan.target_tokens) == (800, 400)
    assert plan.limit_tokens == 720


def test_a_single_entry_is_reflected_once() -> None:
    log = log_of(1200)
    plan = plan_reflection(log, 1000)
    assert plan is not None
    assert plan.target_tokens == 600
    reflected = replace(log, entries=(replace(log.entries[0], kind="reflection"),))
    assert plan_reflection(reflected, 1000) is None


def test_a_reflection_is_condensed_again_together_with_another_entry() -> None:
    log = log_of(900, 200)
    log = replace(log, entries=(replace(log.entries[0], kind="reflection"), log.entries[1]))
    plan = plan_reflection(log, 1000)
    assert plan is not None
    assert len(plan.entries) == 2


def test_entries_of_a_live_run_are_left_alone() -> None:
    log = log_of(500, 500, 500)
    log = replace(log, entries=(*log.entries[:2], replace(log.entries[2], run_id="live")))
    plan = plan_reflection(log, 1000)
    assert plan is not None
    assert [entry.id for entry in plan.entries] == ["o1", "o2"]
    assert plan.target_tokens == 250  # a quarter of its input at least


def test_what_did_not_shrink_is_not_tried_again() -> None:
    log = log_of(600, 600)
    plan = plan_reflection(log, 1000)
    assert plan is not None
    assert plan_reflection(replace(log, suppressed=(plan.cycle_id,)), 1000) is None


def test_a_reflection_in_the_background_is_planned_for_the_log_as_it_will_be() -> None:
    plan = plan_reflection(log_of(*[100] * 5), 1000)
    assert plan is not None
    assert len(plan.entries) == 5
    assert plan.target_tokens == 125  # a quarter of its input at least


def test_nothing_is_planned_for_an_empty_log() -> None:
    assert plan_reflection(log_of(), 1000) is None
    assert plan_reflection(log_of(0, 0), 1000) is None


def test_another_entry_is_another_chance() -> None:
    log = log_of(600, 600)
    plan = plan_reflection(log, 1000)
    assert plan is not None
    assert plan_reflection(replace(log_of(600, 600, 600), suppressed=(plan.cycle_id,)), 1000) is not None


def test_buffered_chunks_are_no_part_of_a_reflection() -> None:
    log = log_of(600, 600, 600)
    log = replace(log, entries=(*log.entries[:2], replace(log.entries[2], state="buffered")))
    plan = plan_reflection(log, 1000)
    assert plan is not None
    assert [entry.id for entry in plan.entries] == ["o1", "o2"]
