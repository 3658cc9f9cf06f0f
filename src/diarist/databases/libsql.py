"""libSQL: a file through the driver ``libsql``, or a server over HTTP (Hrana 3, with JSON).

The driver blocks all threads while it waits for a lock, passes integers over 32 bits as floats, and reports no error
codes. It contains its own SQLite library, which does not see the locks of ``sqlite3`` in the same process.
"""

from __future__ import annotations

import http.client
import os
import sqlite3
import ssl
from abc import abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit

import orjson

from diarist.databases.base import Row, Schema, in_sqlite, numbered
from diarist.databases.sqlite import BUSY, erase_from_file, file_path, file_remedies, refuse_impossible
from diarist.databases.threads import ThreadConnection, ThreadDatabase, is_busy, patiently
from diarist.exceptions import ConfigError, InputError

T = TypeVar("T")
Value = str | int | float | bytes | None


class Result(NamedTuple):
    """Rows that a statement returned, and the number of rows that it changed."""

    rows: Sequence[tuple[Any, ...]]
    changed: int


class LibSQLConnection(ThreadConnection):
    """A connection to a file or a server."""

    @abstractmethod
    def run(self, sql: str, rows: Sequence[Sequence[Value]]) -> Result:
        """Run a statement once for each row of values. With several, the result has no rows."""

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

    def begin(self, statement: str) -> None:
        self.run(statement, [()])

    def run_alone(self, statement: str, patience: float | None = None) -> Any:
        found = self.run(statement, [()])
        return found.rows[0][0] if found.rows else None


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
        self._path: Path | None = None
        connect: Callable[[], LibSQLConnection]
        if isinstance(place, str) and "://" in place:
            address, token = parsed(place, auth_token)
            location, connect = address.url, partial(RemoteConnection, address, token, busy_timeout)
            remedies = {
                "SQLITE_BUSY": BUSY.format(seconds=busy_timeout),
                "SQLITE_AUTH": "; use a token that may write",
            }
        elif auth_token is not None:
            raise ConfigError("auth_token is for a server: give its URL, or leave the token out for a file")
        else:
            _driver()  # report a missing extra at once
            self._path = path = file_path(place)
            location, connect = str(path), partial(FileConnection, path, busy_timeout)
            remedies = file_remedies(path, busy_timeout)
        super().__init__(schema, location, connect=connect, busy_timeout=busy_timeout, remedies=remedies)

    async def erase(self) -> tuple[str, ...]:
        if self._path is None:
            return (f"{self.location}: the server decides what becomes of deleted rows in its files (secure_delete)",)
        return await erase_from_file(self, self._path)


# --- addresses ---------------------------------------------------------------------------------------------

_SCHEMES = {"libsql": "https", "https": "https", "http": "http"}
_EXAMPLE = "write libsql://name.example.com, or http://localhost:8080 for a server without TLS"


class Address(NamedTuple):
    """The address of a server."""

    tls: bool
    host: str
    port: int
    path: str

    @property
    def url(self) -> str:
        """The URL without a token."""
        scheme, usual = ("https", 443) if self.tls else ("http", 80)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}{'' if self.port == usual else f':{self.port}'}{self.path}"


def parsed(url: str, auth_token: str | None) -> tuple[Address, str | None]:
    """Return the address, and the token, which may be in the URL as ``?authToken=``. Raises ConfigError."""
    try:
        found = urlsplit(url)
        port = found.port
    except ValueError as error:
        raise ConfigError(f"not a URL of a libSQL server; {_EXAMPLE}") from error
    if found.scheme not in _SCHEMES or not found.hostname:
        raise ConfigError(f"not a URL of a libSQL server: it starts with {found.scheme}://; {_EXAMPLE}")
    query = parse_qs(found.query)
    tls = _SCHEMES[found.scheme] == "https" and query.get("tls") != ["0"]
    token = auth_token if auth_token is not None else query.get("authToken", [None])[0]
    return Address(tls, found.hostname, port or (443 if tls else 80), found.path.rstrip("/")), token


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


