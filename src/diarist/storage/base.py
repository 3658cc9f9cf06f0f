"""The contract of a storage. ``diarist.testing.StorageConformance`` checks every clause."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Literal, Self

from diarist.messages import Json, Message, SentBlock
from diarist.storage.records import (
    Event,
    Hit,
    Lease,
    MessageSource,
    ObservationLog,
    Page,
    Resource,
    RowRef,
    Run,
    Thread,
    WorkingMemory,
)

Ranges = Sequence[tuple[int, int | None]]


class ThreadStorage(ABC):
    """Threads. A thread that a live run created is invisible until that run has ended well."""

    @abstractmethod
    async def create_thread(self, thread: Thread) -> Thread:
        """Store a new thread; metadata keys with the value None are left out. Raises ConflictError if the id exists."""

    @abstractmethod
    async def get_thread(self, thread_id: str) -> Thread | None: ...

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

        Raises NotFoundError, and ConflictError where ``expected_title`` is given and the title is another one.
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
    ) -> Page[Thread]:
        """Newest first, by (created_at, id), or oldest first; ``metadata`` keeps threads that have all these values.

        Values are compared as JSON: 1, 1.0 and True differ. A thread that is there throughout appears exactly
        once in the pages. Raises InputError for a limit below 1 or a foreign cursor.
        """

    @abstractmethod
    async def delete_thread(self, thread_id: str) -> bool:
        """Remove the thread with its runs and messages, and the working memory, observation log and events of
        ``thread:<id>``.

        A live run of it is lost, and a thread that only such a run sees is removed as well. False if there was
        no thread.
        """


class MessageStorage(ABC):
    """Runs and their messages.

    A row counts for others if and only if its run is ``committed`` or ``interrupted``; every reader hides the
    rest, except from the run itself.
    """

    @abstractmethod
    async def begin_run(self, run_id: str, thread: Thread, *, ttl: float = 60.0, guarded: bool = False) -> Run:
        """Open a run, in one transaction.

        Creates the thread if it is not there (the discard of this run removes it again). A live run of the
        thread whose ``ttl`` (seconds, by the database's clock) has passed is ended as ``interrupted`` first,
        as ``finish_run`` does it. A ``ttl`` of zero or less has passed at once. The new run's token is above
        those of the thread's earlier runs.

        Raises:
            ThreadBusyError: Another run of the thread is live.
            ConflictError: A run of this id exists already, in whatever state.
            InputError: The thread belongs to another resource.
        """

    @abstractmethod
    async def heartbeat(self, run: Run, *, ttl: float = 60.0) -> None:
        """Stay live for ``ttl`` more seconds. Raises RunLostError."""

    @abstractmethod
    async def append_messages(
        self, run: Run, messages: Sequence[Message], *, source: MessageSource = "response"
    ) -> list[int]:
        """Add rows at the end of the run's thread, all or none; returns their ``seq``.

        ``seq`` rises strictly within the thread and is given inside the inserting transaction. ``thread_id``,
        ``resource_id`` and ``run_id`` of the rows are the run's, whatever the messages say.

        Raises:
            RunLostError: The run is not live, or its token is stale.
            ConflictError: A message id exists already in this thread.
        """

    @abstractmethod
    async def rewrite_messages(self, run: Run, messages: Sequence[Message], *, remove: Sequence[str] = ()) -> None:
        """Replace rows by id, keeping their ``seq``, their run and their source, and drop those named in ``remove``.

        Rows of this live run may be replaced and dropped; visible rows of its thread may be replaced, for what later
        runs must know as well: that counts at once, however this run ends. All or none.

        Raises RunLostError; NotFoundError for a row that the run may not change.
        """

    @abstractmethod
    async def finish_run(
        self,
        run: Run,
        state: Literal["committed", "discarded", "interrupted"],
        *,
        messages: Sequence[Message] = (),
    ) -> list[int]:
        """End the run. Whether its rows count is decided by ONE write.

        ``discarded`` removes its rows, and the thread with its working memory, log and events if this run created it
        and nothing else is in it.
        ``interrupted`` keeps its rows; of a ``guarded`` run only those appended with source ``input``.
        Ending a run again in the same state does nothing.

        Args:
            messages: Responses to append first, as ``append_messages`` does it: a call less, and a write less where a
                transaction can hold both.

        Returns:
            The ``seq`` of the messages.

        Raises:
            RunLostError: The run has ended otherwise, or there are messages and it is not live.
            ConflictError: A message id exists already in this thread; the run is live still.
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
        """Visible rows with ``after < seq < before``, in ``seq`` order (falling with ``newest_first``), at most
        ``limit``. Raises InputError for a negative limit, and for what is no whole number.

        ``run_id`` makes that run's own rows visible too. An unknown thread has none.
        """

    @abstractmethod
    async def existing_ids(self, thread_id: str, ids: Sequence[str]) -> set[str]:
        """Which of these message ids the thread has (visible rows)."""

    @abstractmethod
    async def delete_messages(self, thread_id: str, ids: Sequence[str]) -> int:
        """Remove visible rows; returns how many there were."""

    @abstractmethod
    async def rewrite_sent(self, thread_id: str, blocks: Mapping[str, SentBlock | None]) -> int:
        """Replace what memory sent along with visible rows, by message id; None takes it away.

        Works without a run, and changes nothing else of the rows. Returns how many of them there were.
        """


class ResourceStorage(ABC):
    @abstractmethod
    async def get_resource(self, resource_id: str) -> Resource:
        """The resource; an empty one with version 0 when nothing is stored."""

    @abstractmethod
    async def save_resource(self, resource: Resource) -> Resource:
        """Save if ``resource.version`` is still the stored one; returns it with the next version.

        Raises ConflictError.
        """

    @abstractmethod
    async def list_resources(self, *, limit: int = 100, cursor: str | None = None) -> Page[str]:
        """Ids of the resources that have something of their own, whether they have threads or not: a stored resource,
        or the working memory or log of ``resource:<id>``. In the order of their code points.

        One that is there throughout appears exactly once in the pages. Raises InputError for a limit below 1 or a
        foreign cursor.
        """


class WorkingMemoryStorage(ABC):
    @abstractmethod
    async def get_working_memory(self, key: str) -> WorkingMemory:
        """The working memory of ``thread:<id>`` or ``resource:<id>``; an empty one with version 0 when nothing is
        stored."""

    @abstractmethod
    async def save_working_memory(self, memory: WorkingMemory) -> WorkingMemory:
        """Save if ``memory.version`` is still the stored one; returns it with the next version.

        Raises ConflictError.
        """


class LogStorage(ABC):
    """Observation logs."""

    @abstractmethod
    async def get_log(self, key: str, *, after: int = 0) -> ObservationLog | None:
        """The log, if its version is above ``after``; None otherwise, and where there is none."""

    @abstractmethod
    async def save_log(
        self, log: ObservationLog, *, expected_version: int, rows: Sequence[RowRef] = ()
    ) -> ObservationLog:
        """Save ``log`` as ``expected_version + 1`` if the stored version is ``expected_version`` (0: none).

        All ``rows`` must be stored, in the same transaction: nothing is noted of what was removed meanwhile,
        not even where a thread of the same id has been made anew.
        Where the generation rises, the outgoing value is copied to the history of the key, once.
        Returns the log with its new version. Raises ConflictError.
        """

    @abstractmethod
    async def list_generations(self, key: str) -> list[ObservationLog]:
        """The outgoing values of earlier generations, oldest first, without the present one."""

    @abstractmethod
    async def rewrite_generation(self, log: ObservationLog, *, expected: ObservationLog) -> bool:
        """Replace the outgoing value that the history of ``log.key`` has of ``log.generation``; False, and nothing is
        replaced, where that is not ``expected``."""

    @abstractmethod
    async def delete_generations(self, key: str) -> int:
        """Remove the history of a log and keep the log; returns how many values there were."""

    @abstractmethod
    async def delete_log(self, key: str) -> bool:
        """Remove the log with its history. False if there was none."""


class LeaseStorage(ABC):
    """Leases save money, never correctness: work is claimed so that two processes do not pay for it twice."""

    @abstractmethod
    async def acquire_lease(self, name: str, owner: str, *, ttl: float) -> Lease | None:
        """Claim ``name`` for ``ttl`` seconds; None while somebody else holds it.

        The token rises each time, also when the holder claims again: its earlier lease is lost then.
        """

    @abstractmethod
    async def renew_lease(self, lease: Lease, *, ttl: float) -> bool:
        """Stay the owner for ``ttl`` seconds from now; False when the lease expired or was lost."""

    @abstractmethod
    async def release_lease(self, lease: Lease) -> None:
        """Give it up; nothing happens if it was lost."""

    @abstractmethod
    async def delete_lease(self, name: str) -> bool:
        """Leave nothing of ``name``: who holds it has lost it, and its tokens begin anew. False if there was none."""


class EventStorage(ABC):
    events_kept: int = 10_000
    """How many events the log of one key keeps: the newest."""

    @abstractmethod
    async def append_event(self, key: str, type: str, data: Mapping[str, Json]) -> Event:
        """Add an event at the end of the key's log and drop those beyond the newest ``events_kept``."""

    @abstractmethod
    async def list_events(self, key: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Events with ``seq > after``, oldest first."""

    @abstractmethod
    async def rewrite_event(self, key: str, seq: int, data: Mapping[str, Json]) -> bool:
        """Replace the data of an event. False if it is not there any more."""

    @abstractmethod
    async def delete_events(self, key: str) -> int:
        """Remove all events of a key; returns how many there were. The numbers of later ones go on rising."""


class SearchStorage(ABC):
    """An optional power: full-text search. A storage that has it is a subclass of this class as well.

    ``diarist.testing.SearchConformance`` checks every clause; ``storage/words.py`` has the rules of words.
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
        """Visible messages of the resource that have all words of ``query``, newest first.

        Newest is what was said last, to the second (``created_at``; what has none counts as said when its run
        ended); within a second, what began to count last, and of one run what was stored last. ``thread_id`` keeps
        the messages of one thread; a thread of another resource has none.

        Found are the words of text, of tools' names, arguments and results, of files' names and cited sources;
        not reasoning, data parts, what memory sent along, or system messages. A message that is there throughout
        and unchanged appears exactly once in the pages. The cursor names no thread and no message.

        Raises InputError for a query without words or with too many, a limit below 1, a foreign cursor.
        """


class Storage(
    ThreadStorage,
    MessageStorage,
    ResourceStorage,
    WorkingMemoryStorage,
    LogStorage,
    LeaseStorage,
    EventStorage,
):
    """All of it. Safe to share between tasks, agents and memories; values are copied in and out.

    Opens itself at first use, from any event loop. ``async with storage:`` or ``close()`` releases its
    connections. Every method is one transaction; cancelled before its commit it leaves nothing.

    Text comes back as it was, whatever it holds; values that JSON does not know come back as strings, times
    in UTC. Keys, ids and titles must be valid Unicode without NUL, and times must have a zone (InputError).

    Every method may raise StorageError, with the driver's own error as its cause.
    """

    async def open(self) -> None:
        """Connect and create or migrate the schema; does nothing when it is open."""

    async def close(self) -> None:
        """Release connections; it opens again at the next use."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def log_and_messages(
        self, key: str, thread_id: str, ranges: Callable[[ObservationLog | None], Ranges], *, run_id: str | None = None
    ) -> tuple[ObservationLog | None, list[Message]]:
        """A log, and the messages of a thread that lie in ``ranges`` of it; in one transaction where the storage can.

        Args:
            ranges: Pairs of ``after`` and ``before``, as for ``list_messages``, in order. It may be called in another
                thread.
        """
        log = await self.get_log(key)
        rows: list[Message] = []
        for after, before in ranges(log):
            rows += await self.list_messages(thread_id, after=after, before=before, run_id=run_id)
        return log, rows

    async def purge(self) -> None:
        """Let what was deleted be gone from indexes, too, where the database keeps it there until it tidies up.

        Called after something was forgotten. Changes nothing that can be read; by default there is nothing to do.
        """

    @property
    def location(self) -> str:
        """Where the data lies, for people: a path, a URL without password, or ``memory``."""
        return "memory"
