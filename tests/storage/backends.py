"""Databases that several processes may share, for tests that start some."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from diarist.storage import SQLiteStorage, Storage
from diarist.storage.postgres import PostgresStorage

# For scripts: opened(sys.argv[1]) is the storage at an address.
OPENED = """
def opened(address):
    if "://" in address:
        from diarist.storage.postgres import PostgresStorage
        return PostgresStorage(address, pool_size=4)
    from diarist.storage import SQLiteStorage
    return SQLiteStorage(address)
"""


@dataclass(frozen=True)
class Backend:
    """Where the data of a test lies."""

    name: str
    address: str

    def storage(self) -> Storage:
        return PostgresStorage(self.address) if self.name == "postgres" else SQLiteStorage(self.address)


@pytest.fixture(params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    if request.param == "postgres":
        return Backend("postgres", request.getfixturevalue("postgres_url"))
    return Backend("sqlite", str(tmp_path / "memory.db"))
