"""PostgreSQL keeps the contract, also between processes, and says clearly what is wrong with a server."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from diarist.databases.base import Connection
from diarist.exceptions import ConfigError, InputError, SchemaError, StorageError
from diarist.messages import Message
from diarist.storage import Storage, Thread
from diarist.storage.postgres import PostgresStorage
from diarist.testing import StorageConformance
from tests.postgres import Rival, fetch
from tests.processes import run_python

TRIP = Thread(id="trip", resource_id="ada")


class TestPostgresStorage(StorageConformance):
    @pytest.fixture
    async def storage(self, postgres_url: str) -> AsyncIterator[Storage]:
        async with PostgresStorage(postgres_url) as storage:
            yield storage

    @pytest.fixture
    async def second_storage(self, storage: Storage, postgres_url: str) -> AsyncIterator[Storage]:
        async with PostgresStorage(postgres_url) as second:
            yield second


@pytest.fixture
async def storage(postgres_url: str) -> AsyncIterator[PostgresStorage]:
    async with PostgresStorage(postgres_url) as storage:
        yield storage


@pytest.fixture
async def rival(postgres_url: str) -> AsyncIterator[Rival]:
    async with Rival(postgres_url) as rival:
        yield rival


@asynccontextmanager
async def opened_at_first_use(storage: PostgresStorage) -> AsyncIterator[PostgresStorage]:
    yield storage
    await storage.close()


# --- the address -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+asyncpg"])
def test_location_has_no_password(scheme: str) -> None:
    storage = PostgresStorage(f"{scheme}://ada:s3cret%2F@db.example.org:5433/app?sslmode=require&password=s3cret")
    assert storage.location == "postgresql://ada@db.example.org:5433/app?sslmode=require"


@pytest.mark.parametrize("url", ["mysql://ada:s3cret@x/app", "memory.db", "", "postgresql+psycopg://ada:s3cret@x/app"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"write postgresql://user:password@host:5432/name") as caught:
        PostgresStorage(url)
    assert "s3cret" not in f"{caught.value!r} {caught.value.__cause__!r}"


@pytest.mark.parametrize("options", [{"pool_size": 0}, {"busy_timeout": 0}, {"busy_timeout": float("inf")}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        PostgresStorage("postgresql://localhost/app", **options)


@pytest.mark.parametrize("schema", ["", "a\0b", "\ud800", "x" * 64, "ü" * 32, "pg_mine", "$user"])
def test_impossible_schema_names_are_refused(schema: str) -> None:
    with pytest.raises(ConfigError, match="schema"):
        PostgresStorage("postgresql://localhost/app", schema=schema)


def test_missing_driver_is_named_with_the_remedy() -> None:
    said = run_python(
        "import sys; sys.modules['asyncpg'] = None\n"
        "try:\n    from diarist.storage.postgres import PostgresStorage\nexcept ImportError as error: print(error)"
    )
    assert "pip install 'diarist[postgres]'" in said


# --- servers that do not answer as they should -------------------------------------------------------------


async def test_a_port_without_a_server() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        storage = PostgresStorage(f"postgresql://ada:s3cret@127.0.0.1:{free.getsockname()[1]}/app")
        with pytest.raises(StorageError, match=r"cannot get thread in .*ada@127.*start PostgreSQL there") as caught:
            await storage.get_thread("trip")
        assert "s3cret" not in str(caught.value)
        assert caught.value.__cause__ is not None
        with pytest.raises(StorageError, match="cannot read log and messages in"):
            await storage.log_and_messages("thread:trip", "trip", lambda log: [])
    await storage.close()


async def test_connections_begin_without_settings_that_pgbouncer_refuses() -> None:
    begun: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.append(await reader.readexactly(int.from_bytes(await reader.readexactly(4)) - 4))
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        storage = PostgresStorage(f"postgresql://ada@127.0.0.1:{port}/app?sslmode=disable", schema="agents")
        with pytest.raises(StorageError):
            await storage.get_thread("trip")
        await storage.close()
    names = begun[0][4:].rstrip(b"\0").split(b"\0")[::2]  # after the protocol's version: names and values
    assert {*names} <= {b"user", b"database", b"client_encoding"}


async def test_settings_end_with_their_transaction_since_a_pooler_may_serve_another_client_then(
    postgres_url: str,
) -> None:
    async def settings(connection: Connection) -> list[str]:
        return [await connection.value(f"SHOW {name}") for name in ("search_path", "lock_timeout")]

    async def in_and_after(connection: Connection) -> list[list[str]]:
        during = await settings(connection)
        await connection.execute("COMMIT")
        return [during, await settings(connection)]

    async with PostgresStorage(postgres_url, schema="agents", busy_timeout=7) as storage:
        during, after = await storage.database.write(in_and_after)
        assert during == ["agents", "7s"]
        assert after == ['"$user", public', "0"]


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("threading.Thread.start", RuntimeError("can't start new thread")),
        ("asyncio.new_event_loop", OSError(errno.EMFILE, "Too many open files")),
        ("socket.socket", OSError(errno.EMFILE, "Too many open files")),
    ],
)
async def test_a_process_that_is_at_its_limits(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, function: str, error: Exception
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    async with opened_at_first_use(PostgresStorage(postgres_url)) as storage:
        with monkeypatch.context() as patched:
            patched.setattr(function, refuse)
            with pytest.raises(
                StorageError, match=r"cannot create thread in .*(new thread|open files); raise the limits"
            ):
                await storage.create_thread(TRIP)
        assert await storage.create_thread(TRIP)


async def test_missing_database(postgres_url: str) -> None:
    async with opened_at_first_use(PostgresStorage(postgres_url.replace("/app?", "/nowhere?"))) as storage:
        with pytest.raises(StorageError, match=r'"nowhere" does not exist; create the database'):
            await storage.open()


async def test_missing_rights(postgres_url: str) -> None:
    await fetch(postgres_url, "CREATE ROLE guest LOGIN")
    try:
        async with opened_at_first_use(PostgresStorage(postgres_url.replace("postgres:@", "guest@"))) as storage:
            with pytest.raises(StorageError, match=r"permission denied for schema public; grant the user"):
                await storage.open()
            await fetch(postgres_url, "GRANT CREATE ON SCHEMA public TO guest")
            assert await storage.create_thread(TRIP)
            await fetch(postgres_url, "REVOKE CREATE ON SCHEMA public FROM guest")
            await fetch(postgres_url, "CREATE SCHEMA agents")
            hidden = PostgresStorage(postgres_url.replace("postgres:@", "guest@"), schema="agents")
            with pytest.raises(StorageError, match="grant the user the rights USAGE and CREATE on the schema"):
                await hidden.open()
            await hidden.close()
        async with opened_at_first_use(PostgresStorage(postgres_url.replace("postgres:@", "guest@"))) as storage:
            assert await storage.get_thread("trip")  # the tables are there: nothing has to be created
    finally:
        await fetch(postgres_url, "DROP OWNED BY guest CASCADE")
        await fetch(postgres_url, "DROP ROLE guest")


async def test_tables_that_were_removed_are_created_after_closing(postgres_url: str) -> None:
    async with opened_at_first_use(PostgresStorage(postgres_url, schema="agents")) as storage:
        assert await storage.create_thread(TRIP)
        await fetch(postgres_url, "DROP SCHEMA agents CASCADE")
        with pytest.raises(StorageError, match=r"tables were removed.*close the storage"):
            await storage.get_thread("trip")
        await storage.close()
        assert await storage.get_thread("trip") is None


async def test_database_that_cannot_hold_all_texts(postgres_server: str) -> None:
    await fetch(postgres_server, "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        async with opened_at_first_use(PostgresStorage(postgres_server.replace("/postgres?", "/latin?"))) as storage:
            with pytest.raises(StorageError, match=r"encoding LATIN1.*ENCODING 'UTF8'"):
                await storage.open()
    finally:
        await fetch(postgres_server, "DROP DATABASE latin WITH (FORCE)")


async def test_newer_tables_are_refused(postgres_url: str) -> None:
    async with PostgresStorage(postgres_url):
        await fetch(postgres_url, "UPDATE diarist_schema SET version = 99")
    with pytest.raises(SchemaError, match=r"postgresql://.*version 99 .* supports version \d"):
        await PostgresStorage(postgres_url).open()


# --- connections -------------------------------------------------------------------------------------------

OTHERS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


async def test_connections_that_the_server_closed_are_replaced(postgres_url: str) -> None:
    async with PostgresStorage(postgres_url) as storage:
        await storage.create_thread(TRIP)
        for _ in range(3):
            await fetch(postgres_url, f"SELECT pg_terminate_backend(pid) {OTHERS}")
            found, updated = await asyncio.gather(storage.get_thread("trip"), storage.update_thread("trip", title="x"))
            assert (found and found.id, updated.title) == ("trip", "x")


async def test_a_transaction_starts_again_on_a_new_connection(storage: PostgresStorage, rival: Rival) -> None:
    await storage.create_thread(TRIP)
    await rival.begins("SELECT FROM diarist_threads FOR UPDATE")
    task = asyncio.create_task(storage.update_thread("trip", title="new"))
    await rival.is_waited_for(task)
    await rival.connection.execute(f"SELECT pg_terminate_backend(pid) {OTHERS}")
    await rival.connection.execute("COMMIT")
    assert (await task).title == "new"


async def test_a_transaction_starts_again_if_its_connection_broke_before_the_commit(
    storage: PostgresStorage, postgres_url: str
) -> None:
    attempts = 0

    async def rename(connection: Connection) -> None:
        nonlocal attempts
        attempts += 1
        await connection.execute("UPDATE diarist_threads SET title = title || 'x'")
        if attempts == 1:
            await fetch(postgres_url, f"SELECT pg_terminate_backend(pid, 10000) {OTHERS}")

    await storage.create_thread(replace(TRIP, title=""))
    await storage.database.write(rename)
    found = await storage.get_thread("trip")
    assert (attempts, found and found.title) == (2, "x")


async def test_connections_to_a_server_that_became_read_only_are_replaced(
    storage: PostgresStorage, rival: Rival
) -> None:
    await rival.connection.execute("ALTER DATABASE app SET default_transaction_read_only = on")
    try:
        await rival.connection.execute(f"SELECT pg_terminate_backend(pid) {OTHERS}")
        with pytest.raises(StorageError, match="read-only transaction; connect to the primary server"):
            await storage.create_thread(TRIP)
    finally:
        await rival.connection.execute("ALTER DATABASE app RESET default_transaction_read_only")
    assert await storage.create_thread(TRIP)


async def test_waiting_too_long_for_a_lock_raises_storage_error(postgres_url: str, rival: Rival) -> None:
    async with PostgresStorage(postgres_url, busy_timeout=0.05) as storage:
        await storage.create_thread(TRIP)
        await rival.begins("SELECT FROM diarist_threads FOR UPDATE")
        with pytest.raises(StorageError, match=r"cannot update thread in postgresql://.*busy_timeout"):
            await storage.update_thread("trip", title="new")
        await rival.connection.execute("COMMIT")
        assert (await storage.update_thread("trip", title="new")).title == "new"


async def test_a_time_limit_of_the_server_is_named(storage: PostgresStorage, postgres_url: str, rival: Rival) -> None:
    await storage.create_thread(TRIP)
    await rival.begins("SELECT FROM diarist_threads FOR UPDATE")
    async with PostgresStorage(f"{postgres_url}&statement_timeout=50") as limited:
        with pytest.raises(StorageError, match=r"due to statement timeout.*server's statement_timeout: raise that"):
            await limited.update_thread("trip", title="new")
    await rival.connection.execute("COMMIT")


async def test_waiting_too_long_for_a_connection_raises_storage_error(postgres_url: str, rival: Rival) -> None:
    async with PostgresStorage(postgres_url, pool_size=1, busy_timeout=0.2) as storage:
        await storage.create_thread(TRIP)
        await rival.begins("SELECT FROM diarist_threads FOR UPDATE")
        outcomes = await asyncio.gather(
            *(storage.update_thread("trip", title=str(number)) for number in range(2)), return_exceptions=True
        )
        assert any("all 1 connections have been in use" in str(outcome) for outcome in outcomes), outcomes
        await rival.connection.execute("COMMIT")
        assert await storage.get_thread("trip")


async def test_calls_wait_while_the_server_accepts_no_more_connections(postgres_url: str) -> None:
    await fetch(postgres_url, "CREATE ROLE guest LOGIN CONNECTION LIMIT 1")
    await fetch(postgres_url, "CREATE SCHEMA theirs AUTHORIZATION guest")
    try:
        url = postgres_url.replace("postgres:@", "guest@")
        async with PostgresStorage(url, schema="theirs") as storage:
            threads = [replace(TRIP, id=f"trip {number}") for number in range(4)]
            assert await asyncio.gather(*map(storage.create_thread, threads))
            async with opened_at_first_use(PostgresStorage(url, schema="theirs", busy_timeout=0.05)) as other:
                with pytest.raises(StorageError, match=r"too many.*, for 0\.05 seconds .*raise max_connections"):
                    await other.get_thread("trip 0")
    finally:
        await fetch(postgres_url, "DROP OWNED BY guest CASCADE")
        await fetch(postgres_url, "DROP ROLE guest")


async def test_a_cancelled_transaction_leaves_nothing_and_a_clean_connection(postgres_url: str, rival: Rival) -> None:
    async with PostgresStorage(postgres_url, pool_size=1) as storage:
        run = await storage.begin_run("run", TRIP)
        await rival.begins("LOCK TABLE diarist_messages")  # the counter is raised by then
        task = asyncio.create_task(storage.append_messages(run, [Message.user("unwanted")]))
        await rival.is_waited_for(task)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await rival.connection.execute("COMMIT")
        assert await storage.append_messages(run, [Message.user("wanted")]) == [1]
        assert [message.text for message in await storage.list_messages("trip", run_id="run")] == ["wanted"]
        assert await rival.connection.fetchval(f"SELECT count(*) {OTHERS} AND state <> 'idle'") == 0


async def test_all_loops_and_threads_share_one_pool(postgres_url: str) -> None:
    storage = PostgresStorage(postgres_url, pool_size=2)

    def writes(name: str) -> list[int]:
        async def append() -> list[int]:
            events = await asyncio.gather(*(storage.append_event(name, "data-x", {}) for _ in range(5)))
            return [event.seq for event in events]

        return asyncio.run(append())

    numbers = await asyncio.gather(*(asyncio.to_thread(writes, name) for name in "abcd"))
    assert [sorted(some) for some in numbers] == [[1, 2, 3, 4, 5]] * 4
    assert 1 <= len(await fetch(postgres_url, f"SELECT {OTHERS}")) <= 2
    await storage.close()
    while await fetch(postgres_url, f"SELECT {OTHERS}"):
        pass


# --- values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", ["a\0b", "\ud800"])
async def test_looking_for_an_id_that_cannot_be(storage: PostgresStorage, id: str) -> None:
    with pytest.raises(InputError, match=r"cannot get thread: .*(NUL|Unicode)"):
        await storage.get_thread(id)
    assert await storage.get_thread("trip") is None


async def test_an_id_that_is_too_long_for_an_index(storage: PostgresStorage) -> None:
    long = random.Random(1).randbytes(3000).hex()  # what repeats itself is compressed first
    with pytest.raises(InputError, match="at most 1,000 bytes"):
        await storage.create_thread(Thread(id=long, resource_id="ada"))
    kept = Thread(id=long[:1000], resource_id=long[:1000], metadata={long[:1000]: 1})
    assert (await storage.create_thread(kept)).id == kept.id


async def test_messages_are_readable_with_psql(storage: PostgresStorage, postgres_url: str) -> None:
    run = await storage.begin_run("run", TRIP)
    await storage.append_messages(run, [Message.user("Grüße")])
    [row] = await fetch(postgres_url, "SELECT thread_id, seq, role, parts FROM diarist_messages")
    assert tuple(row) == ("trip", 1, "user", '[{"type":"text","text":"Grüße"}]')


# --- schemas -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["agents", 'My "own"; DROP TABLE x; --', "Größe", "select", "a,b"])
async def test_tables_lie_in_the_schema_that_is_named(postgres_url: str, name: str) -> None:
    async with PostgresStorage(postgres_url) as public, PostgresStorage(postgres_url, schema=name) as storage:
        await storage.create_thread(TRIP)
        assert await public.get_thread("trip") is None
    async with PostgresStorage(postgres_url, schema=name) as again:
        assert await again.get_thread("trip")
    found = await fetch(postgres_url, "SELECT table_schema FROM information_schema.tables WHERE table_name ~ '_runs$'")
    assert {row[0] for row in found} == {"public", name}


async def test_an_existing_schema_needs_no_right_to_create_schemas(postgres_url: str) -> None:
    await fetch(postgres_url, "CREATE ROLE guest LOGIN")
    await fetch(postgres_url, "CREATE SCHEMA theirs AUTHORIZATION guest")
    try:
        url = postgres_url.replace("postgres:@", "guest@")
        async with PostgresStorage(url, schema="theirs") as storage:
            assert await storage.create_thread(TRIP)
    finally:
        await fetch(postgres_url, "DROP OWNED BY guest CASCADE")
        await fetch(postgres_url, "DROP ROLE guest")


# --- processes ---------------------------------------------------------------------------------------------

USE = """
import asyncio, gc, os, sys
from diarist.storage import Thread
from diarist.storage.postgres import PostgresStorage

