"""Storages for tests of the engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diarist.storage import InMemoryStorage, SQLiteStorage, Storage


@pytest.fixture(params=["memory", "sqlite"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Storage]:
    storage = InMemoryStorage() if request.param == "memory" else SQLiteStorage(tmp_path / "memory.db")
    async with storage:
        yield storage
