"""The storage interface for SQL databases. Checks and encodes values, then runs one transaction per call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from diarist.byte_cache import ByteCache
from diarist.checks import LARGEST, check_whole, checked
from diarist.databases.base import Connection, Database, OnDatabase, read_version, reads, writes
from diarist.messages import Json, Message, SentBlock
from diarist.run_context import Outcome
from diarist.storage.base import Ranges, SearchStorage, Storage
from diarist.storage.codec import encode_event, encode_message, encode_sent
from diarist.storage.records import Event, Hit, MessageSource, NewEvent, ObservationLog, Page, RowRef, Run
from diarist.storage.sql import branches, events, leases, logs, resources, runs, search, threads
from diarist.storage.sql import messages as _messages
from diarist.storage.sql.logs import KnownLog
from diarist.storage.sql.row_cache import KnownRows
from diarist.storage.sql.search import purge_index
from diarist.storage.words import query_terms

ROWS_KEPT, LOGS_KEPT = 32_000_000, 16_000_000
"""Maximum sizes of a storage's read caches, in bytes. A full window of 30,000 tokens takes about 500,000 bytes. A log
of 40,000 tokens takes about 1,500,000: if a note contains a 🔴, Python stores each of its characters in four bytes."""


class _Transactions(OnDatabase):
    """The methods of a storage that are one transaction each."""

    create_thread = writes(threads.create_thread)
    get_thread = reads(threads.get_thread)
    update_thread = writes(threads.update_thread)
    list_threads = reads(threads.list_threads)
    delete_thread = writes(threads.delete_thread)

    begin_run = writes(runs.begin_run)
    heartbeat = writes(runs.heartbeat)
    list_messages = reads(_messages.list_messages)
    existing_ids = reads(_messages.find_existing_ids)
    delete_messages = writes(_messages.delete_messages)
    list_superseded = reads(branches.list_superseded)
    note_forgotten = writes(_messages.note_forgotten)
    list_forgotten = reads(_messages.list_forgotten)

    get_resource = reads(resources.get_resource)
    save_resource = writes(resources.save_resource)
    list_resources = reads(resources.list_resources)
    get_working_memory = reads(resources.get_working_memory)
    save_working_memory = writes(resources.save_working_memory)
    list_generations = reads(logs.list_generations)
    rewrite_generation = writes(logs.rewrite_generation)
    delete_generations = writes(logs.delete_generations)
    delete_log = writes(logs.delete_log)

    acquire_lease = writes(leases.acquire_lease)
    renew_lease = writes(leases.renew_lease)
    release_lease = writes(leases.release_lease)
    delete_lease = writes(leases.delete_lease)
    list_events = reads(events.list_events)
    delete_events = writes(events.delete_events)


class SQLStorage(_Transactions, Storage, SearchStorage):
    """A storage on a ``Database``, which handles the differences between databases.

    Its own methods encode messages first, since the caller may change these at any time, or use a cache.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._rows: ByteCache[str, KnownRows] = ByteCache(ROWS_KEPT, largest=ROWS_KEPT // 2)
        self._logs: ByteCache[str, KnownLog] = ByteCache(LOGS_KEPT)

    async def open(self) -> None:
        await self.database.open()

    async def purge(self) -> tuple[str, ...]:
        self._rows.clear()
        self._logs.clear()
        await self.database.write(purge_index)
        return await super().purge()

    async def has_tables(self, group: str) -> bool:
        """Return True if the database also has another group of diarist's tables, such as ``vectors``."""
        return await self.database.read(read_version, group) is not None

    async def get_run(self, run_id: str) -> Run | None:
        return await self.database.glance(runs.get_run, run_id)

    async def append_messages(
        self,
        run: Run,
        messages: Sequence[Message],
        *,
        source: MessageSource = "response",
        events: Sequence[NewEvent] = (),
    ) -> list[int]:
        rows = [encode_message(message, run_id=run.id, source=source) for message in messages]
        added = [encode_event(event, self.events_kept) for event in events]
        return await self.database.write(_messages.append_messages, run, rows, added)

    async def rewrite_messages(self, run: Run, messages: Sequence[Message], *, remove: Sequence[str] = ()) -> None:
        rows = [encode_message(message, run_id=run.id, source="response") for message in messages]
        await self.database.write(_messages.rewrite_messages, run, rows, list(remove))

    async def finish_run(
        self, run: Run, state: Outcome, *, messages: Sequence[Message] = (), events: Sequence[NewEvent] = ()
    ) -> list[int]:
        rows = [encode_message(message, run_id=run.id, source="response") for message in messages]
        added = [encode_event(event, self.events_kept) for event in events]
        numbers = await self.database.write(_messages.finish_run, run, state, rows, added)
        if state != "committed":  # rows may have been deleted
            self.database.erase_soon()
        return numbers

    async def set_branch(
        self, run: Run, end: int, *, logs: Sequence[tuple[ObservationLog, ObservationLog]] = ()
    ) -> list[str]:
        return await self.database.write(_messages.set_branch, self._logs, run, end, tuple(logs))

    async def rewrite_sent(self, thread_id: str, blocks: Mapping[str, SentBlock | None]) -> int:
        encoded = {message_id: encode_sent(block) for message_id, block in blocks.items()}
        return await self.database.write(_messages.rewrite_sent, thread_id, encoded)

    async def search_messages(
        self,
        query: str,
        *,
        resource_id: str,
        thread_id: str | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Hit]:
        terms, limit, place = query_terms(query), check_whole("limit", limit, least=1), (resource_id, thread_id)
        tries = 0
        while True:
            page = await self.database.read(search.search_messages, terms, *place, limit, cursor, tries < search.TRIES)
            if page is not None:
                return page
            tries += 1
            while behind := await self.database.read(search.find_unindexed_threads, *place):
                for id in behind:
                    await self.database.write(search.index_thread, id)

    async def get_log(self, key: str, *, after: int = 0) -> ObservationLog | None:
        return await self.database.glance(logs.get_log, self._logs, key, after)

    async def log_and_messages(
        self, key: str, thread_id: str, ranges: Callable[[ObservationLog | None], Ranges], *, run_id: str | None = None
    ) -> tuple[ObservationLog | None, list[Message]]:
        own = type(self)
        if (own.get_log, own.list_messages) != (SQLStorage.get_log, SQLStorage.list_messages):
            return await super().log_and_messages(key, thread_id, ranges, run_id=run_id)  # call the overridden methods
        return await self.database.glance(self._read_log_and_messages, key, thread_id, ranges, run_id)

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
        return await self.database.write(logs.save_log, self._logs, log, expected_version, tuple(rows))

    async def append_event(self, key: str, type: str, data: Mapping[str, Json]) -> Event:
        encoded = encode_event(NewEvent(key, type, dict(data)), self.events_kept)
        return await self.database.write(events.append_event, *encoded)
