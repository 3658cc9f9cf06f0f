"""Runs in MongoDB. The thread's document holds the live run, and ended runs until their effects are carried out.

A run's own document keeps its id unique and records its final state.
"""

from __future__ import annotations

from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from diarist.checks import checked
from diarist.exceptions import ConflictError, ThreadBusyError
from diarist.run_context import Outcome
from diarist.storage.codec import check_thread, lost_run, require_resource, require_state
from diarist.storage.mongodb.changes import carry_out, kept_of, restored_branch, with_job
from diarist.storage.mongodb.client import NOW, Db, Document, after, appended, literal, literals, merged, raised
from diarist.storage.mongodb.logs import mark_removal
from diarist.storage.mongodb.threads import MESSAGES, RUNS, THREADS, insert_thread, note_end, present, remove_thread
from diarist.storage.records import COUNTS, Run, RunState, Thread

NEW = "new"
"""State of a run that has reserved its id and is not live yet."""


def begin_run(db: Db, run_id: str, thread: Thread, *, ttl: float = 60.0, guarded: bool = False) -> Run:
    check_thread(thread)
    checked(run_id, "a run id")
    expires_at = after(ttl)
    while True:
        doc = present(db, thread.id)
        if doc is not None:
            require_resource(thread, doc["resource_id"])
        if db[RUNS].find_one({"_id": run_id}) is not None:
            raise _taken(run_id)
        if doc is not None and doc["live"] is not None:
            run = _run(doc, doc["live"], "live")
            expired: Document = {"$expr": {"$lte": ["$live.expires_at", NOW]}}
            if not _end(db, run, "interrupted", expired) and db[THREADS].find_one(live_in(run)) is not None:
                raise ThreadBusyError(f"run {run.id!r} of thread {run.thread_id!r} is live")
            continue
        reserved = {"thread_id": thread.id, "resource_id": thread.resource_id, "token": 0, "guarded": False}
        try:
            db[RUNS].insert_one({"_id": run_id, **reserved, "state": NEW})
        except DuplicateKeyError as error:
            raise _taken(run_id) from error
        live = {**literals({"id": run_id, "guarded": guarded, "batches": []}), "expires_at": expires_at}
        if doc is None:
            began = _make(db, thread, live)
        else:
            began = db[THREADS].find_one_and_update(
                {"_id": doc["_id"], "epoch": doc["epoch"], "live": None, "deleted_at": None},
                [{"$set": {"token": raised("token"), "live": merged({**live, "token": raised("token")})}}],
                return_document=ReturnDocument.AFTER,
            )
        if began is not None:
            settle(db, began)
            note_end(db, began, {**began["live"], "state": "live"})
            return _run(began, began["live"], "live")
        db[RUNS].delete_one({"_id": run_id, "state": NEW})  # another process was faster: read the thread again


def _make(db: Db, thread: Thread, live: Document) -> Document | None:
    """Insert a thread with its first run. Returns None if another process has created the thread."""
    newest = db[RUNS].find_one({"thread_id": thread.id}, sort=[("token", -1)])
    token = 1 + (newest["token"] if newest is not None else 0)
    run = merged({**live, "token": literal(token)})
    if not insert_thread(db, thread, {"created_by": live["id"], "token": literal(token), "live": run}):
        return None
    return db[THREADS].find_one({"_id": thread.id, "live.id": live["id"]["$literal"]})


def heartbeat(db: Db, run: Run, *, ttl: float = 60.0) -> None:
    if not db[THREADS].update_one(live_in(run), [{"$set": {"live.expires_at": after(ttl)}}]).matched_count:
        raise lost_run(run, get_run(db, run.id))


def end_run(db: Db, run: Run, state: Outcome) -> bool:
    """End a run. Returns False if it has ended already."""
    ended = _end(db, run, state, {})
    if not ended:
        require_state(run, get_run(db, run.id), state)
    return ended


def _end(db: Db, run: Run, state: Outcome, also: Document) -> bool:
    """End a run if it is live. This single change makes its messages visible or discards them."""
    changes: Document = {
        "ended": appended("ended", merged("$live", {"state": literal(state)})),
        "live": literal(None),
    }
    if state == "discarded":
        created = {"$eq": ["$created_by", literal(run.id)]}
        changes |= {"deleted_at": {"$cond": [created, NOW, literal(None)]}, "keeps_runs": literal(True)}
    else:
        # If the process of the run died, the thread was not changed after the run had expired.
        since: Document = {"$lte": ["$updated_at", "$live.expires_at"]}
        changed = {"$cond": [since, "$live.expires_at", "$updated_at"]} if also else NOW
        changes |= {"created_by": literal(None), "updated_at": changed}
    if (moved := restored_branch(db, run, state)) is not None:
        changes |= with_job(run, **moved)
    doc = db[THREADS].find_one_and_update(
        {**live_in(run), **also}, [{"$set": changes}], return_document=ReturnDocument.AFTER
    )
    if doc is None:
        return False
    if doc["deleted_at"] is None:
        settle(db, doc)
        carry_out(db, doc)
    else:
        remove_thread(db, doc)
    return True


def settle(db: Db, doc: Document) -> None:
    """Carry out the effects of the ended runs in the thread's document."""
    for run in doc["ended"]:
        rows: Document = {"epoch": doc["epoch"], "run": run["id"]}
        if run["state"] in COUNTS:
            db[MESSAGES].update_many({**rows, **kept_of(run)}, {"$set": {"ok": True}})
        if db[MESSAGES].delete_many({**rows, "ok": {"$ne": True}}).deleted_count or run["state"] not in COUNTS:
            mark_removal(db, f"thread:{doc['_id']}", f"resource:{doc['resource_id']}")
        note_end(db, doc, run)
        db[THREADS].update_one({"_id": doc["_id"], "epoch": doc["epoch"]}, {"$pull": {"ended": {"id": run["id"]}}})


def live_in(run: Run) -> Document:
    """Return the query that finds the run's thread while the run is live."""
    return {"_id": run.thread_id, "live.id": run.id, "live.token": run.token, "deleted_at": None}


def get_run(db: Db, run_id: str) -> Run | None:
    found = db[RUNS].find_one({"_id": run_id})
    if found is None:
        return None
    doc = db[THREADS].find_one({"_id": found["thread_id"]})
    if doc is not None:
        for run in doc["ended"]:
            if run["id"] == run_id:
                return _run(doc, run, run["state"])
        if doc["live"] is not None and doc["live"]["id"] == run_id and doc["deleted_at"] is None:
            return _run(doc, doc["live"], "live")
    found = db[RUNS].find_one({"_id": run_id})  # an ended run is recorded here before it leaves the thread's document
    if found is None or found["state"] in (NEW, "live"):
        return None
    place = {"_id": found["thread_id"], "resource_id": found["resource_id"]}
    return _run(place, {**found, "id": run_id}, found["state"])


def _taken(run_id: str) -> ConflictError:
    return ConflictError(f"run {run_id!r} exists already")


def _run(doc: Document, run: Document, state: RunState) -> Run:
    return Run(
        id=run["id"],
        thread_id=doc["_id"],
        resource_id=doc["resource_id"],
        state=state,
        token=run["token"],
        guarded=run["guarded"],
    )
