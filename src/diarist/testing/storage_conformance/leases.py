"""Leases: they expire and are fenced."""

from __future__ import annotations

import asyncio

from diarist.storage import Lease, Storage


class LeaseConformance:
    async def test_one_owner_at_a_time(self, storage: Storage, second_storage: Storage) -> None:
        lease = await storage.acquire_lease("observe", "a", ttl=60)
        assert lease == Lease(name="observe", owner="a", token=1)
        assert await second_storage.acquire_lease("observe", "b", ttl=60) is None
        assert await second_storage.acquire_lease("reflect", "b", ttl=60) is not None
        await storage.release_lease(Lease(name="observe", owner="a", token=1))
        assert await second_storage.acquire_lease("observe", "b", ttl=60) is not None

    async def test_of_many_claims_one_wins(self, storage: Storage, second_storage: Storage) -> None:
        stores = (storage, second_storage)
        claims = (stores[n % 2].acquire_lease("observe", f"owner {n}", ttl=60) for n in range(8))
        outcomes = await asyncio.gather(*claims)
        assert sum(outcome is not None for outcome in outcomes) == 1

    async def test_tokens_rise(self, storage: Storage) -> None:
        tokens: list[int] = []
        for owner, ttl in [("a", 0), ("b", -1), ("a", 60), ("a", 60), ("a", 60)]:
            lease = await storage.acquire_lease("observe", owner, ttl=ttl)
            assert lease is not None
            tokens.append(lease.token)
        await storage.release_lease(lease)
        again = await storage.acquire_lease("observe", "b", ttl=60)
        assert again is not None
        tokens.append(again.token)
        assert tokens == sorted(set(tokens))

    async def test_expired_lease_is_lost(self, storage: Storage, second_storage: Storage) -> None:
        old = await storage.acquire_lease("observe", "a", ttl=0)
        assert old is not None
        assert not await storage.renew_lease(old, ttl=60)
        new = await second_storage.acquire_lease("observe", "b", ttl=60)
        assert new is not None
        assert not await storage.renew_lease(old, ttl=60)
        await storage.release_lease(old)
        assert await storage.acquire_lease("observe", "c", ttl=60) is None
        assert await second_storage.renew_lease(new, ttl=60)

    async def test_claiming_again_fences_off_the_earlier_lease(self, storage: Storage) -> None:
        first = await storage.acquire_lease("observe", "a", ttl=60)
        second = await storage.acquire_lease("observe", "a", ttl=60)
        assert first is not None
        assert second is not None
        assert not await storage.renew_lease(first, ttl=60)
        await storage.release_lease(first)
        assert await storage.renew_lease(second, ttl=60)

    async def test_renewing_counts_from_now(self, storage: Storage) -> None:
        lease = await storage.acquire_lease("observe", "a", ttl=60)
        assert lease is not None
        assert await storage.renew_lease(lease, ttl=60)
        assert await storage.acquire_lease("observe", "b", ttl=60) is None
        assert await storage.renew_lease(lease, ttl=0)
        assert not await storage.renew_lease(lease, ttl=60)
        assert await storage.acquire_lease("observe", "b", ttl=60) is not None

    async def test_unknown_lease(self, storage: Storage) -> None:
        lease = Lease(name="nothing", owner="a", token=1)
        assert not await storage.renew_lease(lease, ttl=60)
        await storage.release_lease(lease)
        assert await storage.acquire_lease("nothing", "b", ttl=60) is not None

    async def test_a_deleted_lease_leaves_nothing(self, storage: Storage, second_storage: Storage) -> None:
        lease = await storage.acquire_lease("observe", "a", ttl=60)
        assert lease is not None
        assert await storage.acquire_lease("observe", "a", ttl=60) is not None
        assert await storage.acquire_lease("reflect", "a", ttl=60) is not None
        assert await second_storage.delete_lease("observe")
        assert not await storage.delete_lease("observe")
        assert not await storage.renew_lease(lease, ttl=60)
        again = await second_storage.acquire_lease("observe", "b", ttl=60)
        assert again == Lease(name="observe", owner="b", token=1)
        assert await second_storage.acquire_lease("reflect", "b", ttl=60) is None
