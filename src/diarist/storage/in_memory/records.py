"""Resources, working memories, observation logs, leases and events in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from diarist.byte_cache import cached
from diarist.checks import check_limit, checked
from diarist.exceptions import ConflictError
from diarist.messages import Json
from diarist.storage.base import EventStorage, LeaseStorage, LogStorage, ResourceStorage, WorkingMemoryStorage
from diarist.storage.codec import (
    OF_RESOURCE,
    at_micros,
    decode_log,
    decode_resource,
    decode_resource_cursor,
    decode_working_memory,
    encode_log,
    encode_resource,
    encode_working_memory,
    from_json,
    own_log,
    page_of_resources,
    to_json,
    ttl_micros,
)
from diarist.storage.in_memory.shared import Locked, now, steady
from diarist.storage.records import Event, Lease, ObservationLog, Page, Resource, RowRef, WorkingMemory

_decoded = cached(8_000_000)(decode_log)
"""``decode_log`` with a cache, since most readers find a log unchanged."""


@dataclass(slots=True)
class _Log:
    version: int
    generation: int
    body: str


@dataclass(slots=True)
class _EventLog:
    events: list[tuple[int, str, str, int]] = field(default_factory=list[tuple[int, str, str, int]])
    last_seq: int = 0


class InMemoryRecords(Locked, ResourceStorage, WorkingMemoryStorage, LogStorage, LeaseStorage, EventStorage):
    def __init__(self) -> None:
        super().__init__()
        self._resources: dict[str, tuple[int, str]] = {}
        self._working_memories: dict[str, tuple[int, str]] = {}
        self._logs: dict[str, _Log] = {}
        self._history: dict[str, dict[int, str]] = {}
        self._leases: dict[str, tuple[Lease, int]] = {}
        self._events: dict[str, _EventLog] = {}

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
        last = decode_resource_cursor(cursor)
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
            head = self._logs.get(log.key)
            stored = 0 if head is None else head.version
            if stored != expected_version:
                raise ConflictError(f"log {log.key!r} has version {stored}, not {expected_version}")
            if gone := next((row for row in rows if not self._has_row(row)), None):
                raise ConflictError(f"message {gone.id!r} of thread {gone.thread_id!r} is gone")
            if head is not None and saved.generation > head.generation:
                self._history.setdefault(log.key, {}).setdefault(head.generation, head.body)
            self._logs[log.key] = _Log(saved.version, saved.generation, body)
        return saved

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
        expires_at = steady() + ttl_micros(ttl)
        with self._lock:
            held, until = self._leases.get(name, (Lease(name=name, owner=owner, token=0), 0))
            if held.owner != owner and until > steady():
                return None
            lease = Lease(name=name, owner=owner, token=held.token + 1)
            self._leases[name] = (lease, expires_at)
            return lease

    async def renew_lease(self, lease: Lease, *, ttl: float) -> bool:
        expires_at = steady() + ttl_micros(ttl)
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
        return held == lease and until > steady()

    async def append_event(self, key: str, type: str, data: Mapping[str, Json]) -> Event:
        checked(key, "the key of an event")
        checked(type, "the type of an event")
        body = to_json(dict(data))
        with self._lock:
            log = self._events.setdefault(key, _EventLog())
            log.last_seq += 1
            row = (log.last_seq, type, body, now())
            log.events.append(row)
            del log.events[: -self.events_kept]
        return _event(key, row)

    async def list_events(self, key: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        check_limit(limit)
        with self._lock:
            rows = [row for row in self._events.get(key, _EventLog()).events if row[0] > after]
        return [_event(key, row) for row in rows[:limit]]

    async def rewrite_event(self, key: str, seq: int, data: Mapping[str, Json]) -> bool:
        body = to_json(dict(data))
        with self._lock:
            events = self._events.get(key, _EventLog()).events
            place = next((place for place, row in enumerate(events) if row[0] == seq), None)
            if place is None:
                return False
            _, type, _, created_at = events[place]
            events[place] = (seq, type, body, created_at)
            return True

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


def _event(key: str, row: tuple[int, str, str, int]) -> Event:
    seq, type, body, created_at = row
    return Event(key=key, seq=seq, type=type, data=from_json(body), created_at=at_micros(created_at))
