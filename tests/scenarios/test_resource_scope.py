"""One diary for all threads of a resource: what is said in one is known in the others, and nowhere else."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Memory, Message, Processor, Tool
from diarist.exceptions import ContentFilterError, InputError, NotFoundError, StorageError
from diarist.memory.observational.engine import Engine
from diarist.memory.observational.jobs import Unobserved, pack_threads
from diarist.memory.observational.message_units import tokens_of
from diarist.memory.observational.prompt.tails import TAIL_ROWS, TAIL_THREADS
from diarist.memory.observational.prompt.threads import obscure
from diarist.messages import utc_now
from diarist.models.base import ModelRequest
from diarist.processors import ProcessInputStepArgs
from diarist.prompt_cache import StepCache
from diarist.storage import InMemoryStorage, Lease, Observation, ObservationLog, SQLiteStorage, Storage
from diarist.testing import ScriptedModel, ToolCall
from tests.processes import run_at_once
from tests.scenarios.kit import (
    WatchedStorage,
    answering,
    configured,
    failing,
    ids_sent,
    play,
    reflector,
    words,
)

MONDAY = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
NAMES = re.compile(r"\b(?:turn|said)-\w+-\d+\b")


def noting(*refused: str) -> ScriptedModel:
    """Notes, under the heading of its thread, each word that says where it comes from; but for these."""

    def write(request: ModelRequest) -> Any:
        if any(word in request.text for word in refused):
            return ContentFilterError("content filter", status=400)
        lines: list[str] = []
        for line in request.prompt.messages[-1].text.partition("<transcript>")[2].splitlines():
            if line.startswith("Date:"):
                lines.append(line)
            elif found := NAMES.findall(line):
                lines.append(f"- 🟡 {found[0]}")
        if not any(line.startswith("- ") for line in lines):
            lines.append("- 🟢 nothing")
        return "<diary>\n" + "\n".join(lines) + "\n</diary>\n<current-task>go on</current-task>"

    return ScriptedModel(write, name="observer")


def sharing(storage: Storage, *, model: ScriptedModel | None = None, **options: Any) -> Memory:
    observation = {"model": model or noting(), **options.pop("observation", {})}
    return configured(storage, scope="resource", observation=observation, **options)


async def say(memory: Memory, name: str, *, thread: str, resource: str = "ada", size: int = 20) -> None:
    """A message of so many words, and a short answer, that are in no run of an agent."""
    rows = [Message.user(words(name, size)), Message.assistant("Noted.")]
    await memory.messages.save(rows, thread=thread, resource=resource)


async def log_of(storage: Storage, resource: str = "ada") -> ObservationLog:
    log = await storage.get_log(f"resource:{resource}")
    return log or ObservationLog(key=f"resource:{resource}", scope="resource", resource_id=resource)


def entries_of(log: ObservationLog, row: Message, thread: str) -> list[Observation]:
    """The entries that cover a row."""
    return [
        entry
        for entry in log.entries
        if any(s.thread_id == thread and s.first_seq <= (row.seq or 0) <= s.last_seq for s in entry.sources)
    ]


async def assert_exactly_once(storage: Storage, threads: list[str], resource: str = "ada") -> int:
    """No row is in two entries; returns how many are in one."""
    log, covered = await log_of(storage, resource), 0
    for thread in threads:
        for row in await storage.list_messages(thread):
            entries = entries_of(log, row, thread)
            assert len(entries) <= 1, f"{row.text[:20]!r} is covered twice"
            covered += len(entries)
    return covered


# --- how threads are packed ----------------------------------------------------------------------------


def unobserved(thread: str, *sizes: int, begun: int = 0) -> Unobserved:
    rows = [
        Message.user(
            words(f"{thread}{n}", size),
            id=f"{thread}{n}",
            thread_id=thread,
            seq=n + 1,
            created_at=MONDAY + timedelta(minutes=begun + n),
            part_tokens=[size],
        )
        for n, size in enumerate(sizes)
    ]
    return Unobserved(thread, rows, [[row] for row in rows])


def packed(threads: list[Unobserved]) -> list[list[Message]]:
    log = ObservationLog(key="resource:ada", scope="resource", resource_id="ada")
    return [list(batch.rows) for batch in pack_threads(sorted(threads, key=lambda thread: thread.oldest), log, 10)]


@pytest.mark.parametrize(
    ("threads", "batches"),
    [
        ([], []),
        ([unobserved("a", 3)], [["a0"]]),
        ([unobserved("a", 3, 3), unobserved("b", 4)], [["a0", "a1", "b0"]]),
        ([unobserved("a", 6), unobserved("b", 6)], [["a0"], ["b0"]]),
        ([unobserved("a", 3), unobserved("b", 7), unobserved("c", 6)], [["a0", "b0"], ["c0"]]),
        # Threads stand in the order of their oldest messages.
        ([unobserved("a", 8, begun=9), unobserved("b", 8)], [["b0"], ["a0"]]),
        # A thread without room in a batch is split between messages; a message is not split.
        ([unobserved("a", 6), unobserved("b", 3, 3)], [["a0", "b0"], ["b1"]]),
        ([unobserved("a", 4, 4, 4)], [["a0", "a1"], ["a2"]]),
        ([unobserved("a", 4, 4, 4), unobserved("b", 6, begun=9)], [["a0", "a1"], ["a2", "b0"]]),
        ([unobserved("a", 2, 25, 2)], [["a0"], ["a1"], ["a2"]]),
    ],
)
def test_threads_are_packed(threads: list[Unobserved], batches: list[list[str]]) -> None:
    assert [[row.id for row in batch] for batch in packed(threads)] == batches


@pytest.mark.parametrize("seed", range(30))
def test_packing_loses_nothing_and_keeps_the_limit(seed: int) -> None:
    chance = random.Random(seed)
    threads = [
        unobserved(f"t{n}-", *(chance.randint(1, 14) for _ in range(chance.randint(1, 6))), begun=chance.randint(0, 99))
        for n in range(chance.randint(1, 8))
    ]
    batches = packed(threads)
    assert sorted(row.id for batch in batches for row in batch) == sorted(
        row.id for thread in threads for row in thread.raw
    )
    for batch in batches:
        assert tokens_of(batch) <= 10 or len(batch) == 1
        for thread in threads:
            places = [row.seq for row in batch if row.thread_id == thread.thread_id]
            assert places == sorted(places, key=lambda place: place or 0)


# --- other threads are observed, in the background ----------------------------------------------------------


async def test_one_threads_messages_are_noted_for_the_others(storage: Storage) -> None:
    memory = sharing(storage, await_background=True)
    for number in range(4):
        await say(memory, f"said-flights-{number}", thread="flights")
    model = answering()
    agent = Agent(model=model, memory=memory)
    for number in range(8):
        await agent.generate(words(f"turn-work-{number}", 15), thread="work", resource="ada")
    prompt = model.requests[-1].text
    assert all(f"- 🟡 said-flights-{number}" in prompt for number in range(4))
    assert f"Date: {datetime.now(UTC):%Y-%m-%d} (thread {obscure('flights')})" in prompt
    assert f"the present one is thread {obscure('work')}" in prompt
    await assert_exactly_once(storage, ["flights", "work"])


async def test_a_new_thread_begins_with_all_that_is_noted(storage: Storage) -> None:
    """No prompt of it is in a provider's cache yet. A thread that is under way takes it in later."""
    memory = sharing(storage, await_background=True)
    await say(memory, "said-flights-1", thread="flights")
    model = answering()
    agent = Agent(model=model, memory=memory)
    for _ in range(2):
        await agent.generate("hello", thread="old", resource="ada")
        assert "- 🟡 said-flights-1" not in model.requests[-1].text
    played = await play(agent, "hello", thread="new", resource="ada")
    assert "- 🟡 said-flights-1" in model.requests[-1].text
    assert [data["chunksActivated"] for data in played.data("activation")] == [1]


