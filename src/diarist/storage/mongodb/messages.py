"""Messages in MongoDB: one document each. The thread's document decides which of them are visible.

A superseded message has its ``parent``; its ``seq`` takes the place of its ``id``, which is unique, and moves to
``name``.

Messages are stored first, as a batch; they become part of their run when the thread's document names the batch. A
change of several messages is written into the thread's document and carried out afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from bson import ObjectId
from pymongo import ReturnDocument
from pymongo.errors import BulkWriteError, DuplicateKeyError, PyMongoError

from diarist.checks import check_limit, check_place, checked
from diarist.exceptions import ConflictError, NotFoundError
from diarist.messages import Message
from diarist.run_context import Outcome
from diarist.storage.codec import EncodedEvent, MessageRow, decode_message, lost_run, taken_ids, unchangeable
from diarist.storage.mongodb.changes import (
    REWRITTEN,
    carry_out,
    current,
    end_of_branch,
    kept_of,
    moves,
    superseded,
    visible,
    with_job,
)
from diarist.storage.mongodb.client import Db, Document, literal
from diarist.storage.mongodb.events import append_event
from diarist.storage.mongodb.logs import get_log, mark_removal, save_log
from diarist.storage.mongodb.runs import end_run, get_run, live_in, settle
from diarist.storage.mongodb.threads import FORGOTTEN, MESSAGES, THREADS, most
from diarist.storage.records import Forgotten, ObservationLog, RowRef, Run, Superseded


def append_messages(db: Db, run: Run, rows: Sequence[MessageRow], added: Sequence[EncodedEvent] = ()) -> list[int]:
    """Append messages, then events; a crash in between loses the events."""
    numbers = _append_rows(db, run, rows)
    for event in added:
        append_event(db, *event)
    return numbers


def _append_rows(db: Db, run: Run, rows: Sequence[MessageRow]) -> list[int]:
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
                raise taken_ids(doc["_id"], rows) from error


def finish_run(
    db: Db, run: Run, state: Outcome, rows: Sequence[MessageRow], added: Sequence[EncodedEvent]
) -> list[int]:
    numbers = _append_rows(db, run, rows) if rows else []
    if end_run(db, run, state) and state != "discarded":
        for event in added:
            append_event(db, *event)
    return numbers


def rewrite_messages(db: Db, run: Run, rows: Sequence[MessageRow], remove: Sequence[str]) -> None:
    doc = _thread_of(db, run)
    named = [*(row.id for row in rows), *remove]
    own = _ids(db, {"epoch": doc["epoch"], "run": run.id, "id": {"$in": named}, **kept_of(doc["live"])})
    changeable = own | _ids(db, {"id": {"$in": named}, **visible(doc)})
    wrong = [row.id for row in rows if row.id not in changeable] + [id for id in remove if id not in own]
    if wrong:
        raise unchangeable(run, wrong[0])
    changed = [{"id": row.id, **{name: getattr(row, name) for name in REWRITTEN}} for row in rows]
    _change(db, run, with_job(run, rows=changed, remove=list(remove)))


def set_branch(db: Db, run: Run, end: int, *, logs: Sequence[tuple[ObservationLog, ObservationLog]] = ()) -> list[str]:
    """Save the logs first, then move the messages. If another process saves a log in between, raise ConflictError: the
    caller repeats the call, which then finds the messages at their places."""
    doc = _thread_of(db, run)
    found = moves(db, doc, end)
    if found is None:
        raise NotFoundError(f"thread {run.thread_id!r} has no message with the number {end}")
    moved, gone = found
    _require_versions(db, [read for read, _ in logs])
    saved = [save_log(db, log, read.version, (), is_stored) if log is not read else read for read, log in logs]
    if moved["supersede"] or moved["activate"]:
        earlier: Document = {"$ifNull": ["$live.earlier", literal(end_of_branch(db, doc))]}
        _change(db, run, {**with_job(run, **moved), "live.earlier": earlier})
    _require_versions(db, saved)
    return gone


def _thread_of(db: Db, run: Run) -> Document:
    """Return the document of the run's thread. Raises RunLostError unless the run is live."""
    doc = current(db, run.thread_id)
    if doc is None or doc["live"] is None or (doc["live"]["id"], doc["live"]["token"]) != (run.id, run.token):
        raise lost_run(run, get_run(db, run.id))
    return doc


def _change(db: Db, run: Run, changes: Document) -> None:
    """Change the document of the run's thread, and carry out its jobs. Raises RunLostError unless the run is live."""
    doc = db[THREADS].find_one_and_update(live_in(run), [{"$set": changes}], return_document=ReturnDocument.AFTER)
    if doc is None:
        raise lost_run(run, get_run(db, run.id))
    carry_out(db, doc)


def _require_versions(db: Db, logs: Sequence[ObservationLog]) -> None:
    for log in logs:
        stored = get_log(db, log.key)
        if (stored.version if stored is not None else 0) != log.version:
            raise ConflictError(f"log {log.key!r} no longer has version {log.version}")


