"""Storage in this process's memory, as strict as a database: for tests and temporary data."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import gt, lt
from typing import Any

from diarist.byte_cache import cached
from diarist.checks import check_limit, check_place, checked
from diarist.exceptions import ConflictError, NotFoundError, ThreadBusyError
from diarist.messages import Json, Message, SentBlock
from diarist.storage.base import SearchStorage, Storage
from diarist.storage.codec import (
    OF_RESOURCE,
    MessageRow,
    ThreadRow,
    after_resource,
    after_thread,
    at_micros,
    canonical,
    changed_thread,
    check_thread,
    decode_log,
    decode_message,
    decode_resource,
    decode_thread,
    decode_working_memory,
    encode_event,
    encode_log,
    encode_message,
    encode_resource,
    encode_sent,
    encode_thread,
    encode_working_memory,
    from_json,
    own_log,
    page_of_resources,
    page_of_threads,
    require_resource,
    require_state,
    to_json,
    ttl_micros,
)
from diarist.storage.records import (
    COUNTS,
    EndState,
    Event,
    Forgotten,
    Hit,
    Lease,
    MessageSource,
    NewEvent,
    ObservationLog,
    Page,
    Resource,
    RowRef,
    Run,
    Superseded,
    Thread,
    WorkingMemory,
    path_to,
)
from diarist.storage.search_cursors import Place, decode_place, encode_place, first_position, moves
from diarist.storage.words import make_hit, message_terms, query_terms


@dataclass(slots=True)
class _Thread:
    row: ThreadRow
    created_by: str | None
    messages: dict[int, MessageRow] = field(default_factory=dict[int, MessageRow])
    positions: dict[int, int] = field(default_factory=dict[int, int])  # of visible messages
    last_seq: int = 0
    forgotten: dict[str, Forgotten] = field(default_factory=dict[str, Forgotten])
    superseded: dict[int, tuple[int, MessageRow]] = field(default_factory=dict[int, tuple[int, MessageRow]])

    def drop(self, seq: int) -> None:
        del self.messages[seq]
        self.positions.pop(seq, None)


@dataclass(slots=True)
class _Run:
    run: Run
    expires_at: int
    earlier_end: int | None = None  # of the active branch, if the run has changed it


_decoded = cached(8_000_000)(decode_log)
"""``decode_log`` with a cache, since logs are long and mostly unchanged between two reads."""


@dataclass(slots=True)
class _Log:
    version: int
    generation: int
    body: str


@dataclass(slots=True)
class _EventLog:
    events: list[tuple[int, str, str, int]] = field(default_factory=list[tuple[int, str, str, int]])
    last_seq: int = 0


class InMemoryStorage(Storage, SearchStorage):
    """Storage in this process's memory. The data lives as long as the object; ``close`` does not delete it.

    Values are encoded as in the SQL back ends, so the same values are rejected or converted. Every method acquires the
    lock once and awaits nothing while it holds the lock, so methods are atomic, also between threads and event loops.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._positions_used: dict[int, int] = {}
        self._threads: dict[str, _Thread] = {}
        self._runs: dict[str, _Run] = {}
        self._resources: dict[str, tuple[int, str]] = {}
        self._working_memories: dict[str, tuple[int, str]] = {}
        self._logs: dict[str, _Log] = {}
        self._history: dict[str, dict[int, str]] = {}
        self._leases: dict[str, tuple[Lease, int]] = {}
        self._events: dict[str, _EventLog] = {}

    # Threads

    async def create_thread(self, thread: Thread) -> Thread:
        with self._lock:
            if thread.id in self._threads:
                raise ConflictError(f"thread {thread.id!r} exists already")
            return decode_thread(self._insert_thread(thread, created_by=None).row)

    async def get_thread(self, thread_id: str, *, hidden: bool = False) -> Thread | None:
        with self._lock:
            found = self._threads.get(thread_id) if hidden else self._visible_thread(thread_id)
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
            found.row = changed_thread(found.row, title, metadata, expected_title)._replace(updated_at=_now())
            return decode_thread(found.row)

    async def list_threads(
        self,
        *,
        resource_id: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = True,
        hidden: bool = False,
    ) -> Page[Thread]:
        check_limit(limit, least=1)
        last = None if cursor is None else after_thread(cursor)
        beyond = lt if newest_first else gt
        wanted = {to_json(key): canonical(value) for key, value in (metadata or {}).items()}
        with self._lock:
            rows = [found.row for found in self._threads.values() if hidden or self._is_visible(found)]
        rows = [
            row
            for row in sorted(rows, key=_by_time, reverse=newest_first)
            if resource_id in (None, row.resource_id)
            and (last is None or beyond(_by_time(row), last))
            and wanted.items() <= _canonical_items(row.metadata)
        ]
        return page_of_threads(rows, limit)

    async def delete_thread(self, thread_id: str) -> bool:
        with self._lock:
            self._runs = {run_id: found for run_id, found in self._runs.items() if found.run.thread_id != thread_id}
            self._forget_records(f"thread:{thread_id}")
            return self._threads.pop(thread_id, None) is not None

    def _insert_thread(self, thread: Thread, *, created_by: str | None) -> _Thread:
        moment = _now()
        values: dict[str, Any] = {k: moment if value is None else value for k, value in encode_thread(thread).items()}
        row = ThreadRow(**values)
        self._threads[thread.id] = _Thread(row, created_by)
        return self._threads[thread.id]

    def _visible_thread(self, thread_id: str) -> _Thread | None:
        found = self._threads.get(thread_id)
        return found if found is not None and self._is_visible(found) else None

    def _is_visible(self, thread: _Thread) -> bool:
        return thread.created_by is None or self._counts(thread.created_by)

    def _counts(self, run_id: str) -> bool:
        return self._runs[run_id].run.state in COUNTS

    # Runs

    async def begin_run(self, run_id: str, thread: Thread, *, ttl: float = 60.0, guarded: bool = False) -> Run:
        check_thread(thread)
        checked(run_id, "a run id")
        expires_at = _steady() + ttl_micros(ttl)
        with self._lock:
            found = self._threads.get(thread.id)
            if found is not None:
                require_resource(thread, found.row.resource_id)
            if run_id in self._runs:
                raise ConflictError(f"run {run_id!r} exists already")
            earlier = [other for other in self._runs.values() if other.run.thread_id == thread.id]
            for other in earlier:
                if other.run.state == "live":
                    if other.expires_at > _steady():
                        raise ThreadBusyError(f"run {other.run.id!r} of thread {thread.id!r} is live")
                    self._end(other, "interrupted", died_at=_now() - (_steady() - other.expires_at))
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

    async def heartbeat(self, run: Run, *, ttl: float = 60.0) -> None:
        expires_at = _steady() + ttl_micros(ttl)
        with self._lock:
            self._live(run).expires_at = expires_at

    async def finish_run(
        self, run: Run, state: EndState, *, messages: Sequence[Message] = (), events: Sequence[NewEvent] = ()
    ) -> list[int]:
        rows = [encode_message(message, run_id=run.id, source="response") for message in messages]
        new = list(map(encode_event, events))
        with self._lock:
            numbers = self._append(run, rows) if rows else []
            found = self._runs.get(run.id)
            if found is not None and found.run.state == "live":
                self._end(self._live(run), state)
                for event in new if state != "discarded" else ():
                    self._append_event(*event)
            else:
                require_state(run, found and found.run, state)
            return numbers

    def _end(self, found: _Run, state: EndState, died_at: int | None = None) -> None:
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
        own = any(row.run_id == found.run.id for row in thread.messages.values())
        if found.earlier_end is not None and state != "committed" and not own:
            with suppress(NotFoundError):  # the message was forgotten while the run was live
                self._move_branch(thread, found.earlier_end)
        if state != "discarded":
            moment = _now() if died_at is None else max(died_at, thread.row.updated_at or 0)
            thread.row = thread.row._replace(updated_at=moment)
        elif thread.created_by == found.run.id and not thread.messages:
            del self._threads[found.run.thread_id]
            self._forget_records(f"thread:{found.run.thread_id}")

    async def get_run(self, run_id: str) -> Run | None:
        with self._lock:
            found = self._runs.get(run_id)
            return None if found is None else found.run

    def _live(self, run: Run) -> _Run:
        """Return the stored run. Raises RunLostError if the run may not write."""
        found = self._runs.get(run.id)
        require_state(run, found and found.run, "live")
        assert found is not None
        return found

    # Messages

    async def append_messages(
        self,
        run: Run,
        messages: Sequence[Message],
        *,
        source: MessageSource = "response",
        events: Sequence[NewEvent] = (),
    ) -> list[int]:
        rows, new = [encode_message(m, run_id=run.id, source=source) for m in messages], list(map(encode_event, events))
        with self._lock:
            numbers = self._append(run, rows)
            for event in new:
                self._append_event(*event)
            return numbers

    def _append(self, run: Run, rows: Sequence[MessageRow]) -> list[int]:
        self._live(run)
        thread = self._threads[run.thread_id]
        ids = [row.id for row in rows]
        if len(set(ids)) < len(ids) or any(row.id in ids for row in thread.messages.values()):
            raise ConflictError(
                f"thread {run.thread_id!r} already has a message with the same id, or an id occurs twice: {ids}"
            )
        numbers = list(range(thread.last_seq + 1, thread.last_seq + 1 + len(rows)))
        thread.messages.update((seq, row._replace(seq=seq)) for seq, row in zip(numbers, rows, strict=True))
        thread.last_seq += len(rows)
        return numbers

    async def rewrite_messages(self, run: Run, messages: Sequence[Message], *, remove: Sequence[str] = ()) -> None:
        rows = [encode_message(message, run_id=run.id, source="response") for message in messages]
        with self._lock:
            self._live(run)
            thread = self._threads[run.thread_id]
            own = {row.id: row for row in thread.messages.values() if row.run_id == run.id}
            visible = {row.id: row for row in thread.messages.values() if self._counts(row.run_id)}
            changeable = visible | own
            wrong = [row.id for row in rows if row.id not in changeable] + [id for id in remove if id not in own]
            if wrong:
                raise NotFoundError(
                    f"run {run.id!r} cannot change message {wrong[0]!r}: it can replace visible messages and "
                    "messages of its own, and remove messages of its own"
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
            noted = thread.forgotten.values() if thread is not None else ()
            return sorted(noted, key=lambda message: (message.seq, message.rank, message.id))

    async def delete_messages(self, thread_id: str, ids: Sequence[str]) -> int:
        with self._lock:
            thread = self._threads.get(thread_id)
            if thread is None:
                return 0
            tree = thread.superseded
            places = {row.seq: parent for parent, row in tree.values() if row.id in set(ids)}
            for row in self._visible_rows(thread_id, ids):
                places[row.seq] = max((seq for seq in thread.messages if seq < row.seq), default=0)
            for seq in sorted(places, reverse=True):  # the last ones first, since the one before may be deleted as well
                tree.update({s: (places[seq], row) for s, (parent, row) in tree.items() if parent == seq})
            for seq in places:
                if tree.pop(seq, None) is None:
                    thread.drop(seq)
            return len(places)

    async def set_branch(
        self, run: Run, end: int, *, logs: Sequence[tuple[ObservationLog, ObservationLog]] = ()
    ) -> list[str]:
        bodies = {log.key: encode_log(replace(log, version=read.version + 1)) for read, log in logs if log is not read}
        with self._lock:
            live, thread = self._live(run), self._threads[run.thread_id]
            for read, _ in logs:
                self._require_version(read.key, read.version)
            earlier = max(thread.messages, default=0)
            gone = self._move_branch(thread, end)
            if live.earlier_end is None:
                live.earlier_end = earlier
            for read, log in logs:
                if log is not read:
                    self._put_log(replace(log, version=read.version + 1), bodies[log.key])
            return gone

    def _move_branch(self, thread: _Thread, end: int) -> list[str]:
        fork, path = path_to({seq: parent for seq, (parent, _) in thread.superseded.items()}, end)
        if not path and end and end not in thread.messages:
            raise NotFoundError(f"thread {thread.row.id!r} has no message with the number {end}")
        active = sorted(thread.messages)
        rows = [(parent, thread.messages[seq]) for parent, seq in zip([0, *active], active, strict=False) if seq > fork]
        for _, row in rows:
            thread.drop(row.seq)
        for seq in path:
            _, row = thread.superseded.pop(seq)
            thread.messages[seq] = row
            thread.positions[seq] = self._next_position(row)
        thread.superseded.update({row.seq: (parent, row) for parent, row in rows})
        return [row.id for _, row in rows]

    async def list_superseded(self, thread_id: str) -> list[Superseded]:
        with self._lock:
            thread = self._threads.get(thread_id)
            found = sorted(thread.superseded.items()) if thread is not None else []
        owner = thread.row.resource_id if thread is not None else ""
        return [
            Superseded(message=decode_message(row, thread_id=thread_id, resource_id=owner), parent=parent)
            for _, (parent, row) in found
        ]

    async def rewrite_sent(self, thread_id: str, blocks: Mapping[str, SentBlock | None]) -> int:
        encoded = {message_id: encode_sent(block) for message_id, block in blocks.items()}
        with self._lock:
            rows = self._visible_rows(thread_id, list(blocks))
            for row in rows:
                self._threads[thread_id].messages[row.seq] = row._replace(sent=encoded[row.id])
            return len(rows)

    def _next_position(self, row: MessageRow) -> int:
        first = first_position(_now() if row.created_at is None else row.created_at)
        self._positions_used[first] = used = self._positions_used.get(first, -1) + 1
        return first + used

    def _visible_rows(self, thread_id: str, ids: Sequence[str]) -> list[MessageRow]:
        thread, wanted = self._threads.get(thread_id), set(ids)
        rows = thread.messages.values() if thread is not None else ()
        return [row for row in rows if row.id in wanted and self._counts(row.run_id)]

    # Search

    async def search_messages(
        self,
        query: str,
        *,
        resource_id: str,
        thread_id: str | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Hit]:
        terms, limit, after = query_terms(query), check_limit(limit, least=1), decode_place(cursor)
        with self._lock:
            rows = [
                (position, thread.messages[seq], thread.row.id)
                for thread in self._threads.values()
                if thread.row.resource_id == resource_id and thread_id in (None, thread.row.id)
                for seq, position in thread.positions.items()
                if position < after.position
            ]
        found: list[tuple[int, Message]] = []
        for position, row, thread in sorted(rows, reverse=True):
            message = decode_message(row, thread_id=thread, resource_id=resource_id)
            if message_terms(message).issuperset(terms):
                found.append((position, message))
                if len(found) > limit:
                    break
        more = len(found) > limit
        return Page(
            items=[make_hit(message, terms) for _, message in found[:limit]],
            cursor=encode_place(Place(found[limit - 1][0], 0)) if more else None,
        )

    # Resources, working memories and logs

    async def get_resource(self, resource_id: str) -> Resource:
        with self._lock:
            found = self._resources.get(resource_id)
        return Resource(id=resource_id) if found is None else decode_resource(resource_id, *found)

    async def save_resource(self, resource: Resource) -> Resource:
        checked(resource.id, "a resource id")
        saved = (resource.version + 1, encode_resource(resource))
        with self._lock:
            if self._resources.get(resource.id, (0, ""))[0] != resource.version:
                raise ConflictError(f"resource {resource.id!r} no longer has version {resource.version}")
            self._resources[resource.id] = saved
        return decode_resource(resource.id, *saved)

    async def list_resources(self, *, limit: int = 100, cursor: str | None = None) -> Page[str]:
        check_limit(limit, least=1)
        last = after_resource(cursor)
        with self._lock:
            keys = [*self._working_memories, *self._logs]
            ids = {*self._resources, *(key.removeprefix(OF_RESOURCE) for key in keys if key.startswith(OF_RESOURCE))}
        return page_of_resources(sorted(found for found in ids if last is None or found > last), limit)

    async def get_working_memory(self, key: str) -> WorkingMemory:
        with self._lock:
            found = self._working_memories.get(key)
        return WorkingMemory(key=key) if found is None else decode_working_memory(key, *found)

    async def save_working_memory(self, memory: WorkingMemory) -> WorkingMemory:
        checked(memory.key, "the key of a working memory")
        saved = (memory.version + 1, encode_working_memory(memory))
        with self._lock:
            if self._working_memories.get(memory.key, (0, ""))[0] != memory.version:
                raise ConflictError(f"the working memory of {memory.key!r} no longer has version {memory.version}")
            self._working_memories[memory.key] = saved
        return decode_working_memory(memory.key, *saved)

    async def get_log(self, key: str, *, after: int = 0) -> ObservationLog | None:
        with self._lock:
            found = self._logs.get(key)
        return None if found is None or found.version <= after else own_log(_decoded(found.body, key))

    async def save_log(
        self, log: ObservationLog, *, expected_version: int, rows: Sequence[RowRef] = ()
    ) -> ObservationLog:
        checked(log.key, "the key of a log")
        saved = replace(log, version=expected_version + 1)
        body = encode_log(saved)
        with self._lock:
            self._require_version(log.key, expected_version)
            for row in rows:
                thread = self._threads.get(row.thread_id)
                message = thread.messages.get(row.seq) if thread is not None else None
                if message is None or message.id != row.id:
                    raise ConflictError(f"message {row.id!r} of thread {row.thread_id!r} is gone")
            self._put_log(saved, body)
        return saved

    def _require_version(self, key: str, version: int) -> None:
        head = self._logs.get(key)
        stored = 0 if head is None else head.version
        if stored != version:
            raise ConflictError(f"log {key!r} has version {stored}, not {version}")

    def _put_log(self, log: ObservationLog, body: str) -> None:
        head = self._logs.get(log.key)
        if head is not None and log.generation > head.generation:
            self._history.setdefault(log.key, {}).setdefault(head.generation, head.body)
        self._logs[log.key] = _Log(log.version, log.generation, body)

    async def list_generations(self, key: str) -> list[ObservationLog]:
        with self._lock:
            history = sorted(self._history.get(key, {}).items())
        return [decode_log(body, key) for _, body in history]

    async def rewrite_generation(self, log: ObservationLog, *, expected: ObservationLog) -> bool:
        body = encode_log(log)
        with self._lock:
            history = self._history.get(log.key, {})
            stored = history.get(log.generation)
            if stored is None or decode_log(stored, log.key) != expected:
                return False
            history[log.generation] = body
            return True

    async def delete_generations(self, key: str) -> int:
        with self._lock:
            return len(self._history.pop(key, {}))

    async def delete_log(self, key: str) -> bool:
        with self._lock:
            return self._forget_log(key)

    def _forget_log(self, key: str) -> bool:
        self._history.pop(key, None)
        return self._logs.pop(key, None) is not None

    # Leases and events

    async def acquire_lease(self, name: str, owner: str, *, ttl: float) -> Lease | None:
        checked(name, "the name of a lease")
        checked(owner, "the owner of a lease")
        expires_at = _steady() + ttl_micros(ttl)
        with self._lock:
            held, until = self._leases.get(name, (Lease(name=name, owner=owner, token=0), 0))
            if held.owner != owner and until > _steady():
                return None
            lease = Lease(name=name, owner=owner, token=held.token + 1)
            self._leases[name] = (lease, expires_at)
            return lease

    async def renew_lease(self, lease: Lease, *, ttl: float) -> bool:
        expires_at = _steady() + ttl_micros(ttl)
        with self._lock:
            if not self._is_held(lease):
                return False
            self._leases[lease.name] = (lease, expires_at)
            return True

    async def release_lease(self, lease: Lease) -> None:
        with self._lock:
            if self._is_held(lease):
                self._leases[lease.name] = (lease, 0)

    async def delete_lease(self, name: str) -> bool:
        with self._lock:
            return self._leases.pop(name, None) is not None

    def _is_held(self, lease: Lease) -> bool:
        held, until = self._leases.get(lease.name, (None, 0))
        return held == lease and until > _steady()

    async def append_event(self, key: str, type: str, data: Mapping[str, Json]) -> Event:
        encoded = encode_event(NewEvent(key, type, dict(data)))
        with self._lock:
            return self._append_event(*encoded)

    def _append_event(self, key: str, type: str, body: str) -> Event:
        log = self._events.setdefault(key, _EventLog())
        log.last_seq += 1
        row = (log.last_seq, type, body, _now())
        log.events.append(row)
        del log.events[: -self.events_kept]
        return _event(key, row)

    async def list_events(self, key: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        check_limit(limit)
        with self._lock:
            rows = [row for row in self._events.get(key, _EventLog()).events if row[0] > after]
        return [_event(key, row) for row in rows[:limit]]

    async def delete_events(self, key: str) -> int:
        with self._lock:
            events = self._events.get(key, _EventLog()).events
            count = len(events)
            events.clear()
            return count

    def _forget_records(self, key: str) -> None:
        self._working_memories.pop(key, None)
        self._forget_log(key)
        self._events.pop(key, None)


def _by_time(row: ThreadRow) -> tuple[int, str]:
    return row.created_at, row.id


def _canonical_items(metadata: str) -> set[tuple[str, str]]:
    stored: dict[str, Json] = from_json(metadata)
    return {(to_json(key), canonical(value)) for key, value in stored.items()}


def _event(key: str, row: tuple[int, str, str, int]) -> Event:
    seq, type, body, created_at = row
    return Event(key=key, seq=seq, type=type, data=from_json(body), created_at=at_micros(created_at))


def _now() -> int:
    """Return the time as microseconds since 1970, UTC."""
    return time.time_ns() // 1000


def _steady() -> int:
    """Return a monotonic time in microseconds, for expiry."""
    return time.monotonic_ns() // 1000
