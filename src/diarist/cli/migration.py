"""``diarist migrate``: migrate a database's tables, including those of the vector store."""

from __future__ import annotations

import asyncio
from pathlib import Path

from diarist.cli.databases import check_file, kind_of
from diarist.databases.base import Connection, Database, Schema, read_version
from diarist.exceptions import InputError
from diarist.storage.sql.schema import SCHEMA


def migrate_database(address: str) -> str:
    """Migrate the tables. Returns a line about the result for each group of tables.

    Raises:
        SchemaError: The tables have a newer version.
        InputError: The file does not exist, or the database has no tables to migrate (MongoDB).
        StorageError: The database cannot be opened.
    """
    database: type[Database]
    match kind_of(address):
        case "postgresql":
            from diarist.databases.postgres import PostgresDatabase as database
            from diarist.vectors.postgres import SCHEMA as VECTORS
        case "libsql":
            from diarist.databases.libsql import LibSQLDatabase as database
            from diarist.vectors.sqlite_tables import SCHEMA as VECTORS
        case "mongodb":
            raise InputError("MongoDB has no tables to migrate: every version of diarist reads the stored data")
        case "file":
            from diarist.databases.sqlite import SQLiteDatabase as database
            from diarist.vectors.sqlite_tables import SCHEMA as VECTORS

            check_file(Path(address), new=False)
    versions: dict[str, int | None] = {}

    class Noting(Schema):
        """Records the version that it finds. Does not create the vector tables in a database without vectors."""

        async def is_current(self, connection: Connection, location: str) -> bool:
            found = versions.setdefault(self.name, await read_version(connection, self.name))
            return (found is None and self.name == VECTORS.name) or await super().is_current(connection, location)

    async def migrate(schema: Schema) -> str:
        opened = database(address, Noting(**vars(schema)))
        try:
            await opened.read(read_version, schema.name)
        finally:
            await opened.close()
        tables = "the tables" if schema is SCHEMA else f"the tables of {schema.name}"
        match versions[schema.name]:
            case None if schema is VECTORS:
                return ""
            case None:
                return f"{opened.location}: created {tables}, version {schema.version}"
            case schema.version:
                return f"{opened.location}: {tables} have version {schema.version}, nothing to do"
            case found:
                return f"{opened.location}: migrated {tables} from version {found} to {schema.version}"

    async def run() -> str:
        return "\n".join(filter(None, [await migrate(SCHEMA), await migrate(VECTORS)]))

    return asyncio.run(run())
