"""Observational memory through its engine, on both storages: what a turn may count on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from diarist.exceptions import ConflictError, ModelConnectionError, StorageError, ThreadBusyError
from diarist.memory.observational.engine import RunMemory
from diarist.memory.observational.events import without_words
from diarist.memory.observational.log.coverage import Coverage
from diarist.memory.observational.manual import observe_now
from diarist.memory.observational.message_units import tokens_of
from diarist.messages import Message, SentBlock, TextPart
from diarist.storage import InMemoryStorage, ObservationLog, RowRef, Storage
from tests.memory.observational.harness import (
    Conversation,
    FakeObserver,
    FakeReflector,
    assert_exactly_once,
    assistant,
    grown,
    ids,
    prepare_step,
    small_config,
    tool_step,
    user,
)


@pytest.fixture
def chat(storage: Storage) -> Conversation:
    return Conversation(storage)


# -- observing


async def test_below_the_threshold_nothing_happens(chat: Conversation) -> None:
    await grown(chat)
    memory = await chat.turn(user("q", 19))
    assert chat.observer.calls == []
    assert memory.window.blocks() == []
    assert ids(memory.window.messages())[-1] == "q"
    assert chat.types() == ["status"]


async def test_at_the_threshold_the_oldest_rows_become_notes_and_leave_the_window(chat: Conversation) -> None:
    await grown(chat)
    memory = await chat.turn(user("q", 20))
    assert chat.observer.calls == [["u1", "a1", "u2", "a2"], ["u3", "a3", "u4", "a4"]]  # 40 tokens each
    assert ids(memory.window.messages()) == ["q"]
    assert len(memory.window.blocks()) == 3
    assert "- u1 noted" not in memory.window.blocks()[0]
    assert chat.types() == ["observation-start", "observation-end"] * 2 + ["status"]
    await assert_exactly_once(chat, memory)


async def test_the_observer_sees_what_was_noted_before(chat: Conversation) -> None:
    await grown(chat)
    await chat.turn(user("q", 20))
    assert chat.observer.earlier == ["", "- u1\n- a1\n- u2\n- a2"]


async def test_a_later_run_finds_the_notes_and_does_not_load_what_they_cover(chat: Conversation) -> None:
    await grown(chat)
    before = await chat.turn(user("q", 20))
    after = await chat.open()
    assert ids(after.window.rows) == ["q"]
    assert after.window.blocks() == before.window.blocks()


async def test_prompt_blocks_only_grow(chat: Conversation) -> None:
    blocks: list[str] = []
    for n in range(30):
        memory = await chat.turn(user(f"u{n}", 12), assistant(f"a{n}", 9))
        assert memory.window.blocks()[: len(blocks)] == blocks
        assert memory.window.messages()[0].role == "user"
        blocks = memory.window.blocks()
        await assert_exactly_once(chat, await chat.open())
    assert len(blocks) > 4


class CountedReads(InMemoryStorage):
    rows_read = 0

    async def list_messages(self, thread_id, **options):  # type: ignore[no-untyped-def, override]
        rows = await super().list_messages(thread_id, **options)
        self.rows_read += len(rows)
        return rows


async def test_a_turn_reads_no_more_rows_in_a_long_thread() -> None:
    storage = CountedReads()
    chat = Conversation(storage)
    costs: list[int] = []
    for n in range(80):
        before = storage.rows_read
        await chat.turn(user(f"u{n}", 12), assistant(f"a{n}", 9))
        costs.append(storage.rows_read - before)
    assert max(costs[40:]) == max(costs[:40]) < 40


async def test_discarded_runs_leave_no_gap_in_the_coverage(chat: Conversation) -> None:
    for n in range(12):
        run = await chat.begin(user(f"no{n}", 5))
        await chat.drop_run(run.id)
        await chat.storage.finish_run(run, "discarded")
        await chat.turn(user(f"u{n}", 15), assistant(f"a{n}", 5))
    log = await chat.log()
    memory = await chat.open()
    end = Coverage(log.entries, chat.thread).holes()[0][0]
    assert end == (memory.window.rows[0].seq or 0) - 2  # the discarded one between
    await assert_exactly_once(chat, memory)


async def test_system_rows_are_neither_shown_nor_observed(chat: Conversation) -> None:
    await chat.commit(Message.system("be brief", id="s"), *(user(f"u{n}", 10) for n in range(8)))
    memory = await chat.turn(user("q", 20))
    assert "s" not in [id for call in chat.observer.calls for id in call]
    assert ids((await chat.open()).window.rows) == ids(memory.window.messages()) == ["q"]


async def test_one_huge_message_is_one_call_and_takes_small_neighbours_along(chat: Conversation) -> None:
    await chat.commit(user("u1", 5), assistant("huge", 500), user("u2", 5), assistant("a2", 5))
    await chat.turn(user("q", 5))
    assert chat.observer.calls == [["u1", "huge"]]


async def test_a_large_pinned_input_does_not_call_the_observer_at_every_step(chat: Conversation) -> None:
    await chat.commit(user("u1", 4), assistant("a1", 4))
    run = await chat.begin(user("huge", 400))
    memory = await chat.open(run)
    for step in range(10):
        pinned = {"huge", f"s{step - 1}"}
        await prepare_step(memory, step, pinned=pinned)
        memory.window.add(await chat.store(run, tool_step(f"s{step}", 4)))
    assert len(chat.observer.calls) <= 5
    assert "huge" not in [id for call in chat.observer.calls for id in call]
    assert len(chat.data("status")) == 10


async def test_an_answer_cut_off_from_its_question_is_shown_with_it(chat: Conversation) -> None:
    await chat.commit(user("u1", 10), *(assistant(f"a{n}", 45) for n in range(3)))
    run = await chat.begin(user("q", 5))
    memory = await chat.open(run)
    original = chat.observer.observe

    async def fail_later(messages, *, earlier):  # type: ignore[no-untyped-def]
        if len(chat.observer.calls) == 2:
            chat.observer.fail = ModelConnectionError("down")
        return await original(messages, earlier=earlier)

    chat.observer.observe = fail_later  # type: ignore[method-assign]
    await prepare_step(memory, 0, pinned={"q"})
    assert ids(memory.window.rows) == ["a1", "a2", "q"]
    assert ids(memory.window.messages()) == ["u1", "a1", "a2", "q"]
    reopened = await chat.open(run)
    assert ids(reopened.window.messages()) == ["u1", "a1", "a2", "q"]


async def test_a_thread_that_begins_with_the_assistant_gets_a_stand_in(chat: Conversation) -> None:
    await chat.commit(assistant("hello", 3), user("u1", 3))
    window = (await chat.open()).window.messages()
    assert [message.role for message in window] == ["user", "assistant", "user"]
    assert window[0].id == "hello-opening"


async def test_observe_all_works_a_thread_off_batch_by_batch(chat: Conversation) -> None:
    await grown(chat)
    progress: list[tuple[int, int]] = []
    await observe_now(
        chat.engine, "ada", chat.thread, progress=lambda *now: progress.append(now), emit=chat.parts.append
    )
    assert progress == [(0, 80), (40, 80), (80, 80)]
    assert (await chat.open()).window.rows == []
    assert chat.types() == ["observation-start", "observation-end"] * 2
    await observe_now(chat.engine, "ada", chat.thread)
    assert len(chat.observer.calls) == 2


async def test_observe_all_raises_and_keeps_what_was_done(chat: Conversation) -> None:
    await grown(chat)

    def stop(done: int, total: int) -> None:
        if done:
            chat.observer.fail = ModelConnectionError("down")

    with pytest.raises(ModelConnectionError):
        await observe_now(chat.engine, "ada", chat.thread, progress=stop, emit=chat.parts.append)
    assert ids((await chat.open()).window.rows) == ["u3", "a3", "u4", "a4"]
    assert chat.data("observation-failed")[0]["willRetry"] is False
    chat.observer.fail = None
    await observe_now(chat.engine, "ada", chat.thread)  # no back-off for one who asks
    assert (await chat.open()).window.rows == []


# -- what goes wrong


async def test_a_failing_observer_costs_nothing_but_an_event(chat: Conversation) -> None:
    await grown(chat)
    chat.observer.fail = ModelConnectionError("down")
    run = await chat.begin(user("q", 20))
    memory = await chat.open(run)
    await prepare_step(memory, 0, pinned={"q"})
    chat.clock.advance(60)
    await prepare_step(memory, 1, pinned={"q"})
    assert len(chat.observer.calls) == 1  # a run does not wait again, even where the key could be tried again
    assert tokens_of(memory.window.messages()) == 100
    assert chat.types() == ["observation-start", "observation-failed", "status", "status"]
    failed = chat.data("observation-failed")[0]
    assert (failed["error"], failed["attempt"], failed["willRetry"], failed["tokensAttempted"]) == ("down", 1, True, 40)
    assert failed["cycleId"] == chat.data("observation-start")[0]["cycleId"]


@pytest.mark.parametrize("error", [ValueError("a bug in somebody's Observer"), TimeoutError()])
async def test_whatever_an_observer_raises_the_turn_goes_on(chat: Conversation, error: Exception) -> None:
    await grown(chat)
    chat.observer.fail = error
    memory = await chat.turn(user("q", 20))
    assert len(memory.window.messages()) == 9
    assert chat.data("observation-failed")[0]["error"]


async def test_empty_notes_cover_nothing(chat: Conversation) -> None:
    await grown(chat)

    async def nothing(messages, *, earlier):  # type: ignore[no-untyped-def]
        return await FakeObserver().observe([], earlier=earlier)

    chat.observer.observe = nothing  # type: ignore[method-assign]
    memory = await chat.turn(user("q", 20))
    assert len(memory.window.messages()) == 9
    assert memory.log.entries == ()
    assert "no notes" in str(chat.data("observation-failed")[0]["error"])


async def test_after_a_failure_the_key_backs_off_and_then_tries_again(chat: Conversation) -> None:
    await grown(chat)
    chat.observer.fail = ModelConnectionError("down")
    await chat.turn(user("q1", 20))
    chat.observer.fail = None
    await chat.turn(user("q2", 5))
    assert len(chat.observer.calls) == 1
    chat.clock.advance(30)
    memory = await chat.turn(user("q3", 5))
    assert ids(memory.window.messages()) == ["q2", "q3"]
    assert (await chat.log()).observer_failures.count == 0


async def test_a_failure_by_a_clock_that_is_ahead_stops_no_other_process(chat: Conversation) -> None:
    await grown(chat)
    chat.observer.fail = ModelConnectionError("down")
    chat.clock.advance(1_000_000)
    await chat.turn(user("q1", 20))
    chat.observer.fail = None
    chat.clock.advance(-1_000_000)
    await chat.turn(user("q2", 5))
    assert (await chat.log()).observer_failures.count == 0


async def test_a_slow_observer_is_given_up_and_the_turn_goes_on(storage: Storage) -> None:
    chat = await grown(Conversation(storage, config=small_config(observe_timeout=0.5)))
    chat.observer.gate = asyncio.Event()  # never set
    memory = await chat.turn(user("q", 20))
    assert len(memory.window.messages()) == 9
    assert "0.5 s" in str(chat.data("observation-failed")[0]["error"])
    assert (await chat.log()).observer_failures.count == 1


async def test_cancellation_passes_through_and_leaves_the_lease_free(chat: Conversation) -> None:
    await grown(chat)
    chat.observer.gate = asyncio.Event()
    run = await chat.begin(user("q", 20))
    memory = await chat.open(run)
    step = asyncio.create_task(prepare_step(memory, 0, pinned={"q"}))
    await chat.observer.started.wait()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert await chat.storage.acquire_lease("thread:trip:observation", "next", ttl=1) is not None
    assert not [task for task in asyncio.all_tasks() if "_renew" in repr(task)]


class LostRaces(InMemoryStorage):
    """Refuses the first saves of a log, as if another process had saved first each time."""

    refusals = 0

    async def save_log(
        self, log: ObservationLog, *, expected_version: int, rows: Sequence[RowRef] = ()
    ) -> ObservationLog:
        if self.refusals:
            self.refusals -= 1
            raise ConflictError("somebody else was first")
        return await super().save_log(log, expected_version=expected_version)


async def test_a_lost_race_is_run_again_without_asking_the_observer_again() -> None:
    storage = LostRaces()
    chat = await grown(Conversation(storage))
    storage.refusals = 4
    memory = await chat.turn(user("q", 20))
    assert ids(memory.window.messages()) == ["q"]
    assert len(chat.observer.calls) == 2


class BrokenLogs(InMemoryStorage):
    """Its logs cannot be saved, nor its events; messages can."""

    async def save_log(
        self, log: ObservationLog, *, expected_version: int, rows: Sequence[RowRef] = ()
    ) -> ObservationLog:
        raise StorageError("disk full")

    async def append_event(self, key, type, data):  # type: ignore[no-untyped-def, override]
        raise StorageError("disk full")


async def test_logs_that_cannot_be_saved_do_not_stop_a_turn() -> None:
    chat = await grown(Conversation(BrokenLogs()))
    memory = await chat.turn(user("q", 20))
    assert len(memory.window.messages()) == 9
    assert chat.data("observation-failed")[0]["error"] == "disk full"


class NoLeases(InMemoryStorage):
    async def acquire_lease(self, name: str, owner: str, *, ttl: float) -> None:
        raise StorageError("no connection")


async def test_work_that_cannot_even_begin_is_reported() -> None:
    chat = await grown(Conversation(NoLeases()))
    memory = await chat.turn(user("q", 20))
    assert chat.types() == ["observation-failed", "status"]
    assert len(memory.window.messages()) == 9


# -- several at once


async def test_of_two_engines_one_observes(storage: Storage) -> None:
    chat = await grown(Conversation(storage))
    other = Conversation(storage, parts=chat.parts)
    chat.observer.gate = asyncio.Event()
    first = asyncio.create_task(observe_now(chat.engine, "ada", chat.thread))
    await chat.observer.started.wait()
    await other.turn(user("q", 20))  # skips this cycle
    with pytest.raises(ThreadBusyError, match="observed by another process"):
        await observe_now(other.engine, "ada", chat.thread)
    assert other.observer.calls == []
    chat.observer.gate.set()
    await first
    assert chat.observer.calls == [["u1", "a1", "u2", "a2"], ["u3", "a3", "u4", "a4"]]


async def test_observations_of_another_process_are_not_paid_for_again(chat: Conversation) -> None:
    await grown(chat)
    run = await chat.begin(user("q", 20))
    memory = await chat.open(run)
    await observe_now(Conversation(chat.storage).engine, "ada", chat.thread)
    await prepare_step(memory, 0, pinned={"q"})
    assert chat.observer.calls == []
    assert ids(memory.window.messages()) == ["q"]


class FreeLeases(InMemoryStorage):
    """Everybody gets every lease: what correctness must not depend on."""

    async def acquire_lease(self, name: str, owner: str, *, ttl: float):  # type: ignore[no-untyped-def, override]
        return await super().acquire_lease(f"{name}:{owner}", owner, ttl=ttl)


async def test_without_leases_the_second_result_is_dropped() -> None:
    storage = FreeLeases()
    chat = await grown(Conversation(storage))
    other = Conversation(storage, config=small_config(observer_batch_tokens=60))
    chat.observer.gate = asyncio.Event()
    first = asyncio.create_task(observe_now(chat.engine, "ada", chat.thread, emit=chat.parts.append))
    await chat.observer.started.wait()
    await observe_now(other.engine, "ada", chat.thread)
    chat.observer.gate.set()
    await first
    memory = await chat.open()
    assert len(memory.log.entries) == 2
    assert chat.types() == ["observation-start", "observation-failed"]
    await assert_exactly_once(chat, memory)


async def test_the_same_work_done_twice_is_kept_once() -> None:
    storage = FreeLeases()
    chat = await grown(Conversation(storage))
    await asyncio.gather(*(observe_now(Conversation(storage).engine, "ada", chat.thread) for _ in range(3)))
    memory = await chat.open()
    assert len(memory.log.entries) == 2
    await assert_exactly_once(chat, memory)


async def test_rows_that_change_under_the_observer_stay_raw(chat: Conversation) -> None:
    await grown(chat)
    chat.observer.gate = asyncio.Event()
    run = await chat.begin(user("q", 20))
    memory = await chat.open(run)
    step = asyncio.create_task(prepare_step(memory, 0, pinned={"q"}))
    await chat.observer.started.wait()
    await chat.storage.delete_messages(chat.thread, ["a1"])
    chat.observer.gate.set()
    await step
    assert memory.log.entries == ()
    assert "changed" in str(chat.data("observation-failed")[0]["error"])
    assert (await chat.log()).observer_failures.count == 0  # nobody's fault


# -- live runs


async def long_loop(chat: Conversation, *, guarded: bool = False):  # type: ignore[no-untyped-def]
    """A run with twelve steps of 15 tokens each, as the agent's loop makes them."""
    await chat.commit(user("u1", 10), assistant("a1", 10))
    run = await chat.begin(user("q", 10), guarded=guarded)
    memory = await chat.open(run)
    newest: set[str] = set()
    for step in range(12):
        await prepare_step(memory, step, pinned={"q", *newest})
        window = memory.window.messages()
        assert window[0].role == "user"
        assert {"q", *newest} <= set(ids(window))
        assert tokens_of(memory.window.rows) < 130
        newest = {f"s{step}"}
        memory.window.add(await chat.store(run, tool_step(f"s{step}", 15)))
    return run, memory


