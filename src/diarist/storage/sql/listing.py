"""Reading the messages of a thread in SQL."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from sqlalchemy import Connection, Select, Text, bindparam, or_, select

from diarist.in_place import SHORT_READ, SHORT_ROWS, is_hurried, require_threads
from diarist.messages import Message
from diarist.storage.codec import END, MessageRow, decode_message
from diarist.storage.sql.kept import Kept
from diarist.storage.sql.known_rows import Known, KnownRow
from diarist.storage.sql.schema import messages, runs, threads
from diarist.storage.sql.threads import COUNTS

_thread_id = bindparam("thread", type_=Text())
_STAMP = select(threads.c.resource_id, threads.c.stamp).where(threads.c.id == _thread_id)
_LIST: Select[*tuple[Any, ...]] = (
    select(threads.c.resource_id, runs.c.state.label("run_state"), *(messages.c[name] for name in MessageRow._fields))
    .select_from(
        messages.join(runs, runs.c.id == messages.c.run_id).join(threads, threads.c.id == messages.c.thread_id)
    )
    .where(
        messages.c.thread_id == _thread_id,
        messages.c.seq > bindparam("after"),
        messages.c.seq < bindparam("before"),
        or_(runs.c.state.in_(COUNTS), runs.c.id == bindparam("own")),
    )
    .limit(bindparam("most"))
)
_OLDEST_FIRST = _LIST.order_by(messages.c.seq)
_NEWEST_FIRST = _LIST.order_by(messages.c.seq.desc())


def list_messages(
    connection: Connection,
    kept: Kept[Known],
    thread_id: str,
    after: int | None,
    before: int | None,
    limit: int,
    newest_first: bool,
    run_id: str | None,
) -> list[Message]:
    place, before = 0 if after is None else after, END if before is None else before
    if limit == END and not newest_first:
        return _all(connection, kept, thread_id, place, before, run_id)
    values = {"thread": thread_id, "after": place, "before": before, "most": limit, "own": run_id}
    rows = _found(connection, _NEWEST_FIRST if newest_first else _OLDEST_FIRST, values)
    return [decode_message(row, thread_id=thread_id, resource_id=row.resource_id) for row in rows]


def _all(
    connection: Connection, kept: Kept[Known], thread_id: str, after: int, before: int, run_id: str | None
) -> list[Message]:
    """All rows in between: those that are known, and what came since, which is known from now on."""
    thread = connection.execute(_STAMP, {"thread": thread_id}).first()
    if thread is None:
        kept.drop(thread_id)
        return []
    known = kept.get(thread_id)
    if known is None or known.stamp != thread.stamp or known.after > after:
        known = Known(thread.stamp, after, ())
    values = {"thread": thread_id, "after": max(after, known.upto), "before": before, "most": END, "own": run_id}
    rows: list[Any] = []
    if before > known.upto + 1:
        rows = _found(connection, _OLDEST_FIRST, values)
    place = {"thread_id": thread_id, "resource_id": thread.resource_id}
    # A thread has one live run, whose rows are the last: once it has ended nothing comes between those before them.
    ended = list(takewhile(lambda row: row.run_state in COUNTS, rows))
    settled = known.between(after, before)
    if is_hurried(connection) and sum([row.size for row in settled if row.plain is None]) > SHORT_READ:
        require_threads(connection)
    new = [KnownRow.of(_row(row), **place) for row in ended]
    if before == END and (ended or len(settled) < len(known.rows) or not known.rows):
        known = Known(thread.stamp, after, [*settled, *[row for row, _ in new]])
        kept.put(thread_id, known, known.size)
    live = [decode_message(row, **place) for row in rows[len(ended) :]]
    return [row.message(**place) for row in settled] + [message for _, message in new] + live


def _found(connection: Connection, query: Select[*tuple[Any, ...]], values: dict[str, Any]) -> list[Any]:
    """Rows with the names of MessageRow, and more."""
    if not is_hurried(connection):
        return list(connection.execute(query, values).all())  # .all(): the driver fetches them in one go
    rows: list[Any] = []
    size = 0
    for row in connection.execute(query, {**values, "most": min(values["most"], SHORT_ROWS + 1)}):
        rows.append(row)
        size += len(row.parts)
        if size > SHORT_READ or len(rows) > SHORT_ROWS:
            require_threads(connection)
    return rows


def _row(row: Any) -> MessageRow:
    return MessageRow(*(getattr(row, name) for name in MessageRow._fields))
