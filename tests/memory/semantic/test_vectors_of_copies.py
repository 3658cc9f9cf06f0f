"""A copy of a thread takes its vectors along: what was embedded once is not embedded again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from diarist import Memory, Message
from diarist.memory import SemanticRecallConfig
from diarist.storage import InMemoryStorage, SQLiteStorage
from diarist.vectors import InMemoryVectorStore, Metadata, SQLiteVectorStore, VectorRecord, VectorStore
from diarist.vectors.postgres import PgVectorStore
from diarist.vectors.qdrant import QdrantVectorStore
from tests.memory.semantic.kit import TopicEmbedder, memory_with

INDEX = "messages topics 4"


@pytest.fixture(params=["in-memory", "sqlite", "postgres", "qdrant"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> VectorStore:
    if request.param == "postgres":
        return PgVectorStore(request.getfixturevalue("postgres_url"))
    if request.param == "qdrant":
        return QdrantVectorStore(tmp_path / "qdrant")
    return InMemoryVectorStore() if request.param == "in-memory" else SQLiteVectorStore(tmp_path / "vectors.db")


async def count(store: VectorStore, index: str = INDEX) -> int:
    info = await store.describe(index)
    return info.count if info is not None else 0


async def said(memory: Memory, *texts: str, thread: str = "one", first: int = 1) -> None:
    """Messages m1, m2, … of Ada's, embedded as far as the embedder can."""
    rows = [Message.user(text, id=f"m{number}") for number, text in enumerate(texts, start=first)]
    await memory.messages.save(rows, thread=thread, resource="ada")
    await memory.settled()


async def found(memory: Memory, query: str, thread: str) -> list[str]:
    """Texts of a thread, the nearest first."""
    return [hit.message.text for hit in (await memory.recall(query, thread=thread)).items]


async def test_nothing_of_a_copy_is_embedded_again(store: VectorStore) -> None:
    embedder = TopicEmbedder()
    memory = memory_with(embedder, vector=store)
    await said(memory, "Rome is warm.", "Pizza is round.", "Well, well.", "A garden.")
    embedder.texts.clear()
    await memory.threads.clone("one", new_thread="copy")
    await memory.settled()
    assert await memory.messages.embed(thread="copy") == 0
    assert embedder.texts == []
    assert await count(store) == 6  # one of the four speaks of nothing
    await memory.forget(thread="one")
    assert (await found(memory, "Italy", "copy"))[0] == "Rome is warm."
    assert (await memory.forget(thread="copy")).vectors == 3
    assert (await count(store), await count(store, f"{INDEX} cursors")) == (0, 0)
    await memory.close()


async def test_a_copy_of_some_messages_has_their_vectors(store: VectorStore) -> None:
    embedder = TopicEmbedder()
    memory = memory_with(embedder, vector=store)
    await said(memory, "Rome is warm.", "Pizza is round.", "A garden.", "Rome again.")
    await memory.storage.delete_messages("one", ["m1"])  # so that places differ
    embedder.texts.clear()
    await memory.threads.clone("one", new_thread="copy", message_ids=["m2", "m4"])
    await memory.threads.clone("copy", new_thread="newest", limit=1)
    await memory.settled()
    assert embedder.texts == []
    assert sorted(await found(memory, "Italy dinner", "copy")) == ["Pizza is round.", "Rome again."]
    assert await found(memory, "Italy", "newest") == ["Rome again."]
    (row,) = await memory.messages.list(thread="newest")
    assert (await memory.forget(message_ids=[row.id], thread="newest")).vectors == 1
    await memory.close()


async def test_queries_return_the_requested_fields() -> None:
    config = SemanticRecallConfig(filter={"metadata.kind": "trip", "created_at": {"$gt": 0}})
    embedder = TopicEmbedder()
    memory = memory_with(embedder, semantic_recall=config)
    row = Message.user("Rome is warm.", metadata={"kind": "trip"}, created_at=datetime(2026, 5, 4, tzinfo=UTC))
    await memory.messages.save([row], thread="one", resource="ada")
    await memory.settled()
    await memory.threads.clone("one", new_thread="copy")
    await memory.settled()
    await memory.threads.delete("one")
    assert await found(memory, "Italy", "copy") == ["Rome is warm."]
    assert embedder.texts == ["Rome is warm."]


async def test_what_its_source_has_not_embedded_yet_is_embedded_later() -> None:
    embedder, storage, store = TopicEmbedder(), InMemoryStorage(), InMemoryVectorStore()
    memory = memory_with(embedder, storage=storage, vector=store)
    await said(memory, "Rome is warm.")
    await said(Memory(storage=storage, vector=False), "Pizza is round.", first=2)
    embedder.texts.clear()
    await memory.threads.clone("one", new_thread="copy")
    await memory.settled()
    assert "Rome is warm." not in embedder.texts
    assert await found(memory, "Italy dinner", "copy") == ["Rome is warm.", "Pizza is round."]


