"""Threads, runs and messages in memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import gt, lt
from typing import Literal

from diarist.checks import check_limit, check_place, checked
from diarist.exceptions import ConflictError, InputError, NotFoundError, RunLostError, ThreadBusyError
from diarist.messages import Json, Message, SentBlock
from diarist.storage.base import MessageStorage, ThreadStorage
from diarist.storage.codec import (
    MessageRow,
    ThreadRow,
    canonical,
    check_thread,
    check_title,
    decode_cursor,
    decode_message,
    decode_thread,
    encode_cursor,
    encode_message,
    encode_sent,
    from_json,
    merge_metadata,
    to_json,
    to_micros,
    ttl_micros,
)
from diarist.storage.in_memory.shared import Locked, now, steady
from diarist.storage.records import Forgotten, MessageSource, Page, RowRef, Run, Thread
from diarist.storage.search_cursors import first_position, moves

_COUNTS = ("committed", "interrupted")


@dataclass(slots=True)
class _Thread:
    row: ThreadRow
    created_by: str | None
    messages: dict[int, MessageRow] = field(default_factory=dict[int, MessageRow])
    positions: dict[int, int] = field(default_factory=dict[int, int])  # of visible messages
    last_seq: int = 0
    forgotten: dict[str, Forgotten] = field(default_factory=dict[str, Forgotten])

    def drop(self, seq: int) -> None:
        del self.messages[seq]
        self.positions.pop(seq, None)


@dataclass(slots=True)
class _Run:
    run: Run
    expires_at: int


class InMemoryConversations(Locked, ThreadStorage, MessageStorage):
    def __init__(self) -> None:
        super().__init__()
        self._positions_used: dict[int, int] = {}
        self._threads: dict[str, _Thread] = {}
        self._runs: dict[str, _Run] = {}

    # Threads

    async def create_thread(self, thread: Thread) -> Thread:
        with self._lock:
            if thread.id in self._threads:
                raise ConflictError(f"thread {thread.id!r} exists already")
            return decode_thread(self._insert_thread(thread, created_by=None).row)

    async def get_thread(self, thread_id: str) -> Thread | None:
        with self._lock:
            found = self._visible_thread(thread_id)
            return None if found is None else decode_thread(found.row)

    async def update_thread(
        self,
        thread_id: str,
        *,
        title: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        expected_title: str | None = None,
    ) -> Thread:
        checked("" if title is None else title, f"the title of thread {thread_id!r}")
        with self._lock:
            found = self._visible_thread(thread_id)
            if found is None:
                raise NotFoundError(f"there is no thread {thread_id!r}")
            check_title(decode_thread(found.row), expected_title)
            changes = from_json(to_json(dict(metadata or {})))
            found.row = found.row._replace(
                title=found.row.title if title is None else title,
                metadata=to_json(merge_metadata(from_json(found.row.metadata), changes)),
                updated_at=now(),
            )
            return decode_thread(found.row)

    async def list_threads(
        self,
        *,
        resource_id: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = True,
    ) -> Page[Thread]:
        check_limit(limit, least=1)
        last = None if cursor is None else decode_cursor(cursor)
        beyond = lt if newest_first else gt
        wanted = {to_json(key): canonical(value) for key, value in (metadata or {}).items()}
        with self._lock:
            rows = [found.row for found in self._threads.values() if self._is_visible(found)]
        rows = [
            row
            for row in sorted(rows, key=_by_time, reverse=newest_first)
            if resource_id in (None, row.resource_id)
            and (last is None or beyond(_by_time(row), last))
            and wanted.items() <= _canonical_items(row.metadata)
        ]
        page = rows[:limit]
        return Page(
            items=[decode_thread(row) for row in page],
            cursor=encode_cursor(page[-1]) if len(rows) > limit else None,
        )

    async def delete_thread(self, thread_id: str) -> bool:
        with self._lock:
            self._runs = {run_id: found for run_id, found in self._runs.items() if found.run.thread_id != thread_id}
            self._forget_records(f"thread:{thread_id}")
            return self._threads.pop(thread_id, None) is not None

    @abstractmethod
    def _forget_records(self, key: str) -> None:
        """Delete the working memory, observation log and events of a deleted thread."""

    def _insert_thread(self, thread: Thread, *, created_by: str | None) -> _Thread:
        check_thread(thread)
        moment = now()
        created = to_micros(thread.created_at, f"created_at of thread {thread.id!r}")
        updated = to_micros(thread.updated_at, f"updated_at of thread {thread.id!r}")
        row = ThreadRow(
            id=thread.id,
            resource_id=thread.resource_id,
            title=thread.title,
            metadata=to_json(merge_metadata({}, thread.metadata)),
            created_at=moment if created is None else created,
            updated_at=moment if updated is None else updated,
        )
        self._threads[thread.id] = _Thread(row, created_by)
        return self._threads[thread.id]

    def _visible_thread(self, thread_id: str) -> _Thread | None:
        found = self._threads.get(thread_id)
        return found if found is not None and self._is_visible(found) else None

    def _is_visible(self, thread: _Thread) -> bool:
        return thread.created_by is None or self._counts(thread.created_by)

    def _counts(self, run_id: str) -> bool:
        return self._runs[run_id].run.state in _COUNTS

    # Runs

    async def begin_run(self, run_id: str, thread: Thread, *, ttl: float = 60.0, guarded: bool = False) -> Run:
        check_thread(thread)
        checked(run_id, "a run id")
        expires_at = steady() + ttl_micros(ttl)
        with self._lock:
            found = self._threads.get(thread.id)
            if found is not None and found.row.resource_id != thread.resource_id:
                raise InputError(
                    f"thread {thread.id!r} belongs to resource {found.row.resource_id!r}, not {thread.resource_id!r}"
                )
            if run_id in self._runs:
                raise ConflictError(f"run {run_id!r} exists already")
            earlier = [other for other in self._runs.values() if other.run.thread_id == thread.id]
            self._adopt_expired(earlier)
            if found is None:
                self._insert_thread(thread, created_by=run_id)
            run = Run(
                id=run_id,
                thread_id=thread.id,
                resource_id=thread.resource_id,
                state="live",
                token=max((other.run.token for other in earlier), default=0) + 1,
                guarded=guarded,
            )
            self._runs[run_id] = _Run(run, expires_at)
            return run

    def _adopt_expired(self, runs: list[_Run]) -> None:
        for found in runs:
            if found.run.state == "live":
                if found.expires_at > steady():
                    raise ThreadBusyError(f"run {found.run.id!r} of thread {found.run.thread_id!r} is live")
                self._end(found, "interrupted")

    async def heartbeat(self, run: Run, *, ttl: float = 60.0) -> None:
        expires_at = steady() + ttl_micros(ttl)
        with self._lock:
            self._require_live(run).expires_at = expires_at

    async def finish_run(
        self,
        run: Run,
        state: Literal["committed", "discarded", "interrupted"],
        *,
        messages: Sequence[Message] = (),
    ) -> list[int]:
        rows = [encode_message(message, run_id=run.id, source="response") for message in messages]
        with self._lock:
            numbers = self._append(run, rows) if rows else []
            found = self._found(run)
            if found is None or found.run.token != run.token or found.run.state not in ("live", state):
                raise self._lost(run)
            if found.run.state == "live":
                self._end(found, state)
            return numbers

    def _end(self, found: _Run, state: Literal["committed", "discarded", "interrupted"]) -> None:
        found.run = replace(found.run, state=state)
        thread = self._threads[found.run.thread_id]
        keeps_responses = state == "committed" or (state == "interrupted" and not found.run.guarded)
        for row in list(thread.messages.values()):
            is_kept = state != "discarded" and (keeps_responses or row.source == "input")
            if row.run_id == found.run.id:
                if is_kept:
                    thread.positions[row.seq] = self._next_position(row)
                else:
                    thread.drop(row.seq)
        if state != "discarded":
            thread.row = thread.row._replace(updated_at=now())
        elif thread.created_by == found.run.id and not thread.messages:
            del self._threads[found.run.thread_id]
            self._forget_records(f"thread:{found.run.thread_id}")

    async def get_run(self, run_id: str) -> Run | None:
        with self._lock:
            found = self._runs.get(run_id)
            return None if found is None else found.run

    def _require_live(self, run: Run) -> _Run:
        found = self._found(run)
        if found is None or (found.run.token, found.run.state) != (run.token, "live"):
            raise self._lost(run)
        return found

    def _found(self, run: Run) -> _Run | None:
        """Return the run; None if its thread was deleted, even if another thread now has a run with this id."""
        found = self._runs.get(run.id)
        return found if found is not None and found.run.thread_id == run.thread_id else None

    def _lost(self, run: Run) -> RunLostError:
        found = self._found(run)
        if found is None:
            return RunLostError(f"run {run.id!r} is gone: its thread {run.thread_id!r} was deleted")
        if found.run.token != run.token:
            return RunLostError(f"the token {run.token} of run {run.id!r} is not the stored one")
        return RunLostError(f"run {run.id!r} has ended as {found.run.state}: it may write nothing more")

    # Messages

    async def append_messages(
        self, run: Run, messages: Sequence[Message], *, source: MessageSource = "response"
    ) -> list[int]:
        rows = [encode_message(message, run_id=run.id, source=source) for message in messages]
        with self._lock:
            return self._append(run, rows)

    def _append(self, run: Run, rows: Sequence[MessageRow]) -> list[int]:
        self._require_live(run)
        thread = self._threads[run.thread_id]
        ids = [row.id for row in rows]
        if len(set(ids)) < len(ids) or any(row.id in ids for row in thread.messages.values()):
            raise ConflictError(f"thread {run.thread_id!r} has a message of the same id already, among {ids}")
        numbers = list(range(thread.last_seq + 1, thread.last_seq + 1 + len(rows)))
        thread.messages.update((seq, row._replace(seq=seq)) for seq, row in zip(numbers, rows, strict=True))
        thread.last_seq += len(rows)
        return numbers

    async def rewrite_messages(self, run: Run, messages: Sequence[Message], *, remove: Sequence[str] = ()) -> None:
        rows = [encode_message(message, run_id=run.id, source="response") for message in messages]
        with self._lock:
            self._require_live(run)
            thread = self._threads[run.thread_id]
            own = {row.id: row for row in thread.messages.values() if row.run_id == run.id}
            visible = {row.id: row for row in thread.messages.values() if self._counts(row.run_id)}
            changeable = visible | own
            wrong = [row.id for row in rows if row.id not in changeable] + [id for id in remove if id not in own]
            if wrong:
                raise NotFoundError(
                    f"run {run.id!r} may not change message {wrong[0]!r}: it is neither its own nor visible"
                )
            for row in rows:
                old = changeable[row.id]
                thread.messages[old.seq] = row._replace(seq=old.seq, source=old.source, run_id=old.run_id)
                if old.seq in thread.positions and moves(thread.positions[old.seq], row.created_at):
                    thread.positions[old.seq] = self._next_position(row)
            for message_id in set(remove):
                thread.drop(own[message_id].seq)

    async def list_messages(
        self,
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
        with self._lock:
            thread = self._threads.get(thread_id)
            if thread is None:
                return []
            rows = [
                row
                for row in thread.messages.values()
                if (after is None or row.seq > after)
                and (before is None or row.seq < before)
                and (row.run_id == run_id or self._counts(row.run_id))
            ]
        rows.sort(key=lambda row: row.seq, reverse=newest_first)
        resource_id = thread.row.resource_id
        return [decode_message(row, thread_id=thread_id, resource_id=resource_id) for row in rows[:most]]

    async def existing_ids(self, thread_id: str, ids: Sequence[str], *, forgotten: bool = False) -> set[str]:
        with self._lock:
            thread = self._threads.get(thread_id)
            noted = thread.forgotten.keys() if thread is not None and forgotten else set[str]()
            return {row.id for row in self._visible_rows(thread_id, ids)} | (noted & set(ids))

    async def note_forgotten(self, thread_id: str, messages: Sequence[Forgotten]) -> None:
        for message in messages:
            checked(message.id, "a message id")
        with self._lock:
            thread = self._threads.get(thread_id)
            if thread is not None:
                thread.forgotten = {**{message.id: message for message in messages}, **thread.forgotten}

    async def list_forgotten(self, thread_id: str) -> list[Forgotten]:
        with self._lock:
            thread = self._threads.get(thread_id)
            return sorted(thread.forgotten.values(), key=_by_place) if thread is not None else []

    async def delete_messages(self, thread_id: str, ids: Sequence[str]) -> int:
        with self._lock:
            rows = self._visible_rows(thread_id, ids)
            for row in rows:
                self._threads[thread_id].drop(row.seq)
            return len(rows)

    async def rewrite_sent(self, thread_id: str, blocks: Mapping[str, SentBlock | None]) -> int:
        encoded = {message_id: encode_sent(block) for message_id, block in blocks.items()}
        with self._lock:
            rows = self._visible_rows(thread_id, list(blocks))
            for row in rows:
                self._threads[thread_id].messages[row.seq] = row._replace(sent=encoded[row.id])
            return len(rows)

    def _next_position(self, row: MessageRow) -> int:
        first = first_position(now() if row.created_at is None else row.created_at)
        self._positions_used[first] = used = self._positions_used.get(first, -1) + 1
        return first + used

    def _has_row(self, row: RowRef) -> bool:
        thread = self._threads.get(row.thread_id)
        stored = thread.messages.get(row.seq) if thread is not None else None
        return stored is not None and stored.id == row.id

    def _visible_rows(self, thread_id: str, ids: Sequence[str]) -> list[MessageRow]:
        thread, wanted = self._threads.get(thread_id), set(ids)
        rows = thread.messages.values() if thread is not None else ()
        return [row for row in rows if row.id in wanted and self._counts(row.run_id)]


def _by_place(message: Forgotten) -> tuple[int, int, str]:
    return message.seq, message.rank, message.id


def _by_time(row: ThreadRow) -> tuple[int, str]:
    return row.created_at, row.id


def _canonical_items(metadata: str) -> set[tuple[str, str]]:
    stored: dict[str, Json] = from_json(metadata)
    return {(to_json(key), canonical(value)) for key, value in stored.items()}
