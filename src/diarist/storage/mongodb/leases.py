"""Leases in MongoDB: one document each. Releasing a lease keeps its document, so that its token keeps rising."""

from __future__ import annotations

from typing import Any

from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from diarist.checks import checked
from diarist.storage.mongodb.client import NOW, Db, after, literal, raised
from diarist.storage.records import Lease

_NAME = "diarist_leases"


def acquire_lease(db: Db, name: str, owner: str, *, ttl: float) -> Lease | None:
    checked(name, "the name of a lease")
    checked(owner, "the owner of a lease")
    free = {"_id": name, "$or": [{"owner": owner}, {"$expr": {"$lte": ["$expires_at", NOW]}}]}
    claim = [{"$set": {"owner": literal(owner), "token": raised("token"), "expires_at": after(ttl)}}]
    found = db[_NAME].find_one_and_update(free, claim, return_document=ReturnDocument.AFTER)
    if found is not None:
        return Lease(name=name, owner=owner, token=found["token"])
    try:
        # No document has the token 0, so this inserts a document or fails.
        db[_NAME].update_one({"_id": name, "token": 0}, claim, upsert=True)
    except DuplicateKeyError:
        return None  # the lease exists and is held
    return Lease(name=name, owner=owner, token=1)


def renew_lease(db: Db, lease: Lease, *, ttl: float) -> bool:
    return db[_NAME].update_one(_held(lease), [{"$set": {"expires_at": after(ttl)}}]).matched_count == 1


def release_lease(db: Db, lease: Lease) -> None:
    db[_NAME].update_one(_held(lease), {"$set": {"expires_at": 0}})


def delete_lease(db: Db, name: str) -> bool:
    return db[_NAME].delete_one({"_id": name}).deleted_count > 0


def _held(lease: Lease) -> dict[str, Any]:
    valid = {"$expr": {"$gt": ["$expires_at", NOW]}}
    return {"_id": lease.name, "owner": lease.owner, "token": lease.token, **valid}
