"""Read and save observation logs: compare-and-set with retries, and leases for work on them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from diarist.exceptions import ConflictError
from diarist.memory.leases import OnPause, hold_leases
from diarist.memory.observational.log.coverage import Coverage, changed_sources, visible_log
from diarist.memory.observational.log.transitions import Operation, drop_entries
from diarist.messages import Message, new_id
from diarist.storage.base import Ranges, Storage
from diarist.storage.records import Observation, ObservationLog, RowRef, Scope, Source, Thread

MAX_ATTEMPTS = 10
OTHER_THREADS = "*"
_JITTER = 0.02


def begun(*generations: ObservationLog) -> list[ObservationLog]:
    """Give a new ``born`` id to all generations of a log, before the log is saved for the first time."""
    born = new_id("log")
    return [replace(log, born=born) for log in generations]


def was_forgotten(told: ObservationLog, log: ObservationLog) -> bool:
    """Return True if anything was forgotten since ``told`` was read. Results based on ``told`` must then be dropped.

    Args:
        told: The log as it was read. A log that was never saved had nothing to forget.
        log: The log as it is stored now.
    """
    gone = told.version > 0 and (log.version == 0 or log.born != told.born)
    return gone or log.erasures != told.erasures


def lost_some(told: ObservationLog, log: ObservationLog) -> bool:
    """Return True if ``forget`` removed or rewrote entries of ``told`` since it was read.

    Notes made with those entries in the prompt may quote the forgotten text. Other notes may be kept.
    """
    if not was_forgotten(told, log):
        return False
    texts = {entry.id: entry.text for entry in log.entries}
    return log.born != told.born or any(texts.get(entry.id) != entry.text for entry in told.entries)


async def logs_of(storage: Storage, thread: Thread) -> list[ObservationLog]:
    """Return both logs that may cover a thread, its own and its resource's. A log that is not stored is empty."""
    scopes: tuple[Scope, ...] = ("thread", "resource")
    return [await LogStore(storage, scope).read(thread.id, thread.resource_id) for scope in scopes]


