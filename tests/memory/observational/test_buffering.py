"""Work in the background, on both storages: what a turn may count on while the Observer works beside it.

100 tokens are the threshold, 20 stay, a chunk is 20 to 40, a turn waits at 120. ``grown`` makes 80.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

import pytest

from diarist.exceptions import ModelConnectionError
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.engine import RunMemory
from diarist.memory.observational.events import without_words
from diarist.memory.observational.log import transitions
from diarist.memory.observational.log.coverage import Coverage
from diarist.memory.observational.log.log_store import LogStore
from diarist.memory.observational.manual import observe_now
from diarist.memory.observational.message_units import tokens_of
from diarist.messages import TextPart
from diarist.storage import InMemoryStorage, Run, Storage
from tests.memory.observational.harness import (
    Conversation,
    FakeObserver,
    assert_exactly_once,
    assistant,
    grown,
    ids,
    prepare_step,
    send_status,
    small_config,
    tool_step,
    user,
)

FIRST, SECOND = ["u1", "a1", "u2", "a2"], ["u3", "a3", "u4", "a4"]


def buffering(message_tokens: int = 100, observation_tokens: int = 1000, **options: Any) -> ObservationalMemoryConfig:
    return small_config(message_tokens, observation_tokens, **{"buffer_tokens": 20, **options})


def quick() -> ObservationalMemoryConfig:
    """A run waits for a hundredth of a second."""
    return buffering(observe_timeout=0.01)


@pytest.fixture
def chat(storage: Storage) -> Conversation:
    return Conversation(storage, config=buffering())


async def buffered(chat: Conversation) -> Conversation:
    """80 tokens in two chunks, and a turn of five that had them made."""
    await grown(chat)
    await chat.turn(user("q1", 5))
    await chat.settled()
    assert chat.observer.calls == [FIRST, SECOND]
    return chat


async def held_up(chat: Conversation) -> asyncio.Event:
    """80 tokens, and a job at the first chunk that goes on when the event is set."""
    await grown(chat)
    chat.observer.gate = gate = asyncio.Event()
    await chat.turn(user("q1", 5))
    await chat.observer.started.wait()
    return gate


def other_process(chat: Conversation) -> Conversation:
    """Another engine on the same storage."""
    return Conversation(chat.storage, config=chat.config, clock=chat.clock)


# -- chunks


async def test_a_chunk_is_made_while_turns_go_on(chat: Conversation) -> None:
    gate = await held_up(chat)
    memory = await chat.turn(user("q2", 5))
    assert len(memory.window.messages()) == 10  # all is raw, and nobody waited
    assert memory.window.blocks() == []
    assert chat.background.waits == []
    assert chat.observer.calls == [FIRST]  # one job at a time
    gate.set()
    await chat.settled()
    log = await chat.stored()
    assert [entry.state for entry in log.entries] == ["buffered", "buffered"]
    assert [type for type in chat.types() if type != "status"] == ["buffering-start", "buffering-end"] * 2


async def test_rows_stay_raw_until_their_notes_are_activated(chat: Conversation) -> None:
    await buffered(chat)
    memory = await chat.turn(user("q2", 14))  # 99
    assert tokens_of(memory.window.rows) == 99
    assert memory.window.blocks() == []
    assert "activation" not in chat.types()
    await assert_exactly_once(chat, memory)


async def test_at_the_threshold_chunks_take_the_place_of_their_rows_at_once(chat: Conversation) -> None:
    await buffered(chat)
    memory = await chat.turn(user("q2", 15))  # 100
    assert ids(memory.window.messages()) == ["q1", "q2"]
    assert memory.window.blocks()[1:] == [
        "<observations>\n- u1\n- a1\n- u2\n- a2\n</observations>",
        "<observations>\n- u3\n- a3\n- u4\n- a4\n</observations>",
    ]
    assert len(chat.observer.calls) == 2  # nothing was observed again
    assert chat.background.waits == []
    await assert_exactly_once(chat, memory)
    [activation] = chat.data("activation")
    assert activation == {
        "cycleId": activation["cycleId"],
        "operationType": "observation",
        "recordId": "thread:trip#0",
        "threadId": "trip",
        "activatedAt": "2026-03-02T12:00:00+00:00",
        "chunksActivated": 2,
        "tokensActivated": 80,
        "observationTokens": 16,
        "messagesActivated": 8,
        "generationCount": 0,
        "observations": "- u1\n- a1\n- u2\n- a2\n- u3\n- a3\n- u4\n- a4",
        "triggeredBy": "threshold",
        "config": {"messageTokens": 100, "observationTokens": 1000, "scope": "thread"},
    }
    later = await chat.open()
    assert later.window.blocks() == memory.window.blocks()


async def test_prompt_blocks_only_grow(chat: Conversation) -> None:
    blocks: list[str] = []
    activations = 0
    for n in range(40):
        memory = await chat.turn(user(f"u{n}", 12), assistant(f"a{n}", 9))
        assert memory.window.blocks()[: len(blocks)] == blocks
        assert memory.window.messages()[0].role == "user"
        assert tokens_of(memory.window.rows) < 120
        more = len(memory.window.blocks()) > len(blocks)
        activations += more
        blocks = memory.window.blocks()
        await chat.settled()
        await assert_exactly_once(chat, await chat.open())
    assert activations > 5
    assert chat.background.waits == []
    assert "observation-start" not in chat.types()
    observed = [id for call in chat.observer.calls for id in call]
    assert len(observed) == len(set(observed))


async def test_chunks_that_another_process_made_are_activated(chat: Conversation) -> None:
    await buffered(other_process(chat))
    memory = await chat.turn(user("q2", 15))
    assert ids(memory.window.messages()) == ["q1", "q2"]
    assert chat.observer.calls == []


async def test_two_processes_do_not_make_the_same_chunk(chat: Conversation) -> None:
    gate = await held_up(chat)
    other = other_process(chat)
    await other.turn(user("q2", 5))
    await other.settled()  # its job found the work taken
    assert other.observer.calls == []
    gate.set()
    await chat.settled()
    assert len((await chat.stored()).buffered) == 2


async def test_a_chunk_that_comes_while_a_run_goes_on_is_activated_in_it(chat: Conversation) -> None:
    gate = await held_up(chat)
    run = await chat.begin(user("q2", 20))
    memory = await chat.open(run)
    await prepare_step(memory, 0, pinned={"q2"})
    assert len(memory.window.messages()) == 10  # 105: the turn goes on
    gate.set()
    await chat.settled()
    await prepare_step(memory, 1, pinned={"q2"})
    assert ids(memory.window.messages()) == ["q1", "q2"]


async def test_a_window_between_threshold_and_block_does_not_wait(chat: Conversation) -> None:
    gate = await held_up(chat)
    memory = await chat.turn(user("q2", 34))  # 119
    assert tokens_of(memory.window.rows) == 119
    assert chat.background.waits == []
    gate.set()
    await chat.settled()
    memory = await chat.turn(user("q3", 1))
    assert ids(memory.window.messages()) == ["q1", "q2", "q3"]


async def test_between_threshold_and_block_a_job_is_started_at_once(chat: Conversation) -> None:
    await chat.commit(user("u1", 4), assistant("a1", 5))
    await chat.turn(user("huge", 95), assistant("more", 5))
    assert chat.observer.calls == []  # nine tokens are too little, and the turn's own are pinned
    await chat.turn(user("q", 1))
    await chat.settled()
    assert [id for call in chat.observer.calls for id in call] == ["u1", "a1", "huge", "more"]


async def test_few_notes_wait_for_those_that_are_under_way(chat: Conversation) -> None:
    await chat.commit(user("u1", 10), assistant("a1", 10))
    await chat.turn(user("q1", 1))
    await chat.settled()
    assert chat.observer.calls == [["u1", "a1"]]
    chat.observer.gate = gate = asyncio.Event()
    await chat.commit(user("u2", 30), assistant("a2", 30))
    memory = await chat.turn(user("q2", 19))  # 100
    assert len(memory.window.messages()) == 6  # 20 tokens could leave, but 80 would be read again
    assert chat.background.waits == []
    turn = asyncio.create_task(chat.turn(user("q3", 20)))  # 120
    await chat.background.waiting.wait()
    gate.set()
    memory = await turn
    assert ids(memory.window.messages()) == ["q2", "q3"]
    assert [activation["tokensActivated"] for activation in chat.data("activation")] == [81]
    await assert_exactly_once(chat, memory)


async def test_few_notes_are_activated_if_the_turn_may_not_wait_longer(storage: Storage) -> None:
    chat = Conversation(storage, config=quick())
    await chat.commit(user("u1", 10), assistant("a1", 10))
    await chat.turn(user("q1", 1))
    await chat.settled()
    chat.observer.gate = gate = asyncio.Event()
    await chat.commit(user("u2", 30), assistant("a2", 30))
    await chat.turn(user("q2", 19))
    memory = await chat.turn(user("q3", 20))
    assert ids(memory.window.messages()) == ["q1", "u2", "a2", "q2", "q3"]
    gate.set()
    await chat.settled()


# -- a turn waits


async def test_a_full_window_waits_for_the_job_that_runs(chat: Conversation) -> None:
    gate = await held_up(chat)
    turn = asyncio.create_task(chat.turn(user("q2", 35)))  # 120
    await chat.background.waiting.wait()
    gate.set()
    memory = await turn
    assert ids(memory.window.messages()) == ["q1", "q2"]
    assert chat.observer.calls == [FIRST, SECOND]  # nothing twice
    assert chat.types()[-2:] == ["activation", "status"]
    assert "observation-start" not in chat.types()
    await assert_exactly_once(chat, memory)


async def test_a_full_window_without_chunks_is_observed_while_the_run_waits(chat: Conversation) -> None:
    await grown(chat)
    memory = await chat.turn(user("q", 40))
    assert ids(memory.window.messages()) == [*SECOND, "q"]  # only until the window is no more full
    assert chat.types()[:3] == ["observation-start", "observation-end", "status"]
    await chat.settled()  # the rest is done beside it
    assert chat.observer.calls == [FIRST, SECOND]
    assert [entry.state for entry in (await chat.stored()).entries] == ["active", "buffered"]


class WatchedLeases(InMemoryStorage):
    """Tells when a process asks for a lease that another process holds."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = asyncio.Event()

    async def acquire_lease(self, name: str, owner: str, *, ttl: float):  # type: ignore[no-untyped-def, override]
        lease = await super().acquire_lease(name, owner, ttl=ttl)
        if lease is None:
            self.refused.set()
        return lease


