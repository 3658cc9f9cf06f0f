"""The in-memory storage keeps the contract."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from diarist.databases.base import Connection, Schema
from diarist.exceptions import InputError, StorageError
from diarist.messages import Message
from diarist.storage import InMemoryStorage, Storage, Thread, sqlite
from diarist.testing import StorageConformance


class TestInMemoryStorage(StorageConformance):
    @pytest.fixture
    def storage(self) -> Storage:
        return InMemoryStorage()


def test_location() -> None:
    assert InMemoryStorage().location == "memory"


def test_threads_share_it_each_with_an_event_loop() -> None:
    storage = InMemoryStorage()

    async def turns(thread: str) -> None:
        for number in range(10):
            run = await storage.begin_run(f"{thread}-{number}", Thread(id=thread, resource_id="ada"))
            await storage.finish_run(run, "committed", messages=[Message.assistant("hi")])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda thread: asyncio.run(turns(thread)), "abcd"))
    assert [len(asyncio.run(storage.list_messages(thread))) for thread in "abcd"] == [10] * 4


def test_it_creates_no_file_and_close_keeps_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = InMemoryStorage()
    asyncio.run(storage.create_thread(Thread(id="t", resource_id="ada")))
    asyncio.run(storage.close())
    assert asyncio.run(storage.get_thread("t")) is not None
    assert list(tmp_path.iterdir()) == []


async def test_runs_expire_by_the_clock_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    storage, now = InMemoryStorage(), time.time_ns()
    run = await storage.begin_run("one", Thread(id="t", resource_id="ada"), ttl=60)
    monkeypatch.setattr(time, "time_ns", lambda: now + 61 * 10**9)
    await storage.begin_run("two", Thread(id="t", resource_id="ada"), ttl=60)
    ended = await storage.get_run(run.id)
    assert ended is not None
    assert ended.state == "interrupted"


async def test_errors_of_sqlite_are_storage_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"cannot get thread: .* is not valid Unicode"):
        await InMemoryStorage().get_thread("\ud800")
    monkeypatch.setattr(sqlite, "SCHEMA", Schema(name="storage", version=1, create=_without_fts5))
    with pytest.raises(StorageError, match="cannot create tables in memory: no such module: fts6"):
        InMemoryStorage()


async def _without_fts5(connection: Connection) -> None:
    await connection.execute("CREATE VIRTUAL TABLE words USING fts6(terms)")
