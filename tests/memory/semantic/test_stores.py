"""Semantic recall on every vector store, with real embeddings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diarist import Memory, Message
from diarist.memory import SemanticRecallConfig
from diarist.storage import SQLiteStorage
from diarist.vectors import SQLiteVectorStore, VectorStore
from diarist.vectors.postgres import HNSW, IVFFlat, PgVectorStore
from diarist.vectors.qdrant import QdrantVectorStore
from tests.memory.semantic.kit import say


@pytest.fixture(params=["sqlite", "hnsw", "ivfflat", "qdrant"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> VectorStore:
    if request.param == "sqlite":
        return SQLiteVectorStore(tmp_path / "vectors.db")
    if request.param == "qdrant":
        return QdrantVectorStore(tmp_path / "qdrant")
    kind = HNSW() if request.param == "hnsw" else IVFFlat(lists=1)
    return PgVectorStore(request.getfixturevalue("postgres_url"), index=kind)


@pytest.fixture
async def store(made: VectorStore) -> AsyncIterator[VectorStore]:
    async with made:
        yield made


async def test_said_found_and_forgotten(store: VectorStore, tmp_path: Path) -> None:
    config = SemanticRecallConfig(top_k=1, message_range=0, threshold=0.3, filter={"metadata.kind": {"$ne": "aside"}})
    memory = Memory(
        storage=SQLiteStorage(tmp_path / "memory.db"), semantic_recall=config, vector=store, embedder="wordllama"
    )
    rows = [
        Message.user("My plane to Italy leaves early in the morning.", id="plane"),
        Message.user("The flight to Rome is on Friday.", id="aside", metadata={"kind": "aside", "deep": {"er": 1}}),
        Message.user("The compiler reports an error in line 12.", id="compiler"),
    ]
    await memory.messages.save(rows, thread="'; -- trip 東京", resource='O"Hara')
    await memory.messages.save([Message.user("Bob flies to Rome, too.")], thread="bob", resource="bob")
    await memory.settled()

    prompt = await say(memory, "When do I fly to Rome?", thread="new", resource='O"Hara')
    assert "My plane to Italy leaves early in the morning." in prompt
    assert "Friday" not in prompt
    assert "compiler" not in prompt
    assert "Bob" not in prompt

    receipt = await memory.forget(message_ids=["plane"], thread="'; -- trip 東京")
    assert (receipt.message_ids, receipt.vectors) == (("plane",), 1)
    prompt = await say(memory, "When do I fly to Rome?", thread="newer", resource='O"Hara')
    assert "early in the morning" not in prompt
    assert (await memory.forget(resource='O"Hara')).vectors == 6
    assert [hit.message.text for hit in (await memory.recall("flight", resource="bob")).items] == [
        "Bob flies to Rome, too."
    ]
    await memory.close()
