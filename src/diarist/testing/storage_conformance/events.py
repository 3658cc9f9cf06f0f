"""Events: a sequence per key, with retention."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from diarist.exceptions import InputError
from diarist.storage import Storage


class EventConformance:
    async def test_events_come_back_in_order(self, storage: Storage) -> None:
        given = [await storage.append_event("thread:trip", f"data-{n}", {"n": n}) for n in range(4)]
        other = await storage.append_event("thread:other", "data-x", {"text": "\ud83d \0"})
        assert [event.seq for event in given] == [1, 2, 3, 4]
        assert other.seq == 1
        assert [(event.type, event.data) for event in given] == [(f"data-{n}", {"n": n}) for n in range(4)]
        assert all(event.created_at.utcoffset() == timedelta(0) for event in given)
        assert await storage.list_events("thread:trip") == given
        assert await storage.list_events("thread:other") == [other]
        assert await storage.list_events("nothing") == []

    async def test_windows_of_events(self, storage: Storage) -> None:
        given = [await storage.append_event("k", "data-x", {}) for _ in range(5)]
        assert await storage.list_events("k", after=2) == given[2:]
        assert await storage.list_events("k", after=2, limit=2) == given[2:4]
        assert await storage.list_events("k", after=5) == []
        assert await storage.list_events("k", limit=0) == []
        with pytest.raises(InputError, match="limit"):
            await storage.list_events("k", limit=-1)

    async def test_concurrent_events_keep_their_numbers_apart(self, storage: Storage, second_storage: Storage) -> None:
        stores = (storage, second_storage)
        given = await asyncio.gather(*(stores[n % 2].append_event("k", "data-x", {"n": n}) for n in range(20)))
        assert sorted(event.seq for event in given) == list(range(1, 21))
        assert await storage.list_events("k") == sorted(given, key=lambda event: event.seq)

    async def test_only_the_newest_events_are_kept(self, storage: Storage) -> None:
        assert storage.events_kept == 10_000
        storage.events_kept = 5
        await storage.append_event("other", "data-x", {})
        for _ in range(12):
            await storage.append_event("k", "data-x", {})
        assert [event.seq for event in await storage.list_events("k")] == [8, 9, 10, 11, 12]
        assert len(await storage.list_events("other")) == 1

    async def test_events_are_copied_in_and_out(self, storage: Storage) -> None:
        data: dict[str, Any] = {"tags": ["a"]}
        event = await storage.append_event("k", "data-x", data)
        data["tags"].append("in")
        event.data["tags"].append("out")
        assert (await storage.list_events("k"))[0].data == {"tags": ["a"]}

    async def test_the_data_of_an_event_can_be_rewritten(self, storage: Storage) -> None:
        first, second = [await storage.append_event("k", f"data-{n}", {"text": n}) for n in range(2)]
        other = await storage.append_event("other", "data-x", {})
        assert await storage.rewrite_event("k", second.seq, {"text": "\ud83d \0"})
        assert not await storage.rewrite_event("k", 3, {})
        assert not await storage.rewrite_event("nothing", 1, {})
        assert await storage.list_events("k") == [first, replace(second, data={"text": "\ud83d \0"})]
        assert await storage.list_events("other") == [other]

    async def test_numbers_go_on_after_events_were_removed(self, storage: Storage) -> None:
        for key in ("k", "k", "other"):
            await storage.append_event(key, "data-x", {})
        assert await storage.delete_events("k") == 2
        assert await storage.delete_events("k") == 0
        assert await storage.delete_events("nothing") == 0
        assert await storage.list_events("k") == []
        assert len(await storage.list_events("other")) == 1
        assert (await storage.append_event("k", "data-x", {})).seq == 3
