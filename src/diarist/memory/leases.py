"""Acquire and release leases on background work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from diarist.concurrency import acquire_or_undo, being_cancelled, shield_until_done
from diarist.storage.base import Storage
from diarist.storage.records import Lease


async def acquire_lease(
    storage: Storage, name: str, owner: str, *, ttl: float, release: Callable[[Lease | None], Awaitable[object]]
) -> Lease | None:
    """Acquire a lease as ``Storage.acquire_lease`` does. If the call is cancelled, ``release`` the lease."""

    async def undo() -> None:
        await release(await storage.acquire_lease(name, owner, ttl=ttl))

    return await acquire_or_undo(storage.acquire_lease(name, owner, ttl=ttl), undo, ttl=ttl)


async def release_lease(release: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Await ``release()``, even if the caller is cancelled or the event loop ends."""
    await shield_until_done(release, hurried=being_cancelled(), repeat=True)
