"""Indexes: made, described, listed and removed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from diarist.exceptions import ConfigError, InputError, NotFoundError
from diarist.testing.vector_conformance.helpers import EAST, NORTH, STRANGE, filled, found
from diarist.vectors import IndexInfo, Metric, VectorStore


class IndexConformance:
    async def test_an_index_says_what_it_is(self, store: VectorStore) -> None:
        await store.create_index("places", dimension=3, metric="dot")
        await store.upsert("places", ["a", "b"], [EAST, NORTH])
        assert await store.describe("places") == IndexInfo(name="places", dimension=3, metric="dot", count=2)
        assert await store.describe("others") is None

    async def test_indexes_are_apart(self, store: VectorStore) -> None:
        await filled(store, {"a": {}}, "one")
        await filled(store, {"b": {}}, "two")
        assert await store.list_indexes() == ["one", "two"]
        assert await found(store, index="one") == ["a"]
        assert await found(store, index="two") == ["b"]

    async def test_making_an_index_again_changes_nothing(self, store: VectorStore) -> None:
        await filled(store, {"a": {}})
        await store.create_index("i", dimension=3)
        assert await found(store) == ["a"]

    @pytest.mark.parametrize("other", [{"dimension": 4}, {"dimension": 3, "metric": "dot"}])
    async def test_an_index_made_otherwise_is_an_error_at_start(
        self, store: VectorStore, other: dict[str, Any]
    ) -> None:
        await filled(store, {"a": {}})
        with pytest.raises(ConfigError, match="3 dimensions and the metric cosine"):
            await store.create_index("i", **other)
        assert await found(store) == ["a"]

    @pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
    async def test_two_make_the_same_index_at_once(
        self, store: VectorStore, second_store: VectorStore, metric: Metric
    ) -> None:
        makers = [store, second_store] * 3
        await asyncio.gather(*(maker.create_index("i", dimension=3, metric=metric) for maker in makers))
        assert await second_store.list_indexes() == ["i"]

    async def test_a_removed_index_is_gone_and_may_be_made_anew(
        self, store: VectorStore, second_store: VectorStore
    ) -> None:
        await filled(store, {"a": {}})
        assert await found(second_store) == ["a"]
        assert await store.delete_index("i")
        assert not await store.delete_index("i")
        assert await second_store.describe("i") is None
        await store.create_index("i", dimension=2)
        assert await second_store.query("i", [1, 0]) == []

    @pytest.mark.parametrize("name", [name for name in STRANGE if len(name.encode()) <= 120])
    async def test_a_name_is_data(self, store: VectorStore, name: str) -> None:
        await filled(store, {"a": {}})
        await filled(store, {"b": {}}, name)
        assert sorted(await store.list_indexes()) == sorted(["i", name])
        assert await found(store, index=name) == ["b"]
        assert await store.delete_index(name)
        assert await found(store) == ["a"]

    async def test_what_has_no_index_says_so(self, store: VectorStore) -> None:
        for call in (
            store.upsert("none", ["a"], [EAST]),
            store.query("none", EAST),
            store.get("none", ["a"]),
            store.delete("none", ids=["a"]),
        ):
            with pytest.raises(NotFoundError, match="'none'"):
                await call

    @pytest.mark.parametrize(
        "wrong",
        [
            {"name": "", "dimension": 3},
            {"name": "a\0b", "dimension": 3},
            {"name": "\ud800", "dimension": 3},
            {"name": "ä" * 61, "dimension": 3},
            {"name": "i", "dimension": 0},
            {"name": "i", "dimension": 3, "metric": "taxi"},
        ],
    )
    async def test_an_impossible_index_is_refused(self, store: VectorStore, wrong: dict[str, Any]) -> None:
        with pytest.raises(InputError):
            await store.create_index(**wrong)
        assert await store.list_indexes() == []

    async def test_it_opens_again_after_close(self, store: VectorStore) -> None:
        await store.create_index("i", dimension=3)
        await store.close()
        await store.create_index("i", dimension=3)
        await store.upsert("i", ["a"], [EAST])
        assert await found(store) == ["a"]
