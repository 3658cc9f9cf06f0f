"""What ``diarist migrate`` does."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sqlalchemy import Connection

from diarist.cli.places import check_file, kind_of
from diarist.database import Database, Schema, SQLiteDatabase
from diarist.exceptions import InputError
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
    looking = _database(address, _AsItIs(**vars(SCHEMA)))
    found = await looking.read(_read_version)
    await looking.close()
    database = _database(address, SCHEMA)
    await database.open()
    await database.close()
    if found is None:
        return f"{database.location}: made the tables, version {SCHEMA.version}"
    if found == SCHEMA.version:
        return f"{database.location}: the tables are of version {found}, nothing to do"
    return f"{database.location}: migrated the tables from version {found} to {SCHEMA.version}"


def _read_version(connection: Connection) -> int | None:
    return SCHEMA.stored_version(connection)


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
