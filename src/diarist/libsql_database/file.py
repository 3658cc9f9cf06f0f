"""A libSQL file, through the driver ``libsql``.

What the driver does otherwise than one expects: it keeps all threads waiting while it waits for a lock, it takes
an integer of more than 32 bits for a float, and it names no error codes. It brings a library of its own that knows
nothing of the locks of ``sqlite3`` in the same process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from diarist.libsql_database.dbapi import Result, Value, made_error, patiently

try:
    import libsql  # pyright: ignore[reportMissingTypeStubs]
except ImportError as error:
    raise ImportError("files of libSQL need an extra of diarist: pip install 'diarist[libsql]'") from error

T = TypeVar("T")

_SETTINGS = (
    "PRAGMA foreign_keys = ON",
    "PRAGMA secure_delete = ON",  # what is forgotten must not lie on in unused pages
    "PRAGMA synchronous = NORMAL",  # as for SQLite: see there
    "PRAGMA journal_mode = WAL",
)
_SMALL = 2**31


class FileSession:
    def __init__(self, path: str, busy_timeout: float) -> None:
        connect: Callable[..., Any] = libsql.connect  # pyright: ignore
        self._busy_timeout = busy_timeout
        self._connection: Any = _mapped(
            partial(connect, path, timeout=0.0, isolation_level=None, _check_same_thread=False)
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
        return Result((), (), sum(_mapped(lambda row=row: self._execute(sql, row)).changed for row in rows))

    def _execute(self, sql: str, values: Sequence[Value]) -> Result:
        cursor = self._connection.execute(sql, tuple(map(_bound, values)))
        columns = [column[0] for column in cursor.description or ()]
        return Result(columns, cursor.fetchall() or () if columns else (), cursor.rowcount)

    def commit(self) -> None:
        if self._connection.in_transaction:
            self.run("COMMIT", [()])

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self.run("ROLLBACK", [()])

    def close(self) -> None:
        _mapped(self._connection.close)


def _bound(value: Value) -> Value:
    """Larger integers go as text, which SQLite makes integers of again, for a column or a sum of numbers."""
    return str(value) if isinstance(value, int) and not -_SMALL <= value < _SMALL else value


def _mapped(call: Callable[[], T]) -> T:
    try:
        return call()
    except ValueError as error:  # the driver's only kind
        if isinstance(error, UnicodeError):
            raise
        raise made_error(str(error)) from error