class LogStore:
    """The observation logs of a storage: one per thread, or one per resource.

    Most methods take both ids; the scope decides which of them is the key.
    """

    def __init__(self, storage: Storage, scope: Scope = "thread") -> None:
        self._storage = storage
        self._scope: Scope = scope

    def key(self, thread_id: str, resource_id: str) -> str:
        """Return the key of the log."""
        return f"thread:{thread_id}" if self._scope == "thread" else f"resource:{resource_id}"

    async def read(self, thread_id: str, resource_id: str) -> ObservationLog:
        """Return the log; an empty one (version 0) if nothing was saved yet."""
        key = self.key(thread_id, resource_id)
        return await self._storage.get_log(key) or self._empty(key, resource_id)

    async def reread(self, log: ObservationLog) -> ObservationLog:
        """Return the log as it is stored now; an empty one if it was deleted."""
        return await self._storage.get_log(log.key) or self._empty(log.key, log.resource_id)

    async def read_with_rows(
        self, thread_id: str, resource_id: str, run_id: str | None
    ) -> tuple[ObservationLog, list[Message]]:
        """Return the log, and the rows of the thread that are not covered by the active entries that the run sees.

        Without rows of another resource: it takes the thread's id if the thread is deleted while a job waits.
        """

        def holes(log: ObservationLog | None) -> Ranges:
            active = visible_log(log, run_id, thread_id).active if log is not None else ()
            return Coverage(active, thread_id).holes()

        key = self.key(thread_id, resource_id)
        log, rows = await self._storage.log_and_messages(key, thread_id, holes, run_id=run_id)
        return log or self._empty(key, resource_id), [
            row for row in rows if row.role != "system" and row.resource_id == resource_id
        ]

    async def read_with_changes(
        self, thread_id: str, resource_id: str, sources: Sequence[Source], run_id: str | None
    ) -> tuple[ObservationLog, list[Source]]:
        """Return the log, and those of ``sources`` with rows that were changed or removed, as the run sees them.

        The log is read first, so that a later change of the rows changes the log, too.
        """
        log = await self.read(thread_id, resource_id)
        changed: list[Source] = []
        for id in sorted({source.thread_id for source in sources}):
            own = [source for source in sources if source.thread_id == id]
            after, before = min(s.first_seq for s in own) - 1, max(s.last_seq for s in own) + 1
            rows = await self._storage.list_messages(id, after=after, before=before, run_id=run_id)
            changed += changed_sources(own, rows)
        return log, changed

    async def newer(self, log: ObservationLog) -> ObservationLog | None:
        """Return the stored log if it was saved after ``log`` was read, an empty log if it was deleted, None if nothing
        changed."""
        found = await self._storage.get_log(log.key, after=max(0, log.version - 1))
        if found is None and log.version:  # the log was deleted, or created again with a lower version
            return await self.reread(log)
        return None if found is None or (found.version, found.born) == (log.version, log.born) else found

    def _empty(self, key: str, resource_id: str) -> ObservationLog:
        return ObservationLog(key=key, scope=self._scope, resource_id=resource_id)

    async def update(
        self,
        read: Callable[[], Awaitable[ObservationLog]],
        change: Callable[[ObservationLog], ObservationLog],
        *,
        prepare: Callable[[], Awaitable[None]] | None = None,
        rows: Sequence[RowRef] = (),
    ) -> ObservationLog:
        """Read, change and save the log; retry if another process saved it in between.

        Args:
            read: Returns the log as it is stored; it may raise to give up.
            change: A transition; it may raise to give up. Nothing is saved if it returns its argument.
            prepare: Awaited after each read, before the change, such as to clean earlier generations; it may raise to
                give up.
            rows: Rows that must still be in the storage when the log is saved.

        Returns:
            The log as it is stored now.

        Raises:
            ConflictError: Another process saved the log first in each of ten attempts, or one of ``rows`` is no longer
                stored.
        """
        attempt = 0
        while True:
            attempt += 1
            log = await read()
            if prepare is not None:
                await prepare()
            changed = change(log)
            if changed is log:
                return log
            if not log.version:
                (changed,) = begun(changed)
            try:
                return await self._storage.save_log(changed, expected_version=log.version, rows=rows)
            except ConflictError:
                if attempt == MAX_ATTEMPTS:
                    raise
                await asyncio.sleep(random.uniform(0, _JITTER * attempt))

    async def clean_history(self, key: str, gone: Callable[[Observation], bool]) -> None:
        """Remove the entries for which ``gone`` returns True from all earlier generations.

        Entries that were buffered or belonged to a live run when their generation ended are removed too. Pass a call of
        this method as ``prepare`` to the ``update`` that removes the same entries from the log: if a new generation
        begins before the save, the save fails, and ``update`` repeats this call and the change.
        """
        await self.rewrite_history(
            key, lambda past: drop_entries(past, {entry.id for entry in past.entries if gone(entry)})
        )

    async def rewrite_history(
        self, key: str, change: Callable[[ObservationLog], ObservationLog]
    ) -> list[ObservationLog]:
        """Change earlier generations; retry those that another process changed in between.

        Args:
            change: As for ``update``.

        Returns:
            The generations before the change.

        Raises:
            ConflictError: Another process changed a generation during each of ten attempts.
        """
        history = left = await self._storage.list_generations(key)
        for _ in range(MAX_ATTEMPTS):
            changed = [(past, new) for past in left if (new := change(past)) is not past]
            if all([await self._storage.rewrite_generation(new, expected=past) for past, new in changed]):
                return history
            left = await self._storage.list_generations(key)
        raise ConflictError(f"earlier generations of {key!r} were changed by others {MAX_ATTEMPTS} times in a row")

    @asynccontextmanager
    async def claim(
        self,
        thread_id: str,
        resource_id: str,
        operation: Operation,
        *,
        wait: float = 0,
        on_pause: OnPause | None = None,
    ) -> AsyncGenerator[bool]:
        """Hold the lease for this work while the block runs; yields False if another process holds it.

        The lease only avoids duplicate model calls: if it is lost, the duplicate result is dropped on save.

        Args:
            wait: Seconds to wait for another process to release it.
            on_pause: Receives the seconds of each pause between two attempts.
        """
        name = self.job_name(thread_id, resource_id, operation)
        async with hold_leases(self._storage, [name], new_id("job"), wait=wait, on_pause=on_pause) as held:
            yield bool(held)

    @asynccontextmanager
    async def claim_each(
        self, thread_ids: Sequence[str], resource_id: str, operation: Operation, *, wait: float = 0
    ) -> AsyncGenerator[list[str]]:
        """Claim several threads at once, as ``claim`` does; yields the thread ids that were claimed.

        Args:
            wait: Seconds to wait for leases of other processes, for all threads together.
        """
        names = {self.job_name(thread_id, resource_id, operation): thread_id for thread_id in thread_ids}
        async with hold_leases(self._storage, names, new_id("job"), wait=wait) as held:
            yield [names[name] for name in held]

    def job_name(self, thread_id: str, resource_id: str, operation: Operation) -> str:
        """Return the name of a job: per log for reflection, per thread for observation.

        ``OTHER_THREADS`` as ``thread_id`` names the job that observes all threads of the resource but the current one.
        """
        key = self.key(thread_id, resource_id)
        return f"{key}:{operation}" if operation == "reflection" else f"{key}:{thread_id}:{operation}"
