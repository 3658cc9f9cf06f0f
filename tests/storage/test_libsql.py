"""libSQL keeps the contract, in a file and on a server, and says clearly what is wrong with either."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import libsql
import pytest

from diarist.exceptions import ConfigError, InputError, SchemaError, StorageError
from diarist.messages import Message
from diarist.storage import SQLiteStorage, Storage, Thread
from diarist.storage.libsql import LibSQLStorage
from diarist.testing import SearchConformance, StorageConformance
from tests.loopback.libsql_server import LibSQLServer
from tests.processes import run_python

TRIP = Thread(id="trip", resource_id="ada")


class TestLibSQLFile(StorageConformance, SearchConformance):
    @pytest.fixture
    async def storage(self, tmp_path: Path) -> AsyncIterator[Storage]:
        async with LibSQLStorage(tmp_path / "memory.db") as storage:
            yield storage

    @pytest.fixture
    async def second_storage(self, storage: Storage) -> AsyncIterator[Storage]:
        async with LibSQLStorage(storage.location) as second:
            yield second


class TestLibSQLServer(StorageConformance, SearchConformance):
    @pytest.fixture
    async def storage(self, server: LibSQLServer) -> AsyncIterator[Storage]:
        async with LibSQLStorage(server.url) as storage:
            yield storage

    @pytest.fixture
    async def second_storage(self, storage: Storage) -> AsyncIterator[Storage]:
        async with LibSQLStorage(storage.location) as second:
            yield second


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LibSQLServer]:
    with LibSQLServer(tmp_path / "server.db") as server:
        yield server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


async def _create(storage: Storage) -> None:
    async with storage:
        await storage.create_thread(TRIP)


# --- a file --------------------------------------------------------------------------------------------------


async def test_sqlite_and_libsql_read_each_others_files(path: Path) -> None:
    await _create(LibSQLStorage(path))
    async with SQLiteStorage(path) as storage:
        run = await storage.begin_run("run", TRIP)
        await storage.append_messages(run, [Message.user("Grüße")])
        await storage.finish_run(run, "committed")
    async with LibSQLStorage(path) as storage:
        assert [hit.excerpt for hit in (await storage.search_messages("grüße", resource_id="ada")).items] == ["Grüße"]


@pytest.mark.parametrize("place", [":memory:", ""])
def test_memory_is_refused_with_a_hint(place: str) -> None:
    with pytest.raises(ConfigError, match="InMemoryStorage"):
        LibSQLStorage(place)


def test_missing_folder_folder_and_other_files(tmp_path: Path, path: Path) -> None:
    path.write_text("these are my notes, and they are longer than a header of SQLite " * 20)
    for place, reason in (
        (tmp_path / "new" / "memory.db", r"folder .*new does not exist; create it"),
        (tmp_path, r"is a folder; name a file in it"),
        (path, r"memory\.db: file is not a database; .*move it away"),
    ):
        with pytest.raises(StorageError, match=reason):
            asyncio.run(_create(LibSQLStorage(place)))


async def test_newer_schema_is_refused(path: Path) -> None:
    await _create(LibSQLStorage(path))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE diarist_schema SET version = 99")
    connection.close()
    with pytest.raises(SchemaError, match=r"version 99 .* supports version \d"):
        await LibSQLStorage(path).open()


async def test_nothing_waits_while_a_writer_waits_for_another(path: Path) -> None:
    await _create(LibSQLStorage(path))
    other = libsql.connect(str(path), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with LibSQLStorage(path) as storage:
        job = asyncio.create_task(storage.update_thread("trip", title="new"))
        for _ in range(5):
            assert await storage.get_thread("trip") is not None
        assert not job.done()
        other.execute("COMMIT")
        assert (await job).title == "new"
    other.close()


async def test_a_writer_gives_up_after_busy_timeout(path: Path) -> None:
    await _create(LibSQLStorage(path))
    other = libsql.connect(str(path), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with LibSQLStorage(path, busy_timeout=0.01) as storage:
        with pytest.raises(StorageError, match=r"cannot update thread in .*memory\.db.*busy_timeout"):
            await storage.update_thread("trip", title="new")
        other.execute("ROLLBACK")
        assert (await storage.update_thread("trip", title="new")).title == "new"
    other.close()


async def test_text_with_nul_is_not_cut_off(path: Path) -> None:
    async with LibSQLStorage(path) as storage:
        run = await storage.begin_run("run", TRIP)
        await storage.append_messages(run, [Message.user("a\0b", id="m")])
        await storage.finish_run(run, "committed")
        assert [message.text for message in await storage.list_messages("trip")] == ["a\0b"]
        with pytest.raises(InputError, match="NUL"):
            await storage.get_thread("trip\0")


USE = """
import asyncio, os, sys
from diarist.storage import Thread
from diarist.storage.libsql import LibSQLStorage

