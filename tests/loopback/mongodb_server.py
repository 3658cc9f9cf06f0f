"""A small MongoDB: its protocol on a socket of this machine, before dictionaries.

It knows the commands, operators and expressions that diarist uses, by MongoDB's manual, and refuses all others. A
command changes one document at a time, with nothing in between; between two documents others may come.
"""

from __future__ import annotations

import contextlib
import copy
import socketserver
import struct
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Self

import bson
from bson import Int64

from tests.loopback.mongodb_language import DuplicateKey, Unsupported, changed, matches, sort_key

Document = dict[str, Any]
_OP_MSG, _OP_QUERY, _OP_REPLY = 2013, 2004, 1
_WRITES = ("insert", "update", "delete", "findAndModify")


class MongoDBServer:
    """Serves until the block is left; ``url`` is its address.

    ``before_writes_to`` maps a collection to a function that is called once, before the next write to it.
    """

    def __init__(self) -> None:
        self.collections: dict[str, dict[Any, Document]] = {}
        self.unique: dict[str, set[tuple[str, ...]]] = {}
        self.lock = threading.RLock()
        self.writes = 0
        self.writes_left: int | None = None
        self.before_writes_to: dict[str, Callable[[], object]] = {}
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(ConnectionError, struct.error):
                    while outer.serve(self.rfile, self.wfile):
                        pass

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"mongodb://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # The wire

    def serve(self, source: Any, sink: Any) -> bool:
        """Answer one request; False at the end."""
        head = source.read(16)
        if len(head) < 16:
            return False
        length, request_id, _, opcode = struct.unpack("<iiii", head)
        body = source.read(length - 16)
        if opcode == _OP_QUERY:
            end = body.index(b"\0", 4) + 1 + 8
            answer = self.perform(bson.decode(body[end:]))
            payload = struct.pack("<iqii", 8, 0, 0, 1) + bson.encode(answer)
            sink.write(struct.pack("<iiii", 16 + len(payload), 1, request_id, _OP_REPLY) + payload)
            return True
        if opcode != _OP_MSG:
            raise Unsupported(f"opcode {opcode}")
        payload = struct.pack("<I", 0) + b"\0" + bson.encode(self.perform(_command(body)))
        sink.write(struct.pack("<iiii", 16 + len(payload), 1, request_id, _OP_MSG) + payload)
        return True

    def perform(self, command: Document) -> Document:
        name = next(iter(command))
        job = getattr(self, f"_do_{name.lower()}", None)
        try:
            if job is None:
                raise Unsupported(f"command {name}")
            if name in _WRITES:
                self._admit()
            if isinstance(collection := command[name], str):
                command[name] = f"{command['$db']}.{collection}"
                if name in _WRITES and (meanwhile := self.before_writes_to.pop(command[name], None)) is not None:
                    meanwhile()
            return {**job(command), "ok": 1.0}
        except Unsupported as error:
            return {"ok": 0.0, "errmsg": f"not supported here: {error}", "code": 59}
        except DuplicateKey as error:
            return {"ok": 0.0, "errmsg": str(error), "code": 11000}

    def _admit(self) -> None:
        """Count a write, unless as many as are left (``writes_left``) are used up: as if the client had been killed."""
        with self.lock:
            if self.writes_left is not None:
                if not self.writes_left:
                    raise Unsupported("any more writes")
                self.writes_left -= 1
            self.writes += 1

    # Commands

    def _do_hello(self, _: Document) -> Document:
        limits = {"maxBsonObjectSize": 16 * 2**20, "maxMessageSizeBytes": 48_000_000, "maxWriteBatchSize": 100_000}
        versions = {"minWireVersion": 0, "maxWireVersion": 21}
        return {"helloOk": True, "isWritablePrimary": True, "ismaster": True, **limits, **versions}

    _do_ismaster = _do_hello

    def _do_ping(self, _: Document) -> Document:
        return {}

    _do_endsessions = _do_killcursors = _do_ping

    def _do_createindexes(self, command: Document) -> Document:
        for index in command["indexes"]:
            if index.get("unique"):
                with self.lock:
                    self.unique.setdefault(command["createIndexes"], set()).add(tuple(index["key"]))
        return {}

    def _do_insert(self, command: Document) -> Document:
        count, errors = 0, []
        for number, document in enumerate(command["documents"]):
            try:
                self._put(command["insert"], document, None)
                count += 1
            except DuplicateKey as error:
                errors.append({"index": number, "code": 11000, "errmsg": str(error)})
                break
        return {"n": count, **({"writeErrors": errors} if errors else {})}

    def _do_update(self, command: Document) -> Document:
        matched, upserted, errors = 0, [], []
        for number, one in enumerate(command["updates"]):
            try:
                count, made = self._update(command["update"], one)
            except DuplicateKey as error:
                errors.append({"index": number, "code": 11000, "errmsg": str(error)})
                break
            matched += count
            upserted += [] if made is None else [{"index": number, "_id": made["_id"]}]
        found: Document = {"n": matched + len(upserted), "nModified": matched}
        return found | ({"upserted": upserted} if upserted else {}) | ({"writeErrors": errors} if errors else {})

    def _update(self, collection: str, one: Document) -> tuple[int, Document | None]:
        count = 0
        for id in self._ids(collection, one["q"]):
            with self.lock:
                old = self.collections[collection].get(id)
                if old is None or not matches(old, one["q"], _now()):
                    continue
                self._put(collection, changed(old, one["u"], _now(), inserting=False), old)
            count += 1
            if not one.get("multi"):
                return count, None
        if count or not one.get("upsert"):
            return count, None
        return 0, self._upsert(collection, one["q"], one["u"])

    def _upsert(self, collection: str, query: Document, update: Any) -> Document:
        if "$expr" in str(query):
            raise Unsupported("$expr in the query of an upsert, as in MongoDB itself")
        base = {name: value for name, value in query.items() if not name.startswith("$") and not _has_operators(value)}
        new = changed(base, update, _now(), inserting=True)
        new.setdefault("_id", bson.ObjectId())
        self._put(collection, new, None)
        return new

    def _do_delete(self, command: Document) -> Document:
        count = 0
        for one in command["deletes"]:
            for id in self._ids(command["delete"], one["q"]):
                with self.lock:
                    rows = self.collections[command["delete"]]
                    if id in rows and matches(rows[id], one["q"], _now()):
                        del rows[id]
                        count += 1
                if one["limit"] == 1 and count:
                    break
        return {"n": count}

    def _do_findandmodify(self, command: Document) -> Document:
        collection, query = command["findAndModify"], command["query"]
        for id in self._ids(collection, query):
            with self.lock:
                old = self.collections[collection].get(id)
                if old is None or not matches(old, query, _now()):
                    continue
                if command.get("remove"):
                    del self.collections[collection][id]
                    return {"value": old}
                new = changed(old, command["update"], _now(), inserting=False)
                self._put(collection, new, old)
            return {"value": new if command.get("new") else old}
        if not command.get("upsert"):
            return {"value": None}
        return {"value": self._upsert(collection, query, command["update"])}

    def _do_find(self, command: Document) -> Document:
        rows = self._rows(command["find"], command.get("filter", {}))
        for name, direction in reversed(command.get("sort", {}).items()):
            rows.sort(key=lambda row: sort_key(row.get(name)), reverse=direction < 0)
        if limit := command.get("limit"):
            rows = rows[:limit]
        return {"cursor": {"firstBatch": rows, "id": Int64(0), "ns": command["find"]}}

    def _do_aggregate(self, command: Document) -> Document:
        match command["pipeline"]:
            case [{"$match": query}, {"$group": {"_id": 1, "n": {"$sum": 1}}}]:
                count = len(self._rows(command["aggregate"], query))
            case other:
                raise Unsupported(f"pipeline {other}")
        batch = [{"_id": 1, "n": count}] if count else []
        return {"cursor": {"firstBatch": batch, "id": Int64(0), "ns": command["aggregate"]}}

    # Documents

    def _rows(self, collection: str, query: Document) -> list[Document]:
        with self.lock:
            rows = list(self.collections.get(collection, {}).values())
        return [row for row in rows if matches(row, query, _now())]

    def _ids(self, collection: str, query: Document) -> list[Any]:
        return [row["_id"] for row in self._rows(collection, query)]

    def _put(self, collection: str, new: Document, old: Document | None) -> None:
        with self.lock:
            rows = self.collections.setdefault(collection, {})
            if old is None and new["_id"] in rows:
                raise DuplicateKey(f"E11000 duplicate key error: {collection} _id {new['_id']!r}")
            for fields in self.unique.get(collection, set()):
                key = [new.get(field) for field in fields]
                if any(key == [row.get(f) for f in fields] and row["_id"] != new["_id"] for row in rows.values()):
                    raise DuplicateKey(f"E11000 duplicate key error: {collection} {fields} {key}")
            rows[new["_id"]] = copy.deepcopy(new)


def _command(body: bytes) -> Document:
    """The command of an OP_MSG, with its sequences of documents."""
    command: Document = {}
    sequences: Document = {}
    place = 4
    while place < len(body):
        kind, place = body[place], place + 1
        (size,) = struct.unpack_from("<i", body, place)
        section = body[place : place + size]
        place += size
        if kind == 0:
            command = bson.decode(section)
        else:
            end = section.index(b"\0", 4)
            sequences[section[4:end].decode()] = bson.decode_all(section[end + 1 :])
    return {**command, **sequences}


def _has_operators(value: Any) -> bool:
    return isinstance(value, dict) and any(name.startswith("$") for name in value)


def _now() -> datetime:
    moment = time.time_ns() // 1_000_000
    return datetime.fromtimestamp(moment / 1000, UTC)