@pytest.mark.parametrize(("max_tokens_per_batch", "calls"), [(10_000, 1), (50, 2), (30, 4)])
async def test_max_tokens_per_batch(storage: Storage, max_tokens_per_batch: int, calls: int) -> None:
    """Four threads of 21 tokens."""
    model = noting()
    memory = sharing(
        storage, model=model, observation={"max_tokens_per_batch": max_tokens_per_batch}, await_background=True
    )
    for name in "abcd":
        await say(memory, f"said-{name}-1", thread=name)
    await Agent(model=answering(), memory=memory).generate("hello", thread="now", resource="ada")
    assert len(model.requests) == calls
    log = await log_of(storage)
    assert [entry.state for entry in log.entries] == ["buffered"] * calls
    assert {source.thread_id for entry in log.entries for source in entry.sources} == set("abcd")


async def test_a_thread_that_is_larger_than_a_batch_is_split(storage: Storage) -> None:
    memory = sharing(storage, observation={"max_tokens_per_batch": 45}, await_background=True)
    for number in range(6):
        await say(memory, f"said-long-{number}", thread="long")
    await Agent(model=answering(), memory=memory).generate("hello", thread="now", resource="ada")
    log = await log_of(storage)
    assert [entry.message_tokens for entry in log.entries] == [42, 42, 42]
    noted = [name for entry in log.entries for name in NAMES.findall(entry.text)]
    assert noted == [f"said-long-{number}" for number in range(6)], "in the order in which it was said"
    assert await assert_exactly_once(storage, ["long"]) == 12


