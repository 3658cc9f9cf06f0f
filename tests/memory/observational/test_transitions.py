"""A log never covers a row twice, whatever is applied, how often, and in which order."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist.memory.observational.log import transitions
from diarist.memory.observational.log.coverage import Coverage
from diarist.storage.records import Observation, ObservationLog, Source, Tombstone

NOW = datetime(2026, 3, 2, tzinfo=UTC)
EMPTY = ObservationLog(key="thread:t", scope="thread", resource_id="r")


def entry(
    first: int, last: int, *, run_id: str | None = None, text: str = "note", task: str | None = None
) -> Observation:
    sources = (Source(thread_id="t", first_seq=first, last_seq=last, digest=f"{first:032x}"),)
    cycle = transitions.cycle_id("thread:t", "observation", sources)
    return Observation(
        id=f"obs_{cycle}",
        text=text,
        tokens=10,
        sources=sources,
        message_tokens=100,
        message_count=last - first + 1,
        observed_at=NOW,
        cycle_id=cycle,
        run_id=run_id,
        current_task=task,
    )


def reflection(*replaced: Observation) -> Observation:
    sources = tuple(source for old in replaced for source in old.sources)
    cycle = transitions.cycle_id("thread:t", "reflection", sources, [old.cycle_id for old in replaced])
    return replace(replaced[0], id=f"ref_{cycle}", sources=sources, cycle_id=cycle, kind="reflection", text="short")


entries = st.builds(
    lambda first, size, run: entry(first, first + size, run_id=run),
    st.integers(1, 30),
    st.integers(0, 6),
    st.sampled_from([None, "a", "b"]),
)
changes = st.one_of(
    entries.map(lambda e: ("add", e)),
    st.sampled_from(["a", "b"]).map(lambda run: ("drop", run)),
    st.sampled_from(["a", "b"]).map(lambda run: ("close", run)),
    st.integers(2, 4).map(lambda n: ("reflect", n)),
)


def apply(log: ObservationLog, change: tuple[str, object]) -> ObservationLog:
    match change:
        case ("add", Observation() as new):
            return transitions.add_observation(log, new)
        case ("drop", str(run)):
            return transitions.drop_run(log, run, "t")
        case ("close", str(run)):
            return transitions.close_entries(log, {e.id for e in log.entries if e.run_id == run})
        case ("reflect", int(count)):
            old = [e for e in log.entries if e.run_id is None][:count]
            return (
                transitions.add_reflection(log, reflection(*old), transitions.replaced_by(old)) if len(old) > 1 else log
            )
        case _:
            raise AssertionError(change)


def covered_rows(log: ObservationLog) -> list[int]:
    return [seq for e in log.entries for source in e.sources for seq in range(source.first_seq, source.last_seq + 1)]


@given(st.lists(changes, max_size=30))
def test_no_row_is_covered_twice_and_every_change_is_idempotent(history: list[tuple[str, object]]) -> None:
    log = EMPTY
    for change in history:
        log = apply(log, change)
        rows = covered_rows(log)
        assert len(rows) == len(set(rows))
        assert log.hints == transitions.derive_hints(log.entries)
        if change[0] != "reflect":  # its input is chosen from the log anew
            assert apply(log, change) == log


@given(st.lists(entries, max_size=8).flatmap(lambda es: st.tuples(st.just(es), st.permutations(es))))
def test_concurrent_results_differ_only_in_their_order(
    orders: tuple[list[Observation], list[Observation]],
) -> None:
    for order in orders:
        log = EMPTY
        for new in order:
            log = transitions.add_observation(log, new)
        rows = covered_rows(log)
        assert len(rows) == len(set(rows))
        for new in order:  # whatever was refused is covered by somebody else, or has come in
            coverage = Coverage(log.entries, "t")
            assert any(seq in coverage for seq in range(new.sources[0].first_seq, new.sources[0].last_seq + 1))


@given(st.lists(entries, min_size=1, max_size=10), st.sampled_from(["a", "b"]))
def test_nothing_of_a_discarded_run_comes_back(late: list[Observation], run: str) -> None:
    log = transitions.drop_run(EMPTY, run, "t")
    for new in late:
        log = transitions.add_observation(log, new)
    assert all(e.run_id != run for e in log.entries)


def test_erased_rows_do_not_come_back() -> None:
    log = replace(EMPTY, tombstones=(Tombstone(thread_id="t", first_seq=3, last_seq=5),))
    assert transitions.why_rejected(log, entry(5, 9)) == "the messages were erased"
    assert transitions.add_observation(log, entry(5, 9)) is log
    assert len(transitions.add_observation(log, entry(6, 9)).entries) == 1


def test_a_reflection_takes_the_place_of_what_it_replaces() -> None:
    log = EMPTY
    for new in (entry(1, 2), entry(3, 4), entry(5, 6)):
        log = transitions.add_observation(log, new)
    old = log.entries[:2]
    after = transitions.add_reflection(log, reflection(*old), transitions.replaced_by(old))
    assert after.generation == 1
    assert [e.kind for e in after.entries] == ["reflection", "observation"]
    assert covered_rows(after) == covered_rows(log)
    assert transitions.add_reflection(after, reflection(*old), transitions.replaced_by(old)) is after


def test_a_reflection_of_changed_entries_is_dropped() -> None:
    old = (entry(1, 2), entry(3, 4))
    log = transitions.add_observation(EMPTY, old[0])
    assert transitions.add_reflection(log, reflection(*old), transitions.replaced_by(old)) is log
    edited = transitions.add_observation(log, replace(old[1], text="edited"))
    assert transitions.add_reflection(edited, reflection(*old), transitions.replaced_by(old)) is edited


def test_a_closed_run_keeps_its_entries_and_loses_stale_ones() -> None:
    kept, stale = entry(1, 2, run_id="a"), entry(3, 4, run_id="a")
    log = transitions.add_observation(transitions.add_observation(EMPTY, kept), stale)
    closed = transitions.close_entries(log, [kept.id, stale.id], stale=[stale.id])
    assert [(e.id, e.run_id) for e in closed.entries] == [(kept.id, None)]


def test_hints_go_with_the_entries_that_brought_them() -> None:
    log = transitions.add_observation(EMPTY, entry(1, 2, task="book a flight"))
    log = transitions.add_observation(log, entry(3, 4, task="book a hotel", run_id="a"))
    log = transitions.add_observation(log, entry(5, 6))
    assert log.hints.current_task == "book a hotel"
    assert transitions.drop_run(log, "a", "t").hints.current_task == "book a flight"


def test_a_reflection_that_did_not_pay_is_tried_again_when_an_entry_joins() -> None:
    log = transitions.suppress(transitions.add_observation(EMPTY, entry(1, 2)), "cycle")
    assert transitions.suppress(log, "cycle") is log
    assert transitions.add_observation(log, entry(3, 4)).suppressed == ()


@pytest.mark.parametrize(("failures", "seconds"), [(0, 0), (1, 30), (2, 60), (3, 120), (5, 480), (6, 600), (50, 600)])
def test_back_off_doubles_up_to_ten_minutes(failures: int, seconds: int) -> None:
    log = EMPTY
    for number in range(failures):
        log = transitions.record_failure(log, "observation", at=NOW, error=f"error {number}")
    state = transitions.failures_of(log, "observation")
    assert not transitions.backing_off(state, NOW + timedelta(seconds=seconds))
    assert transitions.backing_off(state, NOW + timedelta(seconds=seconds - 1)) is (seconds > 0)
    assert transitions.record_success(log, "observation").observer_failures.count == 0


def test_the_same_failure_is_counted_once_and_kinds_are_kept_apart() -> None:
    log = transitions.record_failure(EMPTY, "observation", at=NOW, error="down")
    assert transitions.record_failure(log, "observation", at=NOW, error="down") is log
    assert log.reflector_failures.count == 0
