"""The messages of a thread in SQL: one row each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diarist.byte_cache import ByteCache
from diarist.checks import LARGEST, check_limit, check_place, checked
from diarist.databases.base import Connection, Row
from diarist.messages import Message
from diarist.run_context import Outcome
from diarist.storage.codec import EncodedEvent, MessageRow, decode_message, lost_run, taken_ids, unchangeable
from diarist.storage.records import COUNTS, Forgotten, ObservationLog, Run
from diarist.storage.sql.branches import delete_superseded, end_of_branch, move_branch, rewrite_superseded
from diarist.storage.sql.events import append_event
from diarist.storage.sql.logs import KnownLog, require_version, save_log
from diarist.storage.sql.row_cache import KnownRows, size_of_rows
from diarist.storage.sql.runs import commit_run, end_run, get_run, require_live
from diarist.storage.sql.search import unindex
from diarist.storage.sql.threads import COUNTING, lock_thread, stamp_thread

_TAKE_NUMBERS, _TAKE_NUMBERS_AT_END = (
    f"UPDATE diarist_threads SET last_seq = last_seq + :count{more} WHERE id = :thread RETURNING last_seq"
    for more in ("", ", updated_at = {now}")
)
_INSERT = (
    f"INSERT INTO diarist_messages (thread_id, {', '.join(MessageRow._fields)})"
    f" VALUES (:thread_id, {', '.join(f':{name}' for name in MessageRow._fields)})"
)
_REWRITE = (
    "UPDATE diarist_messages SET "
    + ", ".join(f"{name} = :{name}" for name in MessageRow._fields if name not in {"seq", "id", "run_id", "source"})
    + " WHERE thread_id = :thread_id AND id = :id AND "
)
_REWRITE_OWN = f"{_REWRITE} run_id = :run_id"
_REWRITE_EARLIER = (
    f"{_REWRITE} EXISTS (SELECT 1 FROM diarist_runs r WHERE r.id = run_id AND r.{COUNTING}) RETURNING seq"
)
_LIST = (
    f"SELECT r.state, {', '.join(f'm.{name}' for name in MessageRow._fields)}"
    " FROM diarist_messages m JOIN diarist_runs r ON r.id = m.run_id"
    " WHERE m.thread_id = :thread AND m.seq > :after AND m.seq < :before"
    f" AND (r.{COUNTING} OR r.id = :own) ORDER BY m.seq {{order}} LIMIT :most"
)
_OLDEST_FIRST, _NEWEST_FIRST = _LIST.replace("{order}", "ASC"), _LIST.replace("{order}", "DESC")


# --- writing -----------------------------------------------------------------------------------------------


async def append_messages(
    connection: Connection,
    run: Run,
    rows: Sequence[MessageRow],
    added: Sequence[EncodedEvent] = (),
    *,
    commits: bool = False,
) -> list[int]:
    """Append messages and events. ``commits``: end the run as well, as committed."""
    # Raise the counter first: this locks the thread's row, so no other transaction can end the run before the insert.
    take_numbers = _TAKE_NUMBERS_AT_END if commits else _TAKE_NUMBERS
    last = await connection.value(take_numbers, thread=run.thread_id, count=len(rows))
    if last is None:
        raise lost_run(run, await get_run(connection, run.id))
    if commits:
        await commit_run(connection, run)
    else:
        await require_live(connection, run)
    numbers = list(range(last - len(rows) + 1, last + 1))
    values = [row._asdict() | {"seq": seq, "thread_id": run.thread_id} for seq, row in zip(numbers, rows, strict=True)]
    try:
        if values:
            await connection.execute_many(_INSERT, values)
    except connection.violations as error:
        raise taken_ids(run.thread_id, rows) from error
    for event in added:
        await append_event(connection, *event)
    return numbers


async def finish_run(
    connection: Connection,
    run: Run,
    state: Outcome,
    rows: Sequence[MessageRow],
    added: Sequence[EncodedEvent],
) -> list[int]:
    if rows and state == "committed":  # nearly every run, in as few statements as possible
        return await append_messages(connection, run, rows, added, commits=True)
    numbers = await append_messages(connection, run, rows) if rows else []
    if await end_run(connection, run, state):
        for event in added:
            await append_event(connection, *event)
    return numbers


async def rewrite_messages(connection: Connection, run: Run, rows: Sequence[MessageRow], remove: Sequence[str]) -> None:
    await lock_thread(connection, run.thread_id)
    await require_live(connection, run)
    place: dict[str, Any] = {"thread_id": run.thread_id, "run_id": run.id}
    earlier = [row for row in rows if not await connection.execute(_REWRITE_OWN, **(row._asdict() | place))]
    seqs: list[int] = []
    for row in earlier:
        seq = await connection.value(_REWRITE_EARLIER, **(row._asdict() | place))
        if seq is None:
            raise unchangeable(run, row.id)
        seqs.append(seq)
    if seqs:
        await stamp_thread(connection, run.thread_id)
        await unindex(connection, run.thread_id, min(seqs) - 1)
    for message_id in dict.fromkeys(remove):
        removed = await connection.execute(
            "DELETE FROM diarist_messages WHERE thread_id = :thread_id AND id = :id AND run_id = :run_id",
            id=message_id,
            **place,
        )
        if not removed:
            raise unchangeable(run, message_id)


async def note_forgotten(connection: Connection, thread_id: str, messages: Sequence[Forgotten]) -> None:
    for message in messages:
        checked(message.id, "a message id")
    if messages and await lock_thread(connection, thread_id) is not None:
        await connection.execute_many(
            "INSERT INTO diarist_forgotten (thread_id, id, seq, rank, role) VALUES (:thread, :id, :seq, :rank, :role)"
            " ON CONFLICT DO NOTHING",
            [{"thread": thread_id, **message._asdict()} for message in messages],
        )


async def delete_messages(connection: Connection, thread_id: str, ids: Sequence[str]) -> int:
    await lock_thread(connection, thread_id)
    count = await delete_superseded(connection, thread_id, list(ids))
    visible = sorted(await find_existing_ids(connection, thread_id, ids))
    if visible:
        await stamp_thread(connection, thread_id)
        await connection.execute(
            "DELETE FROM diarist_messages WHERE thread_id = :thread AND id {any ids}", thread=thread_id, ids=visible
        )
    return len(visible) + count


async def set_branch(
    connection: Connection,
    known: ByteCache[str, KnownLog],
    run: Run,
    end: int,
    logs: Sequence[tuple[ObservationLog, ObservationLog]],
) -> list[str]:
    await lock_thread(connection, run.thread_id)
    await require_live(connection, run)
    await connection.execute(
        "INSERT INTO diarist_branch_changes (run_id, earlier) VALUES (:run, :earlier) ON CONFLICT DO NOTHING",
        run=run.id,
        earlier=await end_of_branch(connection, run.thread_id),
    )
    # Move the messages before the logs are read: a save that covers them has locked them, and is seen afterwards.
    gone = await move_branch(connection, run.thread_id, end)
    for read, log in logs:
        if log is not read:
            await save_log(connection, known, log, read.version, ())
        else:
            await require_version(connection, read)
    return gone


async def rewrite_sent(connection: Connection, thread_id: str, blocks: Mapping[str, str | None]) -> int:
    await lock_thread(connection, thread_id)
    visible = sorted(await find_existing_ids(connection, thread_id, list(blocks)))
    if visible:
        await stamp_thread(connection, thread_id)
        await connection.execute_many(
            "UPDATE diarist_messages SET sent = :sent WHERE thread_id = :thread AND id = :id",
            [{"thread": thread_id, "id": id, "sent": blocks[id]} for id in visible],
        )
    return len(visible) + await rewrite_superseded(connection, thread_id, blocks)


# --- reading -----------------------------------------------------------------------------------------------


async def find_existing_ids(
    connection: Connection, thread_id: str, ids: Sequence[str], *, forgotten: bool = False
) -> set[str]:
    if not ids:
        return set()
    found = await connection.fetch(
        "SELECT m.id FROM diarist_messages m JOIN diarist_runs r ON r.id = m.run_id"
        f" WHERE m.thread_id = :thread AND m.id {{any ids}} AND r.{COUNTING}",
        thread=thread_id,
        ids=list(ids),
    )
    rows = list(found)
    if forgotten:
        rows += await connection.fetch(
            "SELECT id FROM diarist_forgotten WHERE thread_id = :thread AND id {any ids}",
            thread=thread_id,
            ids=list(ids),
        )
    return {row[0] for row in rows}


async def list_forgotten(connection: Connection, thread_id: str) -> list[Forgotten]:
    rows = await connection.fetch(
        f"SELECT {', '.join(Forgotten._fields)} FROM diarist_forgotten WHERE thread_id = :thread"
        " ORDER BY seq, rank, id",
        thread=thread_id,
    )
    return [Forgotten(*row) for row in rows]


async def list_messages(
    connection: Connection,
    thread_id: str,
    *,
    after: int | None = None,
    before: int | None = None,
    limit: int | None = None,
    newest_first: bool = False,
    run_id: str | None = None,
) -> list[Message]:
    most = check_limit(limit)
    check_place(after=after, before=before)
    thread = await connection.first("SELECT resource_id FROM diarist_threads WHERE id = :thread", thread=thread_id)
    if thread is None:
        return []
    rows = await connection.fetch(
        _NEWEST_FIRST if newest_first else _OLDEST_FIRST,
        thread=thread_id,
        after=0 if after is None else after,
        before=LARGEST if before is None else before,
        most=most,
        own=run_id,
    )
    return [decode_message(MessageRow(*row[1:]), thread_id=thread_id, resource_id=thread[0]) for row in rows]


async def list_shared_messages(
    connection: Connection,
    kept: ByteCache[str, KnownRows],
    thread_id: str,
    after: int,
    before: int,
    run_id: str | None,
) -> list[Message]:
    """Return messages that are shared with other readers. ``kept`` caches messages that were read before."""
    known = kept.get(thread_id)
    newest = known.messages[-1] if known is not None and known.messages else None
    thread = await connection.first(
        "SELECT resource_id, stamp, (SELECT id FROM diarist_messages WHERE thread_id = :thread AND seq = :seq)"
        " FROM diarist_threads WHERE id = :thread",
        thread=thread_id,
        seq=0 if newest is None else newest.seq,
    )
    if thread is None:
        kept.drop(thread_id)
        return []
    resource_id, stamp, newest_id = thread
    # The database may have gone back to a replica that lagged, or to a backup.
    has_gone_back = newest is not None and newest.id != newest_id
    if known is None or known.stamp != stamp or known.after > after or has_gone_back:
        known = KnownRows(stamp, after, [], 0)
    rows: list[Row] = []
    if before > known.upto + 1:
        rows = list(
            await connection.fetch(
                _OLDEST_FIRST, thread=thread_id, after=max(after, known.upto), before=before, most=LARGEST, own=run_id
            )
        )
    found = [MessageRow(*row[1:]) for row in rows]
    messages = [decode_message(row, thread_id=thread_id, resource_id=resource_id) for row in found]
    settled = known.between(after, before)
    if before == LARGEST:
        # Cache only the rows before those of the live run. The live run's rows are the last ones, so no row can be
        # inserted between the cached rows.
        ended = next((place for place, row in enumerate(rows) if row[0] not in COUNTS), len(rows))
        if ended or len(settled) < len(known.messages):
            left = len(settled) / len(known.messages) if known.messages else 0
            size = int(known.size * left) + size_of_rows(found[:ended])
            kept.put(thread_id, KnownRows(stamp, after, settled + messages[:ended], size), size)
    return settled + messages
