"""An SQLite file."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.pool import NullPool

from diarist.database import LanedDatabase, Schema
from diarist.exceptions import ConfigError, StorageError
from diarist.in_place import InPlace
from diarist.lanes import Transactions
from diarist.prepared import PreparedEngine


class SQLiteDatabase(LanedDatabase):
    """An SQLite file in WAL mode: any number of readers beside one writer at a time, across processes.

    Args:
        path: The file; created when it is missing. Its folder must exist.
        schema: The tables that this object uses.
        busy_timeout: Seconds to wait while another process writes, before StorageError.
    """

    def __init__(self, path: str | os.PathLike[str], schema: Schema, *, busy_timeout: float = 30.0) -> None:
        self._path = file_path(path)
        super().__init__(schema, busy_timeout=busy_timeout)

    @property
    def location(self) -> str:
        return str(self._path)

    def _engine(self, connections: int, begin: str) -> Transactions:
        return PreparedEngine(_engine(self._path, self._busy_timeout), begin)

    def _place(self) -> InPlace:
        engine = PreparedEngine(_engine(self._path, 0.0), "BEGIN IMMEDIATE", hurried=True)
        return InPlace(engine, Path(f"{os.path.realpath(self._path)}-wal"))

    def _prepare(self, writer: Transactions) -> None:
        refuse_impossible(self._path)
        assert isinstance(writer, PreparedEngine)
        with writer.driver() as connection:
            _switch_to_wal(connection, self._busy_timeout)

    def _remedy(self, code: str) -> str:
        return file_remedy(code, self._path, self._busy_timeout)


def file_path(path: str | os.PathLike[str]) -> Path:
    """The file, whatever the working directory will be. Raises ConfigError for data that lives in memory."""
    if not os.fspath(path) or ":memory:" in os.fspath(path):
        raise ConfigError(
            f"SQLite needs the path of a file, not {os.fspath(path)!r};"
            " for data that lives in memory use InMemoryStorage()"
        )
    return Path(path).expanduser().absolute()


def file_remedy(code: str, path: Path, busy_timeout: float) -> str:
    """What to do about an error of SQLite on a file, by its name."""
    return _REMEDIES.get(code, "").format(seconds=busy_timeout, folder=path.parent)


_REMEDIES = {
    "SQLITE_BUSY": "; somebody else has been writing for {seconds:g} seconds (busy_timeout): end that, or wait longer",
    "SQLITE_READONLY": "; make the file and the folder {folder} writable, or choose another path",
    "SQLITE_CANTOPEN": "; make the folder {folder} readable and writable, or choose another path",
    "SQLITE_NOTADB": "; the file is something else: move it away, or choose another path",
    "SQLITE_CORRUPT": "; the file is damaged: restore a copy, or save what is readable with"
    " the command .recover of the sqlite3 shell",
    "SQLITE_FULL": "; free some space on the disk",
}


def _engine(path: Path, busy_timeout: float) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        poolclass=NullPool,  # who prepares statements keeps the connections
        connect_args={
            "timeout": busy_timeout,
            "isolation_level": None,  # the driver begins nothing by itself
            "check_same_thread": False,  # threads take turns with it
            "cached_statements": 256,
        },
    )

    def configure(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # what is forgotten must not lie on in unused pages
        # Committed is committed for every process, killed or not. After a power cut the newest commits may be
        # missing, the file stays whole; FULL would wait for the disk at each of a turn's half dozen commits.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # that waits for the disk: see InPlace.checkpoint

    event.listen(engine, "connect", configure)
    return engine


def _switch_to_wal(connection: sqlite3.Connection, busy_timeout: float) -> None:
    """Set the journal mode, which the file remembers. The switch does not wait for a lock by itself."""
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)  # in the writing thread: nobody else waits here


def refuse_impossible(path: Path) -> None:
    """Raises StorageError for a path at which no file can be made."""
    if path.is_dir():
        raise StorageError(f"cannot open {path}: it is a folder; name a file in it, such as {path / 'memory.db'}")
    if not path.parent.is_dir():
        raise StorageError(
            f"cannot open {path}: the folder {path.parent} does not exist; create it, or choose another path"
        )
