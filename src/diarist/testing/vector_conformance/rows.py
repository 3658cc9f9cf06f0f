"""Vectors: stored, replaced, read and removed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from diarist.exceptions import InputError
from diarist.testing.vector_conformance.helpers import EAST, NORTH, SOUTH, STRANGE, WEST, filled, found
from diarist.vectors import VectorStore

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


class RowConformance:
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

    async def test_what_is_there_is_replaced(self, store: VectorStore, second_store: VectorStore) -> None:
        await filled(store, {"a": {"old": True}, "b": {}})
        assert await found(second_store) == ["a", "b"]
        await store.upsert("i", ["a"], [WEST], [{"new": True}])
        assert await found(second_store) == ["b", "a"]
        assert (await second_store.get("i", ["a"]))["a"].metadata == {"new": True}
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
