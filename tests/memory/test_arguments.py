"""Options and arguments of the wrong kind are refused by name, the same on every storage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from diarist import Memory, Message, ObservationalMemoryConfig
from diarist.exceptions import ConfigError, InputError
from diarist.memory import SemanticRecallConfig, WorkingMemoryConfig
from diarist.messages import TextPart
from diarist.storage import InMemoryStorage, Storage
from tests.memory.semantic.kit import TopicEmbedder
from tests.memory.stores import made_storage, storage

__all__ = ["made_storage", "storage"]

HUGE: Any = 10**30
ODD: Any = "3"
NOTHING: Any = None


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
    with pytest.raises(ConfigError, match=rf"^SemanticRecallConfig: {name} .*not "):
        SemanticRecallConfig(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("thread_wait", "x"),
        ("thread_wait", float("nan")),
        ("thread_wait", float("inf")),
        ("thread_wait", None),
        ("thread_wait", True),
        ("token_counter", len),
        ("read_only", "no"),
        ("await_background", 1),
    ],
)
def test_options_of_memory(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^(\w+: )?{name} must be .*not {value!r}"):
        Memory(storage=InMemoryStorage(), **{name: value})


Call = Callable[[Memory], Awaitable[object]]

CALLS: list[tuple[str, Call]] = [
    ("query", lambda m: m.recall(5, resource="t")),  # pyright: ignore
    ("limit", lambda m: m.recall("Rome", resource="t", limit=ODD)),
    ("limit", lambda m: m.recall("Rome", resource="t", limit=0)),
    ("query", lambda m: m.messages.search(5, resource="t")),  # pyright: ignore
    ("limit", lambda m: m.messages.search("Rome", resource="t", limit=ODD)),
    ("limit", lambda m: m.messages.search("Rome", resource="t", limit=HUGE)),
    ("limit", lambda m: m.messages.search("Rome", resource="t", limit=NOTHING)),
    ("query", lambda m: m.diary.search(5, resource="t")),  # pyright: ignore
    ("limit", lambda m: m.diary.search("Rome", resource="t", limit=ODD)),
    ("limit", lambda m: m.messages.list(thread="t", limit=ODD)),
    ("limit", lambda m: m.messages.list(thread="t", limit=1.5)),  # pyright: ignore
    ("limit", lambda m: m.messages.list(thread="t", limit=True)),
    ("limit", lambda m: m.messages.list(thread="t", limit=HUGE)),
    ("before", lambda m: m.messages.list(thread="t", before=ODD)),
    ("before", lambda m: m.messages.list(thread="t", before=HUGE)),
    ("after", lambda m: m.messages.list(thread="t", after=ODD)),
    ("limit", lambda m: m.threads.list(limit=ODD)),
    ("limit", lambda m: m.threads.list(limit=HUGE)),
    ("limit", lambda m: m.threads.list(limit=NOTHING)),
    ("limit", lambda m: m.threads.clone("t", limit=ODD)),
    ("limit", lambda m: m.threads.clone("t", limit=HUGE)),
    ("message_ids", lambda m: m.threads.clone("t", message_ids="abc")),
    ("message_ids", lambda m: m.forget(message_ids="abc", thread="t")),
    ("message_ids", lambda m: m.forget(message_ids=5, thread="t")),  # pyright: ignore
    ("message_ids", lambda m: m.forget(message_ids=[5], thread="t")),  # pyright: ignore
    ("thread", lambda m: m.forget(thread=5)),  # pyright: ignore
    ("thread", lambda m: m.forget(thread=["t"])),  # pyright: ignore
    ("thread", lambda m: m.forget(message_ids=["a"], thread=5)),  # pyright: ignore
    ("resource", lambda m: m.forget(resource=5)),  # pyright: ignore
    ("resource", lambda m: m.forget(resource=["t"])),  # pyright: ignore
    ("thread", lambda m: m.threads.delete(5)),  # pyright: ignore
    ("thread", lambda m: m.diary.clear(thread=5)),  # pyright: ignore
    ("thread", lambda m: m.messages.list(thread=["t"])),  # pyright: ignore
    ("resource", lambda m: m.messages.list(thread="t", resource=5)),  # pyright: ignore
    ("thread", lambda m: m.threads.create(["t"])),  # pyright: ignore
    ("new_thread", lambda m: m.threads.clone("t", new_thread=5)),  # pyright: ignore
    ("thread", lambda m: m.messages.save("Rome", thread=5)),  # pyright: ignore
    ("resource", lambda m: m.messages.search("Rome", resource=5)),  # pyright: ignore
    ("resource", lambda m: m.diary.search("Rome", resource=["t"])),  # pyright: ignore
    ("resource", lambda m: m.working.get(resource=5)),  # pyright: ignore
    ("resource", lambda m: m.working.update({}, resource=["t"])),  # pyright: ignore
    ("thread", lambda m: m.recall("Rome", thread=5)),  # pyright: ignore
    ("resource", lambda m: m.messages.embed(resource=5)),  # pyright: ignore
    ("to", lambda m: m.threads.rewind("t", to=["a"])),  # pyright: ignore
    ("message_id", lambda m: m.messages.update(["a"], thread="t", text="Oslo")),  # pyright: ignore
    ("limit", lambda m: m.diary.events(thread="t", limit=ODD)),
    ("limit", lambda m: m.diary.events(thread="t", limit=HUGE)),
    ("after", lambda m: m.diary.events(thread="t", after=ODD)),
    ("after", lambda m: m.diary.events(thread="t", after=HUGE)),
    ("limit", lambda m: m.diary.sources("e", thread="t", limit=ODD)),
    ("date", lambda m: m.diary.as_of("2026-01-01", thread="t")),  # pyright: ignore
    ("date", lambda m: m.diary.as_of(None, thread="t")),  # pyright: ignore
    ("text", lambda m: m.diary.edit("e", NOTHING, thread="t")),
    ("text", lambda m: m.diary.edit("e", 5, thread="t")),  # pyright: ignore
    ("guidance", lambda m: m.diary.reflect(thread="t", guidance=5)),  # pyright: ignore
    ("text", lambda m: m.messages.update("a", thread="t", text=5)),  # pyright: ignore
    ("text", lambda m: m.messages.update("a", thread="t", text=0)),  # pyright: ignore
    ("parts", lambda m: m.messages.update("a", thread="t", parts="abc")),  # pyright: ignore
    ("parts", lambda m: m.messages.update("a", thread="t", parts=5)),  # pyright: ignore
    ("parts", lambda m: m.messages.update("a", thread="t", parts=["abc"])),  # pyright: ignore
    ("parts", lambda m: m.messages.update("a", thread="t", parts=[TextPart(text=NOTHING)])),
    ("value", lambda m: m.working.update([1, 2], resource="t")),  # pyright: ignore
    ("value", lambda m: m.working.update(5, resource="t")),  # pyright: ignore
    ("value", lambda m: m.working.update(NOTHING, resource="t")),
    ("value", lambda m: m.working.update("Rome", resource="t")),
]


@pytest.mark.parametrize(("name", "call"), CALLS)
async def test_arguments_of_calls(storage: Storage, name: str, call: Call) -> None:
    memory = Memory(
        storage=storage,
        vector=_vectors(),
        embedder=TopicEmbedder(),
        working_memory=WorkingMemoryConfig(schema={"type": "object"}),
        observational_memory=ObservationalMemoryConfig(model="extractive"),
    )
    await memory.messages.save([Message.user("Rome", id="a")], thread="t")
    await memory.settled()
    with pytest.raises(InputError, match=rf"\b{name}\b.*not "):
        await call(memory)
    assert [row.id for row in await memory.messages.list(thread="t")] == ["a"]


async def test_message_ids_that_are_not_valid_unicode(storage: Storage) -> None:
    memory = Memory(storage=storage)
    await memory.threads.create("t")
    with pytest.raises(InputError, match="not valid Unicode"):
        await memory.messages.save([Message.user("Rome", id="\ud800")], thread="t")
    with pytest.raises(InputError, match="not valid Unicode"):
        await memory.forget(message_ids=["\ud800"], thread="t")


async def test_a_page_of_any_size(storage: Storage) -> None:
    memory, limit = Memory(storage=storage), 2**63 - 2
    await memory.messages.save([Message.user("Rome", id="a")], thread="t")
    assert [thread.id for thread in (await memory.threads.list(limit=limit)).items] == ["t"]
    assert [hit.message.id for hit in (await memory.messages.search("Rome", thread="t", limit=limit)).items] == ["a"]


def _vectors() -> Any:
    from diarist.vectors import InMemoryVectorStore

    return InMemoryVectorStore()
