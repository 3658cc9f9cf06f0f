"""Vectors follow their messages: what is forgotten is not found, and nothing brings it back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Memory, Message, Processor, tool
from diarist.exceptions import NotFoundError
from diarist.models.embedders import Purpose
from diarist.storage import InMemoryStorage, SQLiteStorage
from diarist.testing import ScriptedModel, ToolCall
from diarist.vectors import Filter, InMemoryVectorStore, Metadata, VectorStore
from tests.exactly_once.simulation import simulated
from tests.memory.semantic.kit import TopicEmbedder, memory_with, say

INDEX = "messages topics 4"


async def count(store: VectorStore, index: str = INDEX) -> int:
    info = await store.describe(index)
    assert info is not None
    return info.count


async def conversations(store: VectorStore, embedder: TopicEmbedder | None = None) -> Memory:
    memory = memory_with(embedder or TopicEmbedder(), vector=store)
    for thread, text in (("one", "Rome is warm."), ("two", "Pizza is round.")):
        await memory.messages.save(
            [Message.user(text, id="m"), Message.user("More of Rome.")], thread=thread, resource="ada"
        )
    await memory.settled()
    assert await count(store) == 4
    return memory


async def test_a_forgotten_message_is_not_found() -> None:
    store = InMemoryVectorStore()
    memory = await conversations(store)
    receipt = await memory.forget(message_ids=["m"], thread="one")
    assert receipt.vectors == 1
    assert await count(store) == 3
    page = await memory.recall("Rome is warm", resource="ada")
    assert "Rome is warm." not in [hit.message.text for hit in page.items]
    assert (await memory.forget(message_ids=["m"], thread="one")).vectors == 0


async def test_a_thread_goes_with_its_vectors() -> None:
    store = InMemoryVectorStore()
    memory = await conversations(store)
    await memory.threads.delete("one")
    assert await count(store) == 2
    assert (await memory.forget(thread="two")).vectors == 2
    assert (await count(store), await count(store, f"{INDEX} cursors")) == (0, 0)


async def test_vectors_of_an_earlier_embedder_go_too() -> None:
    class Later(TopicEmbedder):
        name = "later"

    store = InMemoryVectorStore()
    earlier = await conversations(store)
    memory = memory_with(Later(), vector=store, storage=earlier.storage)
    assert (await memory.forget(message_ids=["m"], thread="one")).vectors == 1
    assert (await memory.forget(resource="ada")).vectors == 3
    assert (await count(store), await count(store, f"{INDEX} cursors")) == (0, 0)


async def test_what_a_resumed_run_says_is_embedded() -> None:
    @tool(needs_approval=True)
    def book() -> str:
        """Books."""
        return "booked"

    store = InMemoryVectorStore()
    memory = memory_with(TopicEmbedder(), vector=store)
    agent = Agent(name="a", model=ScriptedModel(ToolCall("book"), "Enjoy Rome!"), memory=memory, tools=[book])
    await agent.generate("To Italy.", thread="t", resource="ada")
    await agent.resume({"call_1": True}, thread="t", resource="ada")
    await memory.settled()
    assert await count(store) == 2


async def test_a_later_turn_embeds_a_thread_that_a_killed_process_left() -> None:
    store = InMemoryVectorStore()
    memory = memory_with(TopicEmbedder(), vector=store)
    lease = await memory.storage.acquire_lease("embed:one", "somebody who dies", ttl=60)
    assert lease is not None
    await memory.messages.save([Message.user("Rome is warm.")], thread="one", resource="ada")
    await memory.settled()
    await memory.storage.release_lease(lease)  # as it expires
    await say(memory, "Pizza?", thread="two")
    assert "Rome is warm." in [hit.message.text for hit in (await memory.recall("Italy", resource="ada")).items]


async def test_a_later_turn_embeds_what_another_process_could_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("diarist.memory.semantic.embedding_jobs.monotonic", lambda: now)
    older, other = TopicEmbedder(), TopicEmbedder()
    memory, elsewhere = (
        memory_with(embedder, storage=SQLiteStorage(tmp_path / "memory.db")) for embedder in (older, other)
    )
    async with memory, elsewhere:
        await say(memory, "A garden", thread="one")
        other.failing = RuntimeError("out of order")
        await say(elsewhere, "Rome is warm.", thread="two")
        for _ in range(2):  # turns in between delay nothing
            now += 149
            await say(memory, "Pizza is round.", thread="one")
            assert "Rome is warm." not in older.texts  # not every turn reads all threads
        now += 2
        await say(memory, "Pizza is round.", thread="one")
        assert "Rome is warm." in [hit.message.text for hit in (await memory.recall("Italy", resource="ada")).items]


def test_what_ended_with_its_event_loop_is_embedded_by_a_later_turn() -> None:
    embedder, store = TopicEmbedder(), InMemoryVectorStore()
    memory = memory_with(embedder, vector=store)
    asyncio.run(say(memory, "Pizza is round.", thread="one"))

    async def end_too_soon() -> None:
        embedder.gate = asyncio.Event()
        await memory.messages.save([Message.user("Rome is warm.")], thread="one", resource="ada")
        await asyncio.sleep(0.01)

    async def later() -> list[str]:
        embedder.gate = asyncio.Event()
        embedder.gate.set()
        await say(memory, "A garden", thread="two")
        return [hit.message.text for hit in (await memory.recall("Italy", resource="ada")).items]

    asyncio.run(end_too_soon())
    assert "Rome is warm." in asyncio.run(later())


def test_a_lease_that_is_granted_while_its_event_loop_ends_is_given_back() -> None:
    granted = asyncio.Event()

    class Late(InMemoryStorage):
        async def acquire_lease(self, *args: Any, **options: Any) -> Any:
            lease = await super().acquire_lease(*args, **options)
            if not granted.is_set():
                granted.set()
                await asyncio.Event().wait()
            return lease

    storage, store = Late(), InMemoryVectorStore()
    memory = memory_with(TopicEmbedder(), storage=storage, vector=store)

    async def main() -> None:
        await memory.messages.save("Rome is warm.", thread="one", resource="ada")
        await granted.wait()

    asyncio.run(main())
    other = memory_with(TopicEmbedder(), storage=storage, vector=store)  # as in another process
    assert other.sync.messages.embed(thread="one") == 1


def test_no_other_process_embeds_a_thread_again_while_one_embeds_for_minutes() -> None:
    with simulated(1) as (loop, *_):
        loop.run_until_complete(_embed_for_minutes())


async def _embed_for_minutes() -> None:
    embedder, other, storage = TopicEmbedder(), TopicEmbedder(), InMemoryStorage()
    await Memory(storage=storage).messages.save("Rome is warm.", thread="one")
    embedder.gate.clear()
    embedding = asyncio.create_task(memory_with(embedder, storage=storage).messages.embed(thread="one"))
    await asyncio.sleep(200)
    assert await memory_with(other, storage=storage).messages.embed(thread="one") == 0
    embedder.gate.set()
    assert await embedding == 1
    assert other.texts == []


async def test_half_a_character_does_not_stop_its_thread() -> None:
    class Strict(TopicEmbedder):
        async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> list[list[float]]:
            for text in texts:
                text.encode()  # as every tokenizer and every HTTP client does
            return await super().embed(texts, purpose=purpose)

    memory = memory_with(Strict())
    messages = [Message.user("Cut \ud83d off."), Message.user("Rome is warm.")]
    await memory.messages.save(messages, thread="one", resource="ada")
    await memory.settled()
    assert "Rome is warm." in [hit.message.text for hit in (await memory.recall("Italy", resource="ada")).items]


async def test_a_store_that_cannot_remove_does_not_spoil_what_was_found() -> None:
    class Stubborn(InMemoryVectorStore):
        stubborn = False

        async def delete(self, index: str, *, ids: Sequence[str] | None = None, filter: Filter | None = None) -> int:
            if self.stubborn:
                raise OSError("read-only")
            return await super().delete(index, ids=ids, filter=filter)

    store = Stubborn()
    memory = await conversations(store)
    await memory.storage.delete_messages("one", ["m"])
    store.stubborn = True
    assert "More of Rome." in await say(memory, "Italy?", thread="new")


async def test_a_resource_goes_with_its_vectors() -> None:
    store = InMemoryVectorStore()
    memory = await conversations(store)
    await say(memory, "Rome of Bob.", thread="b", resource="bob")
    assert (await memory.forget(resource="ada")).vectors == 4
    assert await count(store) == 1  # Bob's


async def test_notes_that_quote_forgotten_words_are_cut() -> None:
    memory = await conversations(InMemoryVectorStore())
    await say(memory, "Tell me of Italy.", thread="new")
    (asked, _) = await memory.messages.list(thread="new")
    assert asked.sent is not None
    assert "Rome is warm." in asked.sent.text
    receipt = await memory.forget(message_ids=["m"], thread="one")
    assert receipt.note_ids == (asked.id,)
    assert "Rome is warm." not in await say(memory, "And now?", thread="new")


async def test_notes_of_superseded_messages_are_cut() -> None:
    memory = await conversations(InMemoryVectorStore())
    await say(memory, "Hello.", thread="new")
    await say(memory, "Tell me of Italy.", thread="new")
    rows = await memory.messages.list(thread="new")
    await memory.threads.rewind("new", to=rows[1].id)
    receipt = await memory.forget(message_ids=["m"], thread="one")
    assert receipt.note_ids == (rows[2].id,)
    (branch,) = await memory.threads.branches("new")
    assert branch.messages[0].sent is None


async def test_notes_that_quote_a_deleted_thread_are_cut() -> None:
    memory = await conversations(InMemoryVectorStore())
    await say(memory, "Tell me of Italy.", thread="new")
    await memory.threads.delete("one")
    assert "Rome is warm." not in await say(memory, "And now?", thread="new")


@pytest.mark.parametrize("whole", [False, True])
async def test_work_in_flight_brings_nothing_back(whole: bool) -> None:
    """The text was read and is being embedded while its message is removed."""
    store, embedder = InMemoryVectorStore(), TopicEmbedder()
    memory = await conversations(store, embedder)
    embedder.gate.clear()
    embedder.waited_for.clear()
    await memory.messages.save([Message.user("Rome is secret.", id="late")], thread="one", resource="ada")
    await embedder.waited_for.wait()
    await (memory.threads.delete("one") if whole else memory.forget(message_ids=["late"], thread="one"))
    embedder.gate.set()
    await memory.settled()
    assert await count(store) == (2 if whole else 4)
    assert await count(store, f"{INDEX} cursors") == (1 if whole else 2)


class Breaking(InMemoryVectorStore):
    """Breaks down after it has stored what ``after`` calls gave it."""

    after: int | None = None

    async def upsert(
        self,
        index: str,
        ids: Sequence[str],
        vectors: Sequence[Sequence[float]],
        metadata: Sequence[Metadata] | None = None,
    ) -> None:
        await super().upsert(index, ids, vectors, metadata)
        if self.after is not None:
            self.after -= 1
            if self.after == 0:
                raise OSError("the plug was pulled")


@pytest.mark.parametrize("after", [1, 2])
async def test_a_crash_in_between_leaves_nothing_for_ever(after: int) -> None:
    """Wherever the work stops: what was forgotten since is gone after a search, all else is there once."""
    store = Breaking()
    memory = await conversations(store)
    store.after = after
    await memory.messages.save([Message.user("Rome is secret.", id="late")], thread="one", resource="ada")
    await memory.settled()
    await memory.storage.delete_messages("one", ["late"])  # by a process that died before it came to the vectors
    store.after = None
    await memory.messages.save([Message.user("Garden.")], thread="one", resource="ada")
    await memory.settled()
    assert await count(store) == 6
    page = await memory.recall("Rome", resource="ada")
    assert "Rome is secret." not in [hit.message.text for hit in page.items]
    assert await count(store) == 5  # what lay there still was found to be gone


async def test_what_was_done_before_a_crash_is_not_there_twice() -> None:
    store = Breaking()
    memory = memory_with(TopicEmbedder(), vector=store)
    store.after = 1
    await memory.messages.save([Message.user("Rome is warm.")], thread="one", resource="ada")
    await memory.settled()
    store.after = None
    assert await memory.messages.embed(thread="one") == 1
    assert await count(store) == 1


async def test_a_copy_is_found_as_well() -> None:
    memory = await conversations(InMemoryVectorStore())
    await memory.threads.clone("one", new_thread="copy")
    await memory.settled()
    page = await memory.recall("Rome is warm", thread="copy")
    assert sorted(hit.message.text for hit in page.items) == ["More of Rome.", "Rome is warm."]


async def test_two_processes_embed_once() -> None:
    storage, store = InMemoryStorage(), InMemoryVectorStore()
    embedders = TopicEmbedder(), TopicEmbedder()
    memories = [memory_with(embedder, storage=storage, vector=store) for embedder in embedders]
    quiet = Memory(storage=storage)
    for number in range(30):
        await quiet.messages.save([Message.user(f"Rome {number}")], thread="one", resource="ada")
    await asyncio.gather(*(memory.messages.embed(thread="one") for memory in memories))
    assert sum(len(embedder.texts) for embedder in embedders) == 30
    assert await count(store) == 30


async def test_a_failing_vector_store_fails_forget() -> None:
    """The caller of ``forget`` must learn that vectors are left."""

    class Stuck(InMemoryVectorStore):
        stuck = False

        async def delete(self, *args: object, **more: object) -> int:
            if self.stuck:
                raise OSError("read only")
            return await super().delete(*args, **more)  # pyright: ignore

    store = Stuck()
    memory = await conversations(store)
    store.stuck = True
    with pytest.raises(OSError, match="read only"):
        await memory.forget(thread="one")
    store.stuck = False
    assert (await memory.forget(thread="one")).vectors == 2


@pytest.mark.parametrize("error", [NotFoundError("no such collection"), OSError("down")])
async def test_a_failing_vector_store_does_not_fail_a_turn_that_goes_to_another_branch(error: Exception) -> None:
    class Down(InMemoryVectorStore):
        is_down = False

        async def get(self, *args: Any, **more: Any) -> Any:
            if self.is_down:
                raise error
            return await super().get(*args, **more)

    store = Down()
    memory = memory_with(TopicEmbedder(), vector=store)
    for text in ("Rome?", "Pizza?"):
        await say(memory, text, thread="one")
    rows = await memory.messages.list(thread="one")
    agent = Agent(name="a", model=ScriptedModel("ok", "ok"), memory=memory)
    await agent.generate([*rows[:2], Message.user("Garden?")], thread="one", resource="ada")
    await memory.settled()
    store.is_down = True
    await agent.generate([*rows, Message.user("Pasta?")], thread="one", resource="ada")
    said = [row.text for row in await memory.messages.list(thread="one") if row.role == "user"]
    assert said == ["Rome?", "Pizza?", "Pasta?"]
    (other,) = await memory.threads.branches("one")
    with pytest.raises(type(error)):
        await memory.threads.switch_branch("one", other.id)


class BlocksInput(Processor[Any]):
    def process_input(self, args: Any) -> None:
        args.abort("no")


class BlocksOutput(Processor[Any]):
    def process_output_result(self, args: Any) -> None:
        args.abort("no")


@pytest.mark.parametrize("blocks", [BlocksInput, BlocksOutput])
async def test_messages_that_come_back_since_an_edit_was_blocked_are_found_again(blocks: type[Processor[Any]]) -> None:
    store = InMemoryVectorStore()
    memory = memory_with(TopicEmbedder(), vector=store)
    for text in ("Rome?", "Pizza?"):
        await say(memory, text, thread="one")
    await memory.settled()
    rows, before = await memory.messages.list(thread="one"), await count(store)
    agent = Agent(name="a", model=ScriptedModel("Rome again"), memory=memory, processors=[blocks()])
    result = await agent.generate([*rows[:2], Message.user("Garden?")], thread="one", resource="ada")
    await memory.settled()
    assert (result.stopped_by, await memory.messages.list(thread="one")) == ("tripwire", rows)
    assert await count(store) == before


async def test_embedding_says_what_it_cannot_find() -> None:
    memory = await conversations(InMemoryVectorStore())
    with pytest.raises(NotFoundError):
        await memory.messages.embed(thread="none")


async def test_an_agent_without_a_thread_embeds_nothing() -> None:
    embedder = TopicEmbedder()
    memory = memory_with(embedder)
    await Agent(name="a", model=ScriptedModel("ok"), memory=memory).generate("Rome")
    await memory.settled()
    assert embedder.texts == embedder.queries == []


async def test_a_live_run_drops_a_memory_note_that_quotes_forgotten_words() -> None:
    """Its messages cannot be seen by others before it has ended."""
    memory = await conversations(InMemoryVectorStore())

    @tool
    async def forget_it() -> str:
        """Forget it."""
        await memory.forget(message_ids=["m"], thread="one")
        return "gone"

    model = ScriptedModel(ToolCall("forget_it", {}), "done")
    agent = Agent(name="a", model=model, memory=memory, tools=[forget_it])
    await agent.generate("Tell me of Italy.", thread="new", resource="ada")
    await memory.settled()
    assert "Rome is warm." in model.requests[0].text
    assert "Rome is warm." not in await say(memory, "And now?", thread="new")
