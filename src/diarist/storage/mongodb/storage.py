"""Storage in a MongoDB database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diarist.checks import check_limit, check_place, checked, positive
from diarist.exceptions import ConfigError
from diarist.messages import Json, Message, SentBlock
from diarist.storage.base import Storage
from diarist.storage.codec import (
    after_resource,
    check_thread,
    encode_event,
    encode_message,
    encode_sent,
    ttl_micros,
)
from diarist.storage.mongodb import events, leases, logs, resources, runs, threads
from diarist.storage.mongodb import messages as rows_
from diarist.storage.mongodb.client import Server, open_database
from diarist.storage.records import (
    EndState,
    Event,
    Forgotten,
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


class MongoDBStorage(Storage):
    """Storage in a MongoDB database, which any number of processes and machines may share. No full-text search.

    Args:
        url: ``mongodb://user:password@host:27017`` or ``mongodb+srv://…``, with the driver's parameters.
        database: Database for the collections, if the URL names none. Collection names start with ``diarist_``.
        timeout: Seconds to wait for a writable server, before StorageError.

    A call changes documents one by one, and one of these changes decides the outcome. If a process is killed during a
    call, the next process that uses the data completes it. Needs the extra ``mongodb``, but no replica set.

    Raises ConfigError for other kinds of URL.
    """

    def __init__(self, url: str, *, database: str = "diarist", timeout: float = 30.0) -> None:
        if not url.startswith(("mongodb://", "mongodb+srv://")):
            raise ConfigError("not a URL of MongoDB: write mongodb://user:password@host:27017")
        positive("", "timeout", timeout)
        self._server = Server(url, database, timeout)

    async def open(self) -> None:
        await self._server.run(open_database)

    async def close(self) -> None:
        await self._server.close()

    async def purge(self) -> tuple[str, ...]:
        return (f"{self.location}: MongoDB keeps deleted documents in files and oplog until it writes over them",)

    @property
    def location(self) -> str:
        return self._server.location

    # Threads

    async def create_thread(self, thread: Thread) -> Thread:
        check_thread(thread)
        return await self._server.run(threads.create_thread, thread)

    async def get_thread(self, thread_id: str, *, hidden: bool = False) -> Thread | None:
        return await self._server.run(threads.get_thread, thread_id, hidden)

    async def update_thread(
        self,
        thread_id: str,
        *,
        title: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        expected_title: str | None = None,
    ) -> Thread:
        checked("" if title is None else title, f"the title of thread {thread_id!r}")
        return await self._server.run(threads.update_thread, thread_id, title, metadata, expected_title)

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
        return await self._server.run(threads.list_threads, resource_id, metadata, limit, cursor, newest_first, hidden)

    async def delete_thread(self, thread_id: str) -> bool:
        return await self._server.run(threads.delete_thread, thread_id)

    # Runs and messages

    async def begin_run(self, run_id: str, thread: Thread, *, ttl: float = 60.0, guarded: bool = False) -> Run:
        check_thread(thread)
        checked(run_id, "a run id")
        return await self._server.run(runs.begin_run, run_id, thread, ttl_micros(ttl), guarded)

    async def heartbeat(self, run: Run, *, ttl: float = 60.0) -> None:
        await self._server.run(runs.heartbeat, run, ttl_micros(ttl))

    async def append_messages(
        self,
        run: Run,
        messages: Sequence[Message],
        *,
        source: MessageSource = "response",
        events: Sequence[NewEvent] = (),
    ) -> list[int]:
        rows = [encode_message(message, run_id=run.id, source=source) for message in messages]
        numbers = await self._server.run(rows_.append_messages, run, rows)
        await self._append_events(events)
        return numbers

    async def rewrite_messages(self, run: Run, messages: Sequence[Message], *, remove: Sequence[str] = ()) -> None:
        rows = [encode_message(message, run_id=run.id, source="response") for message in messages]
        await self._server.run(rows_.rewrite_messages, run, rows, list(remove))

    async def finish_run(
        self, run: Run, state: EndState, *, messages: Sequence[Message] = (), events: Sequence[NewEvent] = ()
    ) -> list[int]:
        rows = [encode_message(message, run_id=run.id, source="response") for message in messages]
        numbers, ended = await self._server.run(rows_.finish_run, run, state, rows)
        if ended and state != "discarded":
            await self._append_events(events)
        return numbers

    async def get_run(self, run_id: str) -> Run | None:
        return await self._server.run(runs.get_run, run_id)

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
        return await self._server.run(rows_.list_messages, thread_id, after, before, most, newest_first, run_id)

    async def existing_ids(self, thread_id: str, ids: Sequence[str], *, forgotten: bool = False) -> set[str]:
        return await self._server.run(rows_.existing_ids, thread_id, list(ids), forgotten)

    async def note_forgotten(self, thread_id: str, messages: Sequence[Forgotten]) -> None:
        for message in messages:
            checked(message.id, "a message id")
        await self._server.run(rows_.note_forgotten, thread_id, list(messages))

    async def list_forgotten(self, thread_id: str) -> list[Forgotten]:
        return await self._server.run(rows_.list_forgotten, thread_id)

    async def delete_messages(self, thread_id: str, ids: Sequence[str]) -> int:
        return await self._server.run(rows_.delete_messages, thread_id, list(ids))

    async def set_branch(
        self, run: Run, end: int, *, logs: Sequence[tuple[ObservationLog, ObservationLog]] = ()
    ) -> list[str]:
        return await self._server.run(rows_.set_branch, run, end, tuple(logs))

    async def list_superseded(self, thread_id: str) -> list[Superseded]:
        return await self._server.run(rows_.list_superseded, thread_id)

    async def rewrite_sent(self, thread_id: str, blocks: Mapping[str, SentBlock | None]) -> int:
        encoded = {message_id: encode_sent(block) for message_id, block in blocks.items()}
        return await self._server.run(rows_.rewrite_sent, thread_id, encoded)

    # Resources, working memories and logs

    async def get_resource(self, resource_id: str) -> Resource:
        return await self._server.run(resources.get_resource, resource_id)

    async def save_resource(self, resource: Resource) -> Resource:
        checked(resource.id, "a resource id")
        return await self._server.run(resources.save_resource, resource)

    async def list_resources(self, *, limit: int = 100, cursor: str | None = None) -> Page[str]:
        limit, after = check_limit(limit, least=1), after_resource(cursor)
        return await self._server.run(resources.list_resources, limit, after)

    async def get_working_memory(self, key: str) -> WorkingMemory:
        return await self._server.run(resources.get_working_memory, key)

    async def save_working_memory(self, memory: WorkingMemory) -> WorkingMemory:
        checked(memory.key, "the key of a working memory")
        return await self._server.run(resources.save_working_memory, memory)

    async def get_log(self, key: str, *, after: int = 0) -> ObservationLog | None:
        return await self._server.run(logs.get_log, key, after)

    async def save_log(
        self, log: ObservationLog, *, expected_version: int, rows: Sequence[RowRef] = ()
    ) -> ObservationLog:
        checked(log.key, "the key of a log")
        return await self._server.run(logs.save_log, log, expected_version, tuple(rows), rows_.is_stored)

    async def list_generations(self, key: str) -> list[ObservationLog]:
        return await self._server.run(logs.list_generations, key)

    async def rewrite_generation(self, log: ObservationLog, *, expected: ObservationLog) -> bool:
        return await self._server.run(logs.rewrite_generation, log, expected)

    async def delete_generations(self, key: str) -> int:
        return await self._server.run(logs.delete_generations, key)

    async def delete_log(self, key: str) -> bool:
        return await self._server.run(logs.delete_log, key)

    # Leases and events

    async def acquire_lease(self, name: str, owner: str, *, ttl: float) -> Lease | None:
        checked(name, "the name of a lease")
        checked(owner, "the owner of a lease")
        return await self._server.run(leases.acquire_lease, name, owner, ttl_micros(ttl))

    async def renew_lease(self, lease: Lease, *, ttl: float) -> bool:
        return await self._server.run(leases.renew_lease, lease, ttl_micros(ttl))

    async def release_lease(self, lease: Lease) -> None:
        await self._server.run(leases.release_lease, lease)

    async def delete_lease(self, name: str) -> bool:
        return await self._server.run(leases.delete_lease, name)

    async def append_event(self, key: str, type: str, data: Mapping[str, Json]) -> Event:
        encoded = encode_event(NewEvent(key, type, dict(data)))
        return await self._server.run(events.append_event, *encoded, self.events_kept)

    async def _append_events(self, new: Sequence[NewEvent]) -> None:
        """Append events after the change that they belong to; a crash in between loses them."""
        for event in new:
            await self._server.run(events.append_event, *encode_event(event), self.events_kept)

    async def list_events(self, key: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return await self._server.run(events.list_events, key, after, check_limit(limit))

    async def delete_events(self, key: str) -> int:
        return await self._server.run(events.delete_events, key)