async def test_a_long_tool_loop_is_observed_while_it_runs(chat: Conversation) -> None:
    run, memory = await long_loop(chat)
    assert {entry.run_id for entry in memory.log.entries} == {None, run.id}
    assert (await chat.log()).entries == memory.log.entries[:1]  # others do not see them yet
    await chat.storage.finish_run(run, "committed")
    await chat.close_run(run.id)
    log = await chat.log()
    assert len(log.entries) == len(memory.log.entries)
    assert {entry.run_id for entry in log.entries} == {None}
    await assert_exactly_once(chat, await chat.open())


async def test_a_discarded_run_takes_its_entries_with_it(chat: Conversation) -> None:
    run, memory = await long_loop(chat)
    await chat.drop_run(run.id)
    await chat.storage.finish_run(run, "discarded")
    log = await chat.storage.get_log("thread:trip")
    assert log is not None
    assert log.entries == memory.log.entries[:1]
    after = await chat.open()
    assert after.window.rows == []
    await assert_exactly_once(chat, after)


@pytest.mark.parametrize("state", ["committed", "interrupted", "discarded"])
async def test_an_end_that_a_crash_cut_short_is_finished_by_the_next_run(chat: Conversation, state: str) -> None:
    run, memory = await long_loop(chat)
    await chat.storage.finish_run(run, state)  # type: ignore[arg-type]
    after = await chat.open()
    log = await chat.storage.get_log("thread:trip")
    assert log is not None
    assert {entry.run_id for entry in log.entries} == {None}
    assert len(after.log.entries) == (1 if state == "discarded" else len(memory.log.entries))
    await assert_exactly_once(chat, after)


