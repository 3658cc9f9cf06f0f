"""Observation logs: one value per key, saved by compare-and-set."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from diarist.chunks import Usage
from diarist.exceptions import ConflictError
from diarist.storage import (
    Failures,
    Hints,
    Observation,
    ObservationLog,
    Source,
    Storage,
    Tombstone,
)
from diarist.testing.storage_conformance.helpers import log

NOON = datetime(2026, 1, 20, 12, 0, 0, 123456, tzinfo=UTC)
FULL = log(
    generation=3,
    entries=(
        Observation(
            id="obs_1",
            text="Date: 2026-01-20\n* 🔴 (12:00) Ada flies to Rome",
            tokens=12,
            sources=(Source(thread_id="trip", first_seq=1, last_seq=4, digest="abc"),),
            message_tokens=400,
            message_count=4,
            observed_at=NOON,
            kind="reflection",
            cycle_id="c1",
            run_id="run_1",
            current_task="book a hotel",
            suggested_response="ask for the budget",
            model="m",
            usage=Usage(input_tokens=1, output_tokens=2, cached_tokens=3),
        ),
    ),
    tombstones=(
        Tombstone(thread_id="trip", first_seq=5, last_seq=6),
        Tombstone(thread_id="trip", run_id="r"),
    ),
    hints=Hints(current_task="task", suggested_response="reply", updated_at=NOON),
    observer_failures=Failures(count=2, last_at=NOON, last_error="timeout"),
    suppressed=("c0",),
)


class LogConformance:
    async def test_unknown_log(self, storage: Storage) -> None:
        assert await storage.get_log("thread:trip") is None
        assert await storage.list_generations("thread:trip") == []
        assert not await storage.delete_log("thread:trip")

    async def test_log_comes_back_with_its_version(self, storage: Storage) -> None:
        saved = await storage.save_log(FULL, expected_version=0)
        assert saved == replace(FULL, version=1)
        assert await storage.get_log("thread:trip") == saved

    @pytest.mark.parametrize("expected", [0, 1, 3])
    async def test_only_the_stored_version_of_a_log_is_replaced(self, storage: Storage, expected: int) -> None:
        await storage.save_log(log(), expected_version=0)
        head = await storage.save_log(FULL, expected_version=1)
        with pytest.raises(ConflictError, match="thread:trip"):
            await storage.save_log(log(generation=9), expected_version=expected)
        assert await storage.get_log("thread:trip") == head
        assert [past.generation for past in await storage.list_generations("thread:trip")] == [0]

    async def test_log_that_is_not_stored_has_no_version(self, storage: Storage) -> None:
        with pytest.raises(ConflictError):
            await storage.save_log(log(version=4), expected_version=4)
        assert await storage.get_log("thread:trip") is None

    async def test_of_many_savers_of_a_log_one_wins(self, storage: Storage, second_storage: Storage) -> None:
        stores = (storage, second_storage)
        for version in range(3):
            outcomes = await asyncio.gather(
                *(stores[n % 2].save_log(log(suppressed=(str(n),)), expected_version=version) for n in range(8)),
                return_exceptions=True,
            )
            winners = [outcome for outcome in outcomes if isinstance(outcome, ObservationLog)]
            assert sum(isinstance(outcome, ConflictError) for outcome in outcomes) == 7
            assert [await storage.get_log("thread:trip")] == winners
            assert winners[0].version == version + 1

    async def test_outgoing_generations_are_kept_once(self, storage: Storage) -> None:
        outgoing: list[ObservationLog] = []
        for version, generation in enumerate([0, 0, 1, 1, 2, 5]):
            saved = await storage.save_log(log(generation=generation), expected_version=version)
            if outgoing and outgoing[-1].generation == generation:
                outgoing.pop()
            outgoing.append(saved)
        assert await storage.list_generations("thread:trip") == outgoing[:-1]
        assert await storage.get_log("thread:trip") == outgoing[-1]

    async def test_a_generation_that_is_left_twice_stays_as_it_was(self, storage: Storage) -> None:
        first = await storage.save_log(log(suppressed=("first",)), expected_version=0)
        await storage.save_log(log(generation=1), expected_version=1)
        await storage.save_log(log(suppressed=("restored",)), expected_version=2)
        await storage.save_log(log(generation=1), expected_version=3)
        assert await storage.list_generations("thread:trip") == [first]

    async def test_deleting_a_log_removes_its_history(self, storage: Storage) -> None:
        for key in ("thread:trip", "thread:other"):
            await storage.save_log(log(key), expected_version=0)
            await storage.save_log(log(key, generation=1), expected_version=1)
        assert await storage.delete_log("thread:trip")
        assert await storage.get_log("thread:trip") is None
        assert await storage.list_generations("thread:trip") == []
        assert not await storage.delete_log("thread:trip")
        assert len(await storage.list_generations("thread:other")) == 1
        assert (await storage.save_log(log(), expected_version=0)).version == 1
