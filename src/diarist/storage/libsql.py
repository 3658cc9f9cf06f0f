"""Storage in a libSQL database: a file, or a server such as Turso's."""

from __future__ import annotations

import os

from diarist.databases.libsql import LibSQLDatabase
from diarist.storage.sql.schema import SCHEMA
from diarist.storage.sql.storage import SQLStorage


class LibSQLStorage(SQLStorage):
    """Storage in a libSQL file, or in the database of a libSQL server, which any number of machines may share.

    Args:
        path_or_url: A file, created if it is missing, in an existing folder; or ``libsql://``, ``https://`` or
            ``http://`` with a server's name.
        auth_token: The server's token. It may be in the URL as ``?authToken=`` instead.
        busy_timeout: Seconds to wait while another program writes, before StorageError.

    Raises ConfigError for other kinds of URL. A file needs the extra ``libsql``; a server does not. On a server,
    deleted data may remain in unused pages unless the server's operator sets ``secure_delete``.
    """

    def __init__(
        self,
        path_or_url: str | os.PathLike[str] = "memory.db",
        auth_token: str | None = None,
        *,
        busy_timeout: float = 30.0,
    ) -> None:
        super().__init__(LibSQLDatabase(path_or_url, SCHEMA, auth_token=auth_token, busy_timeout=busy_timeout))