def list_superseded(db: Db, thread_id: str) -> list[Superseded]:
    doc = current(db, thread_id)
    if doc is None:
        return []
    rows = db[MESSAGES].find(superseded(doc)).sort("seq", 1)
    return [Superseded(message=_message({**row, "id": row["name"]}, doc), parent=row["parent"]) for row in rows]


def list_messages(
    db: Db,
    thread_id: str,
    *,
    after: int | None = None,
    before: int | None = None,
    limit: int | None = None,
    newest_first: bool = False,
    run_id: str | None = None,
) -> list[Message]:
    limit = check_limit(limit)
    check_place(after=after, before=before)
    doc = current(db, thread_id)
    if doc is None or not limit:
        return []
    wanted = visible(doc, run_id)
    bounds = {"$gt": after, "$lt": before}
    if seq := {name: value for name, value in bounds.items() if value is not None}:
        wanted["seq"] = seq
    found = db[MESSAGES].find(wanted).sort("seq", -1 if newest_first else 1).limit(most(limit))
    return [_message(row, doc) for row in found]


def existing_ids(db: Db, thread_id: str, ids: Sequence[str], *, forgotten: bool = False) -> set[str]:
    doc = current(db, thread_id)
    if doc is None:
        return set()
    found = _ids(db, {"id": {"$in": list(ids)}, **visible(doc)})
    if forgotten:  # read after the messages, so none that is forgotten in between is missed
        noted = db[FORGOTTEN].find({"epoch": doc["epoch"], "id": {"$in": list(ids)}}, {"id": 1})
        found.update(row["id"] for row in noted)
    return found


def note_forgotten(db: Db, thread_id: str, messages: Sequence[Forgotten]) -> None:
    for message in messages:
        checked(message.id, "a message id")
    doc = current(db, thread_id)
    if doc is None:
        return
    for message in messages:
        with suppress(DuplicateKeyError):
            db[FORGOTTEN].insert_one({"epoch": doc["epoch"], **message._asdict()})


def list_forgotten(db: Db, thread_id: str) -> list[Forgotten]:
    doc = current(db, thread_id)
    if doc is None:
        return []
    found = db[FORGOTTEN].find({"epoch": doc["epoch"]}).sort([("seq", 1), ("rank", 1), ("id", 1)])
    return [Forgotten(*(row[name] for name in Forgotten._fields)) for row in found]


def delete_messages(db: Db, thread_id: str, ids: Sequence[str]) -> int:
    doc = current(db, thread_id)
    if doc is None:
        return 0
    named: Document = {"$in": list(ids)}
    others: Document = {**superseded(doc), "name": named}
    places = {row["seq"]: row["parent"] for row in db[MESSAGES].find(others, {"seq": 1, "parent": 1})}
    if db[MESSAGES].find_one(superseded(doc)) is not None:
        active = [row["seq"] for row in db[MESSAGES].find(visible(doc), {"seq": 1}).sort("seq", 1)]
        chosen = {row["seq"] for row in db[MESSAGES].find({"id": named, **visible(doc)}, {"seq": 1})}
        places |= {seq: before for before, seq in zip([0, *active], active, strict=False) if seq in chosen}
    for seq in sorted(places, reverse=True):  # the last ones first, since the one before may be deleted as well
        db[MESSAGES].update_many({"epoch": doc["epoch"], "parent": seq}, {"$set": {"parent": places[seq]}})
    count = db[MESSAGES].delete_many({"id": named, **visible(doc)}).deleted_count
    if count:
        mark_removal(db, f"thread:{thread_id}", f"resource:{doc['resource_id']}")
    return count + db[MESSAGES].delete_many(others).deleted_count


def rewrite_sent(db: Db, thread_id: str, blocks: Mapping[str, str | None]) -> int:
    doc = current(db, thread_id)
    if doc is None:
        return 0
    active, other = visible(doc), superseded(doc)
    changed = [
        db[MESSAGES].update_many(place, {"$set": {"sent": sent}}).matched_count
        for id, sent in blocks.items()
        for place in ({"id": id, **active}, {"name": id, **other})
    ]
    return sum(changed)


def is_stored(db: Db, row: RowRef) -> bool:
    """Return True if a message is stored, even if it belongs to the live run."""
    doc = current(db, row.thread_id)
    if doc is None:
        return False
    own = doc["live"]["id"] if doc["live"] is not None else None
    return db[MESSAGES].find_one({"id": row.id, "seq": row.seq, **visible(doc, own)}) is not None


def _message(row: Document, thread: Document) -> Message:
    stored = MessageRow(*(row[name] for name in MessageRow._fields))
    return decode_message(stored, thread_id=thread["_id"], resource_id=thread["resource_id"])


def _ids(db: Db, wanted: Document) -> set[str]:
    return {row["id"] for row in db[MESSAGES].find(wanted, {"id": 1})}