async def test_a_full_window_waits_for_the_job_of_another_process() -> None:
    storage = WatchedLeases()
    chat = Conversation(storage, config=buffering())
    gate = await held_up(chat)
    other = other_process(chat)
    turn = asyncio.create_task(other.turn(user("q2", 35)))
    await storage.refused.wait()
    gate.set()
    memory = await turn
    assert chat.observer.calls == [FIRST, SECOND]
    assert other.observer.calls == []
    assert "observation-failed" not in other.types()
    assert ids(memory.window.messages()) == ["q1", "q2"]
    await assert_exactly_once(chat, memory)


async def test_the_time_to_wait_is_that_of_the_run(storage: Storage) -> None:
    chat = Conversation(storage, config=quick())
    gate = await held_up(chat)
    run = await chat.begin(user("q2", 35))
    memory = await chat.open(run)
    for step in range(3):
        await prepare_step(memory, step, pinned={"q2"})
    assert len(chat.background.waits) == 1  # its time is used up
    assert tokens_of(memory.window.rows) == 120
    assert chat.observer.calls == [FIRST]
    assert (await chat.stored()).observer_failures.count == 0
    gate.set()
    await chat.settled()
    await prepare_step(memory, 3, pinned={"q2"})
    assert ids(memory.window.messages()) == ["q1", "q2"]  # what is there costs no time