async def test_notes_of_an_interrupted_guarded_run_do_not_count(chat: Conversation) -> None:
    run, _ = await long_loop(chat, guarded=True)
    await chat.storage.finish_run(run, "interrupted")
    after = await chat.open()
    assert len(after.log.entries) == 1
    assert ids(after.window.rows) == ["q"]
    await assert_exactly_once(chat, after)


async def test_a_discard_that_a_crash_cut_short_is_finished(chat: Conversation) -> None:
    run, _ = await long_loop(chat)
    await chat.drop_run(run.id)
    await chat.storage.finish_run(run, "interrupted")  # adopted by another process, which did not know
    after = await chat.open()
    assert after.window.rows == []
    assert ids(await chat.storage.list_messages(chat.thread)) == ["u1", "a1"]


async def test_rows_rewritten_at_the_end_lose_their_notes(chat: Conversation) -> None:
    run, memory = await long_loop(chat)
    redacted = tool_step("s0", 15)
    redacted.parts = [TextPart(text="redacted")]
    await chat.storage.rewrite_messages(run, [redacted])
    await chat.storage.finish_run(run, "committed")
    await chat.close_run(run.id)
    after = await chat.open()
    assert len(after.log.entries) < len(memory.log.entries)
    assert "s0" in ids(after.window.rows)
    await assert_exactly_once(chat, after)


