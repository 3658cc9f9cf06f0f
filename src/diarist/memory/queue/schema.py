"""The tables of the queue: created at first use, and brought up to date with the installed procrastinate."""

from __future__ import annotations

from pathlib import Path
from typing import Any, LiteralString, cast

from procrastinate.schema import SchemaManager
from psycopg import AsyncConnection
from psycopg.sql import SQL, Identifier

from diarist.exceptions import SchemaError

_LOCK = 0x646961717565  # the letters "diaque": advisory locks of a database are named by numbers


async def is_current(connection: AsyncConnection[Any]) -> bool:
    """Whether the tables are there, and those of the installed procrastinate."""
    return await _last_migration(connection) == max(_migrations())


async def ensure_schema(connection: AsyncConnection[Any], schema: str, location: str) -> None:
    """Create the tables, or migrate them; of many that start at once one does, and the others wait.

    Args:
        connection: With the schema as its search path, in autocommit.

    Raises:
        SchemaError: A newer procrastinate has migrated them.
    """
    # Of the session, not of the transaction: one that waited inside does not see yet what the other has created.
    await connection.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
    try:
        async with connection.transaction():
            await _update(connection, schema, location)
    finally:
        await connection.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])


async def _update(connection: AsyncConnection[Any], schema: str, location: str) -> None:
    migrations, last = _migrations(), await _last_migration(connection)
    newest = max(migrations)
    if last is not None and last > newest:
        raise SchemaError(f"the queue in {location} was made by a newer procrastinate; install that one here, too")
    if last is None:
        await connection.execute(SQL("CREATE SCHEMA IF NOT EXISTS {}").format(Identifier(schema)))
        await connection.execute(SchemaManager.get_schema())
        await connection.execute("CREATE TABLE diarist_queue (last_migration text NOT NULL)")
        await connection.execute("INSERT INTO diarist_queue VALUES (%s)", [newest])
        return
    for name in sorted(name for name in migrations if name > last):
        await connection.execute(migrations[name])
    await connection.execute("UPDATE diarist_queue SET last_migration = %s", [newest])


async def _last_migration(connection: AsyncConnection[Any]) -> str | None:
    """Its name; None where there are no tables yet."""
    there = await (await connection.execute("SELECT to_regclass('diarist_queue')")).fetchone()
    if there is None or there[0] is None:
        return None
    row = await (await connection.execute("SELECT last_migration FROM diarist_queue")).fetchone()
    return None if row is None else str(row[0])


def _migrations() -> dict[str, LiteralString]:
    """The migrations of the installed procrastinate, whose names sort by age."""
    files = Path(SchemaManager.get_migrations_path()).glob("*.sql")
    return {file.stem: cast(LiteralString, file.read_text(encoding="utf-8")) for file in files}
