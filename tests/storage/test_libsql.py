"""A libSQL server keeps the contract, and errors say clearly what is wrong; a file is opened as an SQLite file."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from diarist.exceptions import ConfigError, ConflictError, InputError, StorageError
from diarist.messages import Message
from diarist.storage import SQLiteStorage, Storage, Thread
from diarist.storage.libsql import LibSQLStorage
from diarist.testing import SearchConformance, StorageConformance
from tests.loopback.libsql_server import LibSQLServer

TRIP = Thread(id="trip", resource_id="ada")


class OnLibSQLServer:
    @pytest.fixture
    async def storage(self, server: LibSQLServer) -> AsyncIterator[Storage]:
        async with LibSQLStorage(server.url) as storage:
            yield storage

    @pytest.fixture
    async def second_storage(self, storage: Storage) -> AsyncIterator[Storage]:
        async with LibSQLStorage(storage.location) as second:
            yield second


class TestLibSQLServer(OnLibSQLServer, StorageConformance): ...


@pytest.mark.slow
class TestLibSQLServerSearch(OnLibSQLServer, SearchConformance): ...


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


async def test_a_file_is_an_sqlite_file(path: Path) -> None:
    async with LibSQLStorage(path) as storage, SQLiteStorage(path) as same:
        await storage.create_thread(TRIP)
        run = await same.begin_run("run", TRIP)
        await same.append_messages(run, [Message.user("Grüße")])
        await same.finish_run(run, "committed")
        assert [hit.excerpt for hit in (await storage.search_messages("grüße", resource_id="ada")).items] == ["Grüße"]


def test_memory_is_refused_with_a_hint() -> None:
    with pytest.raises(ConfigError, match="InMemoryStorage"):
        LibSQLStorage(":memory:")


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


async def test_text_with_nul_is_not_cut_off(server: LibSQLServer) -> None:
    async with LibSQLStorage(server.url) as storage:
        run = await storage.begin_run("run", TRIP)
        await storage.append_messages(run, [Message.user("a\0b", id="m")])
        await storage.finish_run(run, "committed")
        assert [message.text for message in await storage.list_messages("trip")] == ["a\0b"]
        with pytest.raises(InputError, match="NUL"):
            await storage.get_thread("trip\0")


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


async def test_a_server_that_sends_no_error_codes(server: LibSQLServer) -> None:
    server.codes = False
    async with LibSQLStorage(server.url) as storage:
        run = await storage.begin_run("run", TRIP)
        await storage.append_messages(run, [Message.user("first", id="m")])
        with pytest.raises(ConflictError):
            await storage.append_messages(run, [Message.user("again", id="m")])


@pytest.mark.parametrize("codes", [True, False])
async def test_a_writer_gives_up_after_busy_timeout(server: LibSQLServer, codes: bool) -> None:
    server.codes = codes
    await _create(LibSQLStorage(server.url))
    other = sqlite3.connect(server.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with LibSQLStorage(server.url, busy_timeout=0.01) as storage:
        with pytest.raises(StorageError, match=r"cannot update thread in http://127.*busy_timeout"):
            await storage.update_thread("trip", title="new")
        other.execute("ROLLBACK")
        assert (await storage.update_thread("trip", title="new")).title == "new"
    other.close()