async def test_rows_rewritten_within_the_run_are_raw_again(chat: Conversation) -> None:
    run, memory = await long_loop(chat)
    [redacted] = [row for row in await chat.storage.list_messages(chat.thread, run_id=run.id) if row.id == "s0"]
    redacted.parts = [TextPart(text="redacted")]
    await chat.storage.rewrite_messages(run, [redacted])
    await memory.drop_notes_of([redacted])
    assert "s0" in ids(memory.window.rows)
    assert memory.window.rows[ids(memory.window.rows).index("s0")].text == "redacted"
    assert not any("- s0" in block for block in memory.window.blocks())
    await assert_exactly_once(chat, memory, run.id)


# -- reflection


def reflecting(storage: Storage, **more: object) -> Conversation:
    """Notes of ten words a row; the log is condensed at 100 tokens."""
    observer = FakeObserver(words=10)
    return Conversation(storage, config=small_config(100, 100), observer=observer, **more)  # type: ignore[arg-type]


async def fill(chat: Conversation, turns: int = 12) -> RunMemory:
    for n in range(turns):
        memory = await chat.turn(user(f"u{n}", 12), assistant(f"a{n}", 9))
    return memory


async def test_a_long_log_is_condensed_into_a_new_generation(storage: Storage) -> None:
    chat = reflecting(storage)
    memory = await fill(chat)
    assert memory.log.generation > 0
    assert memory.log.tokens < 100
    assert memory.log.entries[0].kind == "reflection"
    assert memory.window.blocks()[1].startswith("<observations>\nkept kept")
    await assert_exactly_once(chat, await chat.open())
    generations = await storage.list_generations("thread:trip")
    assert [log.generation for log in generations] == list(range(memory.log.generation))
    ends = [part for part in chat.data("observation-end") if part["operationType"] == "reflection"]
    assert len(ends) == memory.log.generation


