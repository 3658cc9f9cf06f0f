"""Observation logs in MongoDB: a head per key, and a document for the last value of each earlier generation.

Two invariants involve several documents:

- When a generation rises, the change that saves the head also keeps the replaced value in the head. Later, the value is
  moved to a document of its own.
- No log covers deleted messages. After deleting messages, a process raises the mark of each log that may cover them.
  A save reads the mark before it looks for its messages, and fails if the mark has changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from bson import ObjectId
from pymongo.errors import DuplicateKeyError

from diarist.exceptions import ConflictError
from diarist.storage.codec import decode_log, encode_log
from diarist.storage.mongodb.client import NOW, Db, Document, literal, literals, raised
from diarist.storage.records import ObservationLog, RowRef

HEADS, _HISTORY = "diarist_logs", "diarist_log_history"
MARK_LASTS = timedelta(days=1)
"""Lifetime of the mark of a deleted log, far longer than any save takes."""

IsStored = Callable[[Db, RowRef], bool]


def get_log(db: Db, key: str, *, after: int = 0) -> ObservationLog | None:
    found = db[HEADS].find_one({"_id": key, "version": {"$gt": after}})
    return None if found is None else decode_log(found["body"], key)


def save_log(
    db: Db, log: ObservationLog, expected_version: int, rows: Sequence[RowRef], is_stored: IsStored
) -> ObservationLog:
    saved = replace(log, version=expected_version + 1)
    body = encode_log(saved)
    while True:
        head = db[HEADS].find_one({"_id": log.key})  # before the messages: see above
        for row in rows:
            if not is_stored(db, row):
                raise ConflictError(f"message {row.id!r} of thread {row.thread_id!r} is gone")
        version, mark = (0, 0) if head is None else (head["version"], head["mark"])
        if version != expected_version:
            raise ConflictError(f"log {log.key!r} has version {version}, not {expected_version}")
        _move(db, head)
        values: Document = literals({"version": saved.version, "generation": saved.generation, "body": body})
        if version == 0:
            values |= {"born": NOW, "epoch": literal(ObjectId()), "mark_until": literal(None)}
        elif head is not None and saved.generation > head["generation"]:
            values["outgoing"] = literal({"generation": head["generation"], "body": head["body"]})
        unchanged = {"_id": log.key, "version": version, "mark": mark, "outgoing": None}
        with suppress(DuplicateKeyError):
            done = db[HEADS].update_one(unchanged, [{"$set": values}], upsert=head is None)
            if done.matched_count == 1 or done.upserted_id is not None:
                _move(db, db[HEADS].find_one({"_id": log.key}))
                return saved
        # The head has changed since it was read: start over.


def list_generations(db: Db, key: str) -> list[ObservationLog]:
    head = db[HEADS].find_one({"_id": key, "version": {"$gt": 0}})
    if head is None:
        return []
    _move(db, head)
    rows = db[_HISTORY].find({"epoch": head["epoch"]}).sort("generation")
    return [decode_log(row["body"], key) for row in rows]


def rewrite_generation(db: Db, log: ObservationLog, *, expected: ObservationLog) -> bool:
    head = db[HEADS].find_one({"_id": log.key, "version": {"$gt": 0}})
    if head is None:
        return False
    _move(db, head)
    stored = db[_HISTORY].find_one({"epoch": head["epoch"], "generation": log.generation})
    if stored is None or decode_log(stored["body"], log.key) != expected:
        return False
    place = {"_id": stored["_id"], "body": stored["body"]}
    return db[_HISTORY].update_one(place, {"$set": {"body": encode_log(log)}}).matched_count == 1


def delete_generations(db: Db, key: str) -> int:
    head = db[HEADS].find_one({"_id": key, "version": {"$gt": 0}})
    if head is None:
        return 0
    _move(db, head)
    # A new epoch hides values that another process still moves into the old one.
    db[HEADS].update_one({"_id": key, "epoch": head["epoch"]}, {"$set": {"epoch": ObjectId()}})
    return db[_HISTORY].delete_many({"epoch": head["epoch"]}).deleted_count


def delete_log(db: Db, key: str) -> bool:
    head = db[HEADS].find_one_and_delete({"_id": key, "version": {"$gt": 0}})
    if head is not None:
        db[_HISTORY].delete_many({"epoch": head["epoch"]})
    return head is not None


def delete_log_of_thread(db: Db, key: str, until: int) -> None:
    """Delete a log that was created at or before ``until`` (microseconds since 1970). Marks it, so that running saves
    fail."""
    head = db[HEADS].find_one({"_id": key, "version": {"$gt": 0}, "born": {"$lte": until}})
    try:
        gone: Document = {**literals(_NOTHING), "mark": raised("mark"), "mark_until": _MARK_UNTIL}
        db[HEADS].update_one({"_id": key, "born": {"$lte": until}}, [{"$set": gone}], upsert=True)
    except DuplicateKeyError:
        return  # a newer log with the same key
    if head is not None:
        db[_HISTORY].delete_many({"epoch": head["epoch"]})


def mark_removal(db: Db, *keys: str) -> None:
    """Raise the marks of logs that may cover deleted messages, so that running saves check their messages again."""
    kept = {name: {"$ifNull": [f"${name}", literal(value)]} for name, value in _NOTHING.items()}
    is_log = {"$gt": [{"$ifNull": ["$version", 0]}, 0]}
    until = {"$cond": [is_log, literal(None), _MARK_UNTIL]}
    changes = {**kept, "mark": raised("mark"), "mark_until": until}
    for key in keys:
        while True:
            with suppress(DuplicateKeyError):  # two processes inserted it: the second one finds it
                db[HEADS].update_one({"_id": key}, [{"$set": changes}], upsert=True)
                break


_NOTHING: Document = {"version": 0, "generation": 0, "body": None, "outgoing": None, "born": 0, "epoch": None}
"""The head that remains of a deleted log, to keep its mark."""
_MARK_UNTIL: Document = {"$add": ["$$NOW", int(MARK_LASTS.total_seconds() * 1000)]}


def _move(db: Db, head: Document | None) -> None:
    """Move the replaced value from the head into a document of its own."""
    if head is None or (outgoing := head.get("outgoing")) is None:
        return
    place: dict[str, Any] = {"epoch": head["epoch"], "generation": outgoing["generation"]}
    with suppress(DuplicateKeyError):  # another process has just moved it
        db[_HISTORY].update_one(place, {"$setOnInsert": {"body": outgoing["body"], "key": head["_id"]}}, upsert=True)
    db[HEADS].update_one(
        {"_id": head["_id"], "epoch": head["epoch"], "version": head["version"]}, {"$set": {"outgoing": None}}
    )
