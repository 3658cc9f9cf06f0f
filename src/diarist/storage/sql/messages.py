"""Writing the messages of a thread in SQL: one row each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Text, bindparam, delete, exists, insert, select, update
from sqlalchemy.exc import IntegrityError

from diarist.exceptions import ConflictError, NotFoundError
from diarist.in_place import require_short
from diarist.storage.codec import MessageRow
from diarist.storage.records import Run
from diarist.storage.sql.runs import EndState, end_run, lost, require_live
from diarist.storage.sql.schema import messages, runs, threads
from diarist.storage.sql.search_index import reindex_message
from diarist.storage.sql.threads import COUNTS, lock_thread, stamp_thread

IDS_AT_ONCE = 500
_REWRITTEN = [name for name in MessageRow._fields if name not in {"seq", "id", "run_id", "source"}]

_thread_id = bindparam("thread", type_=Text())
_RAISE_COUNTER = (
    update(threads)
    .where(threads.c.id == _thread_id)
    .values(last_seq=threads.c.last_seq + bindparam("count"))
    .returning(threads.c.last_seq)
)
_INSERT = insert(messages)
_EXISTING = (
    select(messages.c.id)
    .join_from(messages, runs, runs.c.id == messages.c.run_id)
    .where(
        messages.c.thread_id == _thread_id,
        messages.c.id.in_(bindparam("ids", expanding=True)),
        runs.c.state.in_(COUNTS),
    )
)
_DELETE = delete(messages).where(
    messages.c.thread_id == _thread_id, messages.c.id.in_(bindparam("ids", expanding=True))
)
_named = (messages.c.thread_id == _thread_id) & (messages.c.id == bindparam("message"))
_REWRITE_SENT = update(messages).where(_named).values(sent=bindparam("new_sent"))
_own_row = _named & (messages.c.run_id == bindparam("run"))
_earlier_row = _named & exists().where(runs.c.id == messages.c.run_id, runs.c.state.in_(COUNTS))
_rewritten: dict[str, Any] = {name: bindparam(f"new_{name}") for name in _REWRITTEN}
_REWRITE_OWN = update(messages).where(_own_row).values(_rewritten)
_REWRITE_EARLIER = update(messages).where(_earlier_row).values(_rewritten)
_REMOVE = delete(messages).where(_own_row)


def append_messages(connection: Connection, run: Run, rows: Sequence[MessageRow]) -> list[int]:
    require_short(connection, rows=len(rows), texts=[row.parts for row in rows])
    # The counter first: raising it locks the thread's row, and nobody can end the run in between.
    counted = {"thread": run.thread_id, "count": len(rows)}
    last = connection.scalar(_RAISE_COUNTER, counted)
    if last is None:
        raise lost(connection, run)
    require_live(connection, run)
    numbers = list(range(last - len(rows) + 1, last + 1))
    if not rows:
        return []
    rows = [row._replace(seq=seq) for seq, row in zip(numbers, rows, strict=True)]
    values = [row._asdict() | {"thread_id": run.thread_id} for row in rows]
    try:
        connection.execute(_INSERT, values)
    except IntegrityError as error:
        raise ConflictError(
            f"thread {run.thread_id!r} has a message of the same id already, among {[row.id for row in rows]}"
        ) from error
    return numbers


def finish_run(connection: Connection, run: Run, state: EndState, rows: Sequence[MessageRow]) -> list[int]:
    numbers = append_messages(connection, run, rows) if rows else []
    end_run(connection, run, state)
    return numbers


def rewrite_messages(connection: Connection, run: Run, rows: Sequence[MessageRow], remove: Sequence[str]) -> bool:
    """Whether rows have changed that readers may keep."""
    require_short(connection, rows=len(rows) + len(remove), texts=[row.parts for row in rows])
    lock_thread(connection, run.thread_id)
    require_live(connection, run)
    own = {"thread": run.thread_id, "run": run.id}
    earlier = [row for row in rows if not connection.execute(_REWRITE_OWN, {**own, **_new(row)}).rowcount]
    if earlier:  # rows of a live run are neither kept by readers nor findable
        stamp_thread(connection, run.thread_id)
    for row in earlier:
        _one(connection.execute(_REWRITE_EARLIER, {"thread": run.thread_id, **_new(row)}).rowcount, run, row.id)
        reindex_message(connection, run, row)
    for message_id in dict.fromkeys(remove):
        _one(connection.execute(_REMOVE, {**own, "message": message_id}).rowcount, run, message_id)
    return bool(earlier)


def _new(row: MessageRow) -> dict[str, object]:
    """Values that name a row and rewrite it."""
    return {"message": row.id, **{f"new_{name}": getattr(row, name) for name in _REWRITTEN}}


def existing_ids(connection: Connection, thread_id: str, ids: Sequence[str]) -> set[str]:
    require_short(connection, rows=len(ids))
    found: set[str] = set()
    for start in range(0, len(ids), IDS_AT_ONCE):
        some = {"thread": thread_id, "ids": list(ids[start : start + IDS_AT_ONCE])}
        found.update(connection.scalars(_EXISTING, some))
    return found


def delete_messages(connection: Connection, thread_id: str, ids: Sequence[str]) -> int:
    lock_thread(connection, thread_id)
    visible = sorted(existing_ids(connection, thread_id, ids))
    if visible:
        stamp_thread(connection, thread_id)
    for start in range(0, len(visible), IDS_AT_ONCE):
        connection.execute(_DELETE, {"thread": thread_id, "ids": visible[start : start + IDS_AT_ONCE]})
    return len(visible)


def rewrite_sent(connection: Connection, thread_id: str, blocks: Mapping[str, str | None]) -> int:
    lock_thread(connection, thread_id)
    visible = sorted(existing_ids(connection, thread_id, list(blocks)))
    if visible:
        stamp_thread(connection, thread_id)
        named = {"thread": thread_id}
        connection.execute(_REWRITE_SENT, [{**named, "message": id, "new_sent": blocks[id]} for id in visible])
    return len(visible)


def _one(count: int, run: Run, message_id: str) -> None:
    if count != 1:
        raise NotFoundError(f"run {run.id!r} may not change message {message_id!r}: it is neither its own nor visible")