async def test_a_reflection_that_hardly_shrinks_changes_nothing_until_an_entry_joins(storage: Storage) -> None:
    chat = reflecting(storage, reflector=FakeReflector(size=1000))
    memory = await fill(chat, 11)
    assert len(chat.reflector.calls) == 1
    assert memory.log.generation == 0
    assert "hardly shortened" in str(chat.data("observation-failed")[0]["error"])
    assert (await chat.log()).reflector_failures.count == 0
    await chat.turn(user("small", 1))
    assert len(chat.reflector.calls) == 1
    chat.reflector.size = None
    observed = len(memory.log.entries)
    memory = await chat.turn(user("large", 90))
    assert len(memory.log.entries) != observed
    assert len(chat.reflector.calls) == 2
    assert memory.log.generation == 1


async def test_a_failing_reflector_leaves_the_log_as_it_is(storage: Storage) -> None:
    chat = reflecting(storage, reflector=FakeReflector(fail=ModelConnectionError("down")))
    memory = await fill(chat)
    assert memory.log.generation == 0
    assert len(chat.reflector.calls) == 1  # then the key backs off
    assert (await chat.log()).reflector_failures.count == 1
    chat.clock.advance(30)
    chat.reflector.fail = None
    assert (await chat.turn(user("q", 1))).log.generation == 1


