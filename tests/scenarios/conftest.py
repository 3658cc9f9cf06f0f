"""Every scenario runs on a real SQLite file; `make test-all` runs it in memory too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diarist.storage import InMemoryStorage, SQLiteStorage, Storage


@pytest.fixture(params=["sqlite", pytest.param("in-memory", marks=pytest.mark.slow)])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Storage]:
    made: Storage = SQLiteStorage(tmp_path / "memory.db") if request.param == "sqlite" else InMemoryStorage()
    async with made:
        yield made
