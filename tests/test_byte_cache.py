"""What is kept for later has a size in bytes, and no more."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist.byte_cache import ByteCache, cached, size_of


def test_the_least_recently_used_goes_first() -> None:
    cache: ByteCache[str, str] = ByteCache(800)
    for number in range(20):
        cache.put(str(number), "as it is", 90)
        cache.put("long", "too long", 101)
        cache.put("0", "asked for", 90)
    assert [number for number in range(20) if cache.get(str(number))] == [0, *range(13, 20)]
    assert cache.get("long") is None
    cache.drop("19")
    cache.put("19", "again", 90)
    assert cache.get("0") == "asked for"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 300))))
def test_never_more_than_there_is_room_for(puts: list[tuple[int, int]]) -> None:
    cache: ByteCache[int, int] = ByteCache(400, largest=200)
    for key, size in puts:
        cache.put(key, size, size)
        kept = {key: value for key in range(6) if (value := cache.get(key)) is not None}
        assert cache.size == sum(kept.values()) <= 400
        assert (key in kept) == (size <= 200)


def test_a_value_larger_than_the_room_is_kept_alone_where_that_is_wanted() -> None:
    cache: ByteCache[str, str] = ByteCache(100, largest=1_000)
    for name in "ab":
        cache.put(name, name, 500)
    assert [cache.get(name) for name in "ab"] == [None, "b"]


def test_long_texts_take_the_room_of_many_short_ones() -> None:
    calls: list[str] = []

    @cached(100_000)
    def shout(text: str) -> str:
        calls.append(text)
        return text.upper()

    for size, kept in ((10, 100), (5_000, 8)):
        texts = [f"{number} {'x' * size}" for number in range(kept)]
        for _ in range(2):
            calls.clear()
            assert [shout(text) for text in texts] == [text.upper() for text in texts]
        assert calls == []
    calls.clear()
    texts = [f"{number} {'x' * 5_000}" for number in range(12)]
    for _ in range(2):
        for text in texts:
            shout(text)
    assert len(calls) > len(texts)


@dataclass(slots=True)
class Note:
    text: str
    marks: dict[str, list[int]]


@pytest.mark.parametrize("letter", ["a", "é", "好", "🔴"])
def test_sizes_are_those_of_memory(letter: str) -> None:
    def make() -> list[object]:
        return [Note(letter * 2_000, {f"{letter}{n}": [n + 1_000]}) for n in range(50)]

    tracemalloc.start()
    value = make()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.8 * taken < size_of(value) < 1.2 * taken


def test_shared_parts_count_once() -> None:
    text = "x" * 10_000
    assert size_of([text] * 100, (text, {text: text})) < 12_000