async def test_a_call_goes_on_when_its_run_waits_no_longer(storage: Storage) -> None:
    # Long enough to come to the Observer, also where this machine has much else to do.
    chat = await grown(Conversation(storage, config=buffering(observe_timeout=0.5)))
    gate = chat.observer.gate = asyncio.Event()
    run = await chat.begin(user("q", 40))
    memory = await chat.open(run)
    await prepare_step(memory, 0, pinned={"q"})
    assert chat.types() == ["observation-start", "observation-failed", "status"]
    assert (await chat.stored()).observer_failures.count == 0
    gate.set()
    await chat.settled()
    assert chat.observer.calls == [FIRST]
    await prepare_step(memory, 1, pinned={"q"})
    assert ids(memory.window.messages()) == [*SECOND, "q"]
    assert chat.types()[3:] == ["observation-end", "activation", "status"]


async def test_other_runs_do_not_wait_for_what_a_run_has_left(storage: Storage) -> None:
    chat = await grown(Conversation(storage, config=buffering(observe_timeout=0.5)))
    gate = chat.observer.gate = asyncio.Event()
    await chat.turn(user("q", 40))
    waits = list(chat.background.waits)
    await chat.turn(user("q2", 1))
    assert chat.background.waits == waits
    gate.set()
    await chat.settled()
    memory = await chat.turn(user("q3", 1))
    assert ids(memory.window.messages()) == [*SECOND, "q", "q2", "q3"]


async def test_notes_that_come_after_the_end_of_their_run_are_kept(storage: Storage) -> None:
    chat = await grown(Conversation(storage, config=buffering(observe_timeout=0.5)))
    gate = chat.observer.gate = asyncio.Event()
    await chat.turn(user("q", 40))
    gate.set()
    await chat.settled()
    (entry,) = (await chat.stored()).entries
    assert (entry.state, entry.run_id) == ("buffered", None)
    memory = await chat.turn(user("q2", 1))
    assert ids(memory.window.messages()) == [*SECOND, "q", "q2"]
    await assert_exactly_once(chat, memory)


# -- failure


async def test_a_failing_job_is_told_and_the_key_backs_off(chat: Conversation) -> None:
    await grown(chat)
    chat.observer.fail = ModelConnectionError("down")
    await chat.turn(user("q1", 5))
    await chat.settled()
    failed = chat.data("buffering-failed")[0]
    assert (failed["error"], failed["attempt"], failed["willRetry"], failed["tokensAttempted"]) == ("down", 1, True, 40)
    assert (await chat.stored()).observer_failures.count == 1
    chat.clock.advance(29)
    memory = await chat.turn(user("q2", 40))  # nor does a full window wait
    await chat.settled()
    assert len(chat.observer.calls) == 1
    assert tokens_of(memory.window.rows) == 125
    chat.clock.advance(1)
    await chat.turn(user("q3", 1))
    assert len(chat.observer.calls) == 2
    assert (await chat.stored()).observer_failures.count == 2
    chat.clock.advance(60)
    chat.observer.fail = None
    memory = await chat.turn(user("q4", 1))
    await chat.settled()
    assert (await chat.stored()).observer_failures.count == 0
    assert ids(memory.window.messages()) == [*SECOND, "q1", "q2", "q3", "q4"]
    assert [id for call in chat.observer.calls[2:] for id in call] == [*FIRST, *SECOND, "q1", "q2", "q3"]
    await assert_exactly_once(chat, memory)


