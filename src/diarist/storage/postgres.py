"""Storage in a PostgreSQL database."""

from __future__ import annotations

from diarist.postgres_database import PostgresDatabase
from diarist.storage.sql.storage import SQLStorage
from diarist.storage.sql.versions import SCHEMA


class PostgresStorage(SQLStorage):
    """Everything in a PostgreSQL database that any number of processes and machines may share.

    Args:
        url: ``postgresql://user:password@host:port/name``; ``postgres://`` and ``postgresql+asyncpg://`` mean the
            same. It may carry libpq's parameters, such as ``?sslmode=require``.
        schema: The PostgreSQL schema to keep the tables in; created when it is missing. None leaves it to the
            user's search path, usually ``public``.
        pool_size: Connections of this object at most, for all threads and event loops of the process.
        busy_timeout: Seconds to wait for a free connection, or for a lock that another program holds, before
            StorageError.
        statement_timeout: Seconds that the server may take for one statement, beside its waits for locks, before
            the connection is given up: StorageError. Creating and migrating the tables has no limit.

    Attributes:
        url, schema: As given; the URL with its password.

    Raises ConfigError for another kind of URL. Needs the extra ``postgres``.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str | None = None,
        pool_size: int = 10,
        busy_timeout: float = 30.0,
        statement_timeout: float = 30.0,
    ) -> None:
        self.url, self.schema = url, schema
        database = PostgresDatabase(
            url,
            SCHEMA,
            schema=schema,
            pool_size=pool_size,
            busy_timeout=busy_timeout,
            statement_timeout=statement_timeout,
        )
        super().__init__(database)
