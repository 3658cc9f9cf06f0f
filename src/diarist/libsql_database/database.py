"""A libSQL database: a file, or a server."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from sqlalchemy import Connection, Engine, create_engine, event

from diarist.database import LanedDatabase, Schema
from diarist.exceptions import ConfigError
from diarist.lanes import Transactions
from diarist.libsql_database.address import is_remote, parsed
from diarist.libsql_database.dbapi import Connection as DriverConnection
from diarist.libsql_database.dbapi import Session
from diarist.libsql_database.dialect import NAME
from diarist.libsql_database.remote import RemoteSession
from diarist.sqlite_database import file_path, file_remedy, refuse_impossible


class LibSQLDatabase(LanedDatabase):
    """A file, or the database of a server, by the same SQL.

    Args:
        place: The path of a file, which is created when it is missing, or a URL: ``libsql://``, ``https://`` or
            ``http://``.
        schema: The tables that this object uses.
        auth_token: What the server asks for; it may stand in the URL as ``?authToken=`` instead.
        busy_timeout: Seconds to wait while somebody else writes, before StorageError.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        schema: Schema,
        *,
        auth_token: str | None = None,
        busy_timeout: float = 30.0,
    ) -> None:
        super().__init__(schema, busy_timeout=busy_timeout)
        self._session: Callable[[], Session]
        if isinstance(place, str) and is_remote(place):
            address, token = parsed(place, auth_token)
            self._path, self._location = None, address.url
            self._session = partial(RemoteSession, address, token, busy_timeout)
            return
        if auth_token is not None:
            raise ConfigError("auth_token is for a server: give its URL, or leave the token out for a file")
        from diarist.libsql_database.file import FileSession

        self._path = file_path(place)
        self._location = str(self._path)
        self._session = partial(FileSession, self._location, busy_timeout)

    @property
    def location(self) -> str:
        return self._location

    def _engine(self, connections: int, begin: str) -> Engine:
        session = self._session
        engine = create_engine(
            f"{NAME}://",
            creator=lambda: DriverConnection(session()),
            pool_size=connections,
            max_overflow=0,
        )
        event.listen(engine, "begin", partial(_begin, begin))
        return engine

    def _prepare(self, writer: Transactions) -> None:
        if self._path is not None:
            refuse_impossible(self._path)

    def _remedy(self, code: str) -> str:
        if self._path is not None:
            return file_remedy(code, self._path, self._busy_timeout)
        return _REMOTE_REMEDIES.get(code, "").format(seconds=self._busy_timeout)


_REMOTE_REMEDIES = {
    "SQLITE_BUSY": "; somebody else has been writing for {seconds:g} seconds (busy_timeout): end that, or wait longer",
    "SQLITE_AUTH": "; use a token that may write",
}


def _begin(statement: str, connection: Connection) -> None:
    connection.exec_driver_sql(statement)