def fail_after_first_call(observer: FakeObserver) -> None:
    original = observer.observe

    async def fail_later(messages, *, earlier):  # type: ignore[no-untyped-def]
        observer.fail = ModelConnectionError("down") if observer.calls else None
        return await original(messages, earlier=earlier)

    observer.observe = fail_later  # type: ignore[method-assign]


async def test_what_a_job_had_done_before_it_failed_stays(chat: Conversation) -> None:
    await grown(chat)
    fail_after_first_call(chat.observer)
    await chat.turn(user("q1", 5))
    await chat.settled()
    assert len((await chat.stored()).buffered) == 1
    memory = await chat.turn(user("q2", 15))
    assert ids(memory.window.messages()) == [*SECOND, "q1", "q2"]


async def test_a_job_has_its_own_time(storage: Storage) -> None:
    config = ObservationalMemoryConfig(model="extractive", observation=buffering().observation, background_timeout=0.01)
    chat = await grown(Conversation(storage, config=config))
    chat.observer.gate = asyncio.Event()
    await chat.turn(user("q1", 5))
    await chat.settled()
    assert "0.01 s of background_timeout" in str(chat.data("buffering-failed")[0]["error"])
    assert (await chat.stored()).observer_failures.count == 1


# -- the end of a run


async def ended(chat: Conversation, *, size: int) -> RunMemory:
    """A run whose answer was long; its memory as it is at the end."""
    run = await chat.begin(user("q", 5))
    memory = await chat.open(run)
    await prepare_step(memory, 0, pinned={"q"})
    memory.window.add(await chat.store(run, assistant("answer", size)))
    await chat.storage.finish_run(run, "committed")
    return memory


@pytest.mark.parametrize("size", [20, 95, 300])
async def test_the_time_between_turns_is_used(chat: Conversation, size: int) -> None:
    memory = await ended(chat, size=size)
    memory.buffer_when_due()
    await chat.settled()
    assert chat.observer.calls == [["q", "answer"]]
    assert len((await chat.stored()).buffered) == 1
    assert chat.background.waits == []


async def test_a_short_turn_is_not_worth_it(chat: Conversation) -> None:
    memory = await ended(chat, size=14)
    memory.buffer_when_due()
    await chat.settled()
    assert chat.observer.calls == []


# -- a job and its run


async def own_steps(chat: Conversation, *, guarded: bool = False) -> tuple[Run, RunMemory, asyncio.Event]:
    """A live run with two steps, and a job that is at the first of them."""
    run = await chat.begin(user("q", 5), guarded=guarded)
    memory = await chat.open(run)
    memory.window.add(await chat.store(run, tool_step("s0", 25), tool_step("s1", 25)))
    chat.observer.gate = gate = asyncio.Event()
    chat.observer.started.clear()
    await prepare_step(memory, 2, pinned={"q", "s1"})
    await chat.observer.started.wait()
    assert chat.observer.calls[-1] == ["s0"]
    return run, memory, gate


async def test_steps_of_a_live_run_are_noted_for_it_alone(chat: Conversation) -> None:
    run, _, gate = await own_steps(chat)
    gate.set()
    await chat.settled()
    log = await chat.stored()
    assert [(entry.state, entry.run_id) for entry in log.entries] == [("buffered", run.id)]
    assert (await chat.log()).entries == ()
    assert "s0" not in str([event.data for event in await chat.storage.list_events("thread:trip")])


async def test_a_job_that_outlives_its_run_counts(chat: Conversation) -> None:
    run, _, gate = await own_steps(chat)
    await chat.storage.finish_run(run, "committed")
    await chat.close_run(run.id)
    gate.set()
    await chat.settled()
    log = await chat.log()
    assert [(entry.state, entry.run_id) for entry in log.entries] == [("buffered", None)]


@pytest.mark.parametrize("fail", [None, ModelConnectionError("down: s0 s0")])
async def test_nothing_is_kept_of_a_discarded_run(chat: Conversation, fail: Exception | None) -> None:
    await chat.commit(user("hello", 3))
    await observe_now(chat.engine, "ada", chat.thread)
    run, _, gate = await own_steps(chat)
    await chat.drop_run(run.id)
    await chat.storage.finish_run(run, "discarded")
    chat.observer.fail = fail
    gate.set()
    await chat.settled()
    log = await chat.stored()
    assert [entry.text for entry in log.entries] == ["- hello"]
    assert [stone.run_id for stone in log.tombstones] == [run.id]
    assert "s0" not in str([event.data for event in await chat.storage.list_events("thread:trip")])
    assert "s0" not in str(asdict(log))
    assert (await chat.open()).window.messages() == []


async def test_a_discarded_run_takes_its_chunks_with_it(chat: Conversation) -> None:
    await chat.commit(user("hello", 3))
    await observe_now(chat.engine, "ada", chat.thread)
    run, _, gate = await own_steps(chat)
    gate.set()
    await chat.settled()
    assert len((await chat.stored()).entries) == 2
    await chat.drop_run(run.id)
    await chat.storage.finish_run(run, "discarded")
    assert [entry.text for entry in (await chat.stored()).entries] == ["- hello"]


