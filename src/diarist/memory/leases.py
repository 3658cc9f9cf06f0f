"""Hold leases on background work: acquire, renew and release them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial

from diarist.concurrency import acquire_or_undo, being_cancelled, shield_until_done, try_in_background
from diarist.exceptions import StorageError
from diarist.storage.base import Storage
from diarist.storage.records import Lease

OnPause = Callable[[float], object]
"""Receives the seconds of each pause between two attempts to get a lease."""

Release = Callable[[Lease], Awaitable[object]]

logger = logging.getLogger("diarist")

LEASE_TTL = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.25


@asynccontextmanager
async def hold_leases(
    storage: Storage,
    names: Collection[str],
    owner: str,
    *,
    wait: float = 0,
    on_pause: OnPause | None = None,
    release: Release | None = None,
) -> AsyncGenerator[list[str]]:
    """Hold leases while the block runs; yields the names of those that were acquired, because no other owner had them.

    They are renewed in the background. They are released together, even if the caller is cancelled; where this fails,
    once the database is back.

    Args:
        owner: If it holds one of the leases already, this call takes the lease over.
        wait: Seconds to wait for leases of other owners, for all names together, because a killed process may have left
            many leases.
        on_pause: Receives the seconds of each pause between two attempts.
        release: Called instead of ``storage.release_lease``. It must be safe to do twice.
    """
    deadline, release = time.monotonic() + wait, release or storage.release_lease
    held: dict[str, Lease] = {}
    renewal = asyncio.create_task(_renew(storage, held))
    try:
        for name in names:
            pause = _FIRST_PAUSE
            while (lease := await _acquire(storage, name, owner, release)) is None:
                seconds = min(deadline - time.monotonic(), pause)
                if seconds <= 0:
                    break
                if on_pause is not None:
                    on_pause(seconds)
                await asyncio.sleep(seconds)
                pause = min(2 * pause, _LONGEST_PAUSE)
            if lease is not None:
                held[name] = lease
        yield list(held)
    finally:
        renewal.cancel()
        if held:
            await shield_until_done(partial(_release, held, release), hurried=being_cancelled(), repeat=True)


async def _acquire(storage: Storage, name: str, owner: str, release: Release) -> Lease | None:
    async def undo() -> None:
        if (lease := await storage.acquire_lease(name, owner, ttl=LEASE_TTL)) is not None:  # still held by the owner
            await release(lease)

    return await acquire_or_undo(storage.acquire_lease(name, owner, ttl=LEASE_TTL), undo, ttl=LEASE_TTL)


async def _renew(storage: Storage, held: Mapping[str, Lease]) -> None:
    while True:
        await asyncio.sleep(LEASE_TTL / 3)
        for lease in tuple(held.values()):
            try:
                await storage.renew_lease(lease, ttl=LEASE_TTL)
            except StorageError as error:
                logger.warning("cannot renew the lease %s: %s", lease.name, error)


async def _release(held: Mapping[str, Lease], release: Release) -> None:
    results = await asyncio.gather(*map(release, held.values()), return_exceptions=True)
    for lease, error in zip(held.values(), results, strict=True):
        if isinstance(error, StorageError):
            logger.warning("cannot release the lease %s yet: %s", lease.name, error)
            try_in_background(partial(release, lease), LEASE_TTL)
        elif isinstance(error, BaseException):
            raise error
