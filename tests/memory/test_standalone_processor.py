"""Observational memory as a processor, without ``Memory``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diarist import Agent
from diarist.exceptions import ConfigError
from diarist.memory import Memory, ObservationalMemory, ObservationalMemoryConfig, ObservationConfig
from diarist.processors.base import ProcessInputArgs, Processor
from diarist.storage import InMemoryStorage, SQLiteStorage
from diarist.testing import ScriptedModel

SMALL = ObservationalMemoryConfig(
    model="extractive", observation=ObservationConfig(message_tokens=300, buffer_tokens=50)
)


async def test_an_agent_keeps_a_diary_with_the_processor_alone(tmp_path: Path) -> None:
    async with SQLiteStorage(tmp_path / "m.db") as storage:
        model = ScriptedModel(*(f"answer {n}. " + "more words " * 20 for n in range(12)))
        async with Agent(
            name="a", model=model, input_processors=[ObservationalMemory(storage, SMALL)], output_processors=[]
        ) as agent:
            for n in range(12):
                await agent.generate(f"My cat number {n} is called Tom{n}. " + "It likes fish. " * 5, thread="cats")
        log = await storage.get_log("thread:cats")
        assert log is not None
        assert log.active
        assert "<observations>" in model.requests[-1].text
        assert "My cat number 0 is called Tom0. It likes fish. It likes" not in model.requests[-1].text


async def test_it_may_stand_in_both_lists_and_behind_others() -> None:
    seen: list[int] = []

    class Counts(Processor[None]):
        id = "counts"

        def process_input(self, args: ProcessInputArgs[None]) -> None:
            seen.append(len(args.messages))

    memory = ObservationalMemory(InMemoryStorage(), SMALL)
    model = ScriptedModel("one", "two")
    async with Agent(name="a", model=model, input_processors=[Counts(), memory], output_processors=[memory]) as agent:
        await agent.generate("first", thread="t")
        await agent.generate("second", thread="t")
    assert seen == [1, 1]  # a guard that stands before memory sees the new input alone
    assert model.requests[-1].text.count("first") == 1


def test_a_model_that_cannot_be_used_is_refused_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        ObservationalMemory(InMemoryStorage(), ObservationalMemoryConfig(model="openai/gpt-5-mini"))
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        Memory(storage=InMemoryStorage(), observational_memory=ObservationalMemoryConfig(model="openai/gpt-5-mini"))
    with pytest.raises(ConfigError, match="model"):
        ObservationalMemory(InMemoryStorage())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"config": ObservationalMemoryConfig(model="extractive", enabled=False)},
            "enabled=False.*leave ObservationalMemory out of",
        ),
        ({"config": True}, "config must be ObservationalMemoryConfig.*not True"),
        ({"thread_wait": "x"}, "thread_wait must be .*not 'x'"),
        ({"thread_wait": -1}, "thread_wait must be .*not -1"),
        ({"await_background": "no"}, "await_background must be .*not 'no'"),
        ({"storage": "memory.db"}, r"storage must be .*SQLiteStorage\('memory.db'\).*not 'memory.db'"),
        (
            {"storage": "postgresql://ada:secret@x/y"},
            r"such as PostgresStorage\('postgresql://…'\) from diarist.storage.postgres, not 'postgresql://…';",
        ),
        ({"storage": "mongodb+srv://x/y"}, r"MongoDBStorage\('mongodb\+srv://…'\) from diarist.storage.mongodb"),
        ({"storage": "libsql://x"}, r"LibSQLStorage\('libsql://…'\) from diarist.storage.libsql"),
        ({"storage": "sqlite:///memory.db"}, r"such as SQLiteStorage\('memory.db'\) from diarist.storage"),
        ({"storage": "redis://x"}, r"such as SQLiteStorage\('memory.db'\) from diarist.storage, not 'redis://…'"),
        ({"storage": None}, "storage must be .*not None"),
        ({"storage": InMemoryStorage}, "storage must be .*not <class"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], why: str) -> None:
    given: dict[str, Any] = {"storage": InMemoryStorage(), "config": SMALL}
    with pytest.raises(ConfigError, match=why):
        ObservationalMemory(**(given | options))


async def test_it_stands_in_place_of_the_history_of_a_memory_not_beside_it() -> None:
    storage, model = InMemoryStorage(), ScriptedModel("hello")
    diary = ObservationalMemory(storage, SMALL)
    with pytest.raises(ConfigError, match=r"'message-history' and 'observational-memory'.*remove one of them"):
        Agent(model=model, memory=Memory(storage=storage), processors=[diary])
    agent = Agent(model=model, memory=Memory(storage=storage))
    with pytest.raises(ConfigError, match="remove one of them"):
        await agent.generate("hi", thread="t", extra_processors=[diary])
    assert await storage.list_messages("t") == []
    beside = Memory(storage=storage, working_memory=True, observational_memory=SMALL)
    async with Agent(model=model, memory=beside, processors=[diary]) as agent:
        await agent.generate("hi", thread="t")
    assert len(await storage.list_messages("t")) == 2
