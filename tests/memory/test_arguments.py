"""Options and arguments of the wrong kind are refused by name, the same on every storage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from diarist import Memory, Message, ObservationalMemoryConfig
from diarist.exceptions import ConfigError, InputError
from diarist.memory import SemanticRecallConfig
from diarist.storage import InMemoryStorage, Storage
from tests.memory.semantic.kit import TopicEmbedder
from tests.memory.stores import made_storage, storage

__all__ = ["made_storage", "storage"]

HUGE: Any = 10**30
ODD: Any = "3"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", 1.5),
        ("top_k", True),
        ("message_range", (1.5, 1)),
        ("message_range", (True, 1)),
        ("chunk_length", 100.5),
        ("max_tokens", "x"),
        ("max_tokens", 100.5),
        ("timeout", "x"),
        ("timeout", float("nan")),
        ("timeout", float("inf")),
        ("threshold", "x"),
        ("threshold", float("nan")),
    ],
)
def test_options_of_semantic_recall(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} .*not "):
        SemanticRecallConfig(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("thread_wait", "x"),
        ("thread_wait", float("nan")),
        ("thread_wait", float("inf")),
        ("thread_wait", None),
        ("thread_wait", True),
        ("read_only", "no"),
        ("await_background", 1),
    ],
)
def test_options_of_memory(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} must be .*not {value!r}"):
        Memory(storage=InMemoryStorage(), **{name: value})


Call = Callable[[Memory], Awaitable[object]]

CALLS: list[tuple[str, Call]] = [
    ("query", lambda m: m.recall(5, resource="t")),  # pyright: ignore
    ("limit", lambda m: m.recall("Rome", resource="t", limit=ODD)),
    ("limit", lambda m: m.recall("Rome", resource="t", limit=0)),
    ("query", lambda m: m.search(5, resource="t")),  # pyright: ignore
    ("limit", lambda m: m.search("Rome", resource="t", limit=ODD)),
    ("limit", lambda m: m.search("Rome", resource="t", limit=HUGE)),
    ("query", lambda m: m.search_observations(5, resource="t")),  # pyright: ignore
    ("limit", lambda m: m.search_observations("Rome", resource="t", limit=ODD)),
    ("limit", lambda m: m.messages(thread="t", limit=ODD)),
    ("limit", lambda m: m.messages(thread="t", limit=1.5)),  # pyright: ignore
    ("limit", lambda m: m.messages(thread="t", limit=True)),
    ("limit", lambda m: m.messages(thread="t", limit=HUGE)),
    ("before", lambda m: m.messages(thread="t", before=ODD)),
    ("before", lambda m: m.messages(thread="t", before=HUGE)),
    ("after", lambda m: m.messages(thread="t", after=ODD)),
    ("limit", lambda m: m.threads(limit=ODD)),
    ("limit", lambda m: m.threads(limit=HUGE)),
    ("limit", lambda m: m.clone_thread("t", limit=ODD)),
    ("limit", lambda m: m.clone_thread("t", limit=HUGE)),
    ("message_ids", lambda m: m.clone_thread("t", message_ids="abc")),
    ("message_ids", lambda m: m.forget(message_ids="abc", thread="t")),
    ("message_ids", lambda m: m.forget(message_ids=5, thread="t")),  # pyright: ignore
    ("message_ids", lambda m: m.forget(message_ids=[5], thread="t")),  # pyright: ignore
    ("limit", lambda m: m.events(thread="t", limit=ODD)),
    ("limit", lambda m: m.events(thread="t", limit=HUGE)),
    ("limit", lambda m: m.sources("e", thread="t", limit=ODD)),
]


@pytest.mark.parametrize(("name", "call"), CALLS)
async def test_arguments_of_calls(storage: Storage, name: str, call: Call) -> None:
    memory = Memory(
        storage=storage,
        vector=_vectors(),
        embedder=TopicEmbedder(),
        observational_memory=ObservationalMemoryConfig(model="extractive"),
    )
    await memory.save_messages([Message.user("Rome", id="a")], thread="t")
    await memory.settled()
    with pytest.raises(InputError, match=rf"\b{name}\b.*not "):
        await call(memory)
    assert [row.id for row in await memory.messages(thread="t")] == ["a"]


def _vectors() -> Any:
    from diarist.vectors import InMemoryVectorStore

    return InMemoryVectorStore()