storage = LibSQLStorage(sys.argv[1])

def create(id):
    asyncio.run(storage.create_thread(Thread(id=id, resource_id="ada")))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_child_of_a_fork_opens_connections_of_its_own(path: Path) -> None:
    fork = "create('parent')\nif os.fork(): os.wait(); create('after')\nelse: create('child'); os._exit(0)"
    run_python(f"import warnings; warnings.simplefilter('ignore')  # newer versions warn of fork\n{USE}\n{fork}", path)
    assert {row[0] for row in sqlite3.connect(path).execute("SELECT id FROM diarist_threads")} == {
        "parent",
        "child",
        "after",
    }


# --- a server ------------------------------------------------------------------------------------------------


def test_addresses() -> None:
    assert LibSQLStorage("libsql://name.example.com").location == "https://name.example.com"
    assert LibSQLStorage("libsql://localhost:8080?tls=0").location == "http://localhost:8080"
    assert LibSQLStorage("https://example.com/db/?authToken=secret").location == "https://example.com/db"
    for url in ("wss://example.com", "libsql://", "http://localhost:none"):
        with pytest.raises(ConfigError, match="libSQL server"):
            LibSQLStorage(url)
    with pytest.raises(ConfigError, match="auth_token is for a server"):
        LibSQLStorage("memory.db", "secret")


async def test_a_token_is_shown(tmp_path: Path) -> None:
    with LibSQLServer(tmp_path / "server.db", token="secret") as server:
        await _create(LibSQLStorage(server.url, "secret"))
        async with LibSQLStorage(f"{server.url}?authToken=secret") as storage:
            assert await storage.get_thread("trip") is not None
        with pytest.raises(StorageError, match=r"HTTP 401: the token is missing or wrong; give a valid auth_token"):
            await LibSQLStorage(server.url, "wrong").open()


async def test_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(
        StorageError, match=rf"cannot open http://127.0.0.1:{port}: .*start the server there, or correct the"
    ):
        await LibSQLStorage(f"http://127.0.0.1:{port}").open()


async def test_a_read_takes_two_requests(server: LibSQLServer) -> None:
    async with LibSQLStorage(server.url) as storage:
        before = server.requests
        await storage.get_thread("trip")
        assert server.requests == before + 2
        assert server.streams == {}


async def test_an_idle_connection_that_the_server_closed_is_replaced(tmp_path: Path) -> None:
    with LibSQLServer(tmp_path / "server.db") as server:
        async with LibSQLStorage(server.url) as storage:
            await storage.create_thread(TRIP)
            for _ in range(3):
                server.hang_up()
                assert await storage.get_thread("trip") is not None


async def test_a_transaction_continues_where_the_server_says(server: LibSQLServer) -> None:
    with LibSQLServer(server.path) as second:
        second.streams = server.streams
        perform = server.answer

        def elsewhere(*request: object) -> object:
            status, answer = perform(*request)  # type: ignore[arg-type]
            return status, {**answer, "base_url": second.url}

        server.answer = elsewhere  # type: ignore[method-assign,assignment]
        async with LibSQLStorage(server.url) as storage:
            await storage.create_thread(TRIP)
            first, there = server.requests, second.requests
            assert await storage.get_thread("trip") is not None
            assert (server.requests - first, second.requests - there) == (1, 1)


async def test_a_transaction_that_the_server_ended_leaves_nothing(server: LibSQLServer) -> None:
    async with LibSQLStorage(server.url) as storage:
        await storage.create_thread(TRIP)
        perform, count = server.answer, 0

        def forgetful(*request: object) -> object:
            nonlocal count
            count += 1
            if count == 3:
                server.forget_streams()
            return perform(*request)  # type: ignore[arg-type]

        server.answer = forgetful  # type: ignore[method-assign,assignment]
        with pytest.raises(StorageError, match="the stream has expired"):
            await storage.begin_run("run", TRIP)
        server.answer = perform  # type: ignore[method-assign]
        assert await storage.get_run("run") is None
        run = await storage.begin_run("run", TRIP)
        assert run.token == 1


async def test_a_writer_waits_for_another(server: LibSQLServer) -> None:
    async with LibSQLStorage(server.url) as storage:
        await storage.create_thread(TRIP)
        other = sqlite3.connect(server.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        job = asyncio.create_task(storage.update_thread("trip", title="new"))
        assert await storage.get_thread("trip") is not None
        assert not job.done()
        other.execute("COMMIT")
        assert (await job).title == "new"
        other.close()
