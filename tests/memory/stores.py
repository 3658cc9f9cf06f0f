"""A storage of each kind, for what must hold on all of them: import ``made_storage`` and ``storage``.

`make test` takes SQLite alone; the storages' own tests run on each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diarist.storage import InMemoryStorage, SQLiteStorage, Storage
from diarist.storage.postgres import PostgresStorage

_SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("in-memory", "postgres")]


@pytest.fixture(params=["sqlite", *_SLOW])
def made_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """Not asynchronous, since PostgreSQL is started by a fixture that is not."""
    if request.param == "postgres":
        return PostgresStorage(request.getfixturevalue("postgres_url"))
    return InMemoryStorage() if request.param == "in-memory" else SQLiteStorage(tmp_path / "memory.db")


@pytest.fixture
async def storage(made_storage: Storage) -> AsyncIterator[Storage]:
    async with made_storage:
        yield made_storage
