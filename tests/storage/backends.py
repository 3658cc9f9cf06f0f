"""Databases that several processes may share, for tests that start some."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from diarist.storage import SQLiteStorage, Storage
from diarist.storage.mongodb import MongoDBStorage
from diarist.storage.postgres import PostgresStorage
from tests.loopback.mongodb_server import MongoDBServer

# For scripts: opened(sys.argv[1]) is the storage at an address.
OPENED = """
def opened(address):
    if address.startswith("postgres"):
        from diarist.storage.postgres import PostgresStorage
        return PostgresStorage(address, pool_size=4)
    if address.startswith("mongodb"):
        from diarist.storage.mongodb import MongoDBStorage
        return MongoDBStorage(address)
    from diarist.storage import SQLiteStorage
    return SQLiteStorage(address)
"""


@dataclass(frozen=True)
class Backend:
    """Where the data of a test lies."""

    name: str
    address: str

    def storage(self) -> Storage:
        match self.name:
            case "postgres":
                return PostgresStorage(self.address)
            case "mongodb":
                return MongoDBStorage(self.address)
            case _:
                return SQLiteStorage(self.address)


@pytest.fixture
def mongodb_url() -> Iterator[str]:
    """The address of the small MongoDB of the test suite."""
    with MongoDBServer() as server:
        yield server.url


@pytest.fixture(params=["sqlite", "postgres", pytest.param("mongodb", marks=pytest.mark.slow)])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    if request.param == "mongodb":
        return Backend("mongodb", request.getfixturevalue("mongodb_url"))
    if request.param == "postgres":
        return Backend("postgres", request.getfixturevalue("postgres_url"))
    return Backend("sqlite", str(tmp_path / "memory.db"))
