"""Storage in a libSQL database: on a server such as Turso's, or in a file."""

from __future__ import annotations

import os

from diarist.databases.base import Database
from diarist.databases.libsql import LibSQLDatabase
from diarist.databases.sqlite import SQLiteDatabase
from diarist.exceptions import ConfigError
from diarist.storage.sql.schema import SCHEMA
from diarist.storage.sql.storage import SQLStorage


class LibSQLStorage(SQLStorage):
    """Storage in the database of a libSQL server, which any number of machines may share, or in a file.

    Args:
        path_or_url: ``libsql://``, ``https://`` or ``http://`` with a server's name; or a file, which is an SQLite file
            and opened as by ``SQLiteStorage``.
        auth_token: The server's token. It may be in the URL as ``?authToken=`` instead.
        busy_timeout: Seconds to wait while another program writes, before StorageError.

    Raises ConfigError for other kinds of URL. On a server, deleted data may remain in unused pages unless the server's
    operator sets ``secure_delete``.
    """

    def __init__(
        self,
        path_or_url: str | os.PathLike[str] = "memory.db",
        auth_token: str | None = None,
        *,
        busy_timeout: float = 30.0,
    ) -> None:
        database: Database
        if isinstance(path_or_url, str) and "://" in path_or_url:
            database = LibSQLDatabase(path_or_url, SCHEMA, auth_token=auth_token, busy_timeout=busy_timeout)
        elif auth_token is not None:
            raise ConfigError("auth_token is for a server: give its URL, or leave the token out for a file")
        else:
            database = SQLiteDatabase(path_or_url, SCHEMA, busy_timeout=busy_timeout)
        super().__init__(database)