async def test_batches_are_observed_side_by_side_and_saved_in_order(storage: Storage) -> None:
    """The last one answers first."""
    waiting: list[asyncio.Event] = []

    async def backwards(request: ModelRequest) -> str:
        mine = asyncio.Event()
        waiting.append(mine)
        if len(waiting) == 3:
            for event in reversed(waiting):
                event.set()
                await asyncio.sleep(0)
        await mine.wait()
        return f"<diary>\n- 🟡 {NAMES.findall(request.text)[0]}\n</diary>"

    memory = sharing(
        storage,
        model=ScriptedModel(backwards, backwards, backwards),
        observation={"max_tokens_per_batch": 25},
        await_background=True,
    )
    for n, name in enumerate("abc"):
        at = MONDAY + timedelta(hours=n)
        await memory.messages.save(
            [Message.user(words(f"said-{name}-1", 20), created_at=at)], thread=name, resource="ada"
        )
    await Agent(model=answering(), memory=memory).generate("hello", thread="now", resource="ada")
    noted = [entry.text.splitlines() for entry in (await log_of(storage)).entries]
    assert [lines[1:] for lines in noted] == [[f"- 🟡 said-{name}-1"] for name in "abc"]
    headings = {lines[0] for lines in noted}
    assert len(headings) == 3, "notes without a heading of their own stand under that of their thread"


async def test_a_failing_batch_leaves_the_others(storage: Storage) -> None:
    def write(request: ModelRequest) -> Any:
        return RuntimeError("down") if "said-b-1" in request.text else "<diary>\n- 🟡 noted\n</diary>"

    memory = sharing(
        storage, model=ScriptedModel(write), observation={"max_tokens_per_batch": 25}, await_background=True
    )
    for name in "abc":
        await say(memory, f"said-{name}-1", thread=name)
    await Agent(model=answering(), memory=memory).generate("hello", thread="now", resource="ada")
    log = await log_of(storage)
    assert {source.thread_id for entry in log.entries for source in entry.sources} == {"a", "c"}


async def test_a_batch_that_fails_early_lets_no_later_one_pass(storage: Storage) -> None:
    """The second of three fails at once; the first answers last, and is still saved before the third."""
    failed = asyncio.Event()

    async def write(request: ModelRequest) -> Any:
        (name,) = NAMES.findall(request.prompt.messages[-1].text.partition("<transcript>")[2])
        if name == "said-long-0":
            await failed.wait()
            for _ in range(1_000):  # time for the third to be saved, if it could be
                await asyncio.sleep(0)
        if name == "said-long-1":
            failed.set()
            return RuntimeError("down")
        return f"<diary>\n- 🟡 {name}\n</diary>"

    memory = sharing(
        storage, model=ScriptedModel(write), observation={"max_tokens_per_batch": 25}, await_background=True
    )
    rows = [Message.user(f"said-long-{number} " + "word " * 19) for number in range(3)]
    await memory.messages.save(rows, thread="long", resource="ada")
    await Agent(model=answering(), memory=memory).generate("hello", thread="now", resource="ada")
    assert [entry.text.splitlines()[-1] for entry in (await log_of(storage)).entries] == [
        "- 🟡 said-long-0",
        "- 🟡 said-long-2",
    ]