async def test_a_small_message_before_the_steps_of_a_run_is_noted_first(chat: Conversation) -> None:
    await chat.commit(user("hello", 3))
    run = await chat.begin(user("q", 5))
    memory = await chat.open(run)
    memory.window.add(await chat.store(run, tool_step("s0", 25), tool_step("s1", 25)))
    await prepare_step(memory, 2, pinned={"q", "s1"})
    await chat.settled()
    assert chat.observer.calls == [["hello"], ["s0"]]
    assert [entry.run_id for entry in (await chat.stored()).entries] == [None, run.id]


async def test_an_interrupted_guarded_run_is_not_noted(chat: Conversation) -> None:
    run, _, gate = await own_steps(chat, guarded=True)
    await chat.storage.finish_run(run, "interrupted")
    gate.set()
    await chat.settled()
    memory = await chat.open()
    assert memory.log.entries == ()
    assert ids(memory.window.messages()) == ["q"]


async def remade(chat: Conversation) -> None:
    """A thread of the same id, of as many rows."""
    for n in range(1, 5):
        await chat.commit(user(f"new-u{n}", 10), assistant(f"new-a{n}", 10))


@pytest.mark.parametrize("fail", [None, ModelConnectionError("down: u1 u1")])
@pytest.mark.parametrize("again", [False, True])
async def test_of_a_deleted_thread_nothing_comes_back(chat: Conversation, again: bool, fail: Exception | None) -> None:
    gate = await held_up(chat)
    await chat.storage.delete_thread(chat.thread)
    if again:
        await remade(chat)
    chat.observer.fail = fail
    gate.set()
    await chat.settled()
    assert (await chat.stored()).entries == ()
    assert "u1 u1" not in str(asdict(await chat.stored()))
    events = await chat.storage.list_events("thread:trip")
    assert "u1 u1" not in str([event.data for event in events])
    if not again:
        assert await chat.storage.get_log("thread:trip") is None
        assert events == []


async def test_discarding_the_first_run_of_a_thread_leaves_nothing(chat: Conversation) -> None:
    run, _, gate = await own_steps(chat)  # this run made the thread
    await chat.drop_run(run.id)
    await chat.storage.finish_run(run, "discarded")
    gate.set()
    await chat.settled()
    assert await chat.storage.get_log("thread:trip") is None
    assert await chat.storage.list_events("thread:trip") == []


# -- rows that change


async def rewrite(chat: Conversation, run: Run, id: str) -> list[Any]:
    [row] = [row for row in await chat.storage.list_messages(chat.thread, run_id=run.id) if row.id == id]
    row.parts = [TextPart(text="redacted")]
    await chat.storage.rewrite_messages(run, [row])
    return [row]


async def test_notes_of_rewritten_rows_are_dropped(chat: Conversation) -> None:
    run, memory, gate = await own_steps(chat)
    changed = await rewrite(chat, run, "s0")
    await memory.drop_notes_of(changed)
    gate.set()
    await chat.settled()
    assert (await chat.stored()).entries == ()
    assert (await chat.stored()).observer_failures.count == 0  # nobody's fault
    assert "changed" in str(chat.data("buffering-failed")[0]["error"])
    await assert_exactly_once(chat, memory, run.id)


async def test_chunks_of_rows_that_are_rewritten_fall(chat: Conversation) -> None:
    run, memory, gate = await own_steps(chat)
    gate.set()
    await chat.settled()
    await memory.drop_notes_of(await rewrite(chat, run, "s0"))
    assert (await chat.stored()).entries == ()


async def test_chunks_of_earlier_rows_that_are_repaired_fall(chat: Conversation) -> None:
    await buffered(chat)
    run = await chat.begin(user("q2", 5))
    memory = await chat.open(run)
    await memory.drop_notes_of(await rewrite(chat, run, "a1"))
    assert [entry.text.split()[1] for entry in (await chat.stored()).entries] == ["u3"]
    await assert_exactly_once(chat, memory, run.id)


async def test_chunks_wait_for_the_notes_of_rows_before_them(chat: Conversation) -> None:
    """Such rows are noted whatever their size, so that the oldest leave the prompt first."""
    await buffered(chat)
    run = await chat.begin(user("q2", 3))
    await (await chat.open(run)).drop_notes_of(await rewrite(chat, run, "a1"))
    await chat.storage.finish_run(run, "committed")
    chat.observer.gate = gate = asyncio.Event()
    memory = await chat.turn(user("q3", 20))
    assert tokens_of(memory.window.rows) == 108
    assert memory.window.blocks() == []  # the notes of SECOND could be activated
    gate.set()
    await chat.settled()
    assert chat.observer.calls[2:] == [FIRST]
    memory = await chat.turn(user("q4", 1))
    assert ids(memory.window.messages()) == ["q1", "q2", "q3", "q4"]
    await assert_exactly_once(chat, memory)


async def test_a_full_window_does_not_wait_for_rows_that_nobody_notes(chat: Conversation) -> None:
    await buffered(chat)
    run = await chat.begin(user("q2", 3))
    await (await chat.open(run)).drop_notes_of(await rewrite(chat, run, "a1"))
    await chat.storage.finish_run(run, "committed")
    memory = await chat.turn(user("q3", 35))
    assert [entry.text.split()[1] for entry in memory.log.active] == ["u3"]


