"""The vector store in an SQLite file keeps the contract, beside messages and other processes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diarist.exceptions import ConfigError
from diarist.storage import SQLiteStorage, Thread
from diarist.testing import VectorStoreConformance
from diarist.vectors import SQLiteVectorStore, VectorStore
from tests.processes import run_python


class TestSQLiteVectors(VectorStoreConformance):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[VectorStore]:
        async with SQLiteVectorStore(tmp_path / "memory.db") as store:
            yield store

    @pytest.fixture
    async def second_store(self, store: VectorStore) -> AsyncIterator[VectorStore]:
        async with SQLiteVectorStore(store.location) as second:
            yield second


async def test_vectors_lie_in_the_file_of_the_messages(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    async with SQLiteStorage(path) as storage, SQLiteVectorStore(path) as store:
        await storage.create_thread(Thread(id="t", resource_id="ada"))
        await store.create_index("i", dimension=2)
        await store.upsert("i", ["a"], [[1, 0]])
    async with SQLiteStorage(path) as storage, SQLiteVectorStore(path) as store:
        assert await storage.get_thread("t") is not None
        assert [hit.id for hit in await store.query("i", [1, 0])] == ["a"]
    assert os.listdir(tmp_path) == ["memory.db"]


async def test_what_does_not_fit_into_memory_is_read_again(tmp_path: Path) -> None:
    async with SQLiteVectorStore(tmp_path / "memory.db", cache_bytes=100) as store:
        await store.create_index("i", dimension=8, partition_by="who")
        for who in ("ada", "bob", "cem"):
            ids = [f"{who}-{n}" for n in range(8)]
            await store.upsert("i", ids, [[1.0] * 8] * 8, [{"who": who}] * 8)
        for who in ("ada", "bob", "cem", "ada"):
            hits = await store.query("i", [1.0] * 8, filter={"who": who})
            assert [hit.id for hit in hits] == [f"{who}-{n}" for n in range(8)]


async def test_removed_vectors_leave_the_file(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    async with SQLiteVectorStore(path) as store:
        await store.create_index("i", dimension=2)
        await store.upsert("i", ["a"], [[1, 0]], [{"secret": "xyzzy"}])
        await store.delete("i", ids=["a"])
    assert b"xyzzy" not in path.read_bytes()


def test_a_store_in_memory_is_another_class() -> None:
    with pytest.raises(ConfigError):
        SQLiteVectorStore(":memory:")


@pytest.mark.parametrize("name", ["SQLiteVectorStore", "InMemoryVectorStore"])
def test_without_numpy_the_error_names_the_extra(name: str) -> None:
    script = f"""
import sys
sys.modules["numpy"] = None
try:
    from diarist.vectors import {name}
except ImportError as error:
    print(error)
"""
    assert run_python(script) == f"{name} needs an extra of diarist: pip install 'diarist[vectors]'\n"
