"""What ``diarist migrate`` does."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sqlalchemy import Connection

from diarist.cli.places import check_file, kind_of
from diarist.database import Database, Schema
from diarist.exceptions import InputError
from diarist.sqlite_database import SQLiteDatabase
from diarist.storage.sql.versions import SCHEMA


class _AsItIs(Schema):
    """Opens a database of whatever version, and changes nothing."""

    def is_current(self, connection: Connection, location: str) -> bool:
        return True


def migrate_database(address: str) -> str:
    """Migrate the tables; returns what was done, in words.

    Raises:
        SchemaError: A newer diarist has made them.
        InputError: There is no such file, or a database without tables.
        StorageError: It cannot be opened.
    """
    return asyncio.run(_migrate(address))


async def _migrate(address: str) -> str:
    said = [await _migrate_group(address, SCHEMA)]
    vectors = _vectors(address)
    if await _version(address, vectors) is not None:
        said.append(await _migrate_group(address, vectors))
    return "\n".join(said)


async def _migrate_group(address: str, schema: Schema) -> str:
    found = await _version(address, schema)
    database = _database(address, schema)
    await database.open()
    await database.close()
    tables = "the tables" if schema is SCHEMA else f"the tables of {schema.name}"
    if found is None:
        return f"{database.location}: made {tables}, version {schema.version}"
    if found == schema.version:
        return f"{database.location}: {tables} are of version {found}, nothing to do"
    return f"{database.location}: migrated {tables} from version {found} to {schema.version}"


async def _version(address: str, schema: Schema) -> int | None:
    looking = _database(address, _AsItIs(**vars(schema)))

    def read_version(connection: Connection) -> int | None:
        return schema.stored_version(connection)

    try:
        return await looking.read(read_version)
    finally:
        await looking.close()


def _vectors(address: str) -> Schema:
    if kind_of(address) == "postgresql":
        from diarist.vectors import postgres_tables as tables
    else:
        from diarist.vectors import sqlite_tables as tables
    return tables.SCHEMA


def _database(address: str, schema: Schema) -> Database:
    match kind_of(address):
        case "postgresql":
            from diarist.postgres_database import PostgresDatabase

            return PostgresDatabase(address, schema)
        case "libsql":
            from diarist.libsql_database import LibSQLDatabase

            return LibSQLDatabase(address, schema)
        case "mongodb":
            raise InputError("MongoDB has no tables to migrate: what is stored is read as it is")
        case "file":
            check_file(Path(address), new=False)
            return SQLiteDatabase(address, schema)