async def test_rows_before_a_chunk_are_not_noted_with_rows_behind_it(chat: Conversation) -> None:
    """What leaves the prompt is the oldest: a chunk on both sides of another could not be put in order with it."""
    await buffered(chat)
    run = await chat.begin(user("q2", 3))
    await (await chat.open(run)).drop_notes_of(await rewrite(chat, run, "a1"))
    await chat.storage.finish_run(run, "committed")
    await chat.turn(user("q3", 5))
    await chat.settled()
    assert chat.observer.calls[2:] == [FIRST]
    memory = await chat.turn(user("q4", 30))
    assert ids(memory.window.messages()) == ["q1", "q2", "q3", "q4"]
    await assert_exactly_once(chat, memory)


class RewriteInBetween(InMemoryStorage):
    """Makes another change right before a log is saved, after everything has been checked."""

    def __init__(self) -> None:
        super().__init__()
        self.before_save: Any = None

    async def save_log(self, log, *, expected_version, rows=()):  # type: ignore[no-untyped-def, override]
        if self.before_save is not None and log.entries:
            act, self.before_save = self.before_save, None
            await act()
        return await super().save_log(log, expected_version=expected_version, rows=rows)


async def test_rows_rewritten_right_before_the_notes_are_saved() -> None:
    storage = RewriteInBetween()
    chat = Conversation(storage, config=buffering())
    run, memory, gate = await own_steps(chat)

    async def act() -> None:
        await memory.drop_notes_of(await rewrite(chat, run, "s0"))

    storage.before_save = act
    gate.set()
    await chat.settled()
    await chat.storage.finish_run(run, "committed")
    await chat.close_run(run.id)
    assert (await chat.stored()).entries == ()


async def test_a_run_that_ends_right_before_its_notes_are_saved() -> None:
    storage = RewriteInBetween()
    chat = Conversation(storage, config=buffering())
    run, _, gate = await own_steps(chat)

    async def act() -> None:
        await chat.storage.finish_run(run, "committed")
        await chat.close_run(run.id)

    storage.before_save = act
    gate.set()
    await chat.settled()
    await chat.open()
    assert [entry.run_id for entry in (await chat.stored()).entries] == [None]


# -- reflection


def reflecting(storage: Storage) -> Conversation:
    """Notes of ten words a row: 40 a chunk. The Reflector starts at 50, takes effect at 100, is awaited at 120."""
    return Conversation(storage, config=buffering(100, 100), observer=FakeObserver(words=10))


async def noted(chat: Conversation) -> RunMemory:
    """Two active entries, 80 tokens; the Reflector is at work."""
    await buffered(chat)
    return await chat.turn(user("q2", 15))


async def one_more_chunk(chat: Conversation, name: str, rows: int = 4) -> None:
    """So many rows of ten tokens more, in chunks of their own."""
    await chat.commit(*(user(f"{name}{n}", 10) for n in range(rows)))
    await chat.turn(user(f"{name}-asks", 1))
    await chat.settled()


async def test_a_reflection_waits_until_the_log_is_full(storage: Storage) -> None:
    chat = reflecting(storage)
    before = (await noted(chat)).window.blocks()
    await chat.settled()
    assert chat.reflector.calls == [[entry.id for entry in (await chat.stored()).entries]]
    log = await chat.stored()
    assert log.reflection is not None
    assert (log.generation, log.reflection.entry.tokens, log.reflection.tokens) == (0, 39, 80)
    memory = await chat.turn(user("q3", 1))
    assert memory.window.blocks() == before
    assert len(chat.reflector.calls) == 1
    status = chat.data("status")[-1]["windows"]["buffered"]["reflection"]  # type: ignore[index]
    assert status == {"inputObservationTokens": 80, "observationTokens": 39, "status": "complete"}


async def test_at_its_threshold_a_reflection_takes_its_place(storage: Storage) -> None:
    chat = reflecting(storage)
    await noted(chat)
    await chat.settled()
    await one_more_chunk(chat, "v")
    await one_more_chunk(chat, "w", 3)
    old = await chat.stored()
    memory = await chat.turn(user("q3", 8))
    log = await chat.stored()
    assert [entry.kind for entry in log.active] == ["reflection", "observation", "observation"]
    assert [entry.text for entry in log.active[1:]] == [entry.text for entry in old.buffered[:2]]  # as they were
    assert len(log.buffered) == 1
    assert log.buffered == old.buffered[2:]  # what waits goes on waiting
    assert (log.generation, log.reflection) == (1, None)
    assert memory.window.blocks()[1].startswith("<observations>\nkept kept")
    await assert_exactly_once(chat, memory)
    [activation] = [part for part in chat.data("activation") if part["operationType"] == "reflection"]
    assert (activation["tokensActivated"], activation["generationCount"]) == (80, 1)
    assert [past.generation for past in await storage.list_generations("thread:trip")] == [0]


