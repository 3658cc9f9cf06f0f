"""Storage in a MongoDB database."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate

from diarist.checks import checked, seconds, texts
from diarist.exceptions import ConfigError
from diarist.messages import Json, Message, SentBlock
from diarist.run_context import Outcome
from diarist.storage.base import Storage
from diarist.storage.codec import encode_event, encode_message, encode_sent
from diarist.storage.mongodb import events, leases, logs, resources, runs, threads
from diarist.storage.mongodb import messages as _messages
from diarist.storage.mongodb.client import Db, P, R, Server, open_database
from diarist.storage.records import Event, MessageSource, NewEvent, ObservationLog, RowRef, Run


def calls(work: Callable[Concatenate[Db, P], R]) -> Callable[Concatenate[_Calls, P], Coroutine[Any, Any, R]]:
    """Return a method that runs ``work`` on the server, with the method's arguments after the database."""

    @wraps(work)
    async def method(self: _Calls, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.server.run(work, *args, **kwargs)

    return method


class _Calls:
    """The methods of a storage that are one function each."""

    server: Server

    open = calls(open_database)

    create_thread = calls(threads.create_thread)
    get_thread = calls(threads.get_thread)
    update_thread = calls(threads.update_thread)
    list_threads = calls(threads.list_threads)
    delete_thread = calls(threads.delete_thread)

    begin_run = calls(runs.begin_run)
    heartbeat = calls(runs.heartbeat)
    get_run = calls(runs.get_run)
    list_messages = calls(_messages.list_messages)
    existing_ids = calls(_messages.existing_ids)
    delete_messages = calls(_messages.delete_messages)
    set_branch = calls(_messages.set_branch)
    list_superseded = calls(_messages.list_superseded)
    note_forgotten = calls(_messages.note_forgotten)
    list_forgotten = calls(_messages.list_forgotten)

    get_resource = calls(resources.get_resource)
    save_resource = calls(resources.save_resource)
    list_resources = calls(resources.list_resources)
    get_working_memory = calls(resources.get_working_memory)
    save_working_memory = calls(resources.save_working_memory)
    get_log = calls(logs.get_log)
    list_generations = calls(logs.list_generations)
    rewrite_generation = calls(logs.rewrite_generation)
    delete_generations = calls(logs.delete_generations)
    delete_log = calls(logs.delete_log)

    acquire_lease = calls(leases.acquire_lease)
    renew_lease = calls(leases.renew_lease)
    release_lease = calls(leases.release_lease)
    delete_lease = calls(leases.delete_lease)
    list_events = calls(events.list_events)
    delete_events = calls(events.delete_events)


class MongoDBStorage(_Calls, Storage):
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
        if not str(url).startswith(("mongodb://", "mongodb+srv://")):  # None: an environment variable that is not set
            raise ConfigError("not a URL of MongoDB: write mongodb://user:password@host:27017")
        texts("", database=database)
        seconds("", "timeout", timeout)
        self.server = Server(url, database, timeout)

    async def close(self) -> None:
        await self.server.close()

    async def purge(self) -> tuple[str, ...]:
        return (f"{self.location}: MongoDB keeps deleted documents in files and oplog until it writes over them",)

    @property
    def location(self) -> str:
        return self.server.location

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
        return await self.server.run(_messages.append_messages, run, rows, added)

    async def rewrite_messages(self, run: Run, messages: Sequence[Message], *, remove: Sequence[str] = ()) -> None:
        rows = [encode_message(message, run_id=run.id, source="response") for message in messages]
        await self.server.run(_messages.rewrite_messages, run, rows, list(remove))

    async def finish_run(
        self, run: Run, state: Outcome, *, messages: Sequence[Message] = (), events: Sequence[NewEvent] = ()
    ) -> list[int]:
        rows = [encode_message(message, run_id=run.id, source="response") for message in messages]
        added = [encode_event(event, self.events_kept) for event in events]
        return await self.server.run(_messages.finish_run, run, state, rows, added)

    async def rewrite_sent(self, thread_id: str, blocks: Mapping[str, SentBlock | None]) -> int:
        encoded = {message_id: encode_sent(block) for message_id, block in blocks.items()}
        return await self.server.run(_messages.rewrite_sent, thread_id, encoded)

    async def save_log(
        self, log: ObservationLog, *, expected_version: int, rows: Sequence[RowRef] = ()
    ) -> ObservationLog:
        checked(log.key, "the key of a log")
        return await self.server.run(logs.save_log, log, expected_version, tuple(rows), _messages.is_stored)

    async def append_event(self, key: str, type: str, data: Mapping[str, Json]) -> Event:
        encoded = encode_event(NewEvent(key, type, dict(data)), self.events_kept)
        return await self.server.run(events.append_event, *encoded)
