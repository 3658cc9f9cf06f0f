"""Queries: order, scores, how many; partitions."""

from __future__ import annotations

import pytest

from diarist.exceptions import InputError
from diarist.testing.vector_conformance.helpers import EAST, NORTH, NORTH_EAST, WEST, filled, found
from diarist.vectors import Metric, VectorStore


class QueryConformance:
    @pytest.mark.parametrize(
        ("metric", "scores"),
        [
            ("cosine", {"far": 1.0, "near": 1.0, "aslant": 0.7071, "behind": -1.0}),
            ("dot", {"far": 3.0, "near": 1.0, "aslant": 1.0, "behind": -1.0}),
            ("euclidean", {"near": 1.0, "aslant": 1 / 2, "far": 1 / 3, "behind": 1 / 3}),
        ],
    )
    async def test_the_metric_decides_what_is_near(
        self, store: VectorStore, metric: Metric, scores: dict[str, float]
    ) -> None:
        await store.create_index("i", dimension=3, metric=metric)
        await store.upsert("i", ["far", "near", "aslant", "behind"], [[3.0, 0, 0], EAST, NORTH_EAST, WEST])
        hits = await store.query("i", EAST)
        assert {hit.id: hit.score for hit in hits} == pytest.approx(scores, abs=1e-3)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)

    async def test_at_most_top_k_are_found_the_nearest_first(self, store: VectorStore) -> None:
        await filled(store, {f"{n:02}": {"n": n} for n in range(30)})
        assert await found(store, top_k=3) == ["00", "01", "02"]
        assert len(await found(store)) == 10
        assert len(await found(store, top_k=1000)) == 30
        (hit,) = await store.query("i", EAST, top_k=1)
        assert hit.metadata == {"n": 0}

    @pytest.mark.parametrize("metric", ["cosine", "euclidean"])
    async def test_a_threshold_is_the_least_score(self, store: VectorStore, metric: Metric) -> None:
        await store.create_index("i", dimension=3, metric=metric)
        await store.upsert("i", ["near", "far"], [EAST, NORTH])
        assert await found(store, threshold=0.9) == ["near"]
        assert await found(store, threshold=-1.0) == ["near", "far"]

    async def test_an_empty_index_has_nothing(self, store: VectorStore) -> None:
        await store.create_index("i", dimension=3)
        assert await found(store) == []

    async def test_a_query_that_cannot_be_is_refused(self, store: VectorStore) -> None:
        await filled(store, {"a": {}})
        for vector, top_k in ((EAST, 0), ([0.0, 0.0, 0.0], 1), ([float("nan")] * 3, 1)):
            with pytest.raises(InputError):
                await store.query("i", vector, top_k=top_k)

    async def test_vectors_are_parted(self, store: VectorStore, second_store: VectorStore) -> None:
        await store.create_index("i", dimension=3, partition_by="who")
        rows = {"a1": "ada", "b1": "bob", "a2": "ada"}
        vectors = [EAST, EAST, NORTH]
        await store.upsert("i", list(rows), vectors, [{"who": who} for who in rows.values()])
        for one in (store, second_store):
            assert await found(one, {"who": "ada"}) == ["a1", "a2"]
            assert await found(one, {"$and": [{"who": {"$eq": "bob"}}]}) == ["b1"]
            assert sorted(await found(one)) == ["a1", "a2", "b1"]
            assert sorted(await found(one, {"who": {"$in": ["ada", "bob"]}})) == ["a1", "a2", "b1"]
            assert await found(one, {"who": "nobody"}) == []
        await store.upsert("i", ["a1"], [EAST], [{"who": "bob"}])
        assert await found(second_store, {"who": "ada"}) == ["a2"]
        assert sorted(await found(second_store, {"who": "bob"})) == ["a1", "b1"]
        assert await second_store.delete("i", filter={"who": "bob"}) == 2
        assert await found(store, {"who": "bob"}) == []
        assert await found(store) == ["a2"]

    async def test_a_parted_index_wants_to_know_the_part(self, store: VectorStore) -> None:
        await store.create_index("i", dimension=3, partition_by="who")
        for data in ({}, {"who": 1}):
            with pytest.raises(InputError, match="'who'"):
                await store.upsert("i", ["a"], [EAST], [data])
