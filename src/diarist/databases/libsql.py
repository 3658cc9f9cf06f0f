"""libSQL: a file through the driver ``libsql``, or a server over HTTP (Hrana 3, with JSON).

The driver blocks all threads while it waits for a lock, passes integers over 32 bits as floats, and reports no error
codes. It contains its own SQLite library, which does not see the locks of ``sqlite3`` in the same process.
"""

from __future__ import annotations

import http.client
import os
import sqlite3
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import orjson

from diarist.checks import seconds
from diarist.databases.base import Row, Schema, in_sqlite, numbered
from diarist.databases.blocking import ThreadConnection, ThreadDatabase, is_busy, patiently
from diarist.databases.sqlite import BUSY, erase_from_file, file_path, file_remedies, refuse_impossible
from diarist.exceptions import ConfigError, InputError

Value = str | int | None
Statement = tuple[str, Sequence[Value]]


class Result(NamedTuple):
    """Rows that a statement returned, and the number of rows that it changed."""

    rows: Sequence[tuple[Any, ...]]
    changed: int


class LibSQLConnection(ThreadConnection):
    """A connection to a file or a server."""

    @abstractmethod
    def run(self, sql: str, rows: Sequence[Sequence[Value]] = ((),)) -> Result:
        """Run a statement once for each row of values. With several rows of values, the result has no rows."""

    async def fetch(self, sql: str, /, **values: Any) -> Sequence[Row]:
        return self._run(sql, [values]).rows

    async def first(self, sql: str, /, **values: Any) -> Row | None:
        return next(iter(self._run(sql, [values]).rows), None)

    async def execute(self, sql: str, /, **values: Any) -> int:
        return self._run(sql, [values]).changed

    async def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]], /) -> None:
        self._run(sql, rows)

    def _run(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> Result:
        text, names = _in_libsql(sql)
        return self.run(text, [[_checked(row[name]) for name in names] for row in rows])

    def run_alone(self, statement: str, patience: float | None = None) -> Any:
        rows = self.run(statement).rows
        return rows[0][0] if rows else None


@lru_cache(2048)
def _in_libsql(sql: str) -> tuple[str, tuple[str, ...]]:
    return numbered(in_sqlite(sql)[0], "?")


def _checked(value: Any) -> Value:
    """Return the value in a form that the driver accepts: booleans as integers, lists as JSON.

    Raises InputError for text that libSQL would truncate, UnicodeEncodeError for bad Unicode.
    """
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, list):
        value = orjson.dumps(value).decode()
    if isinstance(value, str):
        value.encode()
        if "\0" in value:
            raise InputError(f"libSQL cannot store a NUL character in a key or title: {value!r}")
    return value


