"""Runs in SQL. A run's state is the only mark of what counts: every other change of its end follows from it."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    Connection,
    Row,
    Text,
    bindparam,
    delete,
    exists,
    func,
    insert,
    select,
    update,
)

from diarist.database import now
from diarist.exceptions import ConflictError, InputError, RunLostError, ThreadBusyError
from diarist.in_place import require_threads
from diarist.storage.records import Run, Thread
from diarist.storage.sql.schema import LIVE, messages, runs, threads
from diarist.storage.sql.search_index import index_run
from diarist.storage.sql.threads import forget_records, insert_thread, lock_thread

EndState = Literal["committed", "discarded", "interrupted"]

_run_id = bindparam("run", type_=Text())
_token = bindparam("fence", type_=BigInteger())
_thread_id = bindparam("thread", type_=Text())
_ttl = bindparam("ttl", type_=BigInteger)
_mine = (runs.c.id == _run_id) & (runs.c.token == _token) & (runs.c.thread_id == _thread_id)
_columns = (
    runs.c.id,
    runs.c.thread_id,
    runs.c.resource_id,
    runs.c.state,
    runs.c.token,
    runs.c.guarded,
)

_GET = select(*_columns).where(runs.c.id == _run_id)
_EXISTS = select(exists().where(runs.c.id == _run_id))
_LIVE = (
    select(*_columns, (runs.c.expires_at <= now()).label("expired"))
    .where(runs.c.thread_id == _thread_id, LIVE)
    .with_for_update()  # a heartbeat, which does not lock the thread, comes before this or too late
)
_NEXT_TOKEN = select(func.coalesce(func.max(runs.c.token), 0) + 1).where(runs.c.thread_id == _thread_id)
_INSERT = insert(runs).values(expires_at=now() + _ttl, created_at=now())
_HEARTBEAT = update(runs).where(_mine, LIVE).values(expires_at=now() + _ttl)
_END = (
    update(runs)
    .where(_mine, LIVE)
    .values(state=bindparam("end"), ended_at=now())
    .returning(runs.c.thread_id, runs.c.guarded)
)
_TOUCH_THREAD = update(threads).where(threads.c.id == _thread_id).values(updated_at=now())
_DROP_ROWS = delete(messages).where(messages.c.run_id == _run_id)
_DROP_RESPONSES = _DROP_ROWS.where(messages.c.source != "input")
_DROP_THREAD = delete(threads).where(
    threads.c.id == _thread_id,
    threads.c.created_by == _run_id,
    ~exists().where(messages.c.thread_id == threads.c.id),
)


def begin_run(connection: Connection, run_id: str, thread: Thread, ttl: int, guarded: bool) -> Run:
    """``ttl`` is in microseconds here."""
    resource_id = lock_thread(connection, thread.id)
    if resource_id is None:
        insert_thread(connection, thread, created_by=run_id)
    elif resource_id != thread.resource_id:
        raise InputError(f"thread {thread.id!r} belongs to resource {resource_id!r}, not {thread.resource_id!r}")
    if connection.scalar(_EXISTS, {"run": run_id}):
        raise ConflictError(f"run {run_id!r} exists already")
    _adopt_expired(connection, thread.id)
    run = Run(
        id=run_id,
        thread_id=thread.id,
        resource_id=thread.resource_id,
        state="live",
        token=connection.scalar(_NEXT_TOKEN, {"thread": thread.id}) or 1,
        guarded=guarded,
    )
    values = {name: getattr(run, name) for name in ("id", "thread_id", "resource_id", "state", "token")}
    connection.execute(_INSERT, {**values, "guarded": guarded, "ttl": ttl})
    return run


def _adopt_expired(connection: Connection, thread_id: str) -> None:
    """End the thread's live run if its time has passed. Raises ThreadBusyError if it has not."""
    found = connection.execute(_LIVE, {"thread": thread_id}).first()
    if found is None:
        return
    if not found.expired:
        raise ThreadBusyError(f"run {found.id!r} of thread {thread_id!r} is live")
    require_threads(connection)  # nobody knows how many rows it has
    end_run(connection, _run(found), "interrupted")


def heartbeat(connection: Connection, run: Run, ttl: int) -> None:
    if not connection.execute(
        _HEARTBEAT, {"run": run.id, "fence": run.token, "thread": run.thread_id, "ttl": ttl}
    ).rowcount:
        raise lost(connection, run)


def end_run(connection: Connection, run: Run, state: EndState) -> None:
    lock_thread(connection, run.thread_id)
    values = {"run": run.id, "fence": run.token, "thread": run.thread_id, "end": state}
    ended = connection.execute(_END, values).first()
    if ended is None:
        stored = _found(connection, run)
        if stored is None or (stored.token, stored.state) != (run.token, state):
            raise lost(connection, run)
        return
    keys = {"run": run.id, "thread": ended.thread_id}
    if state == "discarded":
        connection.execute(_DROP_ROWS, keys)
        if connection.execute(_DROP_THREAD, keys).rowcount > 0:
            forget_records(connection, ended.thread_id)
        return
    if state == "interrupted" and ended.guarded:
        connection.execute(_DROP_RESPONSES, keys)
    index_run(connection, run)
    connection.execute(_TOUCH_THREAD, keys)


def get_run(connection: Connection, run_id: str) -> Run | None:
    row = connection.execute(_GET, {"run": run_id}).first()
    return None if row is None else _run(row)


def require_live(connection: Connection, run: Run) -> None:
    """Raises RunLostError unless the run may write. The thread must be locked."""
    stored = _found(connection, run)
    if stored is None or (stored.token, stored.state) != (run.token, "live"):
        raise lost(connection, run)


def _found(connection: Connection, run: Run) -> Run | None:
    """The run; None where its thread was deleted, also if its id was given to another thread's run since."""
    stored = get_run(connection, run.id)
    return stored if stored is not None and stored.thread_id == run.thread_id else None


def lost(connection: Connection, run: Run) -> RunLostError:
    stored = _found(connection, run)
    if stored is None:
        return RunLostError(f"run {run.id!r} is gone: its thread {run.thread_id!r} was deleted")
    if stored.token != run.token:
        return RunLostError(f"the token {run.token} of run {run.id!r} is not the stored one")
    return RunLostError(f"run {run.id!r} has ended as {stored.state}: it may write nothing more")


def _run(row: Row[*tuple[Any, ...]]) -> Run:
    return Run(
        id=row.id,
        thread_id=row.thread_id,
        resource_id=row.resource_id,
        state=row.state,
        token=row.token,
        guarded=bool(row.guarded),
    )
