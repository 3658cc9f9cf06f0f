"""Changes of several messages in MongoDB: written into the thread's document, and carried out afterwards."""

from __future__ import annotations

from typing import Any

from diarist.storage.codec import MessageRow
from diarist.storage.mongodb.client import Db, Document, appended, literal, literals, merged, raised
from diarist.storage.mongodb.logs import mark_removal
from diarist.storage.mongodb.threads import MESSAGES, THREADS, present
from diarist.storage.records import COUNTS, Run, RunState, path_to

REWRITTEN = tuple(name for name in MessageRow._fields if name not in ("seq", "id", "run_id", "source"))


def current(db: Db, thread_id: str) -> Document | None:
    """Carry out pending changes and return the thread's document."""
    while (doc := present(db, thread_id)) is not None and doc["jobs"]:
        carry_out(db, doc)
    return doc


def carry_out(db: Db, doc: Document) -> None:
    """Carry out pending changes from the thread's document. Messages have a revision, so late repeats do nothing."""
    for job in doc["jobs"]:
        older: Document = {"epoch": doc["epoch"], "rev": {"$lt": job["rev"]}}
        newest = {"rev": literal(job["rev"])}
        for seq, parent in job.get("supersede", ()):
            away = {"name": "$id", "id": literal(seq), "parent": literal(parent), **newest}
            db[MESSAGES].update_one({"seq": seq, **older}, [{"$set": away}])
        for seq in job.get("activate", ()):
            back = {"id": "$name", "parent": literal(None), **newest}
            db[MESSAGES].update_one({"seq": seq, **older}, [{"$set": back}])
        if job.get("supersede"):
            mark_removal(db, f"thread:{doc['_id']}", f"resource:{doc['resource_id']}")
        for row in job["rows"]:
            new = {name: row[name] for name in REWRITTEN}
            # Keep the revision of a message that will be removed, since only older revisions are deleted below.
            rev = {} if row["id"] in job["remove"] else {"rev": job["rev"]}
            db[MESSAGES].update_one({"id": row["id"], **older}, {"$set": {**new, **rev}})
        if job["remove"]:
            db[MESSAGES].delete_many({"id": {"$in": job["remove"]}, "run": job["run"], **older})
            mark_removal(db, f"thread:{doc['_id']}", f"resource:{doc['resource_id']}")
        db[THREADS].update_one({"_id": doc["_id"], "epoch": doc["epoch"]}, {"$pull": {"jobs": {"rev": job["rev"]}}})


def with_job(run: Run, **job: Any) -> Document:
    """Return the changes of the thread's document that add a pending change of messages with the next revision."""
    new = merged({**literals({"run": run.id, "rows": [], "remove": [], **job}), "rev": raised("rev")})
    return {"rev": raised("rev"), "jobs": appended("jobs", new)}


def visible(doc: Document, own: str | None = None) -> Document:
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
    return {"epoch": doc["epoch"], "parent": None, "$or": kinds}


def superseded(doc: Document) -> Document:
    return {"epoch": doc["epoch"], "parent": {"$gte": 0}}


def moves(db: Db, doc: Document, end: int) -> tuple[Document, list[str]] | None:
    """Return the moves that make a message the last one of the active branch, and the ids of the messages that they
    supersede; None if there is no such message. ``end``: its ``seq``; with 0 no message stays active."""
    tree = {row["seq"]: row["parent"] for row in db[MESSAGES].find(superseded(doc), {"seq": 1, "parent": 1})}
    fork, path = path_to(tree, end)
    rows = list(db[MESSAGES].find(visible(doc), {"seq": 1, "id": 1}).sort("seq", 1))
    seqs = [row["seq"] for row in rows]
    supersede = [[seq, before] for before, seq in zip([0, *seqs], seqs, strict=False) if seq > fork]
    if end and not path and end not in seqs:
        return None
    return {"supersede": supersede, "activate": path}, [row["id"] for row in rows if row["seq"] > fork]


def end_of_branch(db: Db, doc: Document) -> int:
    rows = db[MESSAGES].find(visible(doc), {"seq": 1}).sort("seq", -1).limit(1)
    return next((row["seq"] for row in rows), 0)


def kept_of(run: Document) -> Document:
    """Return the query for the messages of a run in a thread's document: those in its acknowledged batches."""
    kept: Document = {"batch": {"$in": run["batches"]}}
    if run.get("state") == "interrupted" and run["guarded"]:
        kept["source"] = "input"
    return kept


def restored_branch(db: Db, run: Run, state: RunState) -> Document | None:
    """Return the moves that undo those of a live run, if it ends without messages; None if there are none."""
    doc = current(db, run.thread_id)
    if doc is None or doc["live"] is None or doc["live"]["id"] != run.id or doc["live"].get("earlier") is None:
        return None
    own: Document = {"epoch": doc["epoch"], "run": run.id, **kept_of({**doc["live"], "state": state})}
    if state == "committed" or (state == "interrupted" and db[MESSAGES].find_one(own) is not None):
        return None
    back = moves(db, doc, doc["live"]["earlier"])
    return None if back is None else back[0]
