"""Filters: every operator, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from diarist.exceptions import InputError
from diarist.testing.vector_conformance.helpers import EAST, filled, found
from diarist.vectors import Metadata, VectorStore

ROWS: dict[str, Metadata] = {
    "a": {"name": "Ada", "age": 36, "open": True, "a.b": "dotted"},
    "b": {"name": "Bob", "age": 36.5, "open": False},
    "c": {"name": "Cem", "age": 1, "one": True},
    "d": {"name": "ada", "age": 40.0},
    "e": {},
}


class FilterConformance:
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
