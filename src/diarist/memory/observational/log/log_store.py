"""Reading and saving observation logs: compare-and-set with retries, and the leases of work on them."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from diarist.concurrency import at_work, being_cancelled, cancel_from_anywhere, obtained, stop, undisturbed
from diarist.exceptions import ConflictError, StorageError
from diarist.memory.observational.log.coverage import Coverage, visible_log
from diarist.memory.observational.log.transitions import Operation, drop_entries
from diarist.memory.observational.log.uncovered import holes_to_read, only_uncovered
from diarist.messages import Message, new_id
from diarist.storage.base import Ranges, Storage
from diarist.storage.records import Lease, Observation, ObservationLog, RowRef, Scope

logger = logging.getLogger("diarist")

MAX_ATTEMPTS = 10
OTHER_THREADS = "*"
LEASE_TTL = 60.0
_JITTER = 0.02
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.25


def begun(*generations: ObservationLog) -> list[ObservationLog]:
    """The generations of a log that is about to be saved for the first time."""
    born = new_id("log")
    return [replace(log, born=born) for log in generations]


def was_forgotten(told: ObservationLog, log: ObservationLog) -> bool:
    """Whether something was forgotten since ``told`` was read, of which ``log`` is what is stored now.

    Then no work that knows it may be kept. Where ``told`` was never saved, it had nothing to forget.
    """
    gone = told.version > 0 and (log.version == 0 or log.born != told.born)
    return gone or log.erasures != told.erasures


class LogStore:
    """The observation logs of a storage: one per thread, or one per resource.

    Every method names both; the scope says which of them decides.
    """

    def __init__(self, storage: Storage, scope: Scope = "thread") -> None:
        self._storage = storage
        self._scope: Scope = scope

    def key(self, thread_id: str, resource_id: str) -> str:
        """The key of the log."""
        return f"thread:{thread_id}" if self._scope == "thread" else f"resource:{resource_id}"

    async def read(self, thread_id: str, resource_id: str) -> ObservationLog:
        """The log; an empty one, version 0, where nothing was saved yet."""
        return await self._now(self.key(thread_id, resource_id), resource_id)

    async def read_with_rows(
        self, thread_id: str, resource_id: str, run_id: str | None
    ) -> tuple[ObservationLog, list[Message]]:
        """The log, and the rows of the thread that a run sees beside what it renders of it."""
        found: list[Coverage] = []

        def holes(log: ObservationLog | None) -> Ranges:
            active = visible_log(log, run_id, thread_id).active if log is not None else ()
            found[:] = [Coverage(active, thread_id)]
            return holes_to_read(found[0])

        key = self.key(thread_id, resource_id)
        # Somebody's wrapper may have no such method, or hand it on unseen, past its own way of reading messages.
        kind = type(self._storage) if hasattr(type(self._storage), "log_and_messages") else Storage
        log, rows = await kind.log_and_messages(self._storage, key, thread_id, holes, run_id=run_id)
        return log or self._empty(key, resource_id), only_uncovered(rows, found[0])

    async def newer(self, log: ObservationLog) -> ObservationLog | None:
        """The log as it is now, if somebody saved it since ``log`` was read; an empty one where it was deleted."""
        found = await self._storage.get_log(log.key, after=max(0, log.version - 1))
        if found is None and log.version:  # it is gone, or one that was begun anew is still younger
            return await self._now(log.key, log.resource_id)
        return None if found is None or (found.version, found.born) == (log.version, log.born) else found

    async def _now(self, key: str, resource_id: str) -> ObservationLog:
        return await self._storage.get_log(key) or self._empty(key, resource_id)

    def _empty(self, key: str, resource_id: str) -> ObservationLog:
        return ObservationLog(key=key, scope=self._scope, resource_id=resource_id)

    async def update(
        self,
        thread_id: str,
        resource_id: str,
        change: Callable[[ObservationLog], ObservationLog],
        *,
        check: Callable[[], Awaitable[None]] | None = None,
        rows: Sequence[RowRef] = (),
    ) -> ObservationLog:
        """Read, change, save; and all of it again when somebody else saved in between.

        Args:
            change: A transition; it may raise to give up. Returning its argument saves nothing.
            check: Awaited after each reading, before the change; it may raise to give up.
            rows: Must be stored when the log is saved.

        Returns:
            The log as it is stored now.

        Raises:
            ConflictError: Ten attempts in a row lost the race, or a row is gone.
        """
        attempt = 0
        while True:
            attempt += 1
            log = await self.read(thread_id, resource_id)
            if check is not None:
                await check()
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
        """Take entries out of earlier generations: each keeps what the log had when it ended, provisional entries too.

        As the ``check`` of the ``update`` that takes them out of the log, it leaves none behind: were a further
        generation to begin meanwhile, that update would not be saved, and both are done again.
        """
        await self.rewrite_history(
            key, lambda past: drop_entries(past, {entry.id for entry in past.entries if gone(entry)})
        )

    async def rewrite_history(
        self, key: str, change: Callable[[ObservationLog], ObservationLog]
    ) -> list[ObservationLog]:
        """Change earlier generations; those that somebody else has changed meanwhile are read and changed anew.

        Args:
            change: As for ``update``.

        Returns:
            The generations as they were.

        Raises:
            ConflictError: Ten attempts in a row lost the race.
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
        self, thread_id: str, resource_id: str, operation: Operation, *, wait: float = 0
    ) -> AsyncGenerator[bool]:
        """Hold the lease of this work while the block runs; yields False if somebody else holds it.

        The lease saves money only: should it be lost, what is done twice is dropped when it is saved.

        Args:
            wait: Seconds to wait for somebody else to let go of it.
        """
        async with self.claim_each([thread_id], resource_id, operation, wait=wait) as mine:
            yield bool(mine)

    @asynccontextmanager
    async def claim_each(
        self, thread_ids: Sequence[str], resource_id: str, operation: Operation, *, wait: float = 0
    ) -> AsyncGenerator[list[str]]:
        """As ``claim``, for several threads: yields those whose leases nobody else holds. All are given back at once.

        Args:
            wait: Seconds to wait for each of the others.
        """
        me, mine = asyncio.current_task(), list[str]()
        held: list[tuple[Lease, asyncio.Task[None]]] = []
        try:
            for thread_id in thread_ids:
                lease = await self._acquire(self.job_name(thread_id, resource_id, operation), wait)
                if lease is not None:
                    held.append((lease, asyncio.create_task(self._renew(lease))))
                    mine.append(thread_id)
            yield mine
        finally:
            if not at_work(me):  # nothing can be awaited any more: the leases end by themselves
                for _, renewal in held:
                    cancel_from_anywhere(renewal)
            elif held:
                await undisturbed(self._let_go(held), hurried=being_cancelled())

    def job_name(self, thread_id: str, resource_id: str, operation: Operation) -> str:
        """The name of a piece of work: of a log for reflection, and of one of its threads for observation.

        ``OTHER_THREADS`` names all threads of a resource but those that look after themselves.
        """
        key = self.key(thread_id, resource_id)
        return f"{key}:{operation}" if operation == "reflection" else f"{key}:{thread_id}:{operation}"

    async def _acquire(self, name: str, wait: float) -> Lease | None:
        owner, deadline, pause = new_id("job"), time.monotonic() + wait, _FIRST_PAUSE
        while True:
            lease = await obtained(self._storage.acquire_lease(name, owner, ttl=LEASE_TTL), self._release)
            left = deadline - time.monotonic()
            if lease is not None or left <= 0:
                return lease
            await asyncio.sleep(min(left, pause))
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _renew(self, lease: Lease) -> None:
        while True:
            await asyncio.sleep(LEASE_TTL / 3)
            try:
                if not await self._storage.renew_lease(lease, ttl=LEASE_TTL):
                    return
            except StorageError as error:
                logger.warning("cannot renew the lease %s: %s", lease.name, error)

    async def _let_go(self, held: Sequence[tuple[Lease, asyncio.Task[None]]]) -> None:
        async def release(lease: Lease, renewal: asyncio.Task[None]) -> None:
            await stop(renewal)
            await self._release(lease)

        await asyncio.gather(*(release(lease, renewal) for lease, renewal in held))

    async def _release(self, lease: Lease | None) -> None:
        if lease is None:
            return
        try:
            await self._storage.release_lease(lease)
        except StorageError as error:
            logger.warning("cannot release the lease %s, it expires by itself: %s", lease.name, error)
