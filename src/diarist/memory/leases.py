"""Acquire and release leases on background work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from diarist.concurrency import acquire_or_release, being_cancelled, shield_until_done
from diarist.exceptions import StorageError
from diarist.storage.base import Storage
from diarist.storage.records import Lease


async def acquire_lease(
    storage: Storage, name: str, owner: str, *, ttl: float, release: Callable[[Lease | None], Awaitable[object]]
) -> Lease | None:
    """Acquire a lease as ``Storage.acquire_lease`` does. If the call is cancelled, ``release`` the lease."""
    return await acquire_or_release(_acquire(storage, name, owner, ttl, release), release)


async def _acquire(
    storage: Storage, name: str, owner: str, ttl: float, release: Callable[[Lease | None], Awaitable[object]]
) -> Lease | None:
    async def acquire_again_and_release() -> None:
        await release(await storage.acquire_lease(name, owner, ttl=ttl))

    try:
        return await storage.acquire_lease(name, owner, ttl=ttl)
    except asyncio.CancelledError:  # a loop that ends cancels this task as well; the lease may be held
        with suppress(StorageError):
            await shield_until_done(acquire_again_and_release, hurried=True)
        raise


async def release_lease(release: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Await ``release()``, even if the caller is cancelled or the event loop ends."""
    await shield_until_done(release, hurried=being_cancelled(), repeat=True)
