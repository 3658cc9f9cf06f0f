"""Imports threads from lines: each thread completely or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import pairwise
from string import hexdigits
from typing import Literal

from diarist.exceptions import ConflictError, InputError
from diarist.memory.observational.log.log_store import LogStore, begun
from diarist.memory.transfer.format import Item, Moved, ThreadItem, WholeResource
from diarist.memory.transfer.numbering import cut, sources_in
from diarist.memory.transfer.thread_writer import PAGE, ThreadWriter, written
from diarist.memory.working.store import WorkingMemoryStore
from diarist.messages import Message
from diarist.storage.base import Storage
from diarist.storage.records import ObservationLog, Resource, Scope, Thread, Tombstone
from diarist.tokens import TokenCounter

Existing = Literal["refuse", "skip"]
"""Treatment of a thread that exists already."""


class Importer:
    """Imports the items of one file, as ``Threads.import_all`` says; calls ``derive`` with every stored thread."""

    def __init__(
        self,
        storage: Storage,
        counter: TokenCounter,
        *,
        resource: str | None,
        existing: Existing,
        derive: Callable[[Thread], None],
        on_progress: Callable[[Moved], None],
    ) -> None:
        self._moved = Moved()
        self._storage, self._counter = storage, counter
        self._resource, self._existing = resource, existing
        self._derive, self._on_progress = derive, on_progress
        self._stack = AsyncExitStack()
        self._thread: Thread | None = None
        self._writer: ThreadWriter | None = None  # None: the thread exists and is skipped
        self._counts: dict[str, int] = {}  # messages of each thread in the file

    async def run(self, items: AsyncIterator[Item]) -> Moved:
        """Import all items; return the counts.

        Raises ConflictError if a thread exists, InputError if the items do not fit together.
        """
        async with self._stack:
            async for item in items:
                if isinstance(item, Thread):
                    await self._finish()
                    await self._begin(item)
                elif isinstance(item, WholeResource):
                    await self._finish()
                    await self._take_resource(item)
                elif self._thread is None:
                    raise InputError(f"a {type(item).__name__.lower()} precedes the first thread")
                else:
                    await self._add(item, self._thread.id)
            await self._finish()
        return self._moved

    # -- threads

    async def _begin(self, thread: Thread) -> None:
        self._check_owner(thread.resource_id, f"thread {thread.id!r}")
        self._thread, self._writer, self._counts[thread.id] = thread, None, 0
        if self._existing == "skip" and await self._storage.get_thread(thread.id) is not None:
            self._moved.skipped.append(thread.id)
        else:
            self._writer = await self._stack.enter_async_context(written(self._storage, self._counter, thread))

    async def _add(self, item: ThreadItem, thread_id: str) -> None:
        """Add an item to the current thread. Of a skipped thread, only count the messages."""
        if self._writer is not None:
            await self._writer.add(item)
        if isinstance(item, Message):
            self._counts[thread_id] += 1
            self._moved.messages += self._writer is not None
            if self._counts[thread_id] % PAGE == 0:
                self._on_progress(self._moved)

    async def _finish(self) -> None:
        """Complete the current thread, if any."""
        thread, writer = self._thread, self._writer
        self._thread = self._writer = None
        if thread is not None and writer is not None:
            self._check_logs(writer.logs, f"thread:{thread.id}", "thread", thread.resource_id)
            await self._stack.aclose()
            self._derive(thread)
            self._moved.threads += 1
            self._on_progress(self._moved)

    # -- resources

    async def _take_resource(self, whole: WholeResource) -> None:
        """Import data of a resource. Data that the resource has already is not replaced."""
        self._check_owner(whole.id, "a resource")
        key = f"resource:{whole.id}"
        logs = cut(whole.logs, await self._missing(whole))
        self._check_logs(logs, key, "resource", whole.id)
        resource = await self._storage.get_resource(whole.id)
        working = WorkingMemoryStore(self._storage, "resource")
        brought_and_kept = {
            "metadata": (whole.metadata if whole.metadata != resource.metadata else None, resource.metadata),
            "a working memory": (whole.working_memory, (await working.read(key)).text),
            "a diary": (logs, await self._storage.get_log(key)),
        }
        taken = [name for name, (brought, kept) in brought_and_kept.items() if brought and kept]
        if taken and self._existing == "refuse":
            raise ConflictError(f"resource {whole.id!r} has {' and '.join(taken)} already; its threads are imported")
        new = [name for name, (brought, kept) in brought_and_kept.items() if brought and not kept]
        if "metadata" in new:
            await self._storage.save_resource(Resource(id=whole.id, metadata=whole.metadata, version=resource.version))
        if "a working memory" in new:
            text = whole.working_memory  # if a working memory was written after the check above, keep that one
            await working.update(key, lambda memory: memory if memory.text else replace(memory, text=text))
        if "a diary" in new:
            for version, log in enumerate(begun(*logs)):
                await self._storage.save_log(log, expected_version=version)
        self._moved.resources += bool(new)
        self._on_progress(self._moved)

    async def _missing(self, whole: WholeResource) -> list[Tombstone]:
        """Return the rows of a diary that are neither imported by this call nor the same in a skipped thread."""
        missing: list[Tombstone] = []
        sources = sources_in(whole.logs)
        for id in sorted({source.thread_id for source in sources}):
            if id in self._counts and id not in self._moved.skipped:
                continue
            of_thread = [source for source in sources if source.thread_id == id]
            found = await self._storage.get_thread(id) if id in self._counts else None
            if found is not None and found.resource_id == whole.id:
                logs = LogStore(self._storage, "resource")
                _, of_thread = await logs.read_with_changes(id, whole.id, of_thread, None)
            missing += [
                Tombstone(thread_id=id, first_seq=source.first_seq, last_seq=source.last_seq) for source in of_thread
            ]
        return missing

    # -- checks

    def _check_owner(self, resource_id: str, what: str) -> None:
        if self._resource is not None and resource_id != self._resource:
            raise InputError(f"{what} belongs to resource {resource_id!r}, not {self._resource!r}")

    def _check_logs(self, logs: Sequence[ObservationLog], key: str, scope: Scope, resource_id: str) -> None:
        """Raise InputError if a diary has another key, or entries on rows that do not exist."""
        for log in logs:
            if (log.key, log.scope, log.resource_id) != (key, scope, resource_id):
                raise InputError(f"the diary {log.key!r} of resource {log.resource_id!r} does not belong to {key!r}")
            for source in sources_in([log]):
                if not 1 <= source.first_seq <= source.last_seq <= self._counts.get(source.thread_id, 0):
                    raise InputError(
                        f"the diary {key!r} was made from messages {source.first_seq} to {source.last_seq} of thread"
                        f" {source.thread_id!r}, some of which are missing"
                    )
                if not source.digest or set(source.digest) - set(hexdigits):
                    raise InputError(f"the diary {key!r} has a digest that is not hexadecimal: {source.digest!r}")
        if any(before.generation >= after.generation for before, after in pairwise(logs)):
            raise InputError(f"the generations of the diary {key!r} are not in ascending order")
