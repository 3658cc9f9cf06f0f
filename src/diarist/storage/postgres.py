"""Storage in a PostgreSQL database."""

from __future__ import annotations

from diarist.databases.postgres import PostgresDatabase
from diarist.storage.sql.schema import SCHEMA
from diarist.storage.sql.storage import SQLStorage


class PostgresStorage(SQLStorage):
    """Storage in a PostgreSQL database, which any number of processes and machines may share.

    Args:
        url: ``postgresql://user:password@host:port/name``; ``postgres://`` and ``postgresql+asyncpg://`` mean the
            same. It may carry libpq's parameters, such as ``?sslmode=require``.
        schema: PostgreSQL schema for the tables; created if it is missing. With None the user's search path decides,
            usually ``public``.
        pool_size: Maximum number of connections, for all threads and event loops of the process.
        busy_timeout: Seconds to wait for a free connection, of this object or of the server, or for a lock that another
            program holds, before StorageError.
        statement_timeout: Seconds that the server may take for one statement, without waits for locks. After that, the
            connection is closed and StorageError is raised. Creating and migrating the tables has no limit.

    Attributes:
        url, schema: As given; the URL includes the password.

    Raises ConfigError for other kinds of URL. Needs the extra ``postgres``.
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
