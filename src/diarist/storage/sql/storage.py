"""The storage interface for SQL databases. Checks and encodes values, then runs one transaction per call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from diarist.byte_cache import ByteCache
from diarist.checks import LARGEST, check_limit, check_place, checked
from diarist.databases.base import Connection, Database, read_version
from diarist.messages import Json, Message, SentBlock
from diarist.storage.base import Ranges, SearchStorage, Storage
from diarist.storage.codec import (
    after_resource,
    check_thread,
    encode_event,
    encode_message,
    encode_sent,
    ttl_micros,
)
from diarist.storage.records import (
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
)
from diarist.storage.sql import branches, events, leases, logs, resources, runs, search, threads
from diarist.storage.sql import messages as _messages
from diarist.storage.sql.events import EncodedEvent
from diarist.storage.sql.logs import KnownLog
from diarist.storage.sql.row_cache import KnownRows
from diarist.storage.sql.search import decode_place, purge_index
from diarist.storage.words import query_terms

ROWS_KEPT, LOGS_KEPT = 32_000_000, 16_000_000
"""Maximum sizes of a storage's read caches, in bytes. A full window of 30,000 tokens takes about 500,000 bytes. A log
of 40,000 tokens takes about 1,500,000: if a note contains a 🔴, Python stores each of its characters in four bytes."""


class SQLStorage(Storage, SearchStorage):
    """A storage on a ``Database``, which handles the differences between databases."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._rows: ByteCache[str, KnownRows] = ByteCache(ROWS_KEPT, largest=ROWS_KEPT // 2)
        self._logs: ByteCache[str, KnownLog] = ByteCache(LOGS_KEPT)

    async def open(self) -> None:
        await self._database.open()

    async def close(self) -> None:
        await self._database.close()

    async def purge(self) -> tuple[str, ...]:
        await self._database.write(purge_index)
        return await self._database.erase()

    async def has_tables(self, group: str) -> bool:
        """Return True if the database also has another group of diarist's tables, such as ``vectors``."""
        return await self._database.read(read_version, group) is not None

    @property
    def location(self) -> str:
        return self._database.location

    # Threads

    async def create_thread(self, thread: Thread) -> Thread:
        check_thread(thread)
        return await self._database.write(threads.create_thread, thread)

    async def get_thread(self, thread_id: str, *, hidden: bool = False) -> Thread | None:
        return await self._database.read(threads.get_thread, thread_id, hidden)

    async def update_thread(
        self,
        thread_id: str,
        *,
        title: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        expected_title: str | None = None,
    ) -> Thread:
        checked("" if title is None else title, f"the title of thread {thread_id!r}")
        return await self._database.write(threads.update_thread, thread_id, title, metadata, expected_title)

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
        limit = check_limit(limit, least=1)
        return await self._database.read(
            threads.list_threads, resource_id, metadata, limit, cursor, newest_first, hidden
        )

    async def delete_thread(self, thread_id: str) -> bool:
        deleted = await self._database.write(threads.delete_thread, thread_id)
        self._rows.drop(thread_id)
        self._logs.drop(f"thread:{thread_id}")
        return deleted

    # Runs and messages

    async def begin_run(self, run_id: str, thread: Thread, *, ttl: float = 60.0, guarded: bool = False) -> Run:
        check_thread(thread)
        checked(run_id, "a run id")
        return await self._database.write(runs.begin_run, run_id, thread, ttl_micros(ttl), guarded)

    async def heartbeat(self, run: Run, *, ttl: float = 60.0) -> None:
        await self._database.write(runs.heartbeat, run, ttl_micros(ttl))

    async def append_messages(
        self,
        run: Run,
        messages: Sequence[Message],
        *,
        source: MessageSource = "response",
        events: Sequence[NewEvent] = (),
    ) -> list[int]:
        rows = [encode_message(message, run_id=run.id, source=source) for message in messages]
        return await self._database.write(_messages.append_messages, run, rows, self._encoded(events))

    async def rewrite_messages(self, run: Run, messages: Sequence[Message], *, remove: Sequence[str] = ()) -> None:
        rows = [encode_message(message, run_id=run.id, source="response") for message in messages]
        if await self._database.write(_messages.rewrite_messages, run, rows, list(remove)):
            self._rows.drop(run.thread_id)

    async def finish_run(
        self, run: Run, state: EndState, *, messages: Sequence[Message] = (), events: Sequence[NewEvent] = ()
    ) -> list[int]:
        rows = [encode_message(message, run_id=run.id, source="response") for message in messages]
        numbers = await self._database.write(_messages.finish_run, run, state, rows, self._encoded(events))
        if state != "committed":  # rows may have been deleted
            self._database.erase_soon()
        return numbers

    async def get_run(self, run_id: str) -> Run | None:
        return await self._database.glance(runs.get_run, run_id)

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
        return await self._database.read(_messages.list_messages, thread_id, after, before, most, newest_first, run_id)

    async def existing_ids(self, thread_id: str, ids: Sequence[str], *, forgotten: bool = False) -> set[str]:
        return await self._database.read(_messages.find_existing_ids, thread_id, list(ids), forgotten)

    async def delete_messages(self, thread_id: str, ids: Sequence[str]) -> int:
        deleted = await self._database.write(_messages.delete_messages, thread_id, list(ids))
        self._rows.drop(thread_id)
        return deleted

    async def set_branch(
        self, run: Run, end: int, *, logs: Sequence[tuple[ObservationLog, ObservationLog]] = ()
    ) -> list[str]:
        return await self._database.write(_messages.set_branch, self._logs, run, end, tuple(logs))

    async def list_superseded(self, thread_id: str) -> list[Superseded]:
        return await self._database.read(branches.list_superseded, thread_id)

    async def note_forgotten(self, thread_id: str, messages: Sequence[Forgotten]) -> None:
        for message in messages:
            checked(message.id, "a message id")
        await self._database.write(_messages.note_forgotten, thread_id, list(messages))

    async def list_forgotten(self, thread_id: str) -> list[Forgotten]:
        return await self._database.read(_messages.list_forgotten, thread_id)

    async def rewrite_sent(self, thread_id: str, blocks: Mapping[str, SentBlock | None]) -> int:
        encoded = {message_id: encode_sent(block) for message_id, block in blocks.items()}
        count = await self._database.write(_messages.rewrite_sent, thread_id, encoded)
        self._rows.drop(thread_id)
        return count

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
        place = (resource_id, thread_id)
        tries = 0
        while True:
            page = await self._database.read(search.search_messages, terms, *place, limit, after, tries < search.TRIES)
            if page is not None:
                return page
            tries += 1
            while behind := await self._database.read(search.find_unindexed_threads, *place):
                for id in behind:
                    await self._database.write(search.index_thread, id)

    # Resources and logs

    async def get_resource(self, resource_id: str) -> Resource:
        return await self._database.read(resources.get_resource, resource_id)

    async def save_resource(self, resource: Resource) -> Resource:
        checked(resource.id, "a resource id")
        return await self._database.write(resources.save_resource, resource)

    async def list_resources(self, *, limit: int = 100, cursor: str | None = None) -> Page[str]:
        limit, after = check_limit(limit, least=1), after_resource(cursor)
        return await self._database.read(resources.list_resources, limit, after)

    async def get_working_memory(self, key: str) -> WorkingMemory:
        return await self._database.read(resources.get_working_memory, key)

    async def save_working_memory(self, memory: WorkingMemory) -> WorkingMemory:
        checked(memory.key, "the key of a working memory")
        return await self._database.write(resources.save_working_memory, memory)

    async def get_log(self, key: str, *, after: int = 0) -> ObservationLog | None:
        return await self._database.glance(logs.get_log, self._logs, key, after)

    async def log_and_messages(
        self, key: str, thread_id: str, ranges: Callable[[ObservationLog | None], Ranges], *, run_id: str | None = None
    ) -> tuple[ObservationLog | None, list[Message]]:
        own = type(self)
        if (own.get_log, own.list_messages) != (SQLStorage.get_log, SQLStorage.list_messages):
            return await super().log_and_messages(key, thread_id, ranges, run_id=run_id)  # call the overridden methods
        return await self._database.glance(self._read_log_and_messages, key, thread_id, ranges, run_id)

    async def _read_log_and_messages(
        self,
        connection: Connection,
        key: str,
        thread_id: str,
        ranges: Callable[[ObservationLog | None], Ranges],
        run_id: str | None,
    ) -> tuple[ObservationLog | None, list[Message]]:
        log = await logs.get_log(connection, self._logs, key, 0)
        rows: list[Message] = []
        for after, before in ranges(log):
            before = LARGEST if before is None else before
            rows += await _messages.list_shared_messages(connection, self._rows, thread_id, after, before, run_id)
        return log, rows

    async def save_log(
        self, log: ObservationLog, *, expected_version: int, rows: Sequence[RowRef] = ()
    ) -> ObservationLog:
        checked(log.key, "the key of a log")
        return await self._database.write(logs.save_log, self._logs, log, expected_version, tuple(rows))

    async def list_generations(self, key: str) -> list[ObservationLog]:
        return await self._database.read(logs.list_generations, key)

    async def rewrite_generation(self, log: ObservationLog, *, expected: ObservationLog) -> bool:
        return await self._database.write(logs.rewrite_generation, log, expected)

    async def delete_generations(self, key: str) -> int:
        return await self._database.write(logs.delete_generations, key)

    async def delete_log(self, key: str) -> bool:
        deleted = await self._database.write(logs.delete_log, key)
        self._logs.drop(key)
        return deleted

    # Leases and events

    async def acquire_lease(self, name: str, owner: str, *, ttl: float) -> Lease | None:
        checked(name, "the name of a lease")
        checked(owner, "the owner of a lease")
        return await self._database.write(leases.acquire_lease, name, owner, ttl_micros(ttl))

    async def renew_lease(self, lease: Lease, *, ttl: float) -> bool:
        return await self._database.write(leases.renew_lease, lease, ttl_micros(ttl))

    async def release_lease(self, lease: Lease) -> None:
        await self._database.write(leases.release_lease, lease)

    async def delete_lease(self, name: str) -> bool:
        return await self._database.write(leases.delete_lease, name)

    async def append_event(self, key: str, type: str, data: Mapping[str, Json]) -> Event:
        ((key, type, body, keep),) = self._encoded([NewEvent(key, type, dict(data))])
        return await self._database.write(events.append_event, key, type, body, keep)

    def _encoded(self, new: Sequence[NewEvent]) -> list[EncodedEvent]:
        return [(*encode_event(event), self.events_kept) for event in new]

    async def list_events(self, key: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return await self._database.read(events.list_events, key, after, check_limit(limit))

    async def delete_events(self, key: str) -> int:
        return await self._database.write(events.delete_events, key)