class Clock:
    def __init__(self) -> None:
        self.now = utc_now()

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which memory backs off."""
    clock = Clock()
    monkeypatch.setitem(Engine.__init__.__kwdefaults__, "clock", clock)
    return clock


async def test_after_a_failure_the_observer_of_other_threads_rests(storage: Storage, clock: Clock) -> None:
    model = failing()
    memory = sharing(storage, model=model, await_background=True)
    await say(memory, "said-b-0", thread="b", size=60)
    agent = Agent(model=answering(), memory=memory)
    for _ in range(3):
        await agent.generate("hello", thread="now", resource="ada")
    assert len(model.requests) == 1
    clock.now += timedelta(minutes=11)
    await agent.generate("hello", thread="now", resource="ada")
    assert len(model.requests) >= 2


async def test_a_refusal_in_one_thread_stops_no_diary(storage: Storage, clock: Clock) -> None:
    """It shared a call with others; they are noted soon, and it is written off alone."""
    memory = sharing(storage, model=noting("said-b-1"), await_background=True)
    for name in "abc":
        for number in range(3):
            await say(memory, f"said-{name}-{number}", thread=name)
    agent = Agent(model=answering(), memory=memory)
    for _ in range(9):
        clock.now += timedelta(minutes=11)
        await agent.generate("hello", thread="now", resource="ada")
    log = await log_of(storage)
    notes = "\n".join(entry.text for entry in log.entries)
    assert {f"said-{name}-{number}" for name in "abc" for number in range(3)} - set(NAMES.findall(notes)) == {
        "said-b-1"
    }
    assert notes.count("1 message could not be noted: the Observer refused it each time") == 1
    assert await assert_exactly_once(storage, ["a", "b", "c"]) == 18


async def test_no_query_loads_all_threads_and_a_turn_does_not_read_them_all() -> None:
    class Paged(WatchedStorage):
        read: set[str]

        async def list_threads(self, **options: Any) -> Any:  # type: ignore[override]
            assert options.get("limit", 100) <= 100
            return await super().list_threads(**options)

        async def list_messages(self, thread_id: str, **options: Any) -> Any:  # type: ignore[override]
            self.read.add(thread_id)
            return await super().list_messages(thread_id, **options)

    storage = Paged()
    storage.read = set()
    memory = sharing(storage, await_background=True)
    for number in range(230):
        await say(memory, f"said-t{number}-1", thread=f"t{number}")
    storage.read.clear()
    await Agent(model=answering(), memory=memory).generate("hello", thread="now", resource="ada")
    assert 90 <= len(storage.read) <= 101
    await memory.diary.observe(resource="ada")
    assert await assert_exactly_once(storage, [f"t{number}" for number in range(230)]) == 460


# --- the newest words of other threads ----------------------------------------------------------------------


async def test_the_newest_words_of_other_threads_are_told_with_the_question(storage: Storage) -> None:
    """Of the threads that were used last, a few short lines each; and never of another resource."""
    memory = sharing(storage, observation={"message_tokens": 100_000})
    for number in range(6):
        await say(memory, f"said-t{number}-1", thread=f"t{number}", size=5)
    await say(memory, "said-t0-2", thread="t0", size=400)
    for _ in range(4):
        await say(memory, "said-bob-1", thread="bobs", resource="bob", size=5)
    model = answering()
    await Agent(model=model, memory=memory).generate("hello", thread="now", resource="ada")
    (asked,) = (m.text for m in model.requests[-1].prompt if m.role == "user")
    told = [line for line in asked.splitlines() if line.startswith("- ")]
    assert {name for line in told for name in NAMES.findall(line)} == {
        "said-t0-1",
        "said-t0-2",
        "said-t4-1",
        "said-t5-1",
    }
    assert len(told) <= TAIL_THREADS * TAIL_ROWS
    assert max(map(len, told)) < 260
    assert obscure("t5") in asked
    assert "t5)" not in asked


@pytest.mark.parametrize(("message_tokens", "lines"), [(100, 0), (400, 1), (600, 2), (2_000, 6)])
async def test_tails_take_a_twentieth_of_the_window(storage: Storage, message_tokens: int, lines: int) -> None:
    """A heading has 12 words, a message of the user 6, the answer 2."""
    memory = sharing(storage, observation={"message_tokens": message_tokens})
    for name in "abc":
        await say(memory, f"said-{name}-1", thread=name, size=5)
    model = answering()
    await Agent(model=model, memory=memory).generate("hello", thread="now", resource="ada")
    assert sum(line.startswith("- ") for line in model.requests[-1].text.splitlines()) == lines


async def test_a_turn_goes_on_without_the_tails_if_one_cannot_be_read() -> None:
    class Unreadable(InMemoryStorage):
        async def list_messages(self, thread_id: str, **options: Any) -> list[Message]:
            if thread_id == "broken":
                raise StorageError("no connection")
            return await super().list_messages(thread_id, **options)

    memory, model = sharing(Unreadable(), observation={"message_tokens": 2_000}), answering()
    await say(memory, "said-broken-1", thread="broken")
    await say(memory, "said-trip-1", thread="trip")
    played = await play(Agent(model=model, memory=memory), "hello", thread="new", resource="ada")
    assert played.result is not None
    assert "Said in another conversation" not in model.requests[-1].text
    assert [data["error"] for data in played.data("observation-failed")] == ["no connection"]


async def test_noted_and_rendered_rows_leave_the_tail(storage: Storage) -> None:
    memory = sharing(storage)
    await say(memory, "said-flights-1", thread="flights")
    await memory.diary.observe(thread="flights")
    model = answering()
    await Agent(model=model, memory=memory).generate("hello", thread="now", resource="ada")
    assert "Said in another conversation" not in model.requests[-1].text
    assert "- 🟡 said-flights-1" in model.requests[-1].text


# --- whose notes are whose ------------------------------------------------------------------------------------


async def test_tasks_and_titles_stay_with_their_thread(storage: Storage) -> None:
    def write(request: ModelRequest) -> str:
        (name,) = {
            found.rsplit("-", 1)[0]
            for found in NAMES.findall(request.prompt.messages[-1].text.partition("<transcript>")[2])
        }
        return (
            f"<diary>\n- 🟡 about {name}\n</diary>\n<current-task>task of {name}</current-task>\n"
            f"<suggested-response>answer of {name}</suggested-response>\n<thread-title>{name}</thread-title>"
        )

    notes = ScriptedModel(write)
    memory = sharing(storage, model=notes, observation={"thread_title": True})
    for thread in ("flights", "garden"):
        await say(memory, f"said-{thread}-1", thread=thread)
        await memory.diary.observe(thread=thread)
    assert "task of said-flights" not in notes.requests[-1].text
    assert "title is 'said-flights'" not in notes.requests[-1].text
    model = answering()
    for thread, other in (("flights", "garden"), ("garden", "flights")):
        await Agent(model=model, memory=memory).generate("hello", thread=thread, resource="ada")
        note = model.requests[-1].prompt.messages[-1].text
        assert f"Current task: task of said-{thread}" in note
        assert f"said-{other}" not in note
        assert f"about said-{other}" in model.requests[-1].text
        found = await storage.get_thread(thread)
        assert found is not None
        assert found.title == f"said-{thread}"
    await Agent(model=model, memory=memory).generate("hello", thread="third", resource="ada")
    assert "Current task" not in model.requests[-1].prompt.messages[-1].text


async def test_a_reflection_of_several_threads_keeps_the_task_of_each(storage: Storage) -> None:
    def write(request: ModelRequest) -> str:
        name = NAMES.findall(request.prompt.messages[-1].text.partition("<transcript>")[2])[0]
        return f"<diary>\n- 🟡 about {name}\n</diary>\n<current-task>task of {name}</current-task>"

    condenses = ScriptedModel("<diary>\n- 🔴 both\n</diary>\n<current-task>a task of any</current-task>")
    memory = sharing(storage, model=ScriptedModel(write), reflection={"model": condenses})
    for thread in ("flights", "garden"):
        await say(memory, f"said-{thread}-1", thread=thread)
        await memory.diary.observe(thread=thread)
    log = await memory.diary.reflect(thread="flights", guidance="in a word")
    assert [entry.kind for entry in log.entries] == ["reflection"]
    model = answering()
    for thread in ("flights", "garden"):
        assert (await memory.diary.get(thread=thread)).current_task == f"task of said-{thread}-1"
        await Agent(model=model, memory=memory).generate("hello", thread=thread, resource="ada")
        note = model.requests[-1].prompt.messages[-1].text
        assert [line for line in note.splitlines() if "task" in line] == [f"Current task: task of said-{thread}-1"]
    await memory.threads.delete("garden")
    stored = await storage.get_log("resource:ada")
    assert stored is not None
    assert "garden" not in str(asdict(stored))


async def test_notes_say_which_thread_they_are_about(storage: Storage) -> None:
    """Also where the Observer forgets it; and the Reflector is told to keep it so."""
    forgetful = ScriptedModel(lambda _: "<diary>\nDate: 2026-03-02\n- 🟡 of one\n</diary>")
    condenses = reflector()
    memory = sharing(storage, model=forgetful, reflection={"model": condenses})
    await say(memory, "said-a-1", thread="a")
    log = await memory.diary.observe(thread="a")
    assert log.text == f"Date: 2026-03-02 (thread {obscure('a')})\n- 🟡 of one"
    assert f"(thread {obscure('a')})\n[#1]" in forgetful.requests[-1].text
    await memory.diary.reflect(thread="a", guidance="short")
    assert "Never move a note to another thread" in condenses.requests[-1].text
    alone = configured(storage, model=forgetful)
    await say(alone, "said-b-1", thread="b")
    assert "thread" not in (await alone.diary.observe(thread="b")).text


@pytest.mark.parametrize("obscure_thread_ids", [None, True, False])
async def test_obscure_thread_ids_everywhere_in_prompts(storage: Storage, obscure_thread_ids: bool | None) -> None:
    notes, condenses, model = noting(), reflector(), answering()
    memory = sharing(
        storage,
        model=notes,
        obscure_thread_ids=obscure_thread_ids,
        reflection={"model": condenses, "observation_tokens": 60},
        await_background=True,
        retrieval=True,
    )
    agent = Agent(model=model, memory=memory)
    for number in range(10):
        for thread in ("id-of-thread-1", "id-of-thread-2"):
            await agent.generate(words(f"turn-{number}-1", 15), thread=thread, resource="id-of-ada")
    assert notes.requests
    assert condenses.requests
    sent = "".join(request.text for one in (model, notes, condenses) for request in one.requests)
    assert ("id-of-thread" in sent) is (obscure_thread_ids is False)
    assert (obscure("id-of-thread-1") in sent) is (obscure_thread_ids is not False)
    assert "id-of-ada" not in sent


async def test_prefixes_hold_while_another_thread_is_noted(storage: Storage) -> None:
    """What another thread adds to the diary is taken in where this one changes its prompt anyway, at its end."""
    memory = sharing(storage, await_background=True)
    models = {thread: answering() for thread in ("one", "two")}
    changes = 0
    for number in range(20):
        for thread, model in models.items():
            before = model.requests[-1] if model.requests else None
            played = await play(
                Agent(model=model, memory=memory), words(f"turn-{thread}-{number}", 9), thread=thread, resource="ada"
            )
            if before is None or model.requests[-1].text.startswith(before.text):
                continue
            blocks = [[m.text for m in r.prompt if m.role == "system"] for r in (before, model.requests[-1])]
            assert blocks[1][: len(blocks[0])] == blocks[0], "notes grow at their end"
            assert played.data("activation") or len(blocks[1]) > len(blocks[0])
            changes += 1
    assert 2 <= changes <= 20


# --- nobody else's --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
async def test_resources_never_meet(storage: Storage, seed: int) -> None:
    """Whatever is done in whatever order, no prompt of a resource holds a word of another one."""
    chance = random.Random(seed)
    notes, condenses, model = noting(), ScriptedModel(_keep_words, name="reflector"), answering()
    memory = sharing(storage, model=notes, reflection={"model": condenses, "observation_tokens": 40}, retrieval=True)
    agent = Agent(model=model, memory=memory)
    threads = {f"{resource}-{n}": resource for resource in ("ada", "bob", "eve") for n in range(3)}
    for number in range(60):
        thread, resource = chance.choice(list(threads.items()))
        begun = [len(one.requests) for one in (notes, condenses, model)]
        deed = chance.random()
        known = await storage.get_thread(thread) is not None
        if deed < 0.75 or not known:
            await agent.generate(
                words(f"turn-{resource}-{number}", chance.randint(5, 30)), thread=thread, resource=resource
            )
        elif deed < 0.85:
            await memory.diary.observe(resource=resource)
        elif deed < 0.93:
            await memory.diary.observe(thread=thread, resource=resource)
        else:
            await memory.threads.delete(thread)
        await memory.settled()
        for one, first in zip((notes, condenses, model), begun, strict=True):
            for request in one.requests[first:]:
                assert {name.split("-")[1] for name in NAMES.findall(request.text)} <= {resource}
    for resource in ("ada", "bob", "eve"):
        log = await log_of(storage, resource)
        assert all(name.split("-")[1] == resource for e in log.entries for name in NAMES.findall(e.text))
        assert all(threads[source.thread_id] == resource for e in log.entries for source in e.sources)
        await assert_exactly_once(storage, [thread for thread, of in threads.items() if of == resource], resource)


def _keep_words(request: ModelRequest) -> str:
    return "<diary>\n- 🔴 " + " ".join(dict.fromkeys(NAMES.findall(request.text)[:3])) + "\n</diary>"


# --- by hand -----------------------------------------------------------------------------------------------


async def test_all_threads_of_a_resource_are_observed_by_hand(storage: Storage) -> None:
    model = noting()
    memory = sharing(storage, model=model, observation={"max_tokens_per_batch": 50})
    for name in "abcdef":
        await say(memory, f"said-{name}-1", thread=name)
    await say(memory, "said-bob-1", thread="bobs", resource="bob")
    told: list[tuple[int, int]] = []
    events: list[str] = []
    log = await memory.diary.observe(
        resource="ada",
        on_progress=lambda done, total: told.append((done, total)),
        on_event=lambda part: events.append(part.type),
    )
    assert told == [(0, 126), (126, 126)]
    assert [entry.state for entry in log.entries] == ["active"] * 3
    assert events.count("data-om-observation-end") == len(model.requests) == 3
    assert await assert_exactly_once(storage, list("abcdef")) == 12
    assert (await memory.diary.get(resource="ada")).entries == log.entries
    assert (await memory.diary.get(thread="a")).entries == log.entries
    assert (await log_of(storage, "bob")).entries == ()
    again = await memory.diary.observe(resource="ada")
    assert again.entries == log.entries
    assert len(model.requests) == 3


async def test_what_waits_is_activated_first_and_not_paid_for_again(storage: Storage) -> None:
    model = noting()
    memory = sharing(storage, model=model, await_background=True)
    await say(memory, "said-a-1", thread="a")
    await Agent(model=answering(), memory=memory).generate("hello", thread="now", resource="ada")
    assert [entry.state for entry in (await log_of(storage)).entries] == ["buffered"]
    heard: list[Any] = []
    log = await memory.diary.observe(resource="ada", on_event=heard.append)
    assert [entry.state for entry in log.entries] == ["active", "active"]
    assert heard[0].type == "data-om-activation"
    assert heard[0].data["triggeredBy"] == "manual"
    assert len(model.requests) == 2


async def test_notes_of_another_process_are_activated_too(tmp_path: Path) -> None:
    asked, refused = asyncio.Event(), asyncio.Event()

    class Refused(SQLiteStorage):
        async def acquire_lease(self, name: str, owner: str, *, ttl: float) -> Lease | None:
            lease = await super().acquire_lease(name, owner, ttl=ttl)
            if lease is None:
                refused.set()
            return lease

    async def write(_: ModelRequest) -> str:
        asked.set()
        await refused.wait()
        return "<diary>\n- 🟡 said-a-1\n</diary>"

    path = tmp_path / "memory.db"
    first = sharing(SQLiteStorage(path), model=ScriptedModel(write, name="observer"))
    async with first, sharing(Refused(path)) as second:
        await say(first, "said-a-1", thread="a")
        await Agent(model=answering(), memory=first).generate("hello", thread="a", resource="ada")
        await asked.wait()
        assert "said-a-1" in (await second.diary.observe(resource="ada")).text


@pytest.mark.parametrize("max_tokens_per_batch", [10_000, 50, 30])
async def test_threads_may_use_the_same_message_ids(storage: Storage, max_tokens_per_batch: int) -> None:
    """As those of a client that numbers its messages."""
    memory = sharing(storage, observation={"max_tokens_per_batch": max_tokens_per_batch})
    for name in "abcd":
        rows = [Message.user(words(f"said-{name}-1", 20), id="1"), Message.assistant("Noted.", id="2")]
        await memory.messages.save(rows, thread=name, resource="ada")
    log = await memory.diary.observe(resource="ada")
    assert sorted(NAMES.findall(log.text)) == [f"said-{name}-1" for name in "abcd"]
    assert await assert_exactly_once(storage, ["a", "b", "c", "d"]) == 8


async def test_a_log_that_grows_too_long_by_hand_is_condensed(storage: Storage) -> None:
    memory = sharing(storage, observation={"max_tokens_per_batch": 30}, reflection={"observation_tokens": 30})
    for name in "abcdef":
        await say(memory, f"said-{name}-1", thread=name)
    log = await memory.diary.observe(resource="ada")
    assert log.generation > 0
    assert log.tokens < 30


async def test_a_failure_by_hand_is_raised_and_the_rest_is_kept(storage: Storage) -> None:
    memory = sharing(storage, model=failing())
    await say(memory, "said-a-1", thread="a")
    with pytest.raises(RuntimeError, match="down"):
        await memory.diary.observe(resource="ada")


async def test_a_resource_alone_can_be_named_only_where_it_has_a_diary(storage: Storage) -> None:
    memory = configured(storage)
    await say(memory, "said-a-1", thread="a")
    for call in (memory.diary.observe, memory.diary.get):
        with pytest.raises(InputError, match="name a thread"):
            await call(resource="ada")
        with pytest.raises(InputError, match="name a thread"):
            await call()
    with pytest.raises(NotFoundError, match="nobody"):
        await sharing(storage).diary.observe(resource="nobody")


async def test_a_deleted_thread_leaves_the_diary_of_its_resource(storage: Storage) -> None:
    memory = sharing(storage, observation={"max_tokens_per_batch": 50})
    for name in "abcd":
        await say(memory, f"said-{name}-1", thread=name)
    await memory.diary.observe(resource="ada")
    await memory.threads.delete("b")
    log = await memory.diary.get(resource="ada")
    assert "said-b-1" not in log.text
    assert not any(source.thread_id == "b" for entry in log.entries for source in entry.sources)
    model = answering()
    await Agent(model=model, memory=memory).generate("hello", thread="a", resource="ada")
    assert "said-b-1" not in model.requests[-1].text
    await memory.diary.observe(resource="ada")
    log = await memory.diary.get(resource="ada")
    assert all(f"said-{name}-1" in log.text for name in "acd"), "what was noted with it is noted anew"


async def test_forgetting_a_message_takes_its_notes_out_of_the_diary(storage: Storage) -> None:
    memory = sharing(storage)
    for name in "ab":
        await say(memory, f"said-{name}-1", thread=name)
    await memory.diary.observe(resource="ada")
    row = (await memory.messages.list(thread="a"))[0]
    receipt = await memory.forget(message_ids=[row.id], thread="a", resource="ada")
    assert receipt.message_ids == (row.id,)
    assert "said-a-1" not in (await memory.diary.get(resource="ada")).text
    model = answering()
    await Agent(model=model, memory=memory).generate("hello", thread="b", resource="ada")
    assert "said-a-1" not in model.requests[-1].text


# --- two at once ------------------------------------------------------------------------------------------------

TALKING = """
import asyncio
from pathlib import Path
from diarist import Agent, Message
from diarist.storage import SQLiteStorage
from tests.scenarios.kit import answering, words
from tests.scenarios.test_resource_scope import sharing
path, thread = sys.argv[1:]

