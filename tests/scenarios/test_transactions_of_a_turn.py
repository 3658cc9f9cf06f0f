"""A turn in which no memory work is due takes at most four transactions, and each step after the first two."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Memory, tool
from diarist.databases.base import Database
from diarist.databases.blocking import ThreadDatabase
from diarist.databases.postgres import PostgresDatabase
from diarist.storage import SQLiteStorage, Storage
from diarist.storage.postgres import PostgresStorage
from diarist.testing import ScriptedModel, ToolCall

STEPS = 6


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "sqlite":
        return SQLiteStorage(tmp_path / "memory.db")
    return PostgresStorage(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def storage(opened: Storage) -> AsyncIterator[Storage]:
    async with opened:
        yield opened


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the transactions that databases begin."""
    begun: list[str] = []

    def count(kind: type[Database], name: str) -> None:
        method = getattr(kind, name)

        async def counted(self: Database, work: Any, *args: Any, **options: Any) -> Any:
            begun.append(work.__name__)
            return await method(self, work, *args, **options)

        monkeypatch.setattr(kind, name, counted)

    for kind in (ThreadDatabase, PostgresDatabase):
        count(kind, "read")
        count(kind, "write")
    return begun


@tool
def look(at: int) -> str:
    """Look."""
    return f"seen {at}"


async def test_a_turn_takes_four_transactions(storage: Storage, transactions: list[str]) -> None:
    agent = Agent(
        model=ScriptedModel(lambda request: "Noted."), memory=Memory(storage=storage, observational_memory=True)
    )
    for turn in range(3):
        transactions.clear()
        await agent.generate(f"hello {turn}", thread="trip")
    assert len(transactions) <= 4, transactions


async def test_a_step_of_a_tool_loop_takes_two(storage: Storage, transactions: list[str]) -> None:
    calls = [ToolCall("look", {"at": number}) for number in range(STEPS)]
    model = ScriptedModel("Hello.", *calls, "Done.")
    agent = Agent(model=model, tools=[look], max_steps=10, memory=Memory(storage=storage, observational_memory=True))
    await agent.generate("hello", thread="trip")
    transactions.clear()
    await agent.generate("look around", thread="trip")
    assert len(transactions) <= 4 + 2 * STEPS, transactions