storage = PostgresStorage(sys.argv[1])

def create(id):
    asyncio.run(storage.create_thread(Thread(id=id, resource_id="ada")))

def connections():
    from tests.postgres import run_sql
    return len(run_sql(sys.argv[1], f"SELECT FROM pg_stat_activity WHERE datname = 'app' AND pid <> pg_backend_pid()"))
"""


@pytest.mark.parametrize("end", ["", "os._exit(0)", "del storage\nwhile connections(): pass"])
def test_an_unclosed_storage_is_cleaned_up(postgres_url: str, end: str) -> None:
    run_python(f"{USE}\ncreate('a')\ncreate('b')\n{end}", postgres_url)
    assert asyncio.run(_thread_ids(postgres_url)) == {"a", "b"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(0)"])
def test_child_of_a_fork_opens_connections_of_its_own(postgres_url: str, end: str) -> None:
    fork = f"create('parent')\nif os.fork(): os.wait(); create('after')\nelse: create('child'); {end}"
    ignore = "import warnings; warnings.simplefilter('ignore', DeprecationWarning)  # newer versions warn of fork"
    run_python(f"{ignore}\n{USE}\n{fork}", postgres_url)
    assert asyncio.run(_thread_ids(postgres_url)) == {"parent", "child", "after"}


async def _thread_ids(url: str) -> set[str]:
    async with PostgresStorage(url) as storage:
        return {thread.id for thread in (await storage.list_threads()).items}
