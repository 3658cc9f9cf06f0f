"""Reading and saving observation logs: compare-and-set with retries, and the leases of work on them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from diarist.exceptions import ConflictError, StorageError
from diarist.memory.observational.transitions import Operation
from diarist.messages import new_id
from diarist.storage.base import Storage
from diarist.storage.records import Lease, ObservationLog

logger = logging.getLogger("diarist")

MAX_ATTEMPTS = 10
LEASE_TTL = 60.0
_JITTER = 0.02


class LogStore:
    """The observation logs of a storage, one per thread."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def read(self, thread_id: str, resource_id: str = "") -> ObservationLog:
        """The thread's log; an empty one, version 0, where nothing was saved yet."""
        log = await self._storage.get_log(key_of(thread_id))
        return log or ObservationLog(key=key_of(thread_id), scope="thread", resource_id=resource_id)

    async def update(
        self,
        thread_id: str,
        resource_id: str,
        change: Callable[[ObservationLog], ObservationLog],
        *,
        check: Callable[[], Awaitable[None]] | None = None,
    ) -> ObservationLog:
        """Read, change, save; and all of it again when somebody else saved in between.

        Args:
            change: A transition; it may raise to give up. Returning its argument saves nothing.
            check: Awaited after each reading, before the change; it may raise to give up.

        Returns:
            The log as it is stored now.

        Raises:
            ConflictError: Ten attempts in a row lost the race.
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
            try:
                return await self._storage.save_log(changed, expected_version=log.version)
            except ConflictError:
                if attempt == MAX_ATTEMPTS:
                    raise
                await asyncio.sleep(random.uniform(0, _JITTER * attempt))

    @asynccontextmanager
    async def claim(self, thread_id: str, operation: Operation) -> AsyncGenerator[bool]:
        """Hold the lease of this work while the block runs; yields False if somebody else holds it.

        The lease saves money only: should it be lost, what is done twice is dropped when it is saved.
        """
        name = f"{key_of(thread_id)}:{operation}"
        lease = await self._storage.acquire_lease(name, new_id("job"), ttl=LEASE_TTL)
        if lease is None:
            yield False
            return
        renewal = asyncio.create_task(self._renew(lease))
        try:
            yield True
        finally:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)
            await self._release(lease)

    async def _renew(self, lease: Lease) -> None:
        while True:
            await asyncio.sleep(LEASE_TTL / 3)
            try:
                if not await self._storage.renew_lease(lease, ttl=LEASE_TTL):
                    return
            except StorageError as error:
                logger.warning("cannot renew the lease %s: %s", lease.name, error)

    async def _release(self, lease: Lease) -> None:
        try:
            await self._storage.release_lease(lease)
        except StorageError as error:
            logger.warning("cannot release the lease %s, it expires by itself: %s", lease.name, error)


def key_of(thread_id: str) -> str:
    """The key of a thread's log."""
    return f"thread:{thread_id}"