async def test_observe_all_condenses_on_its_way(storage: Storage) -> None:
    chat = reflecting(storage)
    await chat.commit(*(user(f"u{n}", 20) for n in range(40)))
    await observe_now(chat.engine, "ada", chat.thread, emit=chat.parts.append)
    log = await chat.log()
    assert log.generation > 1
    assert log.tokens < 100
    await assert_exactly_once(chat, await chat.open())


# -- what is reported


async def test_the_status_equals_a_recount(chat: Conversation) -> None:
    await grown(chat)
    for n in range(6):
        memory = await chat.turn(user(f"q{n}", 17))
        rows = [row for row in await chat.storage.list_messages(chat.thread) if row.id in set(ids(memory.window.rows))]
        status = chat.data("status")[-1]
        assert status == {
            "windows": {
                "active": {
                    "messages": {"tokens": sum(len(row.text.split()) for row in rows), "threshold": 100},
                    "observations": {
                        "tokens": sum(len(entry.text.split()) for entry in memory.log.entries),
                        "threshold": 1000,
                    },
                },
                "buffered": {
                    "observations": {
                        "chunks": 0,
                        "messageTokens": 0,
                        "projectedMessageRemoval": 0,
                        "observationTokens": 0,
                        "status": "idle",
                    },
                    "reflection": {"inputObservationTokens": 0, "observationTokens": 0, "status": "idle"},
                },
            },
            "recordId": "thread:trip#0",
            "threadId": "trip",
            "stepNumber": 0,
            "generationCount": 0,
        }


