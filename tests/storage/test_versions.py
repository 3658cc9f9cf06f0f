"""Working memory of files from before it had a place of its own."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from diarist.storage import Resource, SQLiteStorage, Storage, WorkingMemory
from diarist.storage.postgres import PostgresStorage
from tests.postgres import fetch
from tests.storage.old_versions import back_to

OLD: dict[str, dict[str, Any]] = {
    "ada": {"working_memory": "# Ada, \"the\" 'first'", "metadata": {"seat": [14]}},
    "grace": {"working_memory": "", "metadata": {}},
}


async def check(storage: Storage) -> None:
    async with storage:
        ada = await storage.get_working_memory("resource:ada")
        assert ada == WorkingMemory(key="resource:ada", text="# Ada, \"the\" 'first'", version=1)
        assert await storage.get_resource("ada") == Resource(id="ada", metadata={"seat": [14]}, version=3)
        assert (await storage.get_working_memory("resource:grace")).version == 0
        assert await storage.get_resource("grace") == Resource(id="grace", version=3)


async def test_sqlite_files_of_version_3(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    async with SQLiteStorage(path) as storage:
        await storage.get_resource("ada")
    with sqlite3.connect(path) as database:
        for statement in back_to(3):
            database.execute(statement)
        rows = [(name, 3, json.dumps(body)) for name, body in OLD.items()]
        database.executemany("INSERT INTO diarist_resources (id, version, body) VALUES (?, ?, ?)", rows)
    database.close()
    await check(SQLiteStorage(path))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_postgresql_databases_of_version_3(postgres_url: str) -> None:
    async with PostgresStorage(postgres_url) as storage:
        await storage.get_resource("ada")
    for statement in back_to(3):
        await fetch(postgres_url, statement)
    for name, body in OLD.items():
        text = json.dumps(body).replace("'", "''")
        await fetch(postgres_url, f"INSERT INTO diarist_resources (id, version, body) VALUES ('{name}', 3, '{text}')")
    await check(PostgresStorage(postgres_url))
