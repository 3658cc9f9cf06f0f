"""Resources and working memories in MongoDB: one document each, replaced if it has the expected version."""

from __future__ import annotations

from typing import Any

from pymongo.errors import DuplicateKeyError

from diarist.checks import check_whole
from diarist.exceptions import ConflictError
from diarist.storage.codec import (
    OF_RESOURCE,
    after_resource,
    decode_resource,
    decode_working_memory,
    encode_resource,
    encode_working_memory,
    page_of_resources,
)
from diarist.storage.mongodb.client import NOW, Db, literals
from diarist.storage.mongodb.logs import HEADS
from diarist.storage.records import Page, Resource, WorkingMemory

_BEHIND = OF_RESOURCE[:-1] + chr(ord(OF_RESOURCE[-1]) + 1)
_RESOURCES, _MEMORIES = "diarist_resources", "diarist_working_memories"


def list_resources(db: Db, *, limit: int = 100, cursor: str | None = None) -> Page[str]:
    """Return a page of resource ids, merged from one page of each of the three collections."""
    limit, after = check_whole("limit", limit, least=1), after_resource(cursor)
    ids: set[str] = set()
    for collection, prefix in ((_RESOURCES, ""), (_MEMORIES, OF_RESOURCE), (HEADS, OF_RESOURCE)):
        beyond = {"$gte": prefix} if after is None else {"$gt": prefix + after}
        wanted = {"_id": {**beyond, **({"$lt": _BEHIND} if prefix else {})}, "version": {"$gt": 0}}
        found = db[collection].find(wanted, {"_id": 1}).sort("_id", 1).limit(min(limit, 2**31 - 2) + 1)
        ids.update(doc["_id"].removeprefix(prefix) for doc in found)
    return page_of_resources(sorted(ids)[: limit + 1], limit)


def get_resource(db: Db, resource_id: str) -> Resource:
    found = db[_RESOURCES].find_one({"_id": resource_id})
    return Resource(id=resource_id) if found is None else decode_resource(resource_id, found["version"], found["body"])


def save_resource(db: Db, resource: Resource) -> Resource:
    body = encode_resource(resource)
    if not _save(db, _RESOURCES, resource.id, resource.version, body):
        raise ConflictError(f"resource {resource.id!r} no longer has version {resource.version}")
    return decode_resource(resource.id, resource.version + 1, body)


def get_working_memory(db: Db, key: str) -> WorkingMemory:
    found = db[_MEMORIES].find_one({"_id": key})
    return WorkingMemory(key=key) if found is None else decode_working_memory(key, found["version"], found["body"])


def save_working_memory(db: Db, memory: WorkingMemory) -> WorkingMemory:
    body = encode_working_memory(memory)
    if not _save(db, _MEMORIES, memory.key, memory.version, body):
        raise ConflictError(f"the working memory of {memory.key!r} no longer has version {memory.version}")
    return decode_working_memory(memory.key, memory.version + 1, body)


def delete_working_memory(db: Db, key: str, until: int) -> None:
    """Delete a working memory that was created at or before ``until`` (microseconds since 1970)."""
    db[_MEMORIES].delete_one({"_id": key, "born": {"$lte": until}})


def _save(db: Db, collection: str, key: str, version: int, body: str) -> bool:
    expected: dict[str, Any] = {"_id": key, "version": version}
    new = {"version": version + 1, "body": body}
    if version:
        return db[collection].update_one(expected, {"$set": new}).matched_count == 1
    try:
        # This can only insert. A stored document has a version above 0, so the filter does not match it, and MongoDB
        # refuses to insert its id again.
        db[collection].update_one(expected, [{"$set": {**literals(new), "born": NOW}}], upsert=True)
    except DuplicateKeyError:
        return False
    return True
