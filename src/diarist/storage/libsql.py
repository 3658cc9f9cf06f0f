"""Storage in a libSQL database: a file, or a server such as Turso's."""

from __future__ import annotations

import os

from diarist.libsql_database import LibSQLDatabase
from diarist.storage.sql.storage import SQLStorage
from diarist.storage.sql.versions import SCHEMA


class LibSQLStorage(SQLStorage):
    """Everything in one libSQL file, or in the database of a libSQL server that any number of machines may share.

    Args:
        path_or_url: A file, created when it is missing, in a folder that exists; or ``libsql://``, ``https://`` or
            ``http://`` with a server's name.
        auth_token: What the server asks for. It may stand in the URL as ``?authToken=`` instead.
        busy_timeout: Seconds to wait while somebody else writes, before StorageError.

    Raises ConfigError for another kind of URL. A file needs the extra ``libsql``, a server does not. On a server
    what was deleted may lie on in unused pages: ``secure_delete`` is the operator's to set.
    """

    def __init__(
        self,
        path_or_url: str | os.PathLike[str] = "memory.db",
        auth_token: str | None = None,
        *,
        busy_timeout: float = 30.0,
    ) -> None:
        super().__init__(LibSQLDatabase(path_or_url, SCHEMA, auth_token=auth_token, busy_timeout=busy_timeout))