@pytest.mark.parametrize("lengths", [(200, 1_500), (1_500, 200)])
async def test_vectors_that_were_made_with_another_chunk_length_come_along(lengths: tuple[int, int]) -> None:
    embedder, storage, store = TopicEmbedder(), InMemoryStorage(), InMemoryVectorStore()
    before, after = [
        memory_with(embedder, storage=storage, vector=store, semantic_recall=SemanticRecallConfig(chunk_length=length))
        for length in lengths
    ]
    await said(before, "Rome is warm, and pizza is round. " * 40, "A garden.")
    made = await count(store)
    embedder.texts.clear()
    await after.threads.clone("one", new_thread="copy")
    await after.settled()
    assert embedder.texts == []
    assert await count(store) == 2 * made


async def test_long_threads_come_page_by_page() -> None:
    class Watched(InMemoryVectorStore):
        most = 0

        async def get(self, index: str, ids: Sequence[str]) -> dict[str, VectorRecord]:
            self.most = max(self.most, len(ids))
            return await super().get(index, ids)

    embedder, store = TopicEmbedder(), Watched()
    memory = memory_with(embedder, vector=store)
    await said(memory, *[f"Rome {number}. " * 200 for number in range(300)], *["garden"] * 700)
    made = await count(store)
    embedder.texts.clear()
    await memory.threads.clone("one", new_thread="copy")
    await memory.settled()
    assert embedder.texts == []
    assert await count(store) == 2 * made
    assert store.most < 1_000


class Breaking(InMemoryVectorStore):
    """Breaks down after so many calls that store something; ``works`` again at will."""

    left: int | None = None
    error: BaseException = OSError("the plug was pulled")

    async def upsert(
        self,
        index: str,
        ids: Sequence[str],
        vectors: Sequence[Sequence[float]],
        metadata: Sequence[Metadata] | None = None,
    ) -> None:
        if self.left is not None:
            if self.left == 0:
                raise self.error
            self.left -= 1
        await super().upsert(index, ids, vectors, metadata)


@pytest.mark.parametrize("error", [Breaking.error, asyncio.CancelledError()], ids=repr)
@pytest.mark.parametrize("left", [0, 1, 2, 3, 4, 5])
async def test_a_store_that_fails_does_not_fail_the_copy(
    left: int, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Vectors can be made anew at any time; the copy is there, and found by meaning once the store works again."""
    embedder, store = TopicEmbedder(), Breaking()
    memory = memory_with(embedder, vector=store)
    await said(memory, *[f"Rome {number}" for number in range(300)])
    store.left, store.error = left, error
    with caplog.at_level(logging.WARNING, "diarist"):
        copy = await memory.threads.clone("one", new_thread="copy")
        await memory.settled()
    assert "embedded later" in caplog.text
    assert len(await memory.messages.list(thread=copy.id)) == 300
    store.left = None
    await memory.messages.embed(thread="copy")
    assert await count(store) == 600
    assert (await memory.forget(thread="copy")).vectors == 300


async def test_a_copy_that_is_cancelled_leaves_no_vectors() -> None:
    class Waiting(InMemoryVectorStore):
        gate: asyncio.Event | None = None
        reached = asyncio.Event()

        async def get(self, index: str, ids: Sequence[str]) -> dict[str, VectorRecord]:
            if self.gate is not None and len(ids) > 1 and await count(self) > 300:
                self.reached.set()
                await self.gate.wait()
            return await super().get(index, ids)

    store = Waiting()
    memory = memory_with(TopicEmbedder(), vector=store)
    await said(memory, *[f"Rome {number}" for number in range(300)])
    store.gate = asyncio.Event()
    cloning = asyncio.create_task(memory.threads.clone("one", new_thread="copy"))
    await store.reached.wait()
    cloning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cloning
    await memory.settled()
    assert [thread.id for thread in (await memory.threads.list()).items] == ["one"]
    assert (await count(store), await count(store, f"{INDEX} cursors")) == (300, 1)


async def test_a_message_forgotten_in_the_source_stays_findable_in_the_copy() -> None:
    """It is embedded anew, since its vectors went before they could be copied."""

    class Meddling(InMemoryVectorStore):
        meddle = False

        async def get(self, index: str, ids: Sequence[str]) -> dict[str, VectorRecord]:
            if self.meddle and len(ids) > 1:
                self.meddle = False
                await memory.forget(message_ids=["m2"], thread="one")
            return await super().get(index, ids)

    embedder, store = TopicEmbedder(), Meddling()
    memory = memory_with(embedder, vector=store)
    await said(memory, "Rome is warm.", "Pizza is round.")
    store.meddle = True
    await memory.threads.clone("one", new_thread="copy")
    await memory.settled()
    assert sorted(await found(memory, "Italy dinner", "copy")) == ["Pizza is round.", "Rome is warm."]
    assert await found(memory, "dinner", "one") == ["Rome is warm."]


async def test_a_copy_in_the_file_of_its_vectors(tmp_path: Path) -> None:
    """As it is by default: messages and vectors in one SQLite file."""
    embedder = TopicEmbedder()
    memory = memory_with(embedder, storage=SQLiteStorage(tmp_path / "memory.db"))
    await said(memory, "Rome is warm.", "Pizza is round.")
    embedder.texts.clear()
    await memory.threads.clone("one", new_thread="copy")
    await memory.settled()
    assert embedder.texts == []
    assert (await found(memory, "Italy", "copy"))[0] == "Rome is warm."
    await memory.close()