async def main():
    storage = SQLiteStorage(path)
    memory = sharing(storage, reflection={"observation_tokens": 80})
    model = answering()
    agent = Agent(model=model, memory=memory)
    await agent.generate("hello", thread=thread, resource="ada")
    go()
    for number in range(25):
        await agent.generate(words(f"turn-{thread}-{number}", 12), thread=thread, resource="ada")
        last = model.requests[-1].prompt.messages[-1].text
        assert last.count(f"turn-{thread}-{number}") == 12, last
    await memory.settled()
    await memory.close()

asyncio.run(main())
"""


@pytest.mark.slow
async def test_two_threads_of_a_resource_in_two_processes(tmp_path: Path) -> None:
    path = str(tmp_path / "memory.db")
    run_at_once(TALKING, [[path, "one"], [path, "two"]])
    async with SQLiteStorage(path) as storage:
        covered = await assert_exactly_once(storage, ["one", "two"])
        assert covered > 20
        log = await log_of(storage)
        assert not any(entry.run_id for entry in log.entries)
        assert {source.thread_id for entry in log.entries for source in entry.sources} == {"one", "two"}
        for thread in ("one", "two"):
            assert len(await storage.list_messages(thread)) == 52
        memory = sharing(storage)
        model = answering()
        await Agent(model=model, memory=memory).generate("and now?", thread="one", resource="ada")
        shown = ids_sent(model.requests[-1])
        rendered = await memory.diary.get(thread="one")
        for row in await storage.list_messages("one"):
            noted = [entry for entry in entries_of(rendered, row, "one") if entry.state == "active"]
            assert noted or row.id in shown or row.run_id == (await storage.list_messages("one"))[-1].run_id
        await memory.settled()


# --- a run keeps the diary it began with ------------------------------------------------------------------------


def _refusing_work(request: ModelRequest) -> Any:
    """Notes anything but what the thread ``work`` says."""
    return RuntimeError("down") if "turn-work" in request.text else "<diary>\n- 🟡 noted elsewhere\n</diary>"


async def test_a_failing_observer_leaves_the_diary_that_the_run_began_with(storage: Storage) -> None:
    """Another thread's notes come with this run's own, or with its next turn."""
    memory = sharing(storage, model=ScriptedModel(_refusing_work), observation={"buffer_tokens": False})
    await say(memory, "said-b-1", thread="b")

    async def look() -> str:
        await memory.diary.observe(thread="b")
        return words("found", 60)

    model = ScriptedModel("Noted.", ToolCall("look", {}), "Done.")
    agent = Agent(model=model, memory=memory, tools=[Tool(name="look", function=look)])
    await agent.generate(words("turn-work-0", 50), thread="work", resource="ada")
    result = await agent.generate(words("turn-work-1", 10), thread="work", resource="ada")
    failed = [event for event in await storage.list_events("resource:ada") if event.type.endswith("-failed")]
    assert failed, "the run's own Observer was asked"
    first, second = model.requests[-2:]
    assert second.text.startswith(first.text)
    assert (result.memory.cache[1].changed, result.memory.cache[1].why) == (None, "")


async def test_notes_of_another_thread_explain_a_changed_prompt(storage: Storage) -> None:
    """Also where each request has an agent and a model object of its own."""
    memory = sharing(storage)
    await say(memory, "said-b-1", thread="b")
    steps: list[StepCache] = []
    for number in range(3):
        agent = Agent(model=answering(), memory=memory)
        result = await agent.generate(words(f"turn-{number}", 5), thread="a", resource="ada")
        steps += result.memory.cache
        if number == 1:
            await memory.diary.observe(thread="b")
    assert [(step.first, step.changed, step.why) for step in steps] == [
        (True, None, ""),
        (False, None, ""),
        (False, "messages", "activation"),
    ]


async def test_what_changes_between_two_runs_is_told(storage: Storage) -> None:
    memory = sharing(storage)
    for name in "bc":
        await say(memory, f"said-{name}-1", thread=name)
        await memory.diary.observe(thread=name)

    async def forget() -> None:
        await memory.forget(message_ids=[(await memory.messages.list(thread="c"))[0].id], thread="c")

    async def edit() -> None:
        await memory.diary.edit((await memory.diary.get(thread="b")).entries[0].id, "- 🟡 edited", thread="b")

    async def reflect() -> None:
        await memory.diary.reflect(thread="b", guidance="short")

    told: list[str] = []
    for number, deed in enumerate((None, edit, forget, reflect)):
        if deed is not None:
            await deed()
        agent = Agent(model=answering(), memory=memory)
        result = await agent.generate(words(f"turn-{number}", 5), thread="a", resource="ada")
        told.append(result.memory.cache[0].why)
    assert told == ["", "edit", "forgetting", "reflection"]


async def test_a_rewritten_step_takes_in_no_notes_of_another_thread(storage: Storage) -> None:
    """What was noted of the step is dropped; the rest of the diary stays as the run began with it."""

    class Redacts(Processor[Any]):
        def process_input_step(self, args: ProcessInputStepArgs[Any]) -> None:
            if args.step_number == 3:
                args.message_list.response[0].tool_parts[0].result = "redacted"

    async def look() -> str:
        await memory.settled()
        if len(model.requests) == 4:
            await memory.diary.observe(thread="b")
        return words("found", 12)

    memory = sharing(storage)
    await say(memory, "said-b-1", thread="b")
    model = ScriptedModel("Noted.", *[ToolCall("look", {})] * 4, "Done.")
    agent = Agent(
        model=model,
        memory=memory,
        tools=[Tool(name="look", function=look)],
        input_processors=[Redacts()],
        max_steps=6,
    )
    await agent.generate("turn-work-0", thread="work", resource="ada")
    await agent.generate("turn-work-1", thread="work", resource="ada")
    shown = ["said-b-1" in "".join(m.text for m in r.prompt if m.role == "system") for r in model.requests]
    assert "redacted" in model.requests[-1].text
    assert "said-b-1" in (await memory.diary.get(thread="work")).text
    assert not any(shown)