async def test_a_full_log_waits_for_the_reflection_that_is_on_its_way(storage: Storage) -> None:
    chat = reflecting(storage)
    chat.reflector.gate = asyncio.Event()
    await noted(chat)
    await chat.reflector.started.wait()
    await chat.commit(*(user(f"v{n}", 10) for n in range(4)))
    asks = asyncio.create_task(chat.turn(user("v-asks", 60)))
    await chat.background.waiting.wait()
    chat.reflector.gate.set()
    memory = await asks
    assert memory.log.generation == 1
    assert len(chat.reflector.calls) == 1
    assert [entry.kind for entry in memory.log.active] == ["reflection", "observation"]


async def test_a_reflection_goes_on_when_its_run_waits_no_longer(storage: Storage) -> None:
    config = buffering(100, 100, observe_timeout=0.5)
    chat = Conversation(storage, config=config, observer=FakeObserver(words=10))
    chat.reflector.fail = ModelConnectionError("down")
    await noted(chat)
    await one_more_chunk(chat, "v", 8)
    await chat.turn(user("w", 60))
    assert (await chat.stored()).tokens >= 120
    chat.clock.advance(3600)
    chat.reflector.fail, chat.reflector.gate = None, asyncio.Event()
    await chat.turn(user("x", 1))
    assert (await chat.stored()).reflection is None
    chat.reflector.gate.set()
    await chat.settled()
    log = await chat.stored()
    assert (log.generation, log.reflection is None) == (0, False)
    memory = await chat.turn(user("y", 1))
    assert memory.log.generation == 1


async def test_a_waiting_reflection_falls_with_what_it_replaces(storage: Storage) -> None:
    chat = reflecting(storage)
    memory = await noted(chat)
    await chat.settled()
    logs = LogStore(storage)
    gone = memory.log.entries[0].id
    log = await logs.update(lambda: logs.read(chat.thread, "ada"), lambda log: transitions.drop_entries(log, {gone}))
    assert log.reflection is None
    await chat.turn(user("q3", 1))
    await chat.settled()
    assert (await chat.stored()).generation == 0


async def test_a_reflection_is_dropped_when_its_entries_change(storage: Storage) -> None:
    chat = reflecting(storage)
    chat.reflector.gate = asyncio.Event()
    memory = await noted(chat)
    await chat.reflector.started.wait()
    gone = memory.log.entries[0].id
    logs = LogStore(storage)
    await logs.update(lambda: logs.read(chat.thread, "ada"), lambda log: transitions.drop_entries(log, {gone}))
    chat.reflector.gate.set()
    await chat.settled()
    log = await chat.stored()
    assert log.reflection is None
    assert log.reflector_failures.count == 0
    assert "changed" in str(chat.data("buffering-failed")[-1]["error"])


async def test_a_reflection_that_does_not_pay_is_not_tried_again(storage: Storage) -> None:
    chat = reflecting(storage)
    chat.reflector.size = 75
    await noted(chat)
    await chat.settled()
    await chat.turn(user("q3", 1))
    await chat.settled()
    assert len(chat.reflector.calls) == 1
    chat.reflector.size = None
    await one_more_chunk(chat, "v")
    await one_more_chunk(chat, "w")
    await chat.turn(user("q4", 5))
    await chat.settled()
    assert len(chat.reflector.calls) == 2  # an entry has joined


# -- a cold cache


async def cold(chat: Conversation, size: int) -> RunMemory:
    run = await chat.begin(user("q2", size))
    memory = await chat.open(run)
    await memory.prepare({"q2"}, cold="idle")
    return memory


async def test_a_cold_cache_is_used_to_activate_early(chat: Conversation) -> None:
    await buffered(chat)
    memory = await cold(chat, 1)  # 86
    assert ids(memory.window.messages()) == [*SECOND, "q1", "q2"]  # both would leave too little
    assert [part["triggeredBy"] for part in chat.data("activation")] == ["idle"]
    assert len((await chat.stored()).buffered) == 1  # once is enough


async def test_a_cold_cache_changes_nothing_in_a_small_window(chat: Conversation) -> None:
    await chat.turn(user("u1", 10), assistant("a1", 5))
    memory = await ended(chat, size=5)
    assert tokens_of(memory.window.rows) == 25
    memory.buffer_when_due()
    await chat.settled()
    assert len((await chat.stored()).buffered) == 1
    assert len((await cold(chat, 1)).window.messages()) == 5


# -- the provider takes no more


async def overflowing(chat: Conversation, size: int = 5) -> RunMemory:
    run = await chat.begin(user("q2", size))
    return await chat.open(run)


async def test_an_overflow_activates_all_there_is(chat: Conversation) -> None:
    await buffered(chat)
    memory = await overflowing(chat)
    assert await memory.make_room({"q2"})
    assert ids(memory.window.messages()) == ["q2"]
    assert chat.observer.calls == [FIRST, SECOND, ["q1"]]
    assert [part["triggeredBy"] for part in chat.data("activation")] == ["overflow"]
    await assert_exactly_once(chat, memory)


async def test_an_overflow_spares_no_turn_but_its_own(chat: Conversation) -> None:
    memory = await ended(chat, size=45)
    memory.buffer_when_due()
    await chat.settled()
    assert len((await chat.stored()).buffered) == 1  # it covers one of the newest two turns
    memory = await overflowing(chat)
    assert await memory.make_room({"q2"})
    assert ids(memory.window.messages()) == ["q2"]


