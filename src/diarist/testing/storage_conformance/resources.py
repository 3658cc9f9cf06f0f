"""Resources: saved by compare-and-set."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from diarist.exceptions import ConflictError, InputError
from diarist.storage import Resource, Storage
from diarist.storage.records import ObservationLog, WorkingMemory
from diarist.testing.storage_conformance.helpers import thread


class ResourceConformance:
    async def test_unknown_resource_is_empty(self, storage: Storage) -> None:
        assert await storage.get_resource("ada") == Resource(id="ada")

    async def test_resource_comes_back_with_its_version(self, storage: Storage) -> None:
        given = Resource(id="ada", metadata={"a": [1], "said": "Ada \ud83d \0"})
        saved = await storage.save_resource(given)
        assert saved == replace(given, version=1)
        assert await storage.get_resource("ada") == saved
        changed = await storage.save_resource(replace(saved, metadata={}))
        assert (changed.version, changed.metadata) == (2, {})
        assert await storage.get_resource("ada") == changed

    @pytest.mark.parametrize("version", [0, 1, 3])
    async def test_only_the_stored_version_of_a_resource_is_replaced(self, storage: Storage, version: int) -> None:
        first = await storage.save_resource(Resource(id="ada"))
        second = await storage.save_resource(replace(first, metadata={"is": "kept"}))
        with pytest.raises(ConflictError, match="ada"):
            await storage.save_resource(replace(second, version=version, metadata={"is": "lost"}))
        assert await storage.get_resource("ada") == second

    async def test_resource_that_is_not_stored_has_no_later_version(self, storage: Storage) -> None:
        with pytest.raises(ConflictError):
            await storage.save_resource(Resource(id="ada", version=4))

    async def test_of_many_savers_of_a_resource_one_wins(self, storage: Storage, second_storage: Storage) -> None:
        stores = (storage, second_storage)
        for version in (0, 1):
            resources = [Resource(id="ada", version=version, metadata={"n": n}) for n in range(8)]
            outcomes = await asyncio.gather(
                *(stores[n % 2].save_resource(resource) for n, resource in enumerate(resources)),
                return_exceptions=True,
            )
            winners = [outcome for outcome in outcomes if isinstance(outcome, Resource)]
            assert sum(isinstance(outcome, ConflictError) for outcome in outcomes) == 7
            assert [await storage.get_resource("ada")] == winners

    async def test_resources_are_copied_in_and_out(self, storage: Storage) -> None:
        given = Resource(id="ada", metadata={"tags": ["a"]})
        saved = await storage.save_resource(given)
        given.metadata["tags"].append("in")
        saved.metadata["tags"].append("saved")
        (await storage.get_resource("ada")).metadata["tags"].append("out")
        assert (await storage.get_resource("ada")).metadata == {"tags": ["a"]}

    async def test_resources_are_listed_if_they_have_something_of_their_own(self, storage: Storage) -> None:
        await storage.create_thread(thread("t", "only threads"))
        await storage.save_working_memory(WorkingMemory(key="thread:t", text="of a thread"))
        await storage.save_resource(Resource(id="ada", metadata={"a": 1}))
        for name in ("ada", "\U0001f600", "z", "", "\uffee", "resource:x"):
            await storage.save_working_memory(WorkingMemory(key=f"resource:{name}", text="x"))
        log = ObservationLog(key="resource:bob", scope="resource", resource_id="bob")
        await storage.save_log(log, expected_version=0)
        await storage.save_log(replace(log, key="resource:gone"), expected_version=0)
        await storage.delete_log("resource:gone")
        names = ["", "ada", "bob", "resource:x", "z", "\uffee", "\U0001f600"]
        assert (await storage.list_resources()).items == names
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = await storage.list_resources(limit=3, cursor=cursor)
            found += page.items
            cursor = page.cursor
            if cursor is None:
                break
        assert found == names
        assert (await storage.list_resources(limit=len(names))).cursor is None

    async def test_a_limit_or_cursor_of_resources_that_is_none_is_refused(self, storage: Storage) -> None:
        with pytest.raises(InputError, match="limit"):
            await storage.list_resources(limit=0)
        for cursor in ("!", "WzEsImEiXQ"):
            with pytest.raises(InputError, match="cursor"):
                await storage.list_resources(cursor=cursor)
