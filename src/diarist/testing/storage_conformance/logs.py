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
    PendingReflection,
    Replaced,
    RowRef,
    Source,
    Storage,
    Tombstone,
)
from diarist.testing.storage_conformance.helpers import begin, committed, log, user

NOON = datetime(2026, 1, 20, 12, 0, 0, 123456, tzinfo=UTC)
WAITING = Observation(
    id="obs_2",
    text="* 🟡 (12:05) a window seat",
    tokens=8,
    sources=(Source(thread_id="trip", first_seq=5, last_seq=6, digest="def"),),
    message_tokens=100,
    message_count=2,
    observed_at=NOON,
    state="buffered",
    cycle_id="c2",
)
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
            thread_title="Rome",
            model="m",
            usage=Usage(input_tokens=1, output_tokens=2, cached_tokens=3),
        ),
        WAITING,
    ),
    tombstones=(
        Tombstone(thread_id="trip", first_seq=5, last_seq=6),
        Tombstone(thread_id="trip", run_id="r"),
    ),
    hints=Hints(current_task="task", suggested_response="reply", thread_title="Rome", updated_at=NOON),
    reflection=PendingReflection(entry=WAITING, replaces=(Replaced("obs_1", "d1"),), tokens=12),
    overrides={"message_tokens": 5_000},
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

    async def test_a_log_is_read_again_only_where_it_changed(self, storage: Storage) -> None:
        first = await storage.save_log(FULL, expected_version=0)
        assert await storage.get_log("thread:trip", after=first.version) is None
        second = await storage.save_log(log(), expected_version=first.version)
        assert await storage.get_log("thread:trip", after=first.version) == second

    async def test_a_log_that_was_read_is_the_readers_own(self, storage: Storage) -> None:
        saved = await storage.save_log(FULL, expected_version=0)
        for _ in range(2):
            found = await storage.get_log("thread:trip")
            assert found is not None
            assert found == saved
            found.overrides["message_tokens"] = 1

    async def test_a_log_comes_with_the_messages_that_it_asks_for(self, storage: Storage) -> None:
        rows = await committed(storage, "one", "two", "three", "four")
        saved = await storage.save_log(FULL, expected_version=0)
        asked: list[ObservationLog | None] = []

        def ranges(log: ObservationLog | None) -> list[tuple[int, int | None]]:
            asked.append(log)
            return [(0, rows[1].seq), (rows[2].seq or 0, None)]

        assert await storage.log_and_messages("thread:trip", "trip", ranges) == (saved, [rows[0], rows[3]])
        assert await storage.log_and_messages("other", "other", ranges) == (None, [])
        assert asked == [saved, None]

    async def test_a_log_comes_with_what_a_live_run_has_said(self, storage: Storage) -> None:
        run = await begin(storage)
        await storage.append_messages(run, [user("here")])
        for run_id, said in (("other", []), (run.id, ["here"])):
            _, rows = await storage.log_and_messages("thread:trip", "trip", lambda _: [(0, None)], run_id=run_id)
            assert [row.text for row in rows] == said

    async def test_a_log_is_saved_only_while_its_messages_are_there(self, storage: Storage) -> None:
        [row] = await committed(storage, "I fly to Rome")
        here = RowRef("trip", row.seq or 0, row.id)
        for gone in (here._replace(id="other"), here._replace(seq=99), here._replace(thread_id="other")):
            with pytest.raises(ConflictError, match=gone.id):
                await storage.save_log(FULL, expected_version=0, rows=[here, gone])
        assert await storage.get_log("thread:trip") is None
        saved = await storage.save_log(FULL, expected_version=0, rows=[here])
        await storage.delete_messages("trip", [row.id])
        with pytest.raises(ConflictError, match=row.id):
            await storage.save_log(FULL, expected_version=1, rows=[here])
        assert await storage.get_log("thread:trip") == saved

    async def test_nothing_is_noted_of_a_thread_that_was_made_anew(self, storage: Storage) -> None:
        [row] = await committed(storage, "I fly to Rome")
        await storage.delete_thread("trip")
        await committed(storage, "I fly to Oslo")
        with pytest.raises(ConflictError):
            await storage.save_log(FULL, expected_version=0, rows=[RowRef("trip", row.seq or 0, row.id)])

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

    async def test_a_past_generation_can_be_rewritten(self, storage: Storage) -> None:
        for version in range(3):
            await storage.save_log(log(generation=version, suppressed=(str(version),)), expected_version=version)
        first, second = await storage.list_generations("thread:trip")
        cleaned = replace(FULL, version=second.version, generation=1)
        assert await storage.rewrite_generation(cleaned, expected=second)
        assert await storage.list_generations("thread:trip") == [first, cleaned]
        for unknown in (replace(cleaned, generation=2), replace(cleaned, key="thread:other")):
            assert not await storage.rewrite_generation(unknown, expected=unknown)
        assert await storage.list_generations("thread:trip") == [first, cleaned]
        head = await storage.get_log("thread:trip")
        assert head is not None
        assert head.suppressed == ("2",)

    async def test_of_many_who_rewrite_a_generation_one_wins(self, storage: Storage, second_storage: Storage) -> None:
        for version in range(2):
            await storage.save_log(replace(FULL, generation=version), expected_version=version)
        for _ in range(3):
            [past] = await storage.list_generations("thread:trip")
            values = [replace(past, suppressed=(*past.suppressed, str(n))) for n in range(8)]
            done = await asyncio.gather(
                *((storage, second_storage)[n % 2].rewrite_generation(values[n], expected=past) for n in range(8))
            )
            assert await storage.list_generations("thread:trip") == [values[done.index(True)]]
            assert sum(done) == 1

    async def test_a_history_is_removed_without_its_log(self, storage: Storage) -> None:
        for key in ("thread:trip", "thread:other"):
            for version in range(3):
                await storage.save_log(log(key, generation=version), expected_version=version)
        assert await storage.delete_generations("thread:trip") == 2
        assert await storage.list_generations("thread:trip") == []
        assert await storage.delete_generations("thread:trip") == 0
        assert len(await storage.list_generations("thread:other")) == 2
        await storage.save_log(log(generation=3), expected_version=3)
        assert [past.generation for past in await storage.list_generations("thread:trip")] == [2]
