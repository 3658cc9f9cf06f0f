"""The storage interface. ``diarist.testing.StorageConformance`` tests an implementation against it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Literal, Self

from diarist.exceptions import ConfigError
from diarist.messages import Json, Message, SentBlock
from diarist.run_context import Outcome
from diarist.storage.records import (
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

Ranges = Sequence[tuple[int, int | None]]

Server = Literal["postgresql", "libsql", "mongodb"]
SCHEMES: dict[str, Server] = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "libsql": "libsql",
    "https": "libsql",
    "http": "libsql",
    "mongodb": "mongodb",
}
"""Kinds of databases by the schemes of their URLs."""

_CLASSES: dict[Server, str] = {
    "postgresql": "PostgresStorage",
    "libsql": "LibSQLStorage",
    "mongodb": "MongoDBStorage",
}


class Storage(ABC):
    """The complete storage interface. Safe to share between tasks, agents and memories; values are copied in and out.

    A storage opens at first use, from any event loop. ``async with storage:`` or ``close()`` releases its
    connections. Every method is one transaction; if it is cancelled before the commit, nothing is changed.

    Text is returned unchanged, including NUL and lone surrogates. Values that JSON does not support are returned as
    strings, and times in UTC. Keys, ids and titles must be valid Unicode without NUL, and times must have a time
    zone (InputError).

    Every method may raise StorageError, with the driver's own error as its cause. The text of an error names the id or
    key that it is about.
    """

    events_kept: int = 10_000
    """Maximum number of events per key; older events are dropped."""

    async def open(self) -> None:  # noqa: B027 - some have nothing to open
        """Connect, and create or migrate the schema. Does nothing if the storage is open."""

    async def close(self) -> None:  # noqa: B027
        """Release the connections. The next use opens them again."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def purge(self) -> tuple[str, ...]:
        """Remove deleted data from the database's indexes and files as well, where it would remain for some time.

        Called after data was forgotten. Does not change stored data. The default does nothing.

        Returns:
            Places where deleted data may remain, with the reasons, to show to users. Empty if there are none.
        """
        return ()

    @property
    def location(self) -> str:
        """Location of the data, to show to users: a path, a URL without password, or ``memory``."""
        return "memory"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

    # Threads. A thread that a live run created is invisible until that run is committed or interrupted.

    @abstractmethod
    async def create_thread(self, thread: Thread) -> Thread:
        """Store a new thread, without metadata keys that are None. Raises ConflictError if the id exists."""

    @abstractmethod
    async def get_thread(self, thread_id: str, *, hidden: bool = False) -> Thread | None:
        """Return a thread, or None. A thread is hidden while its first run is live, or if that run's process died;
        ``hidden`` returns it then as well, so that it can be deleted.
        """

    @abstractmethod
    async def update_thread(
        self,
        thread_id: str,
        *,
        title: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        expected_title: str | None = None,
    ) -> Thread:
        """Set the title and merge metadata keys (a None value removes its key).

        Raises NotFoundError; ConflictError if ``expected_title`` is given and differs from the stored title.
        """

    @abstractmethod
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
        """Return a page of threads, ordered by (created_at, id). ``metadata`` selects threads with all these values.
        ``hidden``: as for ``get_thread``.

        Values are compared as JSON: 1, 1.0 and True differ. A thread that exists during the whole listing appears
        on exactly one page. Raises InputError for a limit below 1, or a cursor that is invalid or of the
        other order.
        """

    @abstractmethod
    async def delete_thread(self, thread_id: str) -> bool:
        """Delete a thread with its runs and messages, and the working memory, observation log and events of
        ``thread:<id>``.

        A live run of the thread is lost. A thread that only its live run can see is deleted as well. Returns False if
        there was no thread.
        """

    # Runs and messages. A message is visible to other readers only if its run is ``committed`` or ``interrupted``. A
    # live run sees its own messages.

    @abstractmethod
    async def begin_run(self, run_id: str, thread: Thread, *, ttl: float = 60.0, guarded: bool = False) -> Run:
        """Begin a run, in one transaction.

        Creates the thread if it is missing; discarding this run deletes it again. An expired live run of the thread
        is first ended as ``interrupted``, as ``finish_run`` does it. The new run's token is higher than those of the
        thread's earlier runs.

        Args:
            ttl: Seconds until the run expires, by the database's clock. With zero or less it expires at once.
            guarded: See ``Run``.

        Raises:
            ThreadBusyError: Another run of the thread is live.
            ConflictError: A run with this id exists already, in any state.
            InputError: The thread belongs to another resource.
        """

    @abstractmethod
    async def heartbeat(self, run: Run, *, ttl: float = 60.0) -> None:
        """Keep the run live for ``ttl`` more seconds. Raises RunLostError."""

    @abstractmethod
    async def append_messages(
        self,
        run: Run,
        messages: Sequence[Message],
        *,
        source: MessageSource = "response",
        events: Sequence[NewEvent] = (),
    ) -> list[int]:
        """Append messages to the run's thread, all or none. Returns their ``seq``.

        ``events`` are appended with the messages, as ``append_event`` does it. This saves calls and transactions.

        ``seq`` rises strictly within the thread and is assigned in the inserting transaction. The stored rows get the
        run's ``thread_id``, ``resource_id`` and ``run_id``; those of the messages are ignored.

        Raises:
            RunLostError: The run is not live, or its token is stale.
            ConflictError: An active message of the thread has one of these ids already. (A superseded one may have it.)
        """

    @abstractmethod
    async def rewrite_messages(self, run: Run, messages: Sequence[Message], *, remove: Sequence[str] = ()) -> None:
        """Replace messages by id, keeping ``seq``, run and source, and delete those in ``remove``. All or none.

        The live run may replace and delete its own messages. It may also replace visible messages of its thread; that
        change takes effect at once and stays even if the run is discarded.

        Raises RunLostError; NotFoundError for a message that the run may not change.
        """

    @abstractmethod
    async def finish_run(
        self, run: Run, state: Outcome, *, messages: Sequence[Message] = (), events: Sequence[NewEvent] = ()
    ) -> list[int]:
        """End the run. One single write makes its messages visible or discards them.

        ``discarded`` deletes its messages. If this run created the thread and nothing else is in it, the thread goes
        too, with its working memory, log and events.
        ``interrupted`` keeps its messages; for a ``guarded`` run only those with source ``input``.
        A discarded run, and an interrupted one without messages, leaves the active branch as it was before the run's
        first ``set_branch``.
        Ending a run again in the same state does nothing.

        Args:
            messages: Responses to append first, as ``append_messages`` does it. This saves a call, and a write if one
                transaction can hold both.
            events: As for ``append_messages``. Not appended if the run is discarded, or had ended already.

        Returns:
            The ``seq`` of the messages.

        Raises:
            RunLostError: The run has ended in another state, or there are messages and it is not live.
            ConflictError: As for ``append_messages``; the run stays live.
        """

    @abstractmethod
    async def get_run(self, run_id: str) -> Run | None: ...

    @abstractmethod
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
        """Return at most ``limit`` visible messages with ``after < seq < before``, by ``seq``.

        ``newest_first`` reverses the order. ``run_id`` includes that run's own messages. An unknown thread has none.
        Raises InputError if the limit is negative or not an integer.
        """

    @abstractmethod
    async def existing_ids(self, thread_id: str, ids: Sequence[str], *, forgotten: bool = False) -> set[str]:
        """Return the ids that exist in visible messages of the thread; with ``forgotten``, or in forgotten messages."""

    @abstractmethod
    async def delete_messages(self, thread_id: str, ids: Sequence[str]) -> int:
        """Delete visible messages, active or superseded. Returns their number.

        A branch that continues a deleted message then continues the one before it.
        """

    # Branches. A message is active or superseded; other methods read active messages only. Along each branch ``seq``
    # rises, so the active messages in this order are the active branch.

    @abstractmethod
    async def set_branch(
        self, run: Run, end: int, *, logs: Sequence[tuple[ObservationLog, ObservationLog]] = ()
    ) -> list[str]:
        """Make the message with the ``seq`` ``end`` the last one of the active branch. Returns the ids of the messages
        that became superseded, in order.

        If ``end`` is active, the messages behind it become superseded. If it is superseded, the messages on the way to
        it become active, and the messages of the old branch behind the fork superseded. Other readers see it at once.
        Call it before the run stores messages of its own.

        Args:
            end: 0: no message stays active.
            logs: Pairs of a log as it was read and as it shall be, the same object if nothing changes. They are saved
                in the same transaction, and only if all of them still have the versions that were read (0: none).

        Raises RunLostError; NotFoundError if there is no such message; ConflictError if a log was saved since it was
        read.
        """

    @abstractmethod
    async def list_superseded(self, thread_id: str) -> list[Superseded]:
        """Return the superseded messages of a thread, by ``seq``."""

    @abstractmethod
    async def note_forgotten(self, thread_id: str, messages: Sequence[Forgotten]) -> None:
        """Record forgotten messages, stored or not, until the thread is deleted.

        Does not change records that exist already. Does nothing if there is no such thread.
        """

    @abstractmethod
    async def list_forgotten(self, thread_id: str) -> list[Forgotten]:
        """Return the forgotten messages of a thread, by ``seq`` and ``rank``."""

    @abstractmethod
    async def rewrite_sent(self, thread_id: str, blocks: Mapping[str, SentBlock | None]) -> int:
        """Replace the ``SentBlock`` of visible messages, active or superseded, by message id; None removes it.

        Needs no run, and changes nothing else in the messages. Returns the number of messages found.
        """

    # Resources

    @abstractmethod
    async def get_resource(self, resource_id: str) -> Resource:
        """Return the resource; an empty one with version 0 if none is stored."""

    @abstractmethod
    async def save_resource(self, resource: Resource) -> Resource:
        """Save the resource if ``resource.version`` equals the stored version. Returns it with the next version.

        Raises ConflictError if the versions differ.
        """

    @abstractmethod
    async def list_resources(self, *, limit: int = 100, cursor: str | None = None) -> Page[str]:
        """Return a page of ids of resources, sorted by code points, with or without threads.

        Lists resources that are stored themselves, or have a working memory or log under ``resource:<id>``. A
        resource that exists during the whole listing appears on exactly one page. Raises InputError for a limit
        below 1 or an invalid cursor.
        """

    # Working memory

    @abstractmethod
    async def get_working_memory(self, key: str) -> WorkingMemory:
        """Return the working memory of ``thread:<id>`` or ``resource:<id>``; an empty one with version 0 if none is
        stored."""

    @abstractmethod
    async def save_working_memory(self, memory: WorkingMemory) -> WorkingMemory:
        """Save the working memory if ``memory.version`` equals the stored version. Returns it with the next version.

        Raises ConflictError if the versions differ.
        """

    # Observation logs

    @abstractmethod
    async def get_log(self, key: str, *, after: int = 0) -> ObservationLog | None:
        """Return the log if it exists and its version is above ``after``, else None."""

    @abstractmethod
    async def save_log(
        self, log: ObservationLog, *, expected_version: int, rows: Sequence[RowRef] = ()
    ) -> ObservationLog:
        """Save ``log`` as version ``expected_version + 1`` if the stored version is ``expected_version`` (0: none).

        All messages in ``rows`` must be stored; the same transaction checks it, so no entry covers a deleted message.
        If the generation rises, the replaced value is copied to the history of the key, once.
        Returns the log with its new version. Raises ConflictError.
        """

    @abstractmethod
    async def list_generations(self, key: str) -> list[ObservationLog]:
        """Return the last value of each earlier generation, oldest first, without the current one."""

    @abstractmethod
    async def rewrite_generation(self, log: ObservationLog, *, expected: ObservationLog) -> bool:
        """Replace the value of ``log.generation`` in the history of ``log.key`` if it equals ``expected``.

        Returns False if it does not.
        """

    @abstractmethod
    async def delete_generations(self, key: str) -> int:
        """Delete the history of a log and keep the log. Returns the number of deleted values."""

    @abstractmethod
    async def delete_log(self, key: str) -> bool:
        """Delete the log with its history. Returns False if there was none."""

    async def log_and_messages(
        self, key: str, thread_id: str, ranges: Callable[[ObservationLog | None], Ranges], *, run_id: str | None = None
    ) -> tuple[ObservationLog | None, list[Message]]:
        """Return a log, and the messages of a thread in the ranges that ``ranges`` computes from the log.

        Both come from one transaction if the storage supports it. Later calls may return the same messages again, so
        the caller must not change them.

        Args:
            ranges: Returns pairs of ``after`` and ``before``, as for ``list_messages``, in order. It may be called in
                another thread.
        """
        log = await self.get_log(key)
        rows: list[Message] = []
        for after, before in ranges(log):
            rows += await self.list_messages(thread_id, after=after, before=before, run_id=run_id)
        return log, rows

    # Leases. They keep two processes from paying for the same work. Correctness does not depend on them.

    @abstractmethod
    async def acquire_lease(self, name: str, owner: str, *, ttl: float) -> Lease | None:
        """Acquire the lease on ``name`` for ``ttl`` seconds. Returns None while another owner holds it.

        Each acquisition raises the token. If the holder acquires the lease again, its earlier lease is lost.
        """

    @abstractmethod
    async def renew_lease(self, lease: Lease, *, ttl: float) -> bool:
        """Extend the lease to ``ttl`` seconds from now. Returns False if it expired or was lost."""

    @abstractmethod
    async def release_lease(self, lease: Lease) -> None:
        """Release the lease. Does nothing if it was lost."""

    @abstractmethod
    async def delete_lease(self, name: str) -> bool:
        """Delete the lease on ``name``, even a held one, and restart its tokens. Returns False if there was none."""

    # Events

    @abstractmethod
    async def append_event(self, key: str, type: str, data: Mapping[str, Json]) -> Event:
        """Append an event to the key's event log, and drop all but the newest ``events_kept``."""

    @abstractmethod
    async def list_events(self, key: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return events with ``seq > after``, oldest first."""

    @abstractmethod
    async def delete_events(self, key: str) -> int:
        """Delete all events of a key and return their number. Later events continue the numbering."""


class SearchStorage(ABC):
    """Optional interface for full-text search. A storage that supports it inherits from this class as well.

    ``diarist.testing.SearchConformance`` tests an implementation; ``storage/words.py`` defines words.
    """

    @abstractmethod
    async def search_messages(
        self,
        query: str,
        *,
        resource_id: str,
        thread_id: str | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Hit]:
        """Return visible messages of the resource that contain all words of ``query``, newest first.

        The order is by ``created_at``, to the second; a message without it counts with the time at which its run ended.
        Within a second, messages of one thread that were stored later come first; the order of threads is undefined.
        ``thread_id`` limits the search to one thread; a thread of another resource has no results.

        Text, tool names, arguments and results, file names and cited sources are searched; reasoning, data parts,
        context sent by memory, and system messages are not. A message that stays stored and unchanged appears on
        exactly one page. The cursor contains no thread id and no message id.

        Raises InputError for a query without words or with too many, a limit below 1, or an invalid cursor.
        """


def checked_storage(value: object) -> Storage:
    """Return ``value``. Raises ConfigError if it is not a storage."""
    if isinstance(value, Storage):
        return value
    name, place, given = "SQLiteStorage('memory.db')", "diarist.storage", repr(value)
    if isinstance(value, str) and "://" in value:
        scheme, _, path = value.partition("://")
        given = f"'{scheme}://…'"  # the rest may hold a password
        if kind := SCHEMES.get(scheme.partition("+")[0]):
            made = _CLASSES[kind]
            name, place = f"{made}({given})", f"diarist.storage.{made.removesuffix('Storage').lower()}"
        elif scheme == "sqlite":
            name = f"SQLiteStorage({path.removeprefix('/')!r})"
    elif isinstance(value, str | PathLike):
        name = f"SQLiteStorage({given})"
    raise ConfigError(
        f"storage must be a Storage, such as {name} from {place}, not {given};"
        " a class of your own must be a subclass of diarist.storage.Storage"
    )
