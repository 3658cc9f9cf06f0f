"""MongoDB keeps the contract: a small server of the test suite everywhere, and a real one where
``DIARIST_TEST_MONGODB_URL`` names it."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from diarist import Memory
from diarist.exceptions import ConfigError, SchemaError, StorageError
from diarist.storage import Resource, Storage, Thread
from diarist.storage.mongodb import MongoDBStorage
from diarist.testing import StorageConformance
from tests.loopback.mongodb_server import MongoDBServer

URL = "DIARIST_TEST_MONGODB_URL"
TRIP = Thread(id="trip", resource_id="ada")


class TestRealMongoDB(StorageConformance):
    __test__ = bool(os.environ.get(URL))

    @pytest.fixture
    async def storage(self) -> AsyncIterator[Storage]:
        import pymongo

        url = os.environ[URL]
        name = f"diarist_test_{secrets.token_hex(4)}"
        async with MongoDBStorage(url, database=name) as storage:
            yield storage
        with pymongo.MongoClient(url) as client:
            client.drop_database(name)

    @pytest.fixture
    async def second_storage(self, storage: Storage) -> AsyncIterator[Storage]:
        async with MongoDBStorage(os.environ[URL], database=storage.location.rpartition("/")[2]) as second:
            yield second


class TestSmallMongoDB(StorageConformance):
    @pytest.fixture
    async def storage(self, server: MongoDBServer) -> AsyncIterator[Storage]:
        async with MongoDBStorage(server.url) as storage:
            yield storage

    @pytest.fixture
    async def second_storage(self, storage: Storage) -> AsyncIterator[Storage]:
        async with MongoDBStorage(storage.location) as second:
            yield second


@pytest.fixture
def server() -> Iterator[MongoDBServer]:
    with MongoDBServer() as server:
        yield server


def test_addresses() -> None:
    assert MongoDBStorage("mongodb://ada:secret@db:27017/app").location == "mongodb://db:27017/app"
    assert MongoDBStorage("mongodb://a,b:1/?replicaSet=r").location == "mongodb://a:27017,b:1/diarist"
    assert MongoDBStorage("mongodb+srv://ada:secret@cluster.example.com").location.endswith(
        "cluster.example.com/diarist"
    )
    for url in ("postgresql://localhost", "mongodb://", "mongodb://localhost:none"):
        with pytest.raises(ConfigError, match=r"not a URL of MongoDB"):
            MongoDBStorage(url)
    with pytest.raises(ConfigError, match="timeout"):
        MongoDBStorage("mongodb://localhost", timeout=0)


async def test_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(
        StorageError, match=rf"in mongodb://127.0.0.1:{port}/diarist: .*start MongoDB there, or correct"
    ):
        await MongoDBStorage(f"mongodb://127.0.0.1:{port}", timeout=0.1).open()


async def test_newer_schema_is_refused(server: MongoDBServer) -> None:
    async with MongoDBStorage(server.url):
        server.collections["diarist.diarist_schema"]["storage"]["version"] = 99
    with pytest.raises(SchemaError, match=r"version 99 .* supports\s+version \d"):
        await MongoDBStorage(server.url).open()


def test_a_call_that_its_event_loop_abandons_leaves_no_live_run(server: MongoDBServer) -> None:
    memory = Memory(storage=MongoDBStorage(server.url), thread_wait=0)

    async def abandon(thread: str, after: int) -> object:
        task = asyncio.create_task(memory.messages.save("first", thread=thread))
        for _ in range(after):  # let the task come this far
            await memory.messages.list(thread="none")
        return task

    for after in range(10):
        asyncio.run(abandon(f"t{after}", after))
        assert asyncio.run(memory.messages.save("second", thread=f"t{after}")) == 1
    asyncio.run(memory.close())


async def test_a_cancelled_call_that_would_have_failed_is_silent(
    server: MongoDBServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with MongoDBStorage(server.url) as storage:
        saved = await storage.save_resource(Resource(id="ada"))
        call = asyncio.create_task(storage.save_resource(replace(saved, version=7)))
        await asyncio.sleep(0)  # it is in the database's thread now
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        gc.collect()
    assert not caplog.records
