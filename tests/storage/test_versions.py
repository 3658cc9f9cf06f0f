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

OLD: dict[str, dict[str, Any]] = {
    "ada": {"working_memory": "# Ada, \"the\" 'first'", "metadata": {"seat": [14]}},
    "grace": {"working_memory": "", "metadata": {}},
}
DOWN = [
    "ALTER TABLE diarist_threads DROP COLUMN stamp",
    "ALTER TABLE diarist_threads DROP COLUMN indexed_seq",
    "ALTER TABLE diarist_logs DROP COLUMN stamp",
    "DROP TABLE diarist_working_memories",
    "UPDATE diarist_schema SET version = 3 WHERE name = 'storage'",
]


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
        for statement in DOWN:
            database.execute(statement)
        rows = [(name, 3, json.dumps(body)) for name, body in OLD.items()]
        database.executemany("INSERT INTO diarist_resources (id, version, body) VALUES (?, ?, ?)", rows)
    database.close()
    await check(SQLiteStorage(path))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_postgresql_databases_of_version_3(postgres_url: str) -> None:
    async with PostgresStorage(postgres_url) as storage:
        await storage.get_resource("ada")
    for statement in DOWN:
        await fetch(postgres_url, statement)
    for name, body in OLD.items():
        text = json.dumps(body).replace("'", "''")
        await fetch(postgres_url, f"INSERT INTO diarist_resources (id, version, body) VALUES ('{name}', 3, '{text}')")
    await check(PostgresStorage(postgres_url))