class LibSQLDatabase(ThreadDatabase):
    """A libSQL file, or the database of a libSQL server.

    Args:
        place, auth_token, busy_timeout: As for ``LibSQLStorage``.
        schema: The tables that this object uses.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        schema: Schema,
        *,
        auth_token: str | None = None,
        busy_timeout: float = 30.0,
    ) -> None:
        seconds("", "busy_timeout", busy_timeout, zero=True)
        self._path: Path | None = None
        connect: Callable[[], LibSQLConnection]
        if isinstance(place, str) and "://" in place:
            location, token = server_address(place)
            connect = partial(RemoteConnection, location, token if auth_token is None else auth_token, busy_timeout)
            remedies = {
                "SQLITE_BUSY": BUSY.format(seconds=busy_timeout),
                "SQLITE_AUTH": "; use a token that may write",
            }
        elif auth_token is not None:
            raise ConfigError("auth_token is for a server: give its URL, or leave the token out for a file")
        else:
            try:
                import libsql  # pyright: ignore[reportMissingTypeStubs]
            except ImportError as error:
                raise ImportError("files of libSQL need an extra of diarist: pip install 'diarist[libsql]'") from error
            driver: Any = libsql
            self._path = path = file_path(place)
            location, connect = str(path), partial(FileConnection, driver.connect, path, busy_timeout)
            remedies = file_remedies(path, busy_timeout)
        super().__init__(schema, location, connect=connect, remedies=remedies)

    async def erase(self) -> tuple[str, ...]:
        if self._path is None:
            return (f"{self.location}: deleted rows may remain in the server's files, unless it sets secure_delete",)
        return await erase_from_file(self, self._path)


# --- errors ------------------------------------------------------------------------------------------------

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
    """Return the error that ``sqlite3`` would raise."""
    if code is None or not code.startswith("SQLITE_"):
        code = next((name for words, name in _BY_MESSAGE.items() if words in message), "SQLITE_ERROR")
    kind = sqlite3.IntegrityError if code.startswith("SQLITE_CONSTRAINT") else sqlite3.OperationalError
    error = kind(message)
    error.sqlite_errorname = code
    return error


# --- files -------------------------------------------------------------------------------------------------

_SMALL = 2**31


class FileConnection(LibSQLConnection):
    """A connection to a file. ``connect`` is the function of the driver."""

    def __init__(self, connect: Callable[..., Any], path: Path, busy_timeout: float) -> None:
        refuse_impossible(path)
        self._busy_timeout = busy_timeout
        with _driver_errors():
            self._driver = connect(str(path), timeout=0.0, isolation_level=None, _check_same_thread=False)
        try:  # for the settings see sqlite.py
            for name, value in (("foreign_keys", "ON"), ("secure_delete", "ON"), ("synchronous", "NORMAL")):
                self.run(f"PRAGMA {name} = {value}")
            self.run("PRAGMA journal_mode = WAL")
        except BaseException:
            self.close()
            raise

    def run(self, sql: str, rows: Sequence[Sequence[Value]] = ((),)) -> Result:
        results = [patiently(partial(self._execute, sql, row), self._busy_timeout) for row in rows]
        return results[0] if len(results) == 1 else Result((), sum(result.changed for result in results))

    def _execute(self, sql: str, row: Sequence[Value]) -> Result:
        # The driver would pass larger integers as floats, so pass them as text: SQLite converts it back to integers in
        # integer columns and in arithmetic.
        values = [str(v) if isinstance(v, int) and not -_SMALL <= v < _SMALL else v for v in row]
        with _driver_errors():
            cursor = self._driver.execute(sql, tuple(values))
            return Result(cursor.fetchall() or () if cursor.description else (), cursor.rowcount)

    def begin(self, statement: str) -> None:
        self.run(statement)

    def commit(self) -> None:
        self.run("COMMIT")

    def rollback(self) -> None:
        if self.in_transaction:
            self.run("ROLLBACK")

    @property
    def in_transaction(self) -> bool:
        return self._driver.in_transaction

    def close(self) -> None:
        with _driver_errors():
            self._driver.close()


@contextmanager
def _driver_errors() -> Generator[None]:
    try:
        yield
    except ValueError as error:  # the driver's only error type
        raise made_error(str(error)) from error


# --- servers -----------------------------------------------------------------------------------------------

REQUEST_TIMEOUT = 60.0
"""Timeout of a request, in seconds."""
_SCHEMES = {"libsql": "https", "https": "https", "http": "http"}
_EXAMPLE = "write libsql://name.example.com, or http://localhost:8080 for a server without TLS"


def server_address(url: str) -> tuple[str, str | None]:
    """Return the server's URL, starting with https or http, and the token of ``?authToken=``. Raises ConfigError."""
    try:
        found = urlsplit(url)
        port = found.port
    except ValueError as error:
        raise ConfigError(f"not a URL of a libSQL server; {_EXAMPLE}") from error
    if found.scheme not in _SCHEMES or not found.hostname:
        raise ConfigError(f"not a URL of a libSQL server: it starts with {found.scheme}://; {_EXAMPLE}")
    query = parse_qs(found.query)
    scheme = "http" if query.get("tls") == ["0"] else _SCHEMES[found.scheme]
    host = f"[{found.hostname}]" if ":" in found.hostname else found.hostname
    where = host if port is None else f"{host}:{port}"
    return f"{scheme}://{where}{found.path.rstrip('/')}", query.get("authToken", [None])[0]


