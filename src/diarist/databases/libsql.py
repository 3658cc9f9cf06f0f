"""The database of a libSQL server, over HTTP (Hrana 3, with JSON). A file of libSQL is an ordinary SQLite file."""

from __future__ import annotations

import http.client
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson

from diarist.databases.base import Row, Schema, in_sqlite, json_list, numbered
from diarist.databases.blocking import ThreadConnection, ThreadDatabase, is_busy, patiently
from diarist.exceptions import ConfigError, InputError

Value = str | int | None
Statement = tuple[str, Sequence[Value]]

REQUEST_TIMEOUT = 60.0
"""Timeout of a request, in seconds."""
_SCHEMES = {"libsql": "https", "https": "https", "http": "http"}
_EXAMPLE = "write libsql://name.example.com, or http://localhost:8080 for a server without TLS"


class LibSQLDatabase(ThreadDatabase):
    """The database of a libSQL server.

    Args:
        url, auth_token, busy_timeout: As for ``LibSQLStorage``.
        schema: The tables that this object uses.
    """

    def __init__(self, url: str, schema: Schema, *, auth_token: str | None = None, busy_timeout: float = 30.0) -> None:
        location, token = server_address(url)
        super().__init__(
            schema,
            location,
            connect=partial(LibSQLConnection, location, token if auth_token is None else auth_token, busy_timeout),
            busy_timeout=busy_timeout,
            remedies={"SQLITE_AUTH": "; use a token that may write"},
        )

    async def erase(self) -> tuple[str, ...]:
        return (f"{self.location}: deleted rows may remain in the server's files, unless it sets secure_delete",)


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


class LibSQLConnection(ThreadConnection):
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

    async def fetch(self, sql: str, /, **values: Any) -> Sequence[Row]:
        rows, _ = self._run(sql, [values])
        return rows

    async def first(self, sql: str, /, **values: Any) -> Row | None:
        rows, _ = self._run(sql, [values])
        return rows[0] if rows else None

    async def execute(self, sql: str, /, **values: Any) -> int:
        _, changed = self._run(sql, [values])
        return changed

    async def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]], /) -> None:
        self._run(sql, rows)

    def _run(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> tuple[list[Row], int]:
        """Run a statement once for each row of values. Returns the rows of a single run, and how many were changed."""
        text, names = _in_libsql(sql)
        statements = [(text, [_checked(row[name]) for name in names]) for row in rows]
        if self._beginning:
            results = patiently(partial(self._begin_with, statements), self._busy_timeout)
        else:
            results = self._batch(statements)
        changed = sum(result["affected_row_count"] for result in results)
        found = results[0]["rows"] if len(results) == 1 else ()
        return [tuple(map(_value, row)) for row in found], changed

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
            raise _made_error(error["message"], error.get("code"))
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


@lru_cache(2048)
def _in_libsql(sql: str) -> tuple[str, tuple[str, ...]]:
    return numbered(in_sqlite(sql)[0], "?")


def _checked(value: Any) -> Value:
    """Return the value in a form that the server accepts: booleans as integers, lists as JSON.

    Raises InputError for text that libSQL would truncate, UnicodeEncodeError for bad Unicode.
    """
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, list):
        value = json_list(value)
    if isinstance(value, str):
        value.encode()
        if "\0" in value:
            raise InputError(f"libSQL cannot store a NUL character in a key or title: {value!r}")
    return value


_CODES = {"constraint failed": "SQLITE_CONSTRAINT", "database is locked": "SQLITE_BUSY"}


def _made_error(message: str, code: str | None) -> sqlite3.Error:
    """Return the error that ``sqlite3`` would raise. Servers need not send a code: then it follows from the message."""
    if code is None:
        code = next((code for words, code in _CODES.items() if words in message), "SQLITE_ERROR")
    kind = sqlite3.IntegrityError if code.startswith("SQLITE_CONSTRAINT") else sqlite3.OperationalError
    error = kind(message)
    error.sqlite_errorname = code
    return error
