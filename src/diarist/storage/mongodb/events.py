"""Event logs in MongoDB: a head per key, with the counter and the newest events, and a document per earlier event.

An event is numbered and added in one change of the head. The next process that reads the head moves the event into a
document of its own.
"""

from __future__ import annotations

from contextlib import suppress

from bson import ObjectId
from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from diarist.checks import check_limit, check_place
from diarist.storage.codec import at_micros, from_json
from diarist.storage.mongodb.client import NOW, Db, Document, literal, raised
from diarist.storage.records import Event

_HEADS, _EVENTS = "diarist_event_logs", "diarist_events"


def append_event(db: Db, key: str, type: str, data: str, keep: int) -> Event:
    event = {"seq": raised("last_seq"), "type": literal(type), "data": literal(data), "created_at": NOW}
    values: Document = {
        "epoch": {"$ifNull": ["$epoch", literal(ObjectId())]},
        "born": {"$ifNull": ["$born", NOW]},
        "cut": {"$ifNull": ["$cut", 0]},
        "last_seq": raised("last_seq"),
        "newest": {"$concatArrays": [{"$ifNull": ["$newest", []]}, [event]]},
    }
    head: Document | None = None
    while head is None:
        with suppress(DuplicateKeyError):  # two processes inserted it: the second one finds it
            head = db[_HEADS].find_one_and_update(
                {"_id": key}, [{"$set": values}], upsert=True, return_document=ReturnDocument.AFTER
            )
    _move(db, head)
    cut = head["last_seq"] - keep
    if cut > 0:
        db[_HEADS].update_one({"_id": key, "epoch": head["epoch"]}, {"$max": {"cut": cut}})
        db[_EVENTS].delete_many({"epoch": head["epoch"], "seq": {"$lte": cut}})
    return _event(key, head["newest"][-1])


def list_events(db: Db, key: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
    limit = check_limit(limit)
    check_place(after=after)
    head = db[_HEADS].find_one({"_id": key})
    if head is None or not limit:
        return []
    # Read the head first: an event that is moved later is found in its own document. Leave out events newer than this
    # head, since events before them may be missing.
    first = max(after, head["cut"])
    place = {"epoch": head["epoch"], "seq": {"$gt": first, "$lte": head["last_seq"]}}
    found = {row["seq"]: row for row in head["newest"] if row["seq"] > first}
    found |= {row["seq"]: row for row in db[_EVENTS].find(place).sort("seq").limit(min(limit, 2**31 - 1))}
    return [_event(key, found[seq]) for seq in sorted(found)[:limit]]


def delete_events(db: Db, key: str) -> int:
    head = db[_HEADS].find_one({"_id": key})
    if head is None:
        return 0
    _move(db, head)
    here: Document = {"epoch": head["epoch"], "seq": {"$lte": head["last_seq"]}}
    count = db[_EVENTS].count_documents({**here, "seq": {**here["seq"], "$gt": head["cut"]}})
    db[_HEADS].update_one({"_id": key, "epoch": head["epoch"]}, {"$max": {"cut": head["last_seq"]}})
    db[_EVENTS].delete_many(here)
    return count


def delete_event_log(db: Db, key: str, until: int) -> None:
    """Delete a key's events and counter if they were created at or before ``until`` (microseconds since 1970)."""
    head = db[_HEADS].find_one_and_delete({"_id": key, "born": {"$lte": until}})
    if head is not None:
        db[_EVENTS].delete_many({"epoch": head["epoch"]})


def _move(db: Db, head: Document) -> None:
    """Move the newest events into documents of their own. With an outdated head, it adds nothing."""
    for row in head["newest"]:
        if row["seq"] > head["cut"]:
            place = {"epoch": head["epoch"], "seq": row["seq"]}
            with suppress(DuplicateKeyError):  # another process has just moved it
                db[_EVENTS].update_one(place, {"$setOnInsert": {**row, "key": head["_id"]}}, upsert=True)
    if head["newest"]:
        last = head["newest"][-1]["seq"]
        db[_HEADS].update_one(
            {"_id": head["_id"], "epoch": head["epoch"]}, {"$pull": {"newest": {"seq": {"$lte": last}}}}
        )


def _event(key: str, row: Document) -> Event:
    data = from_json(row["data"])
    return Event(key=key, seq=row["seq"], type=row["type"], data=data, created_at=at_micros(row["created_at"]))
