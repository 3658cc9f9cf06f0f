"""Runs in SQL. Only a run's state decides if its messages are visible; ending a run updates other tables to match."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from diarist.checks import checked
from diarist.databases.base import Connection, Row
from diarist.exceptions import ConflictError, NotFoundError, ThreadBusyError
from diarist.run_context import Outcome
from diarist.storage.codec import check_thread, lost_run, require_resource, require_state, ttl_micros
from diarist.storage.records import Run, Thread
from diarist.storage.sql.branches import move_branch
from diarist.storage.sql.threads import forget_records, insert_thread, lock_thread

_COLUMNS = "id, thread_id, resource_id, state, token, guarded"
# The state is a literal: with a parameter, SQLite would plan the statement again each time, and PostgreSQL would not
# use the index of live runs.
_MINE = "id = :run AND token = :token AND thread_id = :thread AND state = 'live'"


async def begin_run(
    connection: Connection, run_id: str, thread: Thread, *, ttl: float = 60.0, guarded: bool = False
) -> Run:
    check_thread(thread)
    checked(run_id, "a run id")
    resource_id = await lock_thread(connection, thread.id)
    if resource_id is None:
        await insert_thread(connection, thread, created_by=run_id)
    else:
        require_resource(thread, resource_id)
    run = Run(id=run_id, thread_id=thread.id, resource_id=thread.resource_id, state="live", token=0, guarded=guarded)
    token = await _insert_run(connection, run, ttl)
    if token is None:
        if await get_run(connection, run_id) is not None:
            raise ConflictError(f"run {run_id!r} exists already")
        live = await connection.first(  # a heartbeat, which does not lock the thread, commits earlier or fails
            f"SELECT {_COLUMNS}, expires_at, expires_at <= {{now}} FROM diarist_runs"
            " WHERE thread_id = :thread AND state = 'live' {for update}",
            thread=thread.id,
        )
        if live is not None:
            if not live[-1]:
                raise ThreadBusyError(f"run {live[0]!r} of thread {thread.id!r} is live")
            await end_run(connection, _run(live), "interrupted", died_at=live[-2])
        token = await _insert_run(connection, run, ttl)
    return replace(run, token=token)


async def _insert_run(connection: Connection, run: Run, ttl: float) -> int | None:
    """Insert a live run of a locked thread; return its token, or None if the run exists or the thread is busy."""
    return await connection.value(
        "INSERT INTO diarist_runs (id, thread_id, resource_id, state, token, guarded, expires_at, created_at)"
        " SELECT :id, :thread, :resource, 'live', (SELECT coalesce(max(token), 0) + 1 FROM diarist_runs"
        " WHERE thread_id = :thread), :guarded, {now} + :ttl, {now}"
        " WHERE NOT EXISTS (SELECT 1 FROM diarist_runs WHERE id = :id)"
        " AND NOT EXISTS (SELECT 1 FROM diarist_runs WHERE thread_id = :thread AND state = 'live') RETURNING token",
        id=run.id,
        thread=run.thread_id,
        resource=run.resource_id,
        guarded=run.guarded,
        ttl=ttl_micros(ttl),
    )


async def heartbeat(connection: Connection, run: Run, *, ttl: float = 60.0) -> None:
    statement = f"UPDATE diarist_runs SET expires_at = {{now}} + :ttl WHERE {_MINE}"
    values = {"run": run.id, "token": run.token, "thread": run.thread_id, "ttl": ttl_micros(ttl)}
    if not await connection.execute(statement, **values):
        raise lost_run(run, await get_run(connection, run.id))


async def end_run(connection: Connection, run: Run, state: Outcome, *, died_at: int | None = None) -> bool:
    """End the run. Returns False if it had ended already or is discarded.

    Args:
        died_at: For a run whose process died, the time at which it expired; its thread was not changed after that.
    """
    await lock_thread(connection, run.thread_id)
    ended = await connection.first(
        f"UPDATE diarist_runs SET state = :state, ended_at = {{now}} WHERE {_MINE} RETURNING thread_id, guarded,"
        " (SELECT c.earlier FROM diarist_branch_changes c WHERE c.run_id = diarist_runs.id)",
        run=run.id,
        token=run.token,
        thread=run.thread_id,
        state=state,
    )
    if ended is None:
        require_state(run, await get_run(connection, run.id), state)
        return False
    thread_id, guarded, earlier_end = ended
    if state == "discarded":
        await connection.execute("DELETE FROM diarist_messages WHERE run_id = :run", run=run.id)
        if earlier_end is not None:
            await _restore_branch(connection, run, earlier_end)
        dropped = await connection.execute(
            "DELETE FROM diarist_threads WHERE id = :thread AND created_by = :run"
            " AND NOT EXISTS (SELECT 1 FROM diarist_messages m WHERE m.thread_id = diarist_threads.id)",
            thread=thread_id,
            run=run.id,
        )
        if dropped:
            await forget_records(connection, thread_id)
        return False
    if state == "interrupted" and guarded:
        await connection.execute("DELETE FROM diarist_messages WHERE run_id = :run AND source <> 'input'", run=run.id)
    if state == "interrupted" and earlier_end is not None:
        kept = await connection.value("SELECT 1 FROM diarist_messages WHERE run_id = :run LIMIT 1", run=run.id)
        if kept is None:
            await _restore_branch(connection, run, earlier_end)
    if died_at is None:
        await connection.execute("UPDATE diarist_threads SET updated_at = {now} WHERE id = :thread", thread=thread_id)
    else:
        await connection.execute(
            "UPDATE diarist_threads SET updated_at = :at WHERE id = :thread AND updated_at < :at",
            thread=thread_id,
            at=died_at,
        )
    return True


async def _restore_branch(connection: Connection, run: Run, end: int) -> None:
    with suppress(NotFoundError):  # the message was forgotten while the run was live
        await move_branch(connection, run.thread_id, end)


async def commit_run(connection: Connection, run: Run) -> None:
    """End a run as committed. Raise RunLostError unless it is live. The caller locks and updates the thread."""
    statement = f"UPDATE diarist_runs SET state = 'committed', ended_at = {{now}} WHERE {_MINE}"
    if not await connection.execute(statement, run=run.id, token=run.token, thread=run.thread_id):
        raise lost_run(run, await get_run(connection, run.id))


async def get_run(connection: Connection, run_id: str) -> Run | None:
    row = await connection.first(f"SELECT {_COLUMNS} FROM diarist_runs WHERE id = :run", run=run_id)
    return None if row is None else _run(row)


async def require_live(connection: Connection, run: Run) -> None:
    """Raise RunLostError unless the run may write. The thread must be locked."""
    require_state(run, await get_run(connection, run.id), "live")


def _run(row: Row) -> Run:
    id, thread_id, resource_id, state, token, guarded, *_ = row
    return Run(id=id, thread_id=thread_id, resource_id=resource_id, state=state, token=token, guarded=bool(guarded))
