"""A libSQL server, through its protocol over HTTP (Hrana 3, with JSON).

A transaction is a stream of its own on the server: it begins with the first statement, to which BEGIN is tied, and
ends with COMMIT. A stream that is closed, or forgotten by the server, takes an open transaction back.
"""

from __future__ import annotations

import http.client
import sqlite3
import ssl
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

import orjson

from diarist.libsql_database.address import Address, parsed
from diarist.libsql_database.dbapi import Result, Value, is_busy, made_error, patiently

REQUEST_TIMEOUT = 60.0
"""Seconds."""
_LOST = (http.client.RemoteDisconnected, http.client.CannotSendRequest, BrokenPipeError, ConnectionResetError)


class RemoteSession:
    def __init__(self, address: Address, token: str | None, busy_timeout: float) -> None:
        self._address, self._token, self._busy_timeout = address, token, busy_timeout
        self._stream_address = address
        self._baton: str | None = None
        self._held: list[str] = []
        self._in_transaction = False
        self._http: http.client.HTTPConnection | None = None

    def run(self, sql: str, rows: Sequence[Sequence[Value]]) -> Result:
        if sql.startswith("BEGIN"):
            self._held = ["PRAGMA foreign_keys = ON", sql]
            return Result((), (), -1)
        steps = [(sql, row) for row in rows]
        results = patiently(lambda: self._first(steps), self._busy_timeout) if self._held else self._batch(steps)
        changed = sum(result["affected_row_count"] for result in results)
        if len(results) != 1:
            return Result((), (), changed)
        columns = [column["name"] or "" for column in results[0]["cols"]]
        return Result(columns, [tuple(map(_value, row)) for row in results[0]["rows"]], changed)

    def _first(self, steps: Sequence[tuple[str, Sequence[Value]]]) -> list[dict[str, Any]]:
        """The results of a transaction's first statement. Where BEGIN has failed nothing has happened."""
        held: list[tuple[str, Sequence[Value]]] = [(sql, ()) for sql in self._held]
        try:
            results = self._batch([*held, *steps])[len(held) :]
        except sqlite3.Error as error:
            if is_busy(error):
                self._end_stream()
            else:
                self._begin_is_done()
            raise
        self._begin_is_done()
        return results

    def _begin_is_done(self) -> None:
        self._held, self._in_transaction = [], True

    def _batch(self, steps: Sequence[tuple[str, Sequence[Value]]], *, last: bool = False) -> list[dict[str, Any]]:
        """The results of statements, each of which is run only if the one before went well."""
        if self._in_transaction and self._baton is None:
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
            raise _error(outcome["error"])
        result: dict[str, Any] = outcome["response"]["result"]
        for found in result["step_errors"]:
            if found is not None:
                raise _error(found)
        return result["step_results"]

    def commit(self) -> None:
        self._held = []
        if self._in_transaction:
            self._batch([("COMMIT", ())], last=True)
            self._in_transaction = False

    def rollback(self) -> None:
        self._held, self._in_transaction = [], False
        self._end_stream()

    def close(self) -> None:
        self.rollback()
        self._hang_up()

    def _end_stream(self) -> None:
        if self._baton is not None:
            try:
                self._post([{"type": "close"}])
            except sqlite3.OperationalError:
                self._forget_stream()  # the server ends it by itself

    def _post(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        body = orjson.dumps({"baton": self._baton, "requests": requests})
        try:
            status, answer = self._exchange(body)
        except _LOST as error:
            if self._baton is not None:
                raise self._broken(error) from error
            # The server has closed a connection that was idle. Nothing was begun, so it may be asked again.
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
        self._follow(found)
        return found["results"]

    def _exchange(self, body: bytes) -> tuple[int, bytes]:
        if self._http is None:
            self._http = _connected(self._stream_address)
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            self._http.request("POST", f"{self._stream_address.path}/v3/pipeline", body, headers)
            response = self._http.getresponse()
            return response.status, response.read()
        except BaseException:
            self._hang_up()
            raise

    def _follow(self, answer: dict[str, Any]) -> None:
        """Go on where the server wants the stream to."""
        self._baton = answer["baton"]
        if self._baton is None:
            self._forget_stream()
        elif answer.get("base_url"):
            self._move(parsed(answer["base_url"], None)[0])

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


def _connected(address: Address) -> http.client.HTTPConnection:
    if address.tls:
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(address.host, address.port, timeout=REQUEST_TIMEOUT, context=context)
    return http.client.HTTPConnection(address.host, address.port, timeout=REQUEST_TIMEOUT)


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


def _error(found: dict[str, Any]) -> Exception:
    return made_error(found["message"], found.get("code"))


def _refused(status: int, answer: bytes) -> sqlite3.OperationalError:
    try:
        words = orjson.loads(answer)["message"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        words = answer.decode(errors="replace")[:200].strip() or http.client.responses.get(status, "")
    remedy = "; give a valid auth_token" if status in (401, 403) else ""
    return sqlite3.OperationalError(f"the server refused with HTTP {status}: {words}{remedy}")
