"""The vector store on Qdrant's local mode keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diarist.exceptions import StorageError
from diarist.testing import VectorStoreConformance
from diarist.vectors import VectorStore
from diarist.vectors.qdrant import QdrantVectorStore


class TestQdrantInMemory(VectorStoreConformance):
    @pytest.fixture
    async def store(self) -> AsyncIterator[VectorStore]:
        async with QdrantVectorStore(":memory:") as store:
            yield store


@pytest.mark.slow
class TestQdrantInAFolder(VectorStoreConformance):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[VectorStore]:
        async with QdrantVectorStore(tmp_path / "vectors") as store:
            yield store


async def test_a_folder_keeps_what_was_stored(tmp_path: Path) -> None:
    async with QdrantVectorStore(tmp_path) as store:
        await store.create_index("i", dimension=2, partition_by="who")
        await store.upsert("i", ["a"], [[1, 0]], [{"who": "ada"}])
    async with QdrantVectorStore(tmp_path) as store:
        assert [hit.metadata for hit in await store.query("i", [1, 0])] == [{"who": "ada"}]


async def test_an_unreachable_server_is_named() -> None:
    async with QdrantVectorStore("http://127.0.0.1:1", timeout=2) as store:
        with pytest.raises(StorageError, match=r"cannot list indexes in http://127.0.0.1:1"):
            await store.list_indexes()
