"""What a diary has cost."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from diarist import Agent, Memory
from diarist.chunks import Usage
from diarist.memory import ObservationalMemoryConfig, ObservationConfig, ReflectionConfig
from diarist.storage import InMemoryStorage, SQLiteStorage
from diarist.testing import ScriptedModel


def notes(n: int) -> str:
    return f"<observations>\nDate: 2026-03-02\n- 🔴 08:0{n % 10} fact {n} " + f"word{n} " * 40 + "\n</observations>"


async def test_usage_counts_every_entry_once_also_those_that_were_condensed() -> None:
    keeper = ScriptedModel(*(notes(n) for n in range(60)))
    memory = Memory(
        storage=InMemoryStorage(),
        observational_memory=ObservationalMemoryConfig(
            observation=ObservationConfig(model=keeper, message_tokens=400, buffer_tokens=100),
            reflection=ReflectionConfig(model="extractive", observation_tokens=300),
        ),
    )
    async with Agent(model=ScriptedModel(*("answer " * 60 for _ in range(20))), memory=memory) as agent:
        for n in range(20):
            await agent.generate(f"question {n}", thread="t")
            await memory.settled()
        spent = await memory.diary.usage(thread="t")
        log = await memory.diary.get(thread="t")
    assert log.generation > 0
    assert spent.observations == len(keeper.requests)
    assert spent.reflections > 0
    assert spent.observer.input_tokens > 0
    assert spent.reflector == Usage()
    assert spent.total == spent.observer


async def test_a_reader_of_the_diary_cannot_change_what_others_read_of_it(tmp_path: Path) -> None:
    """Every reading of an unchanged diary may give the same entries."""
    config = ObservationalMemoryConfig(model=ScriptedModel(notes(1)))
    async with Memory(storage=SQLiteStorage(tmp_path / "memory.db"), observational_memory=config) as memory:
        await memory.messages.save("We moved to Turku.", thread="t")
        spent = (await memory.diary.observe(thread="t")).entries[0].usage
        with pytest.raises(FrozenInstanceError):
            spent.input_tokens = 0  # pyright: ignore[reportAttributeAccessIssue]
        total = spent
        total += spent
        assert total.input_tokens == 2 * spent.input_tokens > 0
        assert (await memory.diary.usage(thread="t")).observer == spent