async def test_events_carry_their_fields_and_are_kept(chat: Conversation) -> None:
    await grown(chat)
    chat.observer.task = "book a hotel"
    await chat.turn(user("q", 20))
    start, end = chat.data("observation-start")[0], chat.data("observation-end")[0]
    head = {"operationType": "observation", "recordId": "thread:trip#0", "threadId": "trip", "cycleId": end["cycleId"]}
    assert start == head | {
        "startedAt": "2026-03-02T12:00:00+00:00",
        "tokensToObserve": 40,
        "threadIds": ["trip"],
        "config": {"messageTokens": 100, "observationTokens": 1000, "scope": "thread"},
    }
    assert end == head | {
        "completedAt": "2026-03-02T12:00:00+00:00",
        "durationMs": 0,
        "tokensObserved": 40,
        "observationTokens": 8,
        "observations": "- u1\n- a1\n- u2\n- a2",
        "currentTask": "book a hotel",
        "usage": {
            "inputTokens": 10,
            "outputTokens": 3,
            "cachedTokens": 0,
            "cacheWriteTokens": 0,
            "reasoningTokens": 0,
        },
    }
    kept = await chat.storage.list_events("thread:trip")
    assert [(event.type, event.data) for event in kept] == [(part.type, without_words(part)) for part in chat.parts]


async def test_the_note_for_a_message_is_told_once_and_counts(chat: Conversation) -> None:
    first = user("q1", 5)
    run = await chat.begin()
    memory = await chat.open(run)
    first.sent = memory.window.sent_block(chat.clock())
    assert first.sent is not None
    memory.window.add(await chat.store(run, first))
    assert memory.window.sent_block(chat.clock()) == first.sent  # its own message does not count as earlier
    await prepare_step(memory, 0, pinned={"q1"})
    status = chat.data("status")[0]
    assert status["windows"]["active"]["messages"]["tokens"] == 5 + first.sent.tokens  # type: ignore[index]
    await chat.storage.finish_run(run, "committed")
    later = await chat.open()
    assert later.window.rows[0].sent == first.sent
    assert later.window.sent_block(chat.clock()) is None


async def test_when_the_note_leaves_the_window_it_is_told_again(chat: Conversation) -> None:
    noted = user("u0", 2)
    noted.sent = SentBlock(text="<memory-note>…</memory-note>", tokens=1, made_from={"date": "2026-03-02"})
    await chat.commit(noted)
    await grown(chat)
    memory = await chat.turn(user("q", 20))
    block = memory.window.sent_block(chat.clock())
    assert block is not None
    assert "Monday, 2 March 2026" in block.text
