"""What is forgotten is gone, with every word that was made from it, and nothing else is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Memory, Message
from diarist.exceptions import InputError, NotFoundError
from diarist.memory import Receipt
from diarist.messages import SentBlock
from diarist.models.base import ModelRequest
from diarist.storage import InMemoryStorage, ObservationLog, Resource, SQLiteStorage, Storage, WorkingMemory
from diarist.testing import ScriptedModel
from tests.memory.diary_kit import everything, keeping_diary, message, told, word
from tests.scenarios.kit import WatchedStorage, answering, raw_rows


@pytest.fixture(params=["sqlite", "in-memory"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Storage]:
    made: Storage = SQLiteStorage(tmp_path / "memory.db") if request.param == "sqlite" else InMemoryStorage()
    async with made:
        yield made


@pytest.fixture
def memory(storage: Storage) -> Memory:
    return keeping_diary(storage)


async def assert_kept(storage: Storage, *numbers: int) -> None:
    """These messages are stored, each raw or covered once."""
    assert [row.id for row in await storage.list_messages("t")] == [f"m{number}" for number in numbers]
    await raw_rows(storage)


# --- messages ------------------------------------------------------------------------------------------------


async def test_an_observation_goes_with_its_message(storage: Storage, memory: Memory) -> None:
    await told(memory, range(1, 7))
    first, second, third = (await memory.diary.get(thread="t")).entries
    receipt = await memory.forget(message_ids=["m3"], thread="t")
    assert receipt == Receipt(message_ids=("m3",), observation_ids=(second.id,))
    assert (await memory.diary.get(thread="t")).entries == (first, third)
    assert word(3) not in await everything(storage)
    await assert_kept(storage, 1, 2, 4, 5, 6)
    log = await memory.diary.observe(thread="t")
    assert log.entries[:2] == (first, third)
    assert word(4) in log.entries[2].text
    assert await raw_rows(storage) == []
    assert word(3) not in await everything(storage)


async def test_a_reflection_gives_way_to_what_it_replaced(storage: Storage, memory: Memory) -> None:
    await told(memory, range(1, 5))
    old = (await memory.diary.get(thread="t")).entries
    await memory.diary.reflect(thread="t", guidance="keep all")
    await told(memory, range(5, 9))
    new = (await memory.diary.get(thread="t")).entries[1:]
    reflection = (await memory.diary.reflect(thread="t", guidance="keep all")).entries[0]
    assert all(word(number) in reflection.text for number in range(1, 9))
    receipt = await memory.forget(message_ids=["m6"], thread="t")
    assert reflection.id in receipt.observation_ids
    log = await memory.diary.get(thread="t")
    assert [entry.kind for entry in log.entries] == ["reflection", "observation"]
    assert log.entries[1] == new[1]
    assert word(4) in log.entries[0].text
    assert receipt.restored_ids == tuple(entry.id for entry in log.entries)
    await memory.forget(message_ids=["m1"], thread="t")
    assert (await memory.diary.get(thread="t")).entries == (old[1], new[1])
    stored = await everything(storage)
    assert (word(1) in stored, word(6) in stored, word(2) in stored) == (False, False, True)
    await assert_kept(storage, 2, 3, 4, 5, 7, 8)


async def test_the_receipt_lists_later_entries_that_mention_what_was_forgotten(storage: Storage) -> None:
    memory = keeping_diary(storage, echoes=True)
    for numbers in ([1, 2], [3, 4], [5, 6], [7, 8]):
        await told(memory, numbers)
    log = await memory.diary.get(thread="t")
    assert [word(1) in entry.text for entry in log.entries] == [True, True, True, True]
    receipt = await memory.forget(message_ids=["m1"], thread="t")
    later = (await memory.diary.get(thread="t")).entries
    assert [word(1) in entry.text for entry in later] == [True, True, True]
    assert receipt.mentioning_ids == tuple(entry.id for entry in later)
    await assert_kept(storage, 2, 3, 4, 5, 6, 7, 8)
    assert (await memory.forget(message_ids=["m8"], thread="t")).mentioning_ids == ()


async def test_what_others_say_as_well_stays(storage: Storage, memory: Memory) -> None:
    await memory.messages.save([message(1), message(2)], thread="t", resource="ada")
    await memory.messages.save([Message.user(f"{word(1)} again", id="m3"), message(4)], thread="t", resource="ada")
    await memory.diary.observe(thread="t")
    second = (await memory.diary.get(thread="t")).entries[-1]
    await memory.forget(message_ids=["m1"], thread="t")
    assert (await memory.diary.get(thread="t")).entries == (second,)


async def test_notes_that_were_sent_keep_only_their_date(storage: Storage, memory: Memory) -> None:
    await told(memory, range(1, 5))
    model = answering()
    agent = Agent(model=model, memory=memory)
    await agent.generate("what now?", thread="t", resource="ada")
    asked = (await storage.list_messages("t"))[4]
    assert asked.sent is not None
    assert word(4) in asked.sent.text
    receipt = await memory.forget(message_ids=["m4"], thread="t")
    assert receipt.note_ids == (asked.id,)
    cut = (await storage.list_messages("t"))[3].sent
    assert cut is not None
    assert cut.made_from == {"date": asked.sent.made_from["date"]}
    assert cut.text.splitlines()[1] == asked.sent.text.splitlines()[1]
    assert len(cut.text.splitlines()) == 3
    await agent.generate("and now?", thread="t", resource="ada")
    await memory.settled()
    assert word(4) not in model.requests[-1].text


async def test_notes_that_were_sent_on_another_branch_keep_only_their_date(memory: Memory) -> None:
    await told(memory, range(1, 5))
    await Agent(model=answering(), memory=memory).generate("what now?", thread="t", resource="ada")
    await memory.threads.rewind("t", to="m4")
    receipt = await memory.forget(message_ids=["m4"], thread="t")
    (branch,) = await memory.threads.branches("t")
    asked = branch.messages[0]
    assert receipt.note_ids == (asked.id,)
    assert asked.sent is not None
    assert asked.sent.made_from.keys() == {"date"}


async def test_a_note_of_unknown_make_goes(storage: Storage, memory: Memory) -> None:
    await told(memory, [1, 2])
    await memory.messages.save([Message.user("later", id="m3")], thread="t", resource="ada")
    await storage.rewrite_sent("t", {"m3": SentBlock(text=f"recalled {word(1)}", tokens=2)})
    assert (await memory.forget(message_ids=["m1"], thread="t")).note_ids == ("m3",)
    assert (await storage.list_messages("t"))[1].sent is None


async def test_errors_that_may_quote_are_stored_without_their_text(storage: Storage) -> None:
    def fail(request: ModelRequest) -> Exception:
        return RuntimeError(f"cannot read {request.text}")

    memory = keeping_diary(storage, observer_model=ScriptedModel(fail))
    with pytest.raises(RuntimeError):
        await told(memory, [1, 2])
    await memory.forget(message_ids=["m1"], thread="t")
    assert word(1) not in await everything(storage)
    assert [event.data["error"] for event in await memory.diary.events(thread="t") if "error" in event.data] == [
        "RuntimeError"
    ]
    failures = (await memory.diary.get(thread="t")).observer_failures
    assert (failures.count, failures.last_error) == (1, "RuntimeError")


async def test_a_chunk_that_waits_and_a_reflection_that_waits_go(storage: Storage) -> None:
    memory = keeping_diary(storage, observation_tokens=40)
    agent = Agent(model=answering(), memory=memory)
    await told(memory, range(1, 7))
    for number in (7, 9, 11):
        await agent.generate([message(number, size=24)], thread="t", resource="ada")
        await memory.settled()
    log = await memory.diary.get(thread="t")
    assert log.reflection is not None
    assert log.buffered
    waiting = (await memory.diary.sources(log.buffered[0].id, thread="t")).items[0]
    await memory.forget(message_ids=["m1", waiting.id], thread="t")
    after = await memory.diary.get(thread="t")
    assert after.reflection is None
    assert log.buffered[0] not in after.entries
    stored = await everything(storage)
    assert word(1) not in stored
    assert waiting.text.split()[0] not in stored
    await raw_rows(storage)


async def test_forgetting_twice_is_forgetting_once(storage: Storage, memory: Memory) -> None:
    await told(memory, range(1, 5))
    assert (await memory.forget(message_ids=["m1", "unknown"], thread="t")).message_ids == ("m1",)
    log = await memory.diary.observe(thread="t")
    assert await memory.forget(message_ids=["m1", "unknown"], thread="t") == Receipt()
    assert await memory.forget(message_ids=[], thread="t") == Receipt()
    assert (await memory.diary.get(thread="t")).entries == log.entries
    assert await memory.forget(message_ids=["m1"], thread="no thread") == Receipt()


async def test_many_messages_in_pieces(storage: Storage, memory: Memory) -> None:
    await memory.messages.save([message(number) for number in range(1, 901)], thread="t", resource="ada")
    odd = [f"m{number}" for number in range(1, 901, 2)]
    assert (await memory.forget(message_ids=odd, thread="t")).message_ids == tuple(odd)
    await assert_kept(storage, *range(2, 901, 2))


@pytest.mark.parametrize("wrong", [{}, {"message_ids": ["m1"]}, {"message_ids": ["m1"], "resource": "ada"}])
async def test_it_must_be_said_what_to_forget(memory: Memory, wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="thread="):
        await memory.forget(**wrong)


async def test_history_without_a_diary_can_be_forgotten(storage: Storage) -> None:
    memory = Memory(storage=storage)
    await memory.messages.save([message(1), message(2)], thread="t", resource="ada")
    assert await memory.forget(message_ids=["m1"], thread="t") == Receipt(message_ids=("m1",))
    await assert_kept(storage, 2)


async def test_no_word_is_left_in_any_byte_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    async with SQLiteStorage(path) as storage:
        memory = keeping_diary(storage)
        await told(memory, range(1, 13))
        await memory.diary.reflect(thread="t", guidance="keep all")
        await memory.forget(message_ids=["m3", "m8"], thread="t")
        await memory.diary.observe(thread="t")
    data = path.read_bytes()
    kept = {number for number in range(1, 13) if word(number).encode() in data}
    assert kept == set(range(1, 13)) - {3, 8}


# --- threads and resources -----------------------------------------------------------------------------------


async def test_a_thread_goes_as_a_whole(storage: Storage, memory: Memory) -> None:
    await told(memory, range(1, 5))
    await memory.diary.reflect(thread="t", guidance="keep all")
    await memory.messages.save([message(99)], thread="other", resource="ada")
    entries = {e.id for log in await memory.diary.history(thread="t") for e in log.entries}
    entries |= {e.id for e in (await memory.diary.get(thread="t")).entries}
    receipt = await memory.forget(thread="t")
    assert receipt.message_ids == ("m1", "m2", "m3", "m4")
    assert set(receipt.observation_ids) == entries
    assert receipt.thread_ids == ("t",)
    stored = await everything(storage)
    assert not any(word(number) in stored for number in range(1, 5))
    assert word(99) in stored
    assert await memory.forget(thread="t") == Receipt()


async def test_a_resource_goes_as_a_whole(storage: Storage, memory: Memory) -> None:
    for number in range(150):
        await memory.messages.save([message(number)], thread=f"t{number}", resource="ada")
    await memory.diary.observe(thread="t1")
    await memory.messages.save([message(999)], thread="hers", resource="grace")
    await storage.save_resource(Resource(id="ada", metadata={"seat": word(2)}))
    await storage.save_working_memory(WorkingMemory(key="resource:ada", text=f"likes {word(1)}"))
    receipt = await memory.forget(resource="ada")
    assert set(receipt.thread_ids) == {f"t{number}" for number in range(150)}
    assert receipt.resource_ids == ("ada",)
    stored = await everything(storage)
    assert not any(word(number) in stored for number in range(150))
    assert word(999) in stored
    assert (await storage.get_resource("ada")).metadata == {}
    assert (await storage.get_working_memory("resource:ada")).text == ""
    assert await memory.forget(resource="ada") == Receipt()


async def test_forgetting_stores_nothing_for_a_resource(storage: Storage, memory: Memory) -> None:
    await memory.messages.save([message(1)], thread="t", resource="ada")
    await storage.save_working_memory(WorkingMemory(key="resource:ada", text="likes tea"))
    await storage.save_resource(Resource(id="grace", metadata={"seat": "12A"}))
    for owner in ("ada", "grace"):
        assert (await memory.forget(resource=owner)).resource_ids == (owner,)
    assert (await storage.get_resource("ada")).version == 0
    assert (await storage.get_working_memory("resource:grace")).version == 0


async def test_a_log_of_the_resource_loses_what_came_from_a_deleted_thread(storage: Storage, memory: Memory) -> None:
    """Also where the logs are kept by thread now: a memory may have had another scope before."""
    for thread, numbers in (("t", [1, 2]), ("other", [3, 4])):
        await told(memory, numbers, thread=thread)
    entries = [e for thread in ("t", "other") for e in (await memory.diary.get(thread=thread)).entries]
    whole = replace(entries[0], id="ref", kind="reflection", sources=entries[0].sources + entries[1].sources)
    whole = replace(whole, text=f"{entries[0].text} {entries[1].text}", cycle_id="whole")
    log = ObservationLog(key="resource:ada", scope="resource", resource_id="ada", entries=tuple(entries))
    await storage.save_log(log, expected_version=0)
    await storage.save_log(replace(log, generation=1, entries=(whole,)), expected_version=1)
    await memory.threads.delete("t", resource="ada")
    kept = await storage.get_log("resource:ada")
    assert kept is not None
    assert (kept.entries, kept.tombstones) == ((entries[1],), ())
    stored = await everything(storage)
    assert (word(1) in stored, word(3) in stored) == (False, True)


# --- others at work ------------------------------------------------------------------------------------------


class Held(ScriptedModel):
    """An Observer that waits until it is let go, and writes every such word that it was told."""

    def __init__(self) -> None:
        self.started, self.go = asyncio.Event(), asyncio.Event()
        super().__init__(self._write, name="observer")

    async def _write(self, request: ModelRequest) -> str:
        told = [word(number) for number in range(1, 5) if word(number) in request.text]
        return f"<diary>\n- 🔴 {' '.join(told)}\n</diary>"

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        self.started.set()
        await self.go.wait()
        async for chunk in super().stream(request):
            yield chunk


@pytest.mark.parametrize("what", [{"message_ids": ["m1"]}, {}])
async def test_nothing_comes_back_by_an_observation_in_flight(storage: Storage, what: dict[str, Any]) -> None:
    observer = Held()
    memory = keeping_diary(storage, observer_model=observer)
    await memory.messages.save([message(1), message(2)], thread="t", resource="ada")
    job = asyncio.create_task(memory.diary.observe(thread="t"))
    await observer.started.wait()
    await memory.forget(thread="t", **what)
    observer.go.set()
    if what:
        assert word(2) in (await job).text
    else:
        with pytest.raises(NotFoundError):
            await job
    assert word(1) not in await everything(storage)


async def test_nothing_comes_back_by_an_observer_that_was_told_earlier_notes(storage: Storage) -> None:
    await told(keeping_diary(storage), [1, 2])
    observer = Held()
    memory = keeping_diary(storage, observer_model=observer)
    await memory.messages.save([message(3), message(4)], thread="t", resource="ada")
    job = asyncio.create_task(memory.diary.observe(thread="t"))
    await observer.started.wait()
    await memory.forget(message_ids=["m1"], thread="t")
    observer.go.set()
    assert word(3) in (await job).text
    assert word(1) not in await everything(storage)
    await assert_kept(storage, 2, 3, 4)


async def test_nothing_comes_back_by_a_reflection_in_flight(storage: Storage) -> None:
    reflector = Held()
    memory = keeping_diary(storage, reflector_model=reflector)
    await told(memory, range(1, 5))
    job = asyncio.create_task(memory.diary.reflect(thread="t", guidance="keep all"))
    await reflector.started.wait()
    await memory.forget(message_ids=["m1"], thread="t")
    reflector.go.set()
    assert word(3) in (await job).text
    assert word(1) not in await everything(storage)
    await assert_kept(storage, 2, 3, 4)


async def test_what_a_live_run_had_in_hand_is_looked_through_before_the_next(storage: Storage, memory: Memory) -> None:
    await told(memory, range(1, 5))

    async def meanwhile(_: ModelRequest) -> str:
        await memory.forget(message_ids=["m4"], thread="t")
        return "Fine."

    agent = Agent(model=ScriptedModel(meanwhile, "Fine, too."), memory=memory)
    await agent.generate("what now?", thread="t", resource="ada")
    await agent.generate("and now?", thread="t", resource="ada")
    await memory.settled()
    stored = await everything(storage)
    assert (word(3) in stored, word(4) in stored) == (True, False)
    assert len(await storage.list_messages("t")) == 7
    assert (await memory.diary.get(thread="t")).tombstones == ()


# --- crashes -------------------------------------------------------------------------------------------------


class Power(BaseException):
    """The process ends here."""


class Failing(WatchedStorage):
    """Ends the process at the n-th write, before or after it; 0: never."""

    WRITES = frozenset({"save_log", "rewrite_generation", "rewrite_sent", "update_thread", "delete_messages"})

    def __init__(self) -> None:
        super().__init__()
        self.left = 0
        self.after = False

    async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        dies = False
        if name in self.WRITES and self.left:
            self.left -= 1
            dies = self.left == 0
        if dies and not self.after:
            raise Power
        result = await call()
        if dies:
            raise Power
        return result


async def _conversation(storage: Storage) -> Memory:
    memory = keeping_diary(storage)
    await told(memory, range(1, 5))
    await memory.diary.reflect(thread="t", guidance="keep all")
    await told(memory, range(5, 9))
    await Agent(model=answering(), memory=memory).generate("go on", thread="t", resource="ada")
    await memory.settled()
    return memory


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("again", ["forget", "observe"])
async def test_the_next_call_finishes_a_removal_that_a_crash_cut_short(after: bool, again: str) -> None:
    died = 0
    for write in range(1, 60):
        storage = Failing()
        memory = await _conversation(storage)
        storage.left, storage.after = write, after
        try:
            await memory.forget(message_ids=["m2", "m7"], thread="t")
        except Power:
            died += 1
        else:
            break
        before = await storage.get_log("thread:t")
        marked = before is not None and bool(before.tombstones)
        if again == "forget" or not marked:
            await memory.forget(message_ids=["m2", "m7"], thread="t")
        await memory.diary.observe(thread="t")
        stored = await everything(storage)
        assert (word(2) in stored, word(7) in stored) == (False, False), f"after write {write}"
        rows = await raw_rows(storage)
        assert rows == []
        kept = [row.id for row in await storage.list_messages("t")][:6]
        assert kept == ["m1", "m3", "m4", "m5", "m6", "m8"]
    assert died >= 4


# --- what it costs -------------------------------------------------------------------------------------------


async def _cost(storage: WatchedStorage, work: Awaitable[Any]) -> tuple[int, int]:
    """Rows that are read by it, and storage calls."""
    rows, calls = storage.rows_read, storage.calls.total()
    await work
    return storage.rows_read - rows, storage.calls.total() - calls


async def _costs_of_forgetting_half(size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """What it costs to forget every other of so many messages, and what the next turn does."""
    storage = WatchedStorage()
    memory = keeping_diary(storage)
    agent = Agent(model=answering(), memory=memory)
    await memory.messages.save([message(number) for number in range(1, size + 1)], thread="t", resource="ada")
    gone = [f"m{number}" for number in range(1, size, 2)]
    forget = await _cost(storage, memory.forget(message_ids=gone, thread="t"))
    turn = await _cost(storage, agent.generate("and now?", thread="t", resource="ada"))
    await memory.settled()
    assert not set(gone) & {row.id for row in await storage.list_messages("t")}
    return forget, turn


@pytest.mark.slow
async def test_forgetting_twice_as_many_messages_costs_twice_as_much_at_most() -> None:
    once, twice = [await _costs_of_forgetting_half(size) for size in (500, 1_000)]
    for (rows, calls), (more_rows, more_calls) in zip(once, twice, strict=True):
        assert more_rows <= 2 * rows + 20
        assert more_calls <= 2 * calls + 20
    assert twice[0][0] <= 5 * 1_000
    assert twice[0][1] <= 50
