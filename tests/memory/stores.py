"""A storage of each kind, for what must hold on all of them: import ``made_storage`` and ``storage``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diarist.storage import InMemoryStorage, SQLiteStorage, Storage
from diarist.storage.postgres import PostgresStorage


@pytest.fixture(params=["in-memory", "sqlite", "postgres"])
def made_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """Not asynchronous, since PostgreSQL is started by a fixture that is not."""
    if request.param == "postgres":
        return PostgresStorage(request.getfixturevalue("postgres_url"))
    return InMemoryStorage() if request.param == "in-memory" else SQLiteStorage(tmp_path / "memory.db")


@pytest.fixture
async def storage(made_storage: Storage) -> AsyncIterator[Storage]:
    async with made_storage:
        yield made_storage
