"""The tables of the queue: create them at first use, and migrate them to the installed procrastinate."""

from __future__ import annotations

from pathlib import Path
from typing import Any, LiteralString, cast

from procrastinate.schema import SchemaManager
from psycopg import AsyncConnection
from psycopg.sql import SQL, Identifier

from diarist.exceptions import SchemaError

_LOCK = 0x646961717565  # the letters "diaque": advisory locks of a database are named by numbers


async def is_current(connection: AsyncConnection[Any]) -> bool:
    """Return True if the tables exist and match the installed procrastinate."""
    return await _last_migration(connection) == max(_migrations())


async def ensure_schema(connection: AsyncConnection[Any], schema: str, location: str) -> None:
    """Create or migrate the tables. If several processes start at once, one of them does it and the others wait.

    Args:
        connection: In autocommit, with the schema as its search path.

    Raises:
        SchemaError: The tables belong to a newer procrastinate.
    """
    # A session lock, taken before the transaction: a transaction that waited for the lock would not see the tables that
    # another one created.
    await connection.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
    try:
        async with connection.transaction():
            migrations, last = _migrations(), await _last_migration(connection)
            newest = max(migrations)
            if last is not None and last > newest:
                raise SchemaError(f"the queue in {location} belongs to a newer procrastinate; install that version")
            if last is None:
                await connection.execute(SQL("CREATE SCHEMA IF NOT EXISTS {}").format(Identifier(schema)))
                await connection.execute(SchemaManager.get_schema())
                await connection.execute("CREATE TABLE diarist_queue (last_migration text NOT NULL)")
                await connection.execute("INSERT INTO diarist_queue VALUES (%s)", [newest])
            else:
                for name in sorted(name for name in migrations if name > last):
                    await connection.execute(migrations[name])
                await connection.execute("UPDATE diarist_queue SET last_migration = %s", [newest])
    finally:
        await connection.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])


async def _last_migration(connection: AsyncConnection[Any]) -> str | None:
    """Return the name of the last migration; None if there are no tables yet."""
    there = await (await connection.execute("SELECT to_regclass('diarist_queue')")).fetchone()
    if there is None or there[0] is None:
        return None
    row = await (await connection.execute("SELECT last_migration FROM diarist_queue")).fetchone()
    return None if row is None else str(row[0])


def _migrations() -> dict[str, LiteralString]:
    """Return the migrations of the installed procrastinate; their names sort by age."""
    files = Path(SchemaManager.get_migrations_path()).glob("*.sql")
    return {file.stem: cast(LiteralString, file.read_text(encoding="utf-8")) for file in files}