async def test_an_overflow_waits_for_the_job_that_runs(chat: Conversation) -> None:
    gate = await held_up(chat)
    memory = await overflowing(chat)
    room = asyncio.create_task(memory.make_room({"q2"}))
    await chat.background.waiting.wait()
    gate.set()
    assert await room
    assert "q2" in ids(memory.window.messages())
    assert not set(FIRST + SECOND) & set(ids(memory.window.messages()))
    observed = [id for call in chat.observer.calls for id in call]
    assert len(observed) == len(set(observed))
    await assert_exactly_once(chat, memory, "run-6")


async def test_an_overflow_of_a_window_without_chunks_is_observed(chat: Conversation) -> None:
    await grown(chat)
    memory = await overflowing(chat, 100)
    assert await memory.make_room({"q2"})
    assert ids(memory.window.messages()) == ["q2"]
    assert not await memory.make_room({"q2"})  # nothing is left


async def test_an_overflow_uses_what_was_noted_before_a_failure(chat: Conversation) -> None:
    await grown(chat)
    fail_after_first_call(chat.observer)
    memory = await overflowing(chat, 100)
    assert await memory.make_room({"q2"})
    assert ids(memory.window.messages()) == [*SECOND, "q2"]


async def test_an_overflow_changes_nothing_if_the_observer_fails(chat: Conversation) -> None:
    await grown(chat)
    chat.observer.fail = ModelConnectionError("down")
    memory = await overflowing(chat, 100)
    assert not await memory.make_room({"q2"})


# -- by hand


async def test_manual_observations_follow_waiting_chunks(chat: Conversation) -> None:
    await buffered(chat)
    await observe_now(chat.engine, "ada", chat.thread, emit=chat.parts.append)
    memory = await chat.open()
    assert memory.window.rows == []
    assert chat.observer.calls == [FIRST, SECOND, ["q1"]]
    assert [part["triggeredBy"] for part in chat.data("activation")] == ["manual"]


async def test_manual_observations_wait_for_the_job_of_this_process(chat: Conversation) -> None:
    gate = await held_up(chat)
    asked = asyncio.create_task(observe_now(chat.engine, "ada", chat.thread))
    for _ in range(3):
        await chat.open()
    gate.set()
    await asked
    assert chat.observer.calls == [FIRST, SECOND, ["q1"]]


async def test_a_waiting_reflection_is_not_paid_for_again_by_hand(storage: Storage) -> None:
    chat = reflecting(storage)
    await noted(chat)
    await chat.settled()
    await chat.commit(*(user(f"v{n}", 10) for n in range(4)))
    await observe_now(chat.engine, "ada", chat.thread)
    assert (await chat.stored()).generation == 1
    assert len(chat.reflector.calls) == 1


# -- what is reported


async def test_the_status_equals_a_recount(chat: Conversation) -> None:
    await grown(chat)
    seen: set[str] = set()
    for n in range(12):
        run = await chat.begin(user(f"q{n}", 11), assistant(f"r{n}", 6))
        memory = await chat.open(run)
        await prepare_step(memory, 0, pinned={f"q{n}", f"r{n}"})
        await chat.settled()
        await memory.refresh()
        await send_status(memory, 1, {f"q{n}", f"r{n}"})
        rows = memory.window.rows
        chunks = (await chat.stored()).buffered
        covered = Coverage(chunks, chat.thread)
        raw = [row for row in rows if row.seq in covered]
        windows: Any = chat.data("status")[-1]["windows"]
        now = windows["buffered"]["observations"]
        assert (now["chunks"], now["messageTokens"]) == (len(chunks), tokens_of(raw))
        assert now["observationTokens"] == sum(len(chunk.text.split()) for chunk in chunks)
        assert now["messageTokens"] <= windows["active"]["messages"]["tokens"] == tokens_of(rows)
        assert now["projectedMessageRemoval"] <= now["messageTokens"]
        assert now["status"] == ("complete" if chunks else "idle")
        seen.add(now["status"])
        await chat.storage.finish_run(run, "committed")
        await chat.close_run(run.id)
    assert seen == {"complete", "idle"}
    kept = await chat.storage.list_events("thread:trip")
    assert [(event.type, event.data) for event in kept] == [(part.type, without_words(part)) for part in chat.parts]


async def test_the_status_says_that_a_job_runs(chat: Conversation) -> None:
    gate = await held_up(chat)
    await chat.turn(user("q2", 1))
    windows: Any = chat.data("status")[-1]["windows"]
    assert windows["buffered"]["observations"]["status"] == "running"
    assert windows["buffered"]["reflection"]["status"] == "idle"
    gate.set()
    await chat.settled()


async def test_nothing_is_left_behind(chat: Conversation) -> None:
    before = asyncio.all_tasks()
    await buffered(chat)
    assert asyncio.all_tasks() == before
    for operation in ("trip:observation", "reflection"):
        assert await chat.storage.acquire_lease(f"thread:trip:{operation}", "next", ttl=1) is not None