class RemoteConnection(LibSQLConnection):
    """A connection to a server. Each transaction uses a stream of its own there, named by a baton.

    BEGIN is sent together with the first statement, and COMMIT ends the stream. If the stream is closed or expires, the
    server rolls back an open transaction.
    """

    def __init__(self, url: str, token: str | None, busy_timeout: float) -> None:
        self._url, self._busy_timeout = url, busy_timeout
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._stream_url = url  # the server may return another URL for the rest of a stream
        self._baton: str | None = None
        self._beginning: list[Statement] = []
        self._http: http.client.HTTPConnection | None = None

    def begin(self, statement: str) -> None:
        self._beginning = [("PRAGMA foreign_keys = ON", ()), (statement, ())]

    def run(self, sql: str, rows: Sequence[Sequence[Value]] = ((),)) -> Result:
        statements = [(sql, row) for row in rows]
        if self._beginning:
            results = patiently(partial(self._begin_with, statements), self._busy_timeout)
        else:
            results = self._batch(statements)
        changed = sum(result["affected_row_count"] for result in results)
        found = results[0]["rows"] if len(results) == 1 else ()
        return Result([tuple(map(_value, row)) for row in found], changed)

    def _begin_with(self, statements: Sequence[Statement]) -> list[dict[str, Any]]:
        """Begin the transaction and return the results of its first statements."""
        beginning = self._beginning
        try:
            results = self._batch([*beginning, *statements])
        except sqlite3.Error as error:
            if is_busy(error):  # the transaction has not begun
                self.rollback()
            self._beginning = beginning if is_busy(error) else []
            raise
        self._beginning = []
        return results[len(beginning) :]

    def _batch(self, statements: Sequence[Statement], *, last: bool = False) -> list[dict[str, Any]]:
        """Return the results of statements. Each statement runs only if the statement before it succeeded."""
        if self._baton is None and not self._beginning:
            raise sqlite3.OperationalError("the server has ended the transaction; try again")
        batch: list[dict[str, Any]] = []
        for number, (sql, values) in enumerate(statements):
            step: dict[str, Any] = {"stmt": {"sql": sql, "args": list(map(_argument, values))}}
            if number:
                step["condition"] = {"type": "ok", "step": number - 1}
            batch.append(step)
        requests = [{"type": "batch", "batch": {"steps": batch}}, *([{"type": "close"}] if last else [])]
        outcome = self._post(requests)[0]
        errors = [outcome["error"]] if outcome["type"] == "error" else outcome["response"]["result"]["step_errors"]
        for error in filter(None, errors):
            raise made_error(error["message"], error.get("code"))
        return outcome["response"]["result"]["step_results"]

    def commit(self) -> None:
        if not self._beginning:
            self._batch([("COMMIT", ())], last=True)
        self._beginning = []

    def rollback(self) -> None:
        self._beginning = []
        if self._baton is not None:
            with suppress(sqlite3.OperationalError):  # the server closes a lost stream
                self._post([{"type": "close"}])

    @property
    def in_transaction(self) -> bool:
        return bool(self._beginning) or self._baton is not None

    def close(self) -> None:
        self.rollback()
        self._hang_up()

    def _post(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Send requests of the stream and return the server's results."""
        body = orjson.dumps({"baton": self._baton, "requests": requests})
        scheme, host, path, *_ = urlsplit(self._stream_url)
        reused = self._http is not None
        try:
            if self._http is None:
                kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
                self._http = kind(host, timeout=REQUEST_TIMEOUT)
            self._http.request("POST", f"{path}/v3/pipeline", body, self._headers)
            response = self._http.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._hang_up()
            if reused and self._baton is None and isinstance(error, ConnectionError):
                return self._post(requests)  # the server had closed an idle connection; no transaction has begun
            words = str(error) or type(error).__name__
            raise self._lost(f"{words}; start the server there, or correct the URL") from error
        if response.status != 200:
            try:
                words = orjson.loads(answer)["message"]
            except (ValueError, KeyError, TypeError):
                words = answer.decode(errors="replace")[:200].strip() or response.reason
            remedy = "; give a valid auth_token" if response.status in (401, 403) else ""
            raise self._lost(f"the server refused with HTTP {response.status}: {words}{remedy}")
        found = orjson.loads(answer)
        self._baton, url = found["baton"], self._stream_url
        if self._baton is None:  # the stream has ended
            url = self._url
        elif found.get("base_url"):
            url = server_address(found["base_url"])[0]
        if url != self._stream_url:
            self._hang_up()
            self._stream_url = url
        return found["results"]

    def _lost(self, reason: str) -> sqlite3.OperationalError:
        """Return the error for a lost stream."""
        self._hang_up()
        self._baton, self._stream_url = None, self._url
        return sqlite3.OperationalError(reason)

    def _hang_up(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None


def _argument(value: Value) -> dict[str, Any]:
    if value is None:
        return {"type": "null"}
    return {"type": "integer", "value": str(value)} if isinstance(value, int) else {"type": "text", "value": value}


def _value(found: dict[str, Any]) -> Any:
    return int(found["value"]) if found["type"] == "integer" else found.get("value")
