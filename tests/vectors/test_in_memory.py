"""The vector store in memory keeps the contract."""

from __future__ import annotations

import pytest

from diarist.exceptions import InputError
from diarist.testing import VectorStoreConformance
from diarist.vectors import InMemoryVectorStore, VectorStore


class TestInMemoryVectors(VectorStoreConformance):
    @pytest.fixture
    def store(self) -> VectorStore:
        return InMemoryVectorStore()

    async def test_ids_that_cannot_exist_are_not_found(self, store: VectorStore) -> None:
        await store.create_index("i", dimension=1)
        await store.upsert("i", ["a"], [[1.0]])
        assert list(await store.get("i", ["\ud800", "a"])) == ["a"]
        assert await store.delete("i", ids=["\ud800", "a"]) == 1

    async def test_top_k_is_a_whole_number(self, store: VectorStore) -> None:
        await store.create_index("i", dimension=1)
        with pytest.raises(InputError, match=r"top_k must be a whole number from 1 on, not 1\.5"):
            await store.query("i", [1.0], top_k=1.5)  # pyright: ignore
