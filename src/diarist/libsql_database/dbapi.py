"""The interface that SQLAlchemy expects of a driver, over the two ways to reach libSQL.

The errors are those of ``sqlite3``, with SQLite's names in ``sqlite_errorname``.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from diarist.exceptions import InputError

T = TypeVar("T")
Value = str | int | float | bytes | None

apilevel, threadsafety, paramstyle = "2.0", 1, "qmark"
sqlite_version_info = (3, 45, 1)
"""Of the SQLite that libSQL has been made of: what SQLAlchemy may use of it."""

Error = sqlite3.Error
InterfaceError = sqlite3.InterfaceError
DatabaseError = sqlite3.DatabaseError
DataError = sqlite3.DataError
OperationalError = sqlite3.OperationalError
IntegrityError = sqlite3.IntegrityError
InternalError = sqlite3.InternalError
ProgrammingError = sqlite3.ProgrammingError
NotSupportedError = sqlite3.NotSupportedError

_BY_MESSAGE = {
    "constraint failed": "SQLITE_CONSTRAINT",
    "is locked": "SQLITE_BUSY",
    "readonly database": "SQLITE_READONLY",
    "unable to open": "SQLITE_CANTOPEN",
    "not a database": "SQLITE_NOTADB",
    "malformed": "SQLITE_CORRUPT",
    "is full": "SQLITE_FULL",
}


def made_error(message: str, code: str | None = None) -> sqlite3.Error:
    """What went wrong in SQLite, as ``sqlite3`` would say it."""
    if code is None or not code.startswith("SQLITE_"):
        code = next((name for words, name in _BY_MESSAGE.items() if words in message), "SQLITE_ERROR")
    kind = IntegrityError if code.startswith("SQLITE_CONSTRAINT") else OperationalError
    error = kind(message)
    error.sqlite_errorname = code
    return error


def is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")


def patiently(attempt: Callable[[], T], seconds: float) -> T:
    """What ``attempt`` comes to, once nobody else is writing. Here, in Python: a driver that waits by itself would
    hold up all threads."""
    deadline, pause = time.monotonic() + seconds, 0.001
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(pause)
        pause = min(pause * 2, 0.02)


def checked_values(row: Sequence[Value]) -> Sequence[Value]:
    """Raises InputError for text that libSQL would cut off, and UnicodeEncodeError for what is none."""
    for value in row:
        if isinstance(value, str):
            value.encode()
            if "\0" in value:
                raise InputError(f"libSQL keeps no NUL character in a key or title: {value!r}")
    return row


class Result(NamedTuple):
    """What a statement came to: names of columns, rows, and how many rows it changed."""

    columns: Sequence[str]
    rows: Sequence[tuple[Any, ...]]
    changed: int


class Session(Protocol):
    """A connection to a file or a server."""

    def run(self, sql: str, rows: Sequence[Sequence[Value]]) -> Result:
        """Run a statement once for each row of values; several have no result but how many rows they changed."""
        ...

    def commit(self) -> None: ...

    def rollback(self) -> None:
        """Give up the transaction, if there is one."""
        ...

    def close(self) -> None: ...


class Connection:
    def __init__(self, session: Session) -> None:
        self.session = session

    def cursor(self) -> Cursor:
        return Cursor(self.session)

    def commit(self) -> None:
        self.session.commit()

    def rollback(self) -> None:
        self.session.rollback()

    def close(self) -> None:
        self.session.close()


class Cursor:
    """Has all rows at once: nobody here asks for more than it wants."""

    arraysize = 1
    lastrowid = None

    def __init__(self, session: Session) -> None:
        self._session = session
        self._result = Result((), (), -1)
        self._next = 0

    @property
    def description(self) -> list[tuple[Any, ...]] | None:
        return [(name, *(None,) * 6) for name in self._result.columns] or None

    @property
    def rowcount(self) -> int:
        return self._result.changed

    def execute(self, sql: str, values: Sequence[Value] = ()) -> None:
        self._run(sql, [values])

    def executemany(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        self._run(sql, rows)

    def _run(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        self._next = 0
        self._result = self._session.run(sql, [checked_values(row) for row in rows])

    def fetchone(self) -> tuple[Any, ...] | None:
        found = self.fetchmany(1)
        return found[0] if found else None

    def fetchmany(self, size: int = 1) -> Sequence[tuple[Any, ...]]:
        start, self._next = self._next, self._next + size
        return self._result.rows[start : self._next]

    def fetchall(self) -> Sequence[tuple[Any, ...]]:
        return self.fetchmany(len(self._result.rows))

    def close(self) -> None:
        self._result = Result((), (), -1)
