"""What schedules have found, each as the shortest trace that shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from diarist import Memory
from diarist.exceptions import ConflictError
from diarist.memory.observational.cycles import observe
from diarist.memory.observational.manual import observe_now
from diarist.memory.observational.roles.base import Observed
from diarist.messages import Message
from diarist.storage import InMemoryStorage, Observation, ObservationLog, Run, Thread
from tests.memory.observational.harness import (
    Conversation,
    FakeObserver,
    assistant,
    ids,
    prepare_step,
    small_config,
    tool_step,
    user,
)


async def _past_words(chat: Conversation) -> str:
    past = await chat.storage.list_generations(f"thread:{chat.thread}")
    return " ".join(entry.text for log in past for entry in log.entries)


@pytest.fixture
def chat() -> Conversation:
    return Conversation(InMemoryStorage(), config=small_config(100, 12))


async def _reflected_midway(chat: Conversation) -> Run:
    """A live run whose first step was observed before what was older became a reflection."""
    for n in range(1, 4):
        await chat.commit(user(f"u{n}", 10), assistant(f"a{n}", 10))
    run = await chat.begin(user("q", 20))
    memory = await chat.open(run)
    chat.reflector.fail = RuntimeError("not yet")
    for step in ("s0", "s1", "s2"):
        memory.window.add(await chat.store(run, tool_step(step, 60)))
        await prepare_step(memory, 1, pinned={"q", step})
    chat.reflector.fail = None
    chat.clock.advance(1_000)
    await prepare_step(await chat.open(run), 2, pinned={"q", "s2"})
    assert "s1" in await _past_words(chat)
    assert "u1" in await _past_words(chat)
    return run


async def test_a_discarded_run_is_not_in_earlier_generations(chat: Conversation) -> None:
    run = await _reflected_midway(chat)
    await chat.drop_run(run.id)
    await chat.storage.finish_run(run, "discarded")
    assert "s1" not in await _past_words(chat)
    assert "u1" in await _past_words(chat)


async def test_what_a_run_rewrites_is_not_in_earlier_generations(chat: Conversation) -> None:
    run = await _reflected_midway(chat)
    redacted = tool_step("s1", 60)
    redacted.tool_parts[0].result = "nothing to see"
    await chat.storage.rewrite_messages(run, [redacted])
    await chat.storage.finish_run(run, "committed")
    await chat.close_run(run.id)
    assert "s1" not in await _past_words(chat)


async def test_what_a_run_rewrites_midway_is_not_in_earlier_generations(chat: Conversation) -> None:
    run = await _reflected_midway(chat)
    memory = await chat.open(run)
    rows = await chat.storage.list_messages(chat.thread, run_id=run.id)
    await memory.drop_notes_of([next(row for row in rows if row.id == "s1")])
    assert "s1" not in await _past_words(chat)


async def test_a_late_discard_removes_notes_that_another_process_made(chat: Conversation) -> None:
    """A run expires, and its input is kept and noted. Then its own process finds that the run must be blocked."""
    late = await chat.storage.begin_run("late", Thread(id=chat.thread, resource_id="ada"), ttl=0)
    [asked] = await chat.store(late, user("secret", 10), source="input")
    await chat.commit(user("u1", 10), assistant("a1", 10))
    await observe_now(chat.engine, "ada", chat.thread)
    assert "secret" in (await chat.log()).text
    assert asked.seq is not None
    await chat.drop_run("late", seqs=[asked.seq])
    memory = await chat.open()
    assert "secret" not in (await chat.log()).text
    assert ids(memory.window.rows) == ["u1", "a1"]
    assert ids(await chat.storage.list_messages(chat.thread)) == ["u1", "a1"]


async def test_a_late_discard_leaves_the_messages_of_a_new_thread_with_the_same_id(chat: Conversation) -> None:
    """A thread is deleted while a run is live, and created again. Then the process of the run blocks it."""
    late = await chat.begin(user("secret", 10))
    [asked] = await chat.storage.list_messages(chat.thread, run_id=late.id)
    await chat.storage.delete_thread(chat.thread)
    await chat.commit(user("u1", 10), assistant("a1", 10))
    await observe_now(chat.engine, "ada", chat.thread)
    assert asked.seq is not None
    await chat.drop_run(late.id, seqs=[asked.seq])
    assert "a1" in (await chat.log()).text
    assert ids(await chat.storage.list_messages(chat.thread)) == ["u1", "a1"]


async def test_notes_of_a_discarded_run_do_not_come_in_late(chat: Conversation) -> None:
    """The process of the run died between the tombstone and the end, while another one was observing its messages."""
    chat.observer.gate = asyncio.Event()
    late = await chat.storage.begin_run("late", Thread(id=chat.thread, resource_id="ada"), ttl=0)
    await chat.store(late, user("secret", 10), source="input")
    await chat.commit(user("u1", 10), assistant("a1", 10))
    work = asyncio.create_task(observe_now(chat.engine, "ada", chat.thread))
    await chat.observer.started.wait()
    await chat.drop_run("late")
    chat.observer.gate.set()
    with pytest.raises(ConflictError, match="discarded"):
        await work
    assert ids((await chat.open()).window.rows) == ["u1", "a1"]
    assert (await chat.log()).entries == ()


class Naming(FakeObserver):
    """Names the thread after the first message it sees."""

    async def observe(self, messages: Sequence[Message], *, earlier: Sequence[Observation]) -> Observed:
        observed = await super().observe(messages, earlier=earlier)
        return replace(observed, thread_title=f"about {messages[0].id}")


async def test_a_thread_is_not_named_after_what_its_run_took_out() -> None:
    config = small_config(100, 1000, thread_title=True)
    chat = Conversation(InMemoryStorage(), config=config, observer=Naming())
    run = await chat.begin(user("q", 20))
    memory = await chat.open(run)
    for step in ("s0", "s1"):
        memory.window.add(await chat.store(run, tool_step(step, 60)))
        await prepare_step(memory, 1, pinned={"q", step})
    assert "s0" in memory.log.text
    await chat.storage.rewrite_messages(run, [], remove=["s0"])
    await chat.storage.finish_run(run, "committed")
    await chat.close_run(run.id)
    await memory.update_title()
    thread = await chat.storage.get_thread(chat.thread)
    assert thread is not None
    assert "s0" not in thread.title


class EndsBeforeSaving(InMemoryStorage):
    """At the next saving of a log a run ends first, as if its own task had been faster."""

    ending: Run | None = None

    async def save_log(self, log: ObservationLog, **options: Any) -> ObservationLog:
        if self.ending is not None:
            run, self.ending = self.ending, None
            await self.finish_run(run, "committed")
        return await super().save_log(log, **options)


async def test_notes_that_come_with_the_end_of_a_run_do_not_vouch_for_its_other_notes() -> None:
    """The run rewrote what was noted of its first step, and ends while its second one is being noted."""
    storage = EndsBeforeSaving()
    chat = Conversation(storage, config=small_config(100, 1000))
    run = await chat.begin(user("q", 20))
    memory = await chat.open(run)
    for step in ("s0", "s1"):
        memory.window.add(await chat.store(run, tool_step(step, 60)))
        await prepare_step(memory, 1, pinned={"q", step})
    assert "s0" in memory.log.text
    redacted = tool_step("s0", 60)
    redacted.tool_parts[0].result = "nothing to see"
    await storage.rewrite_messages(run, [redacted])
    storage.ending = run
    batch = memory.window.batch([row for row in memory.window.rows if row.id == "s1"])
    await observe(memory.diary, memory.window.stored, batch, timeout=None)
    await chat.close_run(run.id)
    log = await chat.log()
    assert "s0" not in log.text
    assert "s1" in log.text


async def test_the_note_of_a_live_run_has_no_forgotten_words(chat: Conversation) -> None:
    """The note quotes the diary, its process dies, the diary's message is forgotten, and only then the run counts."""
    chat.observer.task = "buy a boat"
    await chat.commit(user("u1", 10), assistant("a1", 10))
    await observe_now(chat.engine, "ada", chat.thread)
    late = await chat.storage.begin_run("late", Thread(id=chat.thread, resource_id="ada"), ttl=0)
    asked = user("q", 10)
    asked.sent = (await chat.open(late)).window.sent_block(chat.clock())
    assert asked.sent is not None
    assert "buy a boat" in asked.sent.text
    await chat.store(late, asked, source="input")
    memory = Memory(storage=chat.storage, observational_memory=chat.config)
    await memory.forget(message_ids=["u1", "a1"], thread=chat.thread, resource="ada")
    await chat.commit(user("u2", 10))
    rows = (await chat.open()).window.rows
    assert ids(rows) == ["q", "u2"]
    for row in [*rows, *await chat.storage.list_messages(chat.thread)]:
        assert row.sent is None or "buy a boat" not in row.sent.text
