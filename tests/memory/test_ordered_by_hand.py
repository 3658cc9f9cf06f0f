"""``MessageHistory``, ``WorkingMemory`` and ``SemanticRecall`` as processors in the application's own order."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Memory
from diarist.exceptions import ConfigError, ProcessorError
from diarist.memory import MessageHistory, SemanticRecall, WorkingMemory, WorkingMemoryConfig
from diarist.processors.base import ProcessInputArgs, Processor
from diarist.storage import InMemoryStorage, SQLiteStorage, Storage
from diarist.testing import ScriptedModel, ToolCall
from tests.memory.semantic.kit import TopicEmbedder

KINDS = ("history", "working", "recall")


def processors(storage: Storage) -> dict[str, Processor[Any]]:
    return {
        "history": MessageHistory(storage, last_messages=2),
        "working": WorkingMemory(storage),
        "recall": SemanticRecall(storage, embedder=TopicEmbedder(), await_background=True),
    }


@pytest.mark.parametrize("order", list(permutations(KINDS)), ids="-".join)
async def test_every_order_remembers_updates_and_recalls(order: tuple[str, ...], tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "memory.db")
    made = processors(storage)
    model = ScriptedModel(
        ToolCall("update_working_memory", {"memory": "Name: Ada"}), "Noted.", lambda request: "I see."
    )
    async with Agent(model=model, input_processors=[made[kind] for kind in order]) as agent:
        await agent.generate("My garden has roses.", thread="one", resource="ada")
        await agent.generate("It rains.", thread="two", resource="ada")
        await agent.generate("What grows in my garden?", thread="two", resource="ada")
    prompt = model.requests[-1].text
    assert "Name: Ada" in prompt
    assert "My garden has roses." in prompt
    assert "It rains." in prompt
    memory = Memory(storage=storage, working_memory=True)
    assert await memory.working.get(resource="ada") == "Name: Ada"
    rows = await memory.messages.list(thread="two")
    assert [row.text for row in rows] == ["It rains.", "I see.", "What grows in my garden?", "I see."]
    assert "roses" in (rows[2].sent.text if rows[2].sent else "")
    await memory.close()


async def test_a_guard_before_the_history_sees_the_new_input_alone() -> None:
    seen: list[int] = []

    class Counts(Processor[None]):
        def process_input(self, args: ProcessInputArgs[None]) -> None:
            seen.append(len(args.messages))

    model = ScriptedModel("one", "two")
    agent = Agent(model=model, input_processors=[Counts(), MessageHistory(InMemoryStorage())])
    await agent.generate("first", thread="t")
    await agent.generate("second", thread="t")
    assert seen == [1, 1]
    assert [message.text for message in model.requests[-1].prompt] == ["first", "one", "second"]


async def test_it_takes_the_place_of_the_history_of_a_memory() -> None:
    storage, model = InMemoryStorage(), ScriptedModel(lambda request: "ok")
    memory = Memory(storage=storage, last_messages=10)
    agent = Agent(model=model, memory=memory, input_processors=[MessageHistory(storage, last_messages=2)])
    for number in range(4):
        await agent.generate(f"number {number}", thread="t")
    assert [message.text for message in model.requests[-1].prompt][-3:] == ["number 2", "ok", "number 3"]
    assert "number 0" not in model.requests[-1].text
    assert len(await memory.messages.list(thread="t")) == 8


async def test_a_read_only_history_stores_nothing() -> None:
    storage = InMemoryStorage()
    agent = Agent(model=ScriptedModel("ok"), processors=[MessageHistory(storage, read_only=True)])
    await agent.generate("hi", thread="t")
    assert await storage.list_messages("t") == []


@pytest.mark.parametrize("kind", ["working", "recall"])
async def test_they_need_a_history(kind: str) -> None:
    alone = processors(InMemoryStorage())[kind]
    with pytest.raises(ConfigError, match=rf"'{alone.id}' needs one that .*: add MessageHistory\(storage\)"):
        Agent(model=ScriptedModel("ok"), processors=[alone])
    agent = Agent(model=ScriptedModel("ok"))
    with pytest.raises(ConfigError, match=r"add MessageHistory\(storage\)"):
        await agent.generate("hi", thread="t", input_processors=[alone])


async def test_working_memory_in_another_storage_than_the_history_is_refused() -> None:
    pair = [MessageHistory(InMemoryStorage()), WorkingMemory(InMemoryStorage())]
    agent = Agent(model=ScriptedModel("ok"), processors=pair)
    with pytest.raises(ProcessorError, match="must be in the same storage"):
        await agent.generate("hi", thread="t")


async def test_a_read_only_history_is_enough_to_recall() -> None:
    storage = InMemoryStorage()
    recall = processors(storage)["recall"]
    writer = Agent(model=ScriptedModel("ok"), processors=[MessageHistory(storage), recall])
    await writer.generate("My garden has roses.", thread="one", resource="ada")
    model = ScriptedModel("ok")
    reader = Agent(model=model, processors=[MessageHistory(storage, read_only=True), recall])
    await reader.generate("What grows in my garden?", thread="two", resource="ada")
    assert "My garden has roses." in model.requests[-1].text


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: MessageHistory(InMemoryStorage(), last_messages=-1), "last_messages"),
        (lambda: MessageHistory(InMemoryStorage(), thread_wait=-1), "thread_wait"),
        (lambda: MessageHistory("memory.db"), "SQLiteStorage"),  # type: ignore[arg-type]
        (lambda: WorkingMemory("memory.db"), "SQLiteStorage"),  # type: ignore[arg-type]
        (lambda: WorkingMemory(InMemoryStorage(), WorkingMemoryConfig(kept_by="observer")), "kept_by='observer'"),
        (lambda: WorkingMemory(InMemoryStorage(), WorkingMemoryConfig(enabled=False)), "leave WorkingMemory out of"),
        (lambda: WorkingMemory(InMemoryStorage(), True), r"must be WorkingMemoryConfig\(...\), not True"),  # type: ignore[arg-type]
        (lambda: SemanticRecall(InMemoryStorage(), embedder=TopicEmbedder(), vector=False), "vector=False"),
        (lambda: SemanticRecall(InMemoryStorage(), embedder=TopicEmbedder(), timezone="Rome"), "timezone 'Rome'"),
        (
            lambda: SemanticRecall(InMemoryStorage(), True, embedder=TopicEmbedder()),
            r"SemanticRecallConfig\(...\), not True",
        ),  # type: ignore[arg-type]
    ],
)
def test_wrong_options_are_refused(make: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make()
