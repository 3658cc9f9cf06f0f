"""The storage of a memory, with what its parts share, and access to the threads that calls name."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from diarist.checks import check_names
from diarist.exceptions import InputError, NotFoundError
from diarist.memory.background import Background
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.log.log_store import LogStore
from diarist.memory.run_lifecycle import check_owner, end_run, open_run
from diarist.memory.semantic.embedding_jobs import EmbeddingJobs
from diarist.messages import new_id
from diarist.storage.base import Storage
from diarist.storage.records import Run, Thread
from diarist.tokens import TokenCounter


class Access:
    """The storage of a memory, with what its parts need to work on it. Finds and holds the thread that a call names.

    Attributes:
        config: The configuration of the diary; None if this memory keeps none.
        embedding: Keeps the vectors of messages up to date; by default there are none.
        logs: The stored diaries.
        shares_diary: All threads of a resource share one diary.
        thread_wait: Seconds to wait for another run of a thread.
    """

    def __init__(
        self,
        storage: Storage,
        counter: TokenCounter,
        config: ObservationalMemoryConfig | None = None,
        embedding: EmbeddingJobs | None = None,
        *,
        thread_wait: float,
    ) -> None:
        self.storage, self.counter, self.config = storage, counter, config
        self.embedding = embedding or EmbeddingJobs(None, False, storage, Background())
        self.thread_wait = thread_wait
        self.shares_diary = config is not None and config.scope == "resource"
        self.logs = LogStore(storage, config.scope if config is not None else "thread")

    async def thread(self, thread: str, resource: str | None) -> Thread:
        """Return the thread. Raises NotFoundError, and InputError if it belongs to another resource."""
        check_names(thread=thread, resource=resource)
        found = await self.storage.get_thread(thread)
        if found is None:
            raise NotFoundError(f"there is no thread {thread!r} in {self.storage.location}")
        if resource is not None:
            check_owner(found, resource)
        return found

    async def diary_owner(self, thread: str | None, resource: str | None) -> Thread:
        """Return the thread that owns the diary; for a resource alone, a thread without an id.

        Raises:
            NotFoundError: The thread or resource does not exist.
            InputError: The thread belongs to another resource, or no thread is given where one is required.
        """
        if thread is not None:
            return await self.thread(thread, resource)
        check_names(resource=resource)
        if not self.shares_diary:
            raise InputError("name a thread: each has a diary of its own, unless the memory has scope='resource'")
        if resource is None:
            raise InputError("name a thread or a resource")
        if not (
            (await self.storage.list_threads(resource_id=resource, limit=1)).items
            or (await self.logs.read("", resource)).version
            or (await self.storage.get_resource(resource)).version
        ):
            raise NotFoundError(f"there is no resource {resource!r} in {self.storage.location}")
        return Thread(id="", resource_id=resource)

    async def resource_of(self, thread: str | None, resource: str | None) -> str:
        """Return the resource of a thread, or the given one. Raises InputError if neither is given."""
        if thread is not None:
            return (await self.thread(thread, resource)).resource_id
        check_names(resource=resource)
        if resource is None:
            raise InputError("pass resource=... or thread=...: one of them is required")
        return resource

    @asynccontextmanager
    async def hold(self, thread: Thread, *, adds: bool = True, wait: float | None = None) -> AsyncGenerator[Run]:
        """Hold a thread with a run, so that no other run is live. If the block fails, the run is discarded.

        Args:
            adds: False: the run adds no messages, and the thread's time of change stays.
            wait: Seconds to wait for another run; ``thread_wait`` by default.

        Raises ThreadBusyError if another run did not end in time.
        """
        seconds = self.thread_wait if wait is None else wait
        run = await open_run(self.storage, new_id("run"), thread, wait=seconds)
        try:
            yield run
        except BaseException:
            await end_run(self.storage, run, "discarded")
            raise
        await end_run(self.storage, run, "committed" if adds else "discarded")
