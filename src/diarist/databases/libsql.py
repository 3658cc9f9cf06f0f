"""libSQL: a file through the driver ``libsql``, a server through its HTTP protocol (``libsql_server``).

Errors are those of ``sqlite3``, with SQLite's names in ``sqlite_errorname``.

The driver blocks all threads while it waits for a lock, passes integers over 32 bits as floats, and reports no error
codes. It contains its own SQLite library, which does not see the locks of ``sqlite3`` in the same process.
"""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import orjson

from diarist.databases.base import Database, Dialect, P, R, Row, Schema, Work, do_nothing, in_sqlite, name_of, numbered
from diarist.databases.libsql_server import RemoteSession, Result, Session, Value, made_error, parsed, patiently
from diarist.databases.sqlite import (
    Threads,
    check_busy_timeout,
    erase_from_file,
    file_path,
    file_remedy,
    refuse_impossible,
)
from diarist.exceptions import ConfigError, InputError

T = TypeVar("T")


class LibSQLConnection:
    """A session as a connection for ``Threads``."""

    dialect: Dialect = "sqlite"
    violations: type[Exception] = sqlite3.IntegrityError

    def __init__(self, connect: Callable[[], Session]) -> None:
        self._session = connect()
        self._in_transaction = self._closed = False

    async def fetch(self, sql: str, /, **values: Any) -> Sequence[Row]:
        return self._run(sql, [values]).rows

    async def first(self, sql: str, /, **values: Any) -> Row | None:
        return next(iter(self._run(sql, [values]).rows), None)

    async def value(self, sql: str, /, **values: Any) -> Any:
        row = await self.first(sql, **values)
        return None if row is None else row[0]

    async def execute(self, sql: str, /, **values: Any) -> int:
        return self._run(sql, [values]).changed

    async def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]], /) -> None:
        self._run(sql, rows)

    def _run(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> Result:
        text, names = _in_libsql(sql)
        return self._session.run(text, [[_checked(row[name]) for name in names] for row in rows])

    def lift_time_limit(self) -> None:
        pass

    def begin(self, statement: str) -> None:
        self._session.run(statement, [()])
        self._in_transaction = True

    def commit(self) -> None:
        self._session.commit()
        self._in_transaction = False

    def rollback(self) -> None:
        self._session.rollback()
        self._in_transaction = False

    def run_alone(self, statement: str, patience: float | None = None) -> Any:
        found = self._session.run(statement, [()])
        return found.rows[0][0] if found.rows else None

    def is_idle(self) -> bool:
        return not self._in_transaction and not self._closed

    def close(self) -> None:
        self._closed = True
        self._session.close()


@lru_cache(2048)
def _in_libsql(sql: str) -> tuple[str, tuple[str, ...]]:
    return numbered(in_sqlite(sql)[0], "?")


def _checked(value: Any) -> Value:
    """Return a value. Raises InputError for text that libSQL would truncate, UnicodeEncodeError for bad Unicode."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, list):
        value = orjson.dumps(value).decode()
    if isinstance(value, str):
        value.encode()
        if "\0" in value:
            raise InputError(f"libSQL keeps no NUL character in a key or title: {value!r}")
    return value


class LibSQLDatabase(Database):
    """A libSQL file, or the database of a libSQL server.

    Args:
        place: The path of a file, which is created if it is missing, or a URL: ``libsql://``, ``https://`` or
            ``http://``.
        schema: The tables that this object uses.
        auth_token: The server's token; it may be in the URL as ``?authToken=`` instead.
        busy_timeout: Seconds to wait while another program writes, before StorageError.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        schema: Schema,
        *,
        auth_token: str | None = None,
        busy_timeout: float = 30.0,
    ) -> None:
        check_busy_timeout(busy_timeout)
        self._path: Path | None = None
        session: Callable[[], Session]
        if isinstance(place, str) and "://" in place:
            address, token = parsed(place, auth_token)
            self._location = address.url
            session, prepare = partial(RemoteSession, address, token, busy_timeout), _nothing
            remedy = partial(_server_remedy, busy_timeout)
        elif auth_token is not None:
            raise ConfigError("auth_token is for a server: give its URL, or leave the token out for a file")
        else:
            _driver()  # report a missing extra at once
            self._path = file_path(place)
            self._location = str(self._path)
            session, prepare = (
                partial(FileSession, self._location, busy_timeout),
                partial(refuse_impossible, self._path),
            )
            remedy = partial(file_remedy, self._path, busy_timeout)
        self._threads = Threads(
            schema, self._location, connect=partial(LibSQLConnection, session), prepare=prepare, remedy=remedy
        )
        weakref.finalize(self, self._threads.abandon)

    @property
    def location(self) -> str:
        return self._location

    async def open(self) -> None:
        await self.read(do_nothing)

    async def close(self) -> None:
        await self._threads.close()

    async def read(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._threads.transaction(False, name_of(work), lambda c: work(c, *args, **kwargs))

    async def write(self, work: Work[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._threads.transaction(True, name_of(work), lambda c: work(c, *args, **kwargs))

    async def erase(self) -> tuple[str, ...]:
        if self._path is None:
            return (f"{self.location}: the server decides what becomes of deleted rows in its files (secure_delete)",)
        return await erase_from_file(self._path, self._threads.run_alone)


def _nothing() -> None:
    pass


def _server_remedy(busy_timeout: float, code: str) -> str:
    if code == "SQLITE_BUSY":
        return (
            f"; another program has been writing for {busy_timeout:g} seconds (busy_timeout): end that, or wait longer"
        )
    return "; use a token that may write" if code == "SQLITE_AUTH" else ""


# --- files -------------------------------------------------------------------------------------------------

_SETTINGS = (
    "PRAGMA foreign_keys = ON",
    "PRAGMA secure_delete = ON",  # deleted text must not remain in unused pages
    "PRAGMA synchronous = NORMAL",  # as in sqlite.py
    "PRAGMA journal_mode = WAL",
)
_SMALL = 2**31


def _driver() -> Any:
    try:
        import libsql  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise ImportError("files of libSQL need an extra of diarist: pip install 'diarist[libsql]'") from error
    return libsql


class FileSession:
    def __init__(self, path: str, busy_timeout: float) -> None:
        self._busy_timeout = busy_timeout
        self._connection: Any = _mapped(
            partial(_driver().connect, path, timeout=0.0, isolation_level=None, _check_same_thread=False)
        )
        try:
            for statement in _SETTINGS:
                self.run(statement, [()])
        except BaseException:
            self.close()
            raise

    def run(self, sql: str, rows: Sequence[Sequence[Value]]) -> Result:
        if len(rows) == 1:
            return patiently(lambda: _mapped(lambda: self._execute(sql, rows[0])), self._busy_timeout)
        return Result((), sum(_mapped(lambda row=row: self._execute(sql, row)).changed for row in rows))

    def _execute(self, sql: str, values: Sequence[Value]) -> Result:
        cursor = self._connection.execute(sql, tuple(map(_bound, values)))
        return Result(cursor.fetchall() or () if cursor.description else (), cursor.rowcount)

    def commit(self) -> None:
        if self._connection.in_transaction:
            self.run("COMMIT", [()])

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self.run("ROLLBACK", [()])

    def close(self) -> None:
        _mapped(self._connection.close)


def _bound(value: Value) -> Value:
    """Return integers over 32 bits as text, which SQLite converts back in integer columns and in arithmetic."""
    return str(value) if isinstance(value, int) and not -_SMALL <= value < _SMALL else value


def _mapped(call: Callable[[], T]) -> T:
    try:
        return call()
    except ValueError as error:  # the driver's only error type
        if isinstance(error, UnicodeError):
            raise
        raise made_error(str(error)) from error
