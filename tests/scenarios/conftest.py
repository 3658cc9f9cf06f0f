"""Every scenario runs on a real SQLite file and in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diarist.storage import InMemoryStorage, SQLiteStorage, Storage


@pytest.fixture(params=["sqlite", "in-memory"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Storage]:
    made: Storage = SQLiteStorage(tmp_path / "memory.db") if request.param == "sqlite" else InMemoryStorage()
    async with made:
        yield made
