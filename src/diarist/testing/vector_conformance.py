"""Tests that every vector store must pass. They need pytest with anyio's plugin.

Subclass ``VectorStoreConformance`` in a test file and define the fixture ``store``, a fresh, empty store. If several
objects can share the same data, define ``second_store`` too.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from diarist.exceptions import ConfigError, InputError, NotFoundError
from diarist.vectors import IndexInfo, Metadata, Metric, VectorStore

__all__ = ["VectorStoreConformance"]

EAST, NORTH, WEST, SOUTH = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]
NORTH_EAST = [1.0, 1.0, 0.0]

STRANGE = [
    "Ärger – 東京 👍",
    "'; DROP TABLE diarist_vectors; --",
    '"quoted" \\ and \\" more',
    "%_*?[]{}$.:/",
    " leading and trailing ",
    "line\nbreak\ttab",
    "a" * 200,
]
"""Texts that a store must keep unchanged."""


async def filled(store: VectorStore, rows: dict[str, Metadata], index: str = "i") -> None:
    """Create an index with a vector for each row; the first row is nearest to EAST."""
    await store.create_index(index, dimension=3)
    vectors = [[1.0, 0.1 * number, 0.0] for number in range(len(rows))]
    await store.upsert(index, list(rows), vectors, list(rows.values()))


async def found(store: VectorStore, filter: dict[str, Any] | None = None, index: str = "i", **more: Any) -> list[str]:
    """Return the ids of a query's results, nearest to EAST first."""
    return [hit.id for hit in await store.query(index, EAST, filter=filter, **more)]


IMPOSSIBLE: list[tuple[Any, Any, Any]] = [
    (["a", "b"], [EAST, [1.0, 2.0]], None),
    (["a", "b"], [EAST], None),
    (["a", "b"], [EAST, NORTH], [{}]),
    (["a", "b"], [EAST, [float("nan"), 0, 1]], None),
    (["a", "b"], [EAST, [float("inf"), 0, 1]], None),
    (["a", "b"], [EAST, [0.0, 0.0, 0.0]], None),
    (["a", "b"], [EAST, ["x", "y", "z"]], None),
    (["a", ""], [EAST, NORTH], None),
    (["a", "b\0"], [EAST, NORTH], None),
    (["a", "b"], [EAST, NORTH], [{}, {"deep": {"er": 1}}]),
    (["a", "b"], [EAST, NORTH], [{}, {"nothing": None}]),
    (["a", "b"], [EAST, NORTH], [{}, {"n": float("nan")}]),
    (["a", "b"], [EAST, NORTH], [{}, {"t": "a\0b"}]),
    (["a", "b"], [EAST, NORTH], [{}, {"t\ud800": "a"}]),
    (["a", "b"], [EAST, NORTH], [{}, {"n": 1 << 60}]),
]

ROWS: dict[str, Metadata] = {
    "a": {"name": "Ada", "age": 36, "open": True, "a.b": "dotted"},
    "b": {"name": "Bob", "age": 36.5, "open": False},
    "c": {"name": "Cem", "age": 1, "one": True},
    "d": {"name": "ada", "age": 40.0},
    "e": {},
}


