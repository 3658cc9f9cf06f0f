"""``diarist migrate``: migrate a database's tables, those of the vector store included."""

from __future__ import annotations

import asyncio
from pathlib import Path

from diarist.cli.databases import check_file, kind_of
from diarist.databases.base import Connection, Database, Schema, read_version
from diarist.databases.sqlite import SQLiteDatabase
from diarist.exceptions import InputError
from diarist.storage.sql.schema import SCHEMA


class _AnyVersion(Schema):
    """A schema that accepts every version, to read the stored one without migrating."""

    async def is_current(self, connection: Connection, location: str) -> bool:
        return True


def migrate_database(address: str) -> str:
    """Migrate the tables; return a line for each group of tables that says what was done.

    Raises:
        SchemaError: The tables are of a newer version.
        InputError: The file does not exist, or the database has no tables to migrate (MongoDB).
        StorageError: The database cannot be opened.
    """
    if kind_of(address) == "postgresql":
        from diarist.vectors.postgres import SCHEMA as VECTORS
    else:
        from diarist.vectors.sqlite import SCHEMA as VECTORS

    async def run() -> str:
        done = [await _migrate_group(address, SCHEMA)]
        if await _version(address, VECTORS) is not None:
            done.append(await _migrate_group(address, VECTORS))
        return "\n".join(done)

    return asyncio.run(run())


async def _migrate_group(address: str, schema: Schema) -> str:
    found = await _version(address, schema)
    database = _database(address, schema)
    await database.open()
    await database.close()
    tables = "the tables" if schema is SCHEMA else f"the tables of {schema.name}"
    if found is None:
        return f"{database.location}: created {tables}, version {schema.version}"
    if found == schema.version:
        return f"{database.location}: {tables} have version {found}, nothing to do"
    return f"{database.location}: migrated {tables} from version {found} to {schema.version}"


async def _version(address: str, schema: Schema) -> int | None:
    database = _database(address, _AnyVersion(**vars(schema)))
    try:
        return await database.read(read_version, schema.name)
    finally:
        await database.close()


def _database(address: str, schema: Schema) -> Database:
    match kind_of(address):
        case "postgresql":
            from diarist.databases.postgres import PostgresDatabase

            return PostgresDatabase(address, schema)
        case "libsql":
            from diarist.databases.libsql import LibSQLDatabase

            return LibSQLDatabase(address, schema)
        case "mongodb":
            raise InputError("MongoDB has no tables to migrate: every version reads what is stored")
        case "file":
            check_file(Path(address), new=False)
            return SQLiteDatabase(address, schema)
