"""Every boundary of every decision, as a table. 100 tokens are the threshold, 20 stay, B is 20."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist.counting import count_parts
from diarist.memory.observational.decide import (
    Action,
    decide_observation,
    decide_reflection,
    leave_newest,
    plan_reflection,
    select_rows,
    split_batches,
)
from diarist.memory.observational.window import Window, observable_units, tokens_of
from diarist.messages import Message, SentBlock, ToolPart
from diarist.storage.records import Observation, ObservationLog, Source
from tests.memory.observational.harness import NOON, WordCounter, assistant, ids, small_config, user

WAIT, OBSERVE, REFLECT = Action.WAIT, Action.OBSERVE, Action.REFLECT


def window(p: int = 0, q: int = 0, o: int = 0, **more: bool) -> Window:
    more = {"reflectable": True, **more}
    return Window(message_tokens=p, observable_tokens=q, observation_tokens=o, **more)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (window(99, 99), WAIT),
        (window(100, 100), OBSERVE),  # inclusive
        (window(100, 10), OBSERVE),  # half of B is worth it
        (window(100, 9), WAIT),
        (window(50_000, 9), WAIT),  # a large pinned input
        (window(50_000, 0), WAIT),
        (window(120, 120, observer_ready=False), WAIT),
        (window(120, 120, reflector_ready=False), OBSERVE),
        (window(120, 120, o=5_000), OBSERVE),
    ],
)
def test_when_to_observe(size: Window, expected: Action) -> None:
    assert decide_observation(size, small_config()) is expected


@pytest.mark.parametrize(
    ("message_tokens", "observable", "expected"),
    [(30_000, 999, WAIT), (30_000, 1_000, OBSERVE), (100, 9, WAIT), (100, 10, OBSERVE)],
)
def test_what_is_worth_observing_without_buffering(message_tokens: int, observable: int, expected: Action) -> None:
    config = small_config(message_tokens, buffer_tokens=False)
    assert decide_observation(window(message_tokens, observable), config) is expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (window(o=999), WAIT),
        (window(o=1000), REFLECT),
        (window(o=1000, reflectable=False), WAIT),
        (window(o=1000, reflector_ready=False), WAIT),
        (window(o=1000, observer_ready=False), REFLECT),
    ],
)
def test_when_to_reflect(size: Window, expected: Action) -> None:
    assert decide_reflection(size, small_config()) is expected


def counted(*rows: Message) -> list[Message]:
    for seq, row in enumerate(rows, start=1):
        row.seq, row.part_tokens, row.run_id = seq, count_parts(row, WordCounter()), row.run_id or "old"
    return list(rows)


def turns(*sizes: int) -> list[Message]:
    """Turns of a user's and an assistant's message of the same size: ``u1 a1 u2 a2 …``."""
    pairs = ((user(f"u{n}", size), assistant(f"a{n}", size)) for n, size in enumerate(sizes, start=1))
    return counted(*(row for pair in pairs for row in pair))


def selected(raw: list[Message], pinned: tuple[str, ...] = (), **options: float) -> list[str]:
    units = select_rows(raw, observable_units(raw, pinned), small_config(**options).observation)  # type: ignore[arg-type]
    return [row.id for unit in units for row in unit]


def test_the_oldest_rows_go_until_a_fifth_stays() -> None:
    raw = turns(10, 10, 10, 10, 10)
    assert selected(raw) == ids(raw[:8])  # 100 - 20 = 80


def test_the_rest_of_a_turn_is_taken_along_where_it_is_short() -> None:
    raw = counted(*turns(30, 5), user("u3", 8), assistant("a3", 9), user("u4", 16))
    assert tokens_of(raw) == 103  # 83 have to go: 70, 78, then 87 would do
    assert selected(raw) == ids(raw[:6])


def test_a_long_turn_is_left_whole_where_that_is_enough() -> None:
    raw = counted(*turns(20), user("u2", 30), assistant("a2", 30), assistant("a2b", 39))
    assert selected(raw) == ids(raw[:2])  # a cut at 80 would leave 39 tokens of an answer without its question


def test_a_turn_is_cut_where_nothing_else_helps() -> None:
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


def test_a_manual_observation_can_leave_the_newest_rows() -> None:
    raw = turns(10, 10)
    units = observable_units(raw, ())
    assert len(leave_newest(units, raw, 0)) == 4
    assert len(leave_newest(units, raw, 20)) == 2
    assert len(leave_newest(units, raw, 21)) == 1
    assert leave_newest(units, raw, 41) == []


def log_of(*tokens: int, **more: object) -> ObservationLog:
    entries = tuple(
        Observation(
            id=f"o{n}",
            text=f"note {n}",
            tokens=size,
            sources=(Source(thread_id="t", first_seq=n, last_seq=n, digest=""),),
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
