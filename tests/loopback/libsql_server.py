"""A libSQL server on this machine: its protocol over HTTP (Hrana 3), before SQLite.

It refuses what the real server refuses, such as settings of a connection, and it ends streams that are closed.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import socket
import sqlite3
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

_SETTING = re.compile(r"\s*PRAGMA\s+(secure_delete|synchronous|journal_mode|busy_timeout)\s*=", re.IGNORECASE)


class LibSQLServer:
    """Serves the file; ``token`` is what a client must show, ``requests`` counts what came.

    Attributes:
        codes: False: errors have no codes, as Hrana allows.
    """

    def __init__(self, path: Path, token: str | None = None) -> None:
        self.path, self.token = path, token
        self.requests = 0
        self.codes = True
        self._sockets: list[socket.socket] = []
        self.streams: dict[str, sqlite3.Connection] = {}
        sqlite3.connect(path).execute("PRAGMA journal_mode = WAL").connection.close()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def hang_up(self) -> None:
        """Close the connections of all clients, as servers do with idle ones."""
        for connection in self._sockets:
            with suppress(OSError):  # the client has closed it
                connection.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.forget_streams()

    def forget_streams(self) -> None:
        """What happens to streams in which nothing happens for some seconds."""
        while self.streams:
            self.streams.popitem()[1].close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                server._sockets.append(self.connection)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = server.answer(self.path, self.headers.get("Authorization"), body)
                sent = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        return Handler

    def answer(self, path: str, authorization: str | None, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.requests += 1
        if path != "/v3/pipeline":
            return 404, {"message": f"there is nothing at {path}"}
        if self.token is not None and authorization != f"Bearer {self.token}":
            return 401, {"message": "the token is missing or wrong"}
        if body["baton"] is None:
            stream = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        elif (found := self.streams.pop(body["baton"], None)) is not None:
            stream = found
        else:
            return 400, {"message": "the stream has expired", "code": "STREAM_EXPIRED"}
        results = [self._perform(stream, request) for request in body["requests"]]
        baton = None
        if any(request["type"] == "close" for request in body["requests"]):
            stream.close()
        else:
            baton = secrets.token_hex()
            self.streams[baton] = stream
        return 200, {"baton": baton, "base_url": None, "results": results}

    def _perform(self, stream: sqlite3.Connection, request: dict[str, Any]) -> dict[str, Any]:
        if request["type"] == "close":
            return {"type": "ok", "response": {"type": "close"}}
        steps = request["batch"]["steps"]
        results: list[Any] = [None] * len(steps)
        errors: list[Any] = [None] * len(steps)
        for number, step in enumerate(steps):
            condition = step.get("condition")
            if condition is None or results[condition["step"]] is not None:
                try:
                    results[number] = _executed(stream, step["stmt"])
                except sqlite3.Error as error:
                    code = getattr(error, "sqlite_errorname", "UNKNOWN") if self.codes else None
                    errors[number] = {"message": str(error), "code": code}
        return {"type": "ok", "response": {"type": "batch", "result": {"step_results": results, "step_errors": errors}}}


def _executed(stream: sqlite3.Connection, statement: dict[str, Any]) -> dict[str, Any]:
    if _SETTING.match(statement["sql"]):
        raise sqlite3.OperationalError(f"unsupported statement: {statement['sql']}")
    values = {str(number): _read(value) for number, value in enumerate(statement["args"], start=1)}  # for ?1, ?2, …
    cursor = stream.execute(statement["sql"], values)
    return {
        "cols": [{"name": column[0], "decltype": None} for column in cursor.description or ()],
        "rows": [[_written(value) for value in row] for row in cursor],
        "affected_row_count": max(cursor.rowcount, 0),
        "last_insert_rowid": None,
    }


def _read(value: dict[str, Any]) -> Any:
    match value["type"]:
        case "integer":
            return int(value["value"])
        case "blob":
            return base64.b64decode(value["base64"] + "==")
        case "null":
            return None
        case _:
            return value["value"]


def _written(value: Any) -> dict[str, Any]:
    match value:
        case None:
            return {"type": "null"}
        case int():
            return {"type": "integer", "value": str(value)}
        case float():
            return {"type": "float", "value": value}
        case bytes():
            return {"type": "blob", "base64": base64.b64encode(value).decode().rstrip("=")}
        case _:
            return {"type": "text", "value": value}
