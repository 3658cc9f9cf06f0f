"""Resources: saved by compare-and-set."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from diarist.exceptions import ConflictError
from diarist.storage import Resource, Storage


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