@pytest.mark.anyio
class VectorStoreConformance:
    """Tests of the ``VectorStore`` interface. Subclass it and define the fixture ``store``."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def second_store(self, store: VectorStore) -> VectorStore:
        """Return another object on the same data, or the same object if there is none."""
        return store

    # -- indexes: creating, describing, listing, deleting

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

    async def test_a_removed_index_is_gone_and_can_be_created_again(
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

    # -- vectors: storing, replacing, reading, deleting

    async def test_a_vector_comes_back(self, store: VectorStore) -> None:
        data = {"text": "a", "count": 3, "share": 0.5, "open": True}
        await store.create_index("i", dimension=3)
        await store.upsert("i", ["a", "b"], [EAST, NORTH], [data, {}])
        records = await store.get("i", ["b", "a", "none"])
        assert records.keys() == {"a", "b"}
        assert records["a"].vector == pytest.approx(EAST)
        assert records["a"].metadata == data
        assert type(records["a"].metadata["open"]) is bool
        assert records["b"].metadata == {}
        assert await store.get("i", []) == {}

    async def test_existing_values_are_replaced(self, store: VectorStore, second_store: VectorStore) -> None:
        await filled(store, {"a": {"old": True}, "A": {}})
        assert await found(second_store) == ["a", "A"]
        await store.upsert("i", ["a"], [WEST], [{"new": True}])
        assert await found(second_store) == ["A", "a"]
        assert (await second_store.get("i", ["a"]))["a"].metadata == {"new": True}
        await store.upsert("i", ["a"], [WEST])
        assert (await second_store.get("i", ["a"]))["a"].metadata == {}
        info = await second_store.describe("i")
        assert info is not None
        assert info.count == 2

    async def test_of_an_id_given_twice_the_last_counts(self, store: VectorStore) -> None:
        await store.create_index("i", dimension=3)
        await store.upsert("i", ["a", "a"], [WEST, EAST], [{"n": 1}, {"n": 2}])
        (hit,) = await store.query("i", EAST)
        assert (hit.metadata, hit.score) == ({"n": 2}, pytest.approx(1.0))

    @pytest.mark.parametrize("text", STRANGE)
    async def test_ids_and_metadata_are_data(self, store: VectorStore, text: str) -> None:
        await filled(store, {"plain": {"key": "value"}, text: {text: text}})
        (record,) = (await store.get("i", [text])).values()
        assert (record.id, record.metadata) == (text, {text: text})
        assert await found(store, {text: {"$eq": text}}) == [text]
        assert await store.delete("i", filter={text: {"$in": [text]}}) == 1
        assert await found(store) == ["plain"]

    async def test_vectors_are_removed_by_id(self, store: VectorStore, second_store: VectorStore) -> None:
        await filled(store, {"a": {}, "b": {}, "c": {}})
        assert await found(second_store) == ["a", "b", "c"]
        assert await store.delete("i", ids=["a", "c", "none"]) == 2
        assert await store.delete("i", ids=["a"]) == 0
        assert await found(second_store) == ["b"]
        assert await second_store.get("i", ["a", "c"]) == {}

    async def test_vectors_are_removed_by_filter(self, store: VectorStore) -> None:
        await filled(store, {"a": {"t": "x"}, "b": {"t": "y"}, "c": {"t": "x"}})
        assert await store.delete("i", filter={"t": "x"}) == 2
        assert await store.delete("i", filter={"t": "x"}) == 0
        assert await found(store) == ["b"]

    async def test_what_was_removed_can_come_again(self, store: VectorStore, second_store: VectorStore) -> None:
        await filled(store, {"a": {}, "b": {}})
        assert await found(second_store) == ["a", "b"]
        await store.delete("i", ids=["a"])
        await store.upsert("i", ["a"], [SOUTH])
        assert await found(second_store) == ["b", "a"]

    async def test_a_removal_says_what_it_removes(self, store: VectorStore) -> None:
        await filled(store, {"a": {}})
        wrongs: list[dict[str, Any]] = [{}, {"ids": ["a"], "filter": {"t": 1}}, {"filter": {}}]
        for wrong in wrongs:
            with pytest.raises(InputError):
                await store.delete("i", **wrong)
        assert await store.delete("i", ids=[]) == 0
        assert await found(store) == ["a"]

    @pytest.mark.parametrize(("ids", "vectors", "metadata"), IMPOSSIBLE)
    async def test_what_cannot_be_stored_is_refused_as_a_whole(
        self, store: VectorStore, ids: Any, vectors: Any, metadata: Any
    ) -> None:
        await store.create_index("i", dimension=3)
        with pytest.raises(InputError):
            await store.upsert("i", ids, vectors, metadata)
        assert await found(store) == []

    async def test_a_wrong_dimension_is_named(self, store: VectorStore) -> None:
        await store.create_index("i", dimension=3)
        for call in (store.upsert("i", ["a"], [[1.0, 2.0]]), store.query("i", [1.0, 2.0])):
            with pytest.raises(InputError, match="3 dimensions, and the vector has 2"):
                await call

    async def test_nothing_to_store_is_no_mistake(self, store: VectorStore) -> None:
        await store.create_index("i", dimension=3)
        await store.upsert("i", [], [], [])
        assert await found(store) == []

    async def test_many_write_at_once(self, store: VectorStore, second_store: VectorStore) -> None:
        await store.create_index("i", dimension=3)
        writers = [store, second_store]

        async def write(number: int) -> None:
            ids = [f"{number}-{n}" for n in range(20)] + ["shared"]
            await writers[number % 2].upsert("i", ids, [EAST] * 21, [{"writer": number}] * 21)
            await writers[number % 2].delete("i", ids=ids[:5])

        await asyncio.gather(*(write(number) for number in range(8)))
        info = await store.describe("i")
        assert info is not None
        assert info.count == 8 * 15 + 1
        for one in writers:
            assert len(await found(one, {"writer": 3}, top_k=1000)) in (15, 16)

    # -- queries: order, scores, limits, partitions

    @pytest.mark.parametrize(
        ("metric", "scores"),
        [
            ("cosine", {"far": 1.0, "near": 1.0, "aslant": 0.7071, "behind": -1.0}),
            ("dot", {"far": 3.0, "near": 1.0, "aslant": 1.0, "behind": -1.0}),
            ("euclidean", {"near": 1.0, "aslant": 1 / 2, "far": 1 / 3, "behind": 1 / 3}),
        ],
    )
    async def test_the_metric_decides_the_order(
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
        assert await found(store, {"n": {"$gte": 20}}, top_k=3) == ["20", "21", "22"]
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

    # -- filters: every operator, and invalid filters

    @pytest.mark.parametrize(
        ("filter", "expected"),
        [
            (None, "abcde"),
            ({}, "abcde"),
            ({"name": "Ada"}, "a"),
            ({"name": {"$eq": "Ada"}}, "a"),
            ({"name": {"$ne": "Ada"}}, "bcde"),
            ({"name": {"$in": ["Ada", "Bob", "Eve"]}}, "ab"),
            ({"name": {"$in": []}}, ""),
            ({"name": {"$nin": ["Ada", "Bob"]}}, "cde"),
            ({"name": {"$nin": []}}, "abcde"),
            ({"age": 36}, "a"),
            ({"age": 36.0}, "a"),
            ({"age": 40}, "d"),
            ({"age": {"$in": [36, 36.5]}}, "ab"),
            ({"age": {"$ne": 36}}, "bcde"),
            ({"age": {"$gt": 36}}, "bd"),
            ({"age": {"$gte": 36}}, "abd"),
            ({"age": {"$lt": 36.5}}, "ac"),
            ({"age": {"$lte": 36.5}}, "abc"),
            ({"age": {"$gte": 36, "$lt": 40}}, "ab"),
            ({"name": {"$gt": 1}}, ""),
            ({"open": True}, "a"),
            ({"open": {"$ne": True}}, "bcde"),
            ({"open": {"$in": [True, False]}}, "ab"),
            ({"open": 1}, ""),
            ({"age": True}, ""),
            ({"one": {"$gte": 1}}, ""),
            ({"open": {"$exists": True}}, "ab"),
            ({"open": {"$exists": False}}, "cde"),
            ({"missing": "x"}, ""),
            ({"missing": {"$ne": "x"}}, "abcde"),
            ({"missing": {"$gt": 0}}, ""),
            ({"a.b": "dotted"}, "a"),
            ({"a": {"$exists": True}}, ""),
            ({"name": "Ada", "age": 36}, "a"),
            ({"name": "Ada", "age": 40}, ""),
            ({"$and": [{"age": {"$gt": 1}}, {"open": False}]}, "b"),
            ({"$and": []}, "abcde"),
            ({"$or": [{"name": "Cem"}, {"open": True}]}, "ac"),
            ({"$or": []}, ""),
            ({"$not": {"open": True}}, "bcde"),
            ({"$not": {"age": {"$gt": 36}}}, "ace"),
            ({"$or": [{"$and": [{"name": "Ada"}, {"age": 36}]}, {"$not": {"age": {"$exists": True}}}]}, "ae"),
            ({"name": "Ada' OR 1=1 --"}, ""),
            ({"name') OR ('1'='1": "x"}, ""),
        ],
    )
    async def test_a_filter_keeps_what_fits(
        self, store: VectorStore, filter: dict[str, Any] | None, expected: str
    ) -> None:
        await filled(store, ROWS)
        assert "".join(await found(store, filter)) == expected
        if filter:
            assert await store.delete("i", filter=filter) == len(expected)
            assert await found(store) == [id for id in ROWS if id not in expected]

    @pytest.mark.parametrize(
        "filter",
        [
            [("name", "Ada")],
            {"name": None},
            {"name": ["Ada"]},
            {"name": {}},
            {"name": {"$like": "A%"}},
            {"name": {"$in": "Ada"}},
            {"age": {"$gt": "36"}},
            {"age": {"$gt": True}},
            {"age": float("nan")},
            {"age": {"$exists": 1}},
            {"$or": {"name": "Ada"}},
            {"$nor": [{"name": "Ada"}]},
            {"$not": "Ada"},
            {"a\0b": 1},
            {1: 1},
        ],
    )
    async def test_a_filter_that_cannot_be_read_is_refused(self, store: VectorStore, filter: Any) -> None:
        await filled(store, ROWS)
        with pytest.raises(InputError):
            await store.query("i", EAST, filter=filter)
        with pytest.raises(InputError):
            await store.delete("i", filter=filter)
        assert len(await found(store)) == len(ROWS)
