"""Messages in MongoDB: one document each. The thread's document decides which of them are visible.

Messages are stored first, as a batch; they become part of their run when the thread's document names the batch. A
change of several messages is written into the thread's document and carried out afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from bson import ObjectId
from pymongo import ReturnDocument
from pymongo.errors import BulkWriteError, DuplicateKeyError, PyMongoError

from diarist.exceptions import ConflictError, NotFoundError
from diarist.messages import Message
from diarist.storage.codec import MessageRow, decode_message, lost_run
from diarist.storage.mongodb.client import Db, Document, appended, literals, merged, raised
from diarist.storage.mongodb.logs import mark_removal
from diarist.storage.mongodb.runs import end_run, get_run, kept_of, live_in, settle
from diarist.storage.mongodb.threads import FORGOTTEN, MESSAGES, THREADS, most, present
from diarist.storage.records import COUNTS, EndState, Forgotten, RowRef, Run

_REWRITTEN = tuple(name for name in MessageRow._fields if name not in ("seq", "id", "run_id", "source"))


def append_messages(db: Db, run: Run, rows: Sequence[MessageRow]) -> list[int]:
    raise_counter: Document = {"$inc": {"last_seq": len(rows)}}
    doc = db[THREADS].find_one_and_update(live_in(run), raise_counter, return_document=ReturnDocument.AFTER)
    if doc is None:
        raise lost_run(run, get_run(db, run.id))
    if not rows:
        return []
    numbers = list(range(doc["last_seq"] - len(rows) + 1, doc["last_seq"] + 1))
    batch = ObjectId()
    try:
        _insert(db, doc, batch, [row._replace(seq=seq) for seq, row in zip(numbers, rows, strict=True)])
        named = db[THREADS].update_one(live_in(run), {"$push": {"live.batches": batch}}).matched_count
    except ConflictError:  # undo the attempt
        unused: Document = {**live_in(run), "last_seq": doc["last_seq"]}
        db[THREADS].update_one(unused, {"$inc": {"last_seq": -len(rows)}})
        raise
    except PyMongoError:
        with suppress(PyMongoError):  # the messages are not visible, so this is only cleanup
            db[MESSAGES].delete_many({"epoch": doc["epoch"], "batch": batch})
        raise
    if not named:
        db[MESSAGES].delete_many({"epoch": doc["epoch"], "batch": batch})
        raise lost_run(run, get_run(db, run.id))
    return numbers


def _insert(db: Db, doc: Document, batch: ObjectId, rows: Sequence[MessageRow]) -> None:
    common = {"epoch": doc["epoch"], "token": doc["token"], "rev": doc["rev"], "batch": batch, "ok": False}
    ids = [row.id for row in rows]
    for attempt in range(2):
        try:
            stored = [{**row._asdict(), "run": row.run_id, **common} for row in rows]
            db[MESSAGES].insert_many(stored)
            return
        except BulkWriteError as error:
            db[MESSAGES].delete_many({"epoch": doc["epoch"], "batch": batch})
            cleared = 0
            if not attempt:  # a killed process may have left messages with these ids behind
                settle(db, doc)
                remains: Document = {"ok": {"$ne": True}, "run": {"$ne": doc["live"]["id"]}, "id": {"$in": ids}}
                cleared = db[MESSAGES].delete_many({"epoch": doc["epoch"], **remains}).deleted_count
            if not cleared:
                raise ConflictError(
                    f"thread {doc['_id']!r} already has a message with the same id, or an id occurs twice: {ids}"
                ) from error


def finish_run(db: Db, run: Run, state: EndState, rows: Sequence[MessageRow]) -> tuple[list[int], bool]:
    """Return the numbers of the rows, and True if the run had not ended before."""
    numbers = append_messages(db, run, rows) if rows else []
    return numbers, end_run(db, run, state)


def rewrite_messages(db: Db, run: Run, rows: Sequence[MessageRow], remove: Sequence[str]) -> None:
    doc = _current(db, run.thread_id)
    live = doc["live"] if doc is not None else None
    if doc is None or live is None or (live["id"], live["token"]) != (run.id, run.token):
        raise lost_run(run, get_run(db, run.id))
    named = [*(row.id for row in rows), *remove]
    own = _ids(db, {"epoch": doc["epoch"], "run": run.id, "id": {"$in": named}, **kept_of(live)})
    changeable = own | _ids(db, {"id": {"$in": named}, **_visible(doc)})
    wrong = [row.id for row in rows if row.id not in changeable] + [id for id in remove if id not in own]
    if wrong:
        raise NotFoundError(
            f"run {run.id!r} cannot change message {wrong[0]!r}: it can replace visible messages and messages of its "
            "own, and remove messages of its own"
        )
    changed = [{"id": row.id, **{name: getattr(row, name) for name in _REWRITTEN}} for row in rows]
    job = merged({**literals({"run": run.id, "rows": changed, "remove": list(remove)}), "rev": raised("rev")})
    told = db[THREADS].find_one_and_update(
        live_in(run),
        [{"$set": {"rev": raised("rev"), "jobs": appended("jobs", job)}}],
        return_document=ReturnDocument.AFTER,
    )
    if told is None:
        raise lost_run(run, get_run(db, run.id))
    _carry_out(db, told)


def _carry_out(db: Db, doc: Document) -> None:
    """Carry out pending changes from the thread's document. Messages have a revision, so late repeats do nothing."""
    for job in doc["jobs"]:
        older: Document = {"epoch": doc["epoch"], "rev": {"$lt": job["rev"]}}
        for row in job["rows"]:
            new = {name: row[name] for name in _REWRITTEN}
            # Keep the revision of a message that will be removed, since only older revisions are deleted below.
            rev = {} if row["id"] in job["remove"] else {"rev": job["rev"]}
            db[MESSAGES].update_one({"id": row["id"], **older}, {"$set": {**new, **rev}})
        if job["remove"]:
            db[MESSAGES].delete_many({"id": {"$in": job["remove"]}, "run": job["run"], **older})
            mark_removal(db, f"thread:{doc['_id']}", f"resource:{doc['resource_id']}")
        db[THREADS].update_one({"_id": doc["_id"], "epoch": doc["epoch"]}, {"$pull": {"jobs": {"rev": job["rev"]}}})


