"""Connection to a MongoDB server, and expressions of its aggregation language.

A whole call runs in one thread, so callers may use any event loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

from bson.errors import BSONError
from pymongo import ASCENDING, MongoClient
from pymongo.database import Database
from pymongo.errors import (
    ConfigurationError,
    DocumentTooLarge,
    DuplicateKeyError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)
from pymongo.read_concern import ReadConcern
from pymongo.uri_parser import parse_uri
from pymongo.write_concern import WriteConcern

from diarist.concurrency import wait_with_grace
from diarist.exceptions import ConfigError, InputError, SchemaError, StorageError
from diarist.storage.codec import ttl_micros

P = ParamSpec("P")
R = TypeVar("R")
Document = dict[str, Any]
Db = Database[Document]

VERSION = 3
"""Version of the documents that this code reads and writes."""

_TOO_LARGE = (10334, 17419)
"""The server's error codes for a document that is too large."""

_INDEXES: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("threads", ("created_at", "_id"), False),
    ("threads", ("resource_id", "created_at", "_id"), False),
    ("runs", ("thread_id", "token"), False),
    ("messages", ("epoch", "seq"), True),
    ("messages", ("epoch", "id"), True),
    ("messages", ("epoch", "run"), False),
    ("forgotten", ("epoch", "id"), True),
    ("log_history", ("epoch", "generation"), True),
    ("events", ("epoch", "seq"), True),
)


class Server:
    """The clients of one storage: one per process, so a forked process has its own."""

    THREADS = 8

    def __init__(self, url: str, database: str, timeout: float) -> None:
        self._url, self._timeout = url, timeout
        try:
            parsed = parse_uri(url, warn=False) if "+srv" not in url.partition("://")[0] else None
        except (PyMongoError, ValueError) as error:
            raise ConfigError(f"not a URL of MongoDB; write mongodb://user:password@host:27017: {error}") from error
        self.name = (parsed or {}).get("database") or database
        hosts = [f"{host}:{port}" for host, port in (parsed or {}).get("nodelist", [])]
        self.location = f"mongodb://{','.join(hosts) or url.rpartition('@')[2].split('/')[0]}/{self.name}"
        self._open: _Client | None = None
        self._lock = threading.Lock()

    async def run(self, work: Callable[Concatenate[Db, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run ``work`` in another thread. It completes even if the caller is cancelled, which waits for it for a
        while."""
        while True:
            with self._lock:
                opened = self._open
                if opened is None or opened.pid != os.getpid():
                    self._open = opened = _Client(self._url, self.name, self._timeout)
                    weakref.finalize(self, opened.close, wait=False)
            try:
                future = opened.threads.submit(self._ready, opened, work, *args, **kwargs)
            except RuntimeError:
                if opened.closed:
                    continue  # another task closed it between opening and submitting
                raise
            result = asyncio.wrap_future(future)
            try:
                return await asyncio.shield(result)
            except asyncio.CancelledError:
                await wait_with_grace(result, hurried=True)  # the caller may look at once for what the work has done
                if result.done() and not result.cancelled():
                    result.exception()  # else asyncio would log it as never retrieved
                raise

    async def close(self) -> None:
        with self._lock:
            opened, self._open = self._open, None
        if opened is not None:
            await asyncio.to_thread(opened.close)

    def _ready(self, opened: _Client, work: Callable[Concatenate[Db, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        doing = work.__name__.strip("_").replace("_", " ")
        try:
            with opened.preparing:
                if not opened.prepared:
                    _prepare(opened.database, self.location)
                    opened.prepared = True
            return work(opened.database, *args, **kwargs)
        except UnicodeEncodeError as error:
            raise InputError(f"cannot {doing}: {error.object!r} is not valid Unicode") from error
        except (PyMongoError, BSONError) as error:
            if isinstance(error, DocumentTooLarge) or getattr(error, "code", None) in _TOO_LARGE:
                raise InputError(f"cannot {doing}: MongoDB takes at most 16 MB at once: {error}") from error
            raise StorageError(f"cannot {doing} in {self.location}: {_explained(error)}") from error


class _Client:
    """One process's client and its threads. Holds no reference to its owner, so that it can be garbage-collected."""

    def __init__(self, url: str, name: str, timeout: float) -> None:
        self.pid = os.getpid()
        self.closed = self.prepared = False
        self.preparing = threading.Lock()
        self.threads = ThreadPoolExecutor(Server.THREADS, thread_name_prefix="diarist-mongodb")
        self.client: MongoClient[Document] = MongoClient(
            url, serverSelectionTimeoutMS=int(timeout * 1000), appname="diarist", tz_aware=True
        )
        self.database = self.client.get_database(
            name, write_concern=WriteConcern("majority"), read_concern=ReadConcern("majority")
        )

    def close(self, *, wait: bool = True) -> None:
        """Reject new work; with ``wait``, block until running work is done."""
        if self.pid == os.getpid():
            self.closed = True
            self.threads.shutdown(wait=wait)
            self.client.close()


def open_database(db: Db) -> None:
    """Do nothing: running it opens the database."""


def _prepare(db: Db, location: str) -> None:
    versions = db["diarist_schema"]
    found = versions.find_one({"_id": "storage"})
    version = 0 if found is None else found["version"]
    if version > VERSION:
        raise SchemaError(
            f"{location} has version {version} of the storage collections, but this diarist supports version"
            f" {VERSION}: upgrade diarist, or use another database"
        )
    if version == VERSION:
        return
    for name, keys, unique in _INDEXES:
        db[f"diarist_{name}"].create_index([(key, ASCENDING) for key in keys], unique=unique)
    # Marks deleted logs; see logs.py. A mark expires when no save that began before the deletion can be running.
    db["diarist_logs"].create_index("mark_until", expireAfterSeconds=0)
    older = {"_id": "storage", "version": {"$lt": VERSION}}
    with suppress(DuplicateKeyError):  # another process was faster
        versions.update_one(older, {"$set": {"version": VERSION}}, upsert=True)


def _explained(error: Exception) -> str:
    words = str(error).partition(", Timeout:")[0]
    match error:
        case ServerSelectionTimeoutError():
            return f"{words}; start MongoDB there, or correct the URL"
        case OperationFailure(code=13 | 18):
            return f"{words}; correct the user or the password in the URL, or grant the user readWrite"
        case ConfigurationError():
            return f"{words}; correct the URL"
        case _:
            return words


# --- expressions -------------------------------------------------------------------------------------------
# Values are passed as literals, since a string may begin with a dollar sign.

NOW: Document = {"$multiply": [{"$toLong": "$$NOW"}, 1000]}
"""The server's clock, in microseconds since 1970, with a resolution of one millisecond."""


def literal(value: Any) -> Document:
    return {"$literal": value}


def literals(values: Mapping[str, Any]) -> Document:
    return {name: literal(value) for name, value in values.items()}


def after(ttl: float) -> Document:
    """Return the expression for the time ``ttl`` seconds from now. Raises InputError for an invalid duration."""
    return {"$add": [NOW, literal(ttl_micros(ttl))]}


def raised(name: str) -> Document:
    """Return the expression for a field's number, or zero, plus one."""
    return {"$add": [{"$ifNull": [f"${name}", 0]}, 1]}


def appended(name: str, item: Any) -> Document:
    """Return the expression for a field's list with ``item`` appended."""
    return {"$concatArrays": [f"${name}", [item]]}


def merged(*parts: Any) -> Document:
    """Return the expression for several objects merged into one, which replaces the field's value."""
    return {"$mergeObjects": list(parts)}
