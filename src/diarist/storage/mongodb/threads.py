"""Threads in MongoDB: one document each, with its message counter and the runs that are live or not fully ended.

Every decision about a thread is one change of its document. Then the same process updates the other documents; if it
is killed, the next process that reads the thread updates them. So each update may run twice.

A deleted thread has ``deleted_at`` until everything that belongs to it is deleted. Messages belong to an ``epoch`` of
the thread, so a new thread with the same id never shows late writes to the old thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bson import ObjectId
from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from diarist.checks import LARGEST, check_whole, checked
from diarist.exceptions import ConflictError, NotFoundError
from diarist.messages import Json
from diarist.storage.codec import (
    ThreadRow,
    after_thread,
    canonical,
    changed_thread,
    decode_thread,
    encode_thread,
    from_json,
    page_of_threads,
    to_json,
)
from diarist.storage.mongodb.client import NOW, Db, Document, literal, literals, raised
from diarist.storage.mongodb.events import delete_event_log
from diarist.storage.mongodb.logs import delete_log_of_thread, mark_removal
from diarist.storage.mongodb.resources import delete_working_memory
from diarist.storage.records import Page, Thread

THREADS, RUNS, MESSAGES = "diarist_threads", "diarist_runs", "diarist_messages"
FORGOTTEN = "diarist_forgotten"
_ALL: Document = {"deleted_at": None}
_VISIBLE: Document = {"created_by": None, **_ALL}


def create_thread(db: Db, thread: Thread) -> Thread:
    if present(db, thread.id) is not None or not insert_thread(db, thread, {}):
        raise ConflictError(f"thread {thread.id!r} exists already")
    return _thread(_existing(db, thread.id))


def insert_thread(db: Db, thread: Thread, more: Mapping[str, Any]) -> bool:
    """Insert a thread. Returns False if it exists. ``more`` has expressions for additional or other fields."""
    row = encode_thread(thread)
    times = {name: NOW if row[name] is None else literal(row[name]) for name in ("created_at", "updated_at")}
    fields: Document = {
        **{"resource_id": thread.resource_id, "title": thread.title, **_metadata_fields(row["metadata"])},
        **{"last_seq": 0, "token": 0, "rev": 0, "edit": 0, "created_by": None, "deleted_at": None},
        **{"live": None, "ended": [], "jobs": [], "keeps_runs": False},
    }
    try:
        place = {"_id": thread.id, "epoch": ObjectId()}  # no document has this epoch, so this only inserts
        db[THREADS].update_one(place, [{"$set": {**literals(fields), **times, **more}}], upsert=True)
    except DuplicateKeyError:
        return False
    return True


def get_thread(db: Db, thread_id: str, *, hidden: bool = False) -> Thread | None:
    doc = db[THREADS].find_one({"_id": thread_id, **(_ALL if hidden else _VISIBLE)})
    return None if doc is None else _thread(doc)


def update_thread(
    db: Db,
    thread_id: str,
    *,
    title: str | None = None,
    metadata: Mapping[str, Json] | None = None,
    expected_title: str | None = None,
) -> Thread:
    checked("" if title is None else title, f"the title of thread {thread_id!r}")
    while True:
        doc = _existing(db, thread_id)
        row = changed_thread(_row(doc), title, metadata, expected_title)
        values = {"title": row.title, **_metadata_fields(row.metadata)}
        saved = db[THREADS].find_one_and_update(
            {"_id": thread_id, "epoch": doc["epoch"], "edit": doc["edit"], **_VISIBLE},
            [{"$set": {**literals(values), "updated_at": NOW, "edit": raised("edit")}}],
            return_document=ReturnDocument.AFTER,
        )
        if saved is not None:  # otherwise another process has changed it: try again
            return _thread(saved)


def list_threads(
    db: Db,
    *,
    resource_id: str | None = None,
    metadata: Mapping[str, Json] | None = None,
    limit: int = 100,
    cursor: str | None = None,
    newest_first: bool = True,
    hidden: bool = False,
) -> Page[Thread]:
    limit = check_whole("limit", limit, least=1)
    order, beyond = (-1, "$lt") if newest_first else (1, "$gt")
    wanted: Document = dict(_ALL if hidden else _VISIBLE)
    if resource_id is not None:
        wanted["resource_id"] = resource_id
    if metadata:
        wanted["meta"] = {"$all": [_mark(key, value) for key, value in metadata.items()]}
    if cursor is not None:
        created_at, thread_id = after_thread(cursor, newest_first=newest_first)
        same_time = {"created_at": created_at, "_id": {beyond: thread_id}}
        wanted["$or"] = [{"created_at": {beyond: created_at}}, same_time]
    found = db[THREADS].find(wanted).sort([("created_at", order), ("_id", order)]).limit(most(limit, 1))
    return page_of_threads([_row(doc) for doc in found], limit, newest_first=newest_first)


def delete_thread(db: Db, thread_id: str) -> bool:
    doc = db[THREADS].find_one_and_update(
        {"_id": thread_id, "deleted_at": None},
        [{"$set": {"deleted_at": NOW, "keeps_runs": literal(False)}}],
        return_document=ReturnDocument.AFTER,
    )
    if doc is not None:
        remove_thread(db, doc)
        return True
    if present(db, thread_id) is None:
        _remove_records(db, thread_id, LARGEST)
        db[RUNS].delete_many({"thread_id": thread_id})
    return False


def present(db: Db, thread_id: str) -> Document | None:
    """Return the document of a thread. If it is marked as deleted, finish the deletion first."""
    while (doc := db[THREADS].find_one({"_id": thread_id})) is not None:
        if doc["deleted_at"] is None:
            return doc
        remove_thread(db, doc)
    return None


def remove_thread(db: Db, doc: Document) -> None:
    """Delete everything that belongs to a thread marked as deleted, then its document."""
    thread_id, until = doc["_id"], doc["deleted_at"]
    if doc["keeps_runs"]:
        for run in doc["ended"]:
            note_end(db, doc, run)
    else:
        db[RUNS].delete_many({"thread_id": thread_id, "born": {"$lte": until}})
    db[MESSAGES].delete_many({"epoch": doc["epoch"]})
    db[FORGOTTEN].delete_many({"epoch": doc["epoch"]})
    _remove_records(db, thread_id, until)
    mark_removal(db, f"resource:{doc['resource_id']}")
    db[THREADS].delete_one({"_id": thread_id, "epoch": doc["epoch"]})


def note_end(db: Db, doc: Document, run: Document) -> None:
    """Copy a run's final state from the thread's document to the run's own document."""
    values = {"thread_id": doc["_id"], "resource_id": doc["resource_id"]}
    values |= {name: run[name] for name in ("token", "guarded", "state")}
    born = {"$ifNull": ["$born", NOW]}
    db[RUNS].update_one({"_id": run["id"]}, [{"$set": {**literals(values), "born": born}}], upsert=True)


def most(limit: int, more: int = 0) -> int:
    """Return a limit for the server, for which zero means no limit."""
    return limit + more if limit < 2**31 - 2 else 0


def _remove_records(db: Db, thread_id: str, until: int) -> None:
    key = f"thread:{thread_id}"
    delete_working_memory(db, key, until)
    delete_log_of_thread(db, key, until)
    delete_event_log(db, key, until)


def _existing(db: Db, thread_id: str) -> Document:
    doc = db[THREADS].find_one({"_id": thread_id, **_VISIBLE})
    if doc is None:
        raise NotFoundError(f"there is no thread {thread_id!r}")
    return doc


def _metadata_fields(metadata: str) -> Document:
    stored: dict[str, Json] = from_json(metadata)
    return {"metadata": metadata, "meta": [_mark(key, value) for key, value in stored.items()]}


def _mark(key: str, value: Json) -> str:
    return f"{to_json(key)}: {canonical(value)}"


def _row(doc: Document) -> ThreadRow:
    return ThreadRow(doc["_id"], *(doc[name] for name in ThreadRow._fields[1:]))


def _thread(doc: Document) -> Thread:
    return decode_thread(_row(doc))