def made_error(found: Mapping[str, Any]) -> sqlite3.Error:
    """Return the error that ``sqlite3`` would raise for a message and perhaps a code."""
    message, code = found["message"], found.get("code") or ""
    if not code.startswith("SQLITE_"):
        code = next((name for words, name in _BY_MESSAGE.items() if words in message), "SQLITE_ERROR")
    kind = sqlite3.IntegrityError if code.startswith("SQLITE_CONSTRAINT") else sqlite3.OperationalError
    error = kind(message)
    error.sqlite_errorname = code
    return error


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


class FileConnection(LibSQLConnection):
    def __init__(self, path: Path, busy_timeout: float) -> None:
        refuse_impossible(path)
        self._busy_timeout = busy_timeout
        self._connection: Any = _mapped(
            partial(_driver().connect, str(path), timeout=0.0, isolation_level=None, _check_same_thread=False)
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
        self.run("COMMIT", [()])

    def rollback(self) -> None:
        if self.in_transaction:
            self.run("ROLLBACK", [()])

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

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
        raise made_error({"message": str(error)}) from error


# --- server ------------------------------------------------------------------------------------------------

REQUEST_TIMEOUT = 60.0
"""Timeout of a request, in seconds."""
_ERROR_LIMIT = 2**20
"""Maximum number of bytes read from an answer with an error status."""
_LOST = (http.client.RemoteDisconnected, http.client.CannotSendRequest, BrokenPipeError, ConnectionResetError)


class RemoteConnection(LibSQLConnection):
    """A connection to a server. Each transaction uses a stream of its own there.

    BEGIN is sent together with the first statement, and COMMIT ends the stream. If the stream is closed or expires, the
    server rolls back an open transaction.
    """

    def __init__(self, address: Address, token: str | None, busy_timeout: float) -> None:
        self._address, self._token, self._busy_timeout = address, token, busy_timeout
        self._stream_address = address
        self._baton: str | None = None
        self._held: list[str] = []
        self._has_begun = False
        self._http: http.client.HTTPConnection | None = None

    def run(self, sql: str, rows: Sequence[Sequence[Value]]) -> Result:
        if sql.startswith("BEGIN"):
            self._held = ["PRAGMA foreign_keys = ON", sql]
            return Result((), -1)
        steps = [(sql, row) for row in rows]
        results = patiently(lambda: self._first(steps), self._busy_timeout) if self._held else self._batch(steps)
        changed = sum(result["affected_row_count"] for result in results)
        if len(results) != 1:
            return Result((), changed)
        return Result([tuple(map(_value, row)) for row in results[0]["rows"]], changed)

    def _first(self, steps: Sequence[tuple[str, Sequence[Value]]]) -> list[dict[str, Any]]:
        """Return the results of a transaction's first statements. If BEGIN fails, nothing is changed."""
        held: list[tuple[str, Sequence[Value]]] = [(sql, ()) for sql in self._held]
        try:
            results = self._batch([*held, *steps])[len(held) :]
        except sqlite3.Error as error:
            if is_busy(error):
                self._end_stream()
            else:
                self._held, self._has_begun = [], True
            raise
        self._held, self._has_begun = [], True
        return results

    def _batch(self, steps: Sequence[tuple[str, Sequence[Value]]], *, last: bool = False) -> list[dict[str, Any]]:
        """Return the results of statements. Each one runs only if the one before it succeeded."""
        if self._has_begun and self._baton is None:
            raise sqlite3.OperationalError("the server has ended the transaction; try again")
        batch: list[dict[str, Any]] = []
        for number, (sql, values) in enumerate(steps):
            step: dict[str, Any] = {"stmt": {"sql": sql, "args": list(map(_argument, values))}}
            if number:
                step["condition"] = {"type": "ok", "step": number - 1}
            batch.append(step)
        requests = [{"type": "batch", "batch": {"steps": batch}}, *([{"type": "close"}] if last else [])]
        outcome = self._post(requests)[0]
        if outcome["type"] == "error":
            raise made_error(outcome["error"])
        result: dict[str, Any] = outcome["response"]["result"]
        for found in result["step_errors"]:
            if found is not None:
                raise made_error(found)
        return result["step_results"]

    def commit(self) -> None:
        self._held = []
        if self._has_begun:
            self._batch([("COMMIT", ())], last=True)
            self._has_begun = False

    def rollback(self) -> None:
        self._end_stream()
        self._held, self._has_begun = [], False

    @property
    def in_transaction(self) -> bool:
        return bool(self._held) or self._has_begun

    def close(self) -> None:
        self.rollback()
        self._hang_up()

    def _end_stream(self) -> None:
        if self._baton is not None:
            try:
                self._post([{"type": "close"}])
            except sqlite3.OperationalError:
                self._forget_stream()  # the server closes it

    def _post(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        body = orjson.dumps({"baton": self._baton, "requests": requests})
        try:
            status, answer = self._exchange(body)
        except _LOST as error:
            if self._baton is not None:
                raise self._broken(error) from error
            # The server has closed an idle connection. No transaction has begun, so the request can be repeated.
            try:
                status, answer = self._exchange(body)
            except (OSError, http.client.HTTPException) as again:
                raise self._broken(again) from again
        except (OSError, http.client.HTTPException) as error:
            raise self._broken(error) from error
        if status != 200:
            self._forget_stream()
            raise _refused(status, answer)
        found = orjson.loads(answer)
        self._baton = found["baton"]
        if self._baton is None:
            self._forget_stream()
        elif found.get("base_url"):
            self._move(parsed(found["base_url"], None)[0])
        return found["results"]

    def _exchange(self, body: bytes) -> tuple[int, bytes]:
        address = self._stream_address
        if self._http is None and address.tls:
            context = ssl.create_default_context()
            self._http = http.client.HTTPSConnection(
                address.host, address.port, timeout=REQUEST_TIMEOUT, context=context
            )
        elif self._http is None:
            self._http = http.client.HTTPConnection(address.host, address.port, timeout=REQUEST_TIMEOUT)
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            self._http.request("POST", f"{address.path}/v3/pipeline", body, headers)
            response = self._http.getresponse()
            if response.status == 200:
                return 200, response.read()
            answer = response.read(_ERROR_LIMIT)
            self._hang_up()  # the answer may be partly unread
            return response.status, answer
        except BaseException:
            self._hang_up()
            raise

    def _forget_stream(self) -> None:
        self._baton = None
        self._move(self._address)

    def _move(self, address: Address) -> None:
        if address != self._stream_address:
            self._hang_up()
            self._stream_address = address

    def _hang_up(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def _broken(self, error: Exception) -> sqlite3.OperationalError:
        self._hang_up()
        self._forget_stream()
        words = str(error) or type(error).__name__
        return sqlite3.OperationalError(f"{words}; start the server there, or correct the URL")


def _argument(value: Value) -> dict[str, Any]:
    match value:
        case None:
            return {"type": "null"}
        case int():
            return {"type": "integer", "value": str(int(value))}
        case float():
            return {"type": "float", "value": value}
        case str():
            return {"type": "text", "value": value}
        case bytes():
            return {"type": "blob", "base64": b64encode(value).decode()}


def _value(found: dict[str, Any]) -> Value:
    match found["type"]:
        case "null":
            return None
        case "integer":
            return int(found["value"])
        case "blob":
            return b64decode(found["base64"] + "=" * (-len(found["base64"]) % 4))
        case _:
            return found["value"]


def _refused(status: int, answer: bytes) -> sqlite3.OperationalError:
    try:
        words = orjson.loads(answer)["message"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        words = answer.decode(errors="replace")[:200].strip() or http.client.responses.get(status, "")
    remedy = "; give a valid auth_token" if status in (401, 403) else ""
    return sqlite3.OperationalError(f"the server refused with HTTP {status}: {words}{remedy}")