def list_messages(
    db: Db, thread_id: str, after: int | None, before: int | None, limit: int, newest_first: bool, run_id: str | None
) -> list[Message]:
    doc = _current(db, thread_id)
    if doc is None or not limit:
        return []
    wanted = _visible(doc, run_id)
    bounds = {"$gt": after, "$lt": before}
    if seq := {name: value for name, value in bounds.items() if value is not None}:
        wanted["seq"] = seq
    found = db[MESSAGES].find(wanted).sort("seq", -1 if newest_first else 1).limit(most(limit))
    rows = [MessageRow(*(row[name] for name in MessageRow._fields)) for row in found]
    return [decode_message(row, thread_id=thread_id, resource_id=doc["resource_id"]) for row in rows]


def existing_ids(db: Db, thread_id: str, ids: Sequence[str], forgotten: bool) -> set[str]:
    doc = _current(db, thread_id)
    if doc is None:
        return set()
    found = _ids(db, {"id": {"$in": list(ids)}, **_visible(doc)})
    if forgotten:  # read after the messages, so none that is forgotten in between is missed
        noted = db[FORGOTTEN].find({"epoch": doc["epoch"], "id": {"$in": list(ids)}}, {"id": 1})
        found.update(row["id"] for row in noted)
    return found


def note_forgotten(db: Db, thread_id: str, rows: Sequence[Forgotten]) -> None:
    doc = _current(db, thread_id)
    if doc is None:
        return
    for row in {row.id: row for row in rows}.values():
        with suppress(DuplicateKeyError):
            db[FORGOTTEN].insert_one({"epoch": doc["epoch"], **row._asdict()})


def list_forgotten(db: Db, thread_id: str) -> list[Forgotten]:
    doc = _current(db, thread_id)
    if doc is None:
        return []
    found = db[FORGOTTEN].find({"epoch": doc["epoch"]}).sort([("seq", 1), ("rank", 1), ("id", 1)])
    return [Forgotten(*(row[name] for name in Forgotten._fields)) for row in found]


def delete_messages(db: Db, thread_id: str, ids: Sequence[str]) -> int:
    doc = _current(db, thread_id)
    if doc is None:
        return 0
    count = db[MESSAGES].delete_many({"id": {"$in": list(ids)}, **_visible(doc)}).deleted_count
    if count:
        mark_removal(db, f"thread:{thread_id}", f"resource:{doc['resource_id']}")
    return count


def rewrite_sent(db: Db, thread_id: str, blocks: Mapping[str, str | None]) -> int:
    doc = _current(db, thread_id)
    if doc is None:
        return 0
    visible = _visible(doc)
    changed = (db[MESSAGES].update_one({"id": id, **visible}, {"$set": {"sent": sent}}) for id, sent in blocks.items())
    return sum(done.matched_count for done in changed)


def is_stored(db: Db, row: RowRef) -> bool:
    """Return True if a message is stored, even if it belongs to the live run."""
    doc = _current(db, row.thread_id)
    if doc is None:
        return False
    own = doc["live"]["id"] if doc["live"] is not None else None
    return db[MESSAGES].find_one({"id": row.id, "seq": row.seq, **_visible(doc, own)}) is not None


def _current(db: Db, thread_id: str) -> Document | None:
    """Carry out pending changes and return the thread's document."""
    while (doc := present(db, thread_id)) is not None and doc["jobs"]:
        _carry_out(db, doc)
    return doc


def _visible(doc: Document, own: str | None = None) -> Document:
    """Return the query for messages visible in this state of the thread's document, and those of the run ``own``.

    Later changes of runs have no effect, so that no run is seen in part. The token excludes later runs; the id excludes
    the run that was live in this state.
    """
    live = doc["live"]
    settled: Document = {"ok": True, "token": {"$lte": doc["token"]}}
    if live is not None:
        settled["run"] = {"$ne": live["id"]}
    kinds = [settled]
    kinds += [{"run": run["id"], **kept_of(run)} for run in doc["ended"] if run["state"] in COUNTS]
    if live is not None and live["id"] == own:
        kinds.append({"run": own, **kept_of(live)})
    return {"epoch": doc["epoch"], "$or": kinds}


def _ids(db: Db, wanted: Document) -> set[str]:
    return {row["id"] for row in db[MESSAGES].find(wanted, {"id": 1})}
