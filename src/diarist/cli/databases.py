"""Addresses of databases on the command line: files and URLs, and the storages that open them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from diarist.exceptions import InputError
from diarist.storage.base import SCHEMES, Server, Storage

Kind = Literal["file"] | Server


def kind_of(address: str) -> Kind:
    """Return the kind of database at an address; an address without a scheme is an SQLite file. Raises InputError."""
    scheme, separator, _ = address.partition("://")
    kind = SCHEMES.get(scheme.partition("+")[0]) if separator else "file"
    if kind is None:
        raise InputError(
            f"{scheme}://…: a database is an SQLite file, postgresql://user:password@host/name, "
            "libsql://host?authToken=…, or mongodb://user:password@host/name"
        )
    return kind


def storage_at(address: str, *, new: bool) -> Storage:
    """Return the storage at an address. With ``new``, creates a missing file. Raises InputError."""
    match kind_of(address):
        case "postgresql":
            from diarist.storage.postgres import PostgresStorage

            return PostgresStorage(address)
        case "libsql":
            from diarist.storage.libsql import LibSQLStorage

            return LibSQLStorage(address)
        case "mongodb":
            from diarist.storage.mongodb import MongoDBStorage

            name = urlsplit(address).path.strip("/")
            return MongoDBStorage(address, database=name or "diarist")
        case "file":
            from diarist.storage.sqlite import SQLiteStorage

            check_file(Path(address), new=new)
            return SQLiteStorage(address)


def files_of(address: str) -> list[Path]:
    """Return the resolved paths of a database's files, whether they exist or not; an empty list for a server."""
    if kind_of(address) != "file":
        return []
    path = Path(address).resolve()
    return [path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal"))]


def check_file(path: Path, *, new: bool) -> None:
    """Raise InputError if the file does not exist; with ``new``, if it cannot be created."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a database file")
    if new and not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist")
    if not new and not path.is_file():
        raise InputError(f"the file {path} does not exist")
