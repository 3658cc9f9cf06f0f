"""Runs: what counts for whom, how they end, and who may write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal

import pytest

from diarist.exceptions import (
    ConflictError,
    InputError,
    NotFoundError,
    RunLostError,
    ThreadBusyError,
)
from diarist.storage import ObservationLog, Run, Storage
from diarist.testing.storage_conformance.helpers import begin, committed, numbers, texts, thread, user

EndState = Literal["committed", "discarded", "interrupted"]
ENDS: tuple[EndState, ...] = ("committed", "discarded", "interrupted")


class RunConformance:
    async def test_live_run_and_the_thread_it_created_are_its_own_affair(
        self, storage: Storage, second_storage: Storage
    ) -> None:
        run = await begin(storage)
        await storage.append_messages(run, [user("draft", id="m")])
        for other in (storage, second_storage):
            assert await other.get_thread("trip") is None
            assert (await other.list_threads()).items == []
            assert await texts(other) == []
            assert await other.existing_ids("trip", ["m"]) == set()
            assert await other.delete_messages("trip", ["m"]) == 0
            with pytest.raises(NotFoundError):
                await other.update_thread("trip", title="x")
            with pytest.raises(ConflictError):
                await other.create_thread(thread())
        assert await texts(storage, run_id=run.id) == ["draft"]

    async def test_only_the_newest_rows_of_a_live_run_are_hidden(self, storage: Storage) -> None:
        await committed(storage, "settled")
        run = await begin(storage)
        await storage.append_messages(run, [user("draft")])
        assert await texts(storage) == ["settled"]
        assert await texts(storage, run_id="another") == ["settled"]
        assert await texts(storage, run_id=run.id) == ["settled", "draft"]

    @pytest.mark.parametrize("state", ["committed", "interrupted"])
    async def test_rows_of_a_run_that_ended_well_count(
        self, storage: Storage, second_storage: Storage, state: EndState
    ) -> None:
        run = await begin(storage, of=thread(title="Rome", metadata={"a": 1}))
        await storage.append_messages(run, [user("hello")], source="input")
        await storage.append_messages(run, [user("answer")])
        await storage.finish_run(run, state)
        assert await texts(second_storage) == ["hello", "answer"]
        found = await second_storage.get_thread("trip")
        assert found is not None
        assert (found.resource_id, found.title, found.metadata) == ("ada", "Rome", {"a": 1})
        assert await second_storage.get_run(run.id) == replace(run, state=state)

    async def test_discarded_run_leaves_nothing(self, storage: Storage) -> None:
        run = await begin(storage)
        await storage.append_messages(run, [user("secret", id="m")], source="input")
        await storage.append_event("thread:trip", "data-x", {"secret": 1})
        await storage.save_log(ObservationLog(key="thread:trip", scope="thread", resource_id="ada"), expected_version=0)
        await storage.finish_run(run, "discarded")
        assert await storage.get_thread("trip") is None
        assert await storage.get_log("thread:trip") is None
        assert await storage.list_events("thread:trip") == []
        assert (await storage.list_threads()).items == []
        assert await texts(storage, run_id=run.id) == []
        found = await storage.get_run(run.id)
        assert found is not None
        assert found.state == "discarded"
        again = await begin(storage, of=thread(resource_id="grace"))  # the name is free again
        assert await storage.append_messages(again, [user("new", id="m")]) == [1]

    async def test_discarded_run_leaves_earlier_runs_alone(self, storage: Storage) -> None:
        await committed(storage, "kept")
        before = await storage.get_thread("trip")
        run = await begin(storage, of=thread(title="ignored"))
        await storage.append_messages(run, [user("secret")])
        await storage.finish_run(run, "discarded")
        assert await storage.get_thread("trip") == before
        assert await texts(storage) == ["kept"]
        numbers = [message.seq for message in await storage.list_messages("trip")]
        assert (await committed(storage, "next"))[0].seq not in numbers

    async def test_created_thread_outlives_a_discarded_run(self, storage: Storage) -> None:
        created = await storage.create_thread(thread())
        await storage.finish_run(await begin(storage), "discarded")
        assert await storage.get_thread("trip") == created

    async def test_one_live_run_per_thread(self, storage: Storage, second_storage: Storage) -> None:
        run = await begin(storage)
        with pytest.raises(ThreadBusyError, match="trip"):
            await begin(second_storage)
        await begin(second_storage, of=thread("other"))
        await storage.finish_run(run, "committed")
        await begin(second_storage)

    async def test_of_many_that_begin_at_once_one_wins(self, storage: Storage, second_storage: Storage) -> None:
        outcomes = await asyncio.gather(
            *(begin((storage, second_storage)[n % 2]) for n in range(10)), return_exceptions=True
        )
        assert sum(isinstance(outcome, Run) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, ThreadBusyError) for outcome in outcomes) == 9

    async def test_tokens_of_a_thread_rise(self, storage: Storage) -> None:
        tokens: list[int] = []
        for state in ("discarded", "discarded", "committed", "interrupted", "discarded", "committed"):
            run = await begin(storage)
            tokens.append(run.token)
            await storage.finish_run(run, state)
        assert tokens == sorted(set(tokens))

    async def test_run_id_is_unique_for_ever(self, storage: Storage) -> None:
        for state in ("discarded", "committed", "interrupted"):
            run = await begin(storage, f"run-{state}")
            with pytest.raises(ConflictError, match=run.id):  # not "busy": waiting would not help
                await begin(storage, run.id)
            await storage.finish_run(run, state)
            for place in (thread(), thread("other")):
                with pytest.raises(ConflictError, match=run.id):
                    await begin(storage, run.id, of=place)
        assert await storage.get_thread("other") is None

    async def test_thread_of_another_resource_is_refused(self, storage: Storage) -> None:
        await committed(storage, "hello")
        with pytest.raises(InputError, match="ada"):
            await begin(storage, "run", of=thread(resource_id="grace"))
        assert await storage.get_run("run") is None

    async def test_unknown_run(self, storage: Storage) -> None:
        assert await storage.get_run("nobody") is None

    async def test_expired_run_is_adopted_with_its_rows(self, storage: Storage, second_storage: Storage) -> None:
        crashed = await begin(storage, ttl=0)
        await storage.append_messages(crashed, [user("hello")], source="input")
        await storage.append_messages(crashed, [user("step")])
        run = await begin(second_storage)
        assert await texts(storage) == ["hello", "step"]
        assert await storage.get_thread("trip") is not None
        assert await storage.get_run(crashed.id) == replace(crashed, state="interrupted")
        assert run.token > crashed.token

    @pytest.mark.parametrize("adopted", [True, False])
    async def test_interrupted_guarded_run_keeps_only_its_input(self, storage: Storage, adopted: bool) -> None:
        await committed(storage, "earlier")
        crashed = await begin(storage, ttl=-1, guarded=True)
        await storage.append_messages(crashed, [user("hello", id="in")], source="input")
        await storage.append_messages(crashed, [user("unjudged")])
        await storage.rewrite_messages(crashed, [user("hello again", id="in")])
        if adopted:
            await begin(storage)
        else:
            await storage.finish_run(crashed, "interrupted")
        assert await texts(storage) == ["earlier", "hello again"]
        assert await texts(storage, run_id=crashed.id) == ["earlier", "hello again"]

    async def test_guarded_run_that_is_committed_keeps_all(self, storage: Storage) -> None:
        run = await begin(storage, guarded=True)
        assert run.guarded
        await storage.append_messages(run, [user("answer")])
        await storage.finish_run(run, "committed")
        assert await texts(storage) == ["answer"]

    async def test_heartbeat_keeps_a_run_live(self, storage: Storage, second_storage: Storage) -> None:
        run = await begin(storage, ttl=0)
        await storage.heartbeat(run, ttl=60)
        with pytest.raises(ThreadBusyError):
            await begin(second_storage)
        await storage.heartbeat(run, ttl=0)
        await begin(second_storage)
        with pytest.raises(RunLostError):
            await storage.heartbeat(run)

    async def test_a_run_that_lost_its_thread_writes_nothing(self, storage: Storage, second_storage: Storage) -> None:
        slow = await begin(storage, ttl=0)
        await storage.append_messages(slow, [user("before", id="m")])
        await begin(second_storage)
        await _may_not_write(storage, slow)
        await storage.finish_run(slow, "interrupted")  # which it is
        assert await texts(storage) == ["before"]

    @pytest.mark.parametrize("change", [{"token": 0}, {"token": 99}, {"id": "nobody"}])
    async def test_a_stale_token_writes_nothing(
        self, storage: Storage, change: dict[Literal["token", "id"], int]
    ) -> None:
        run = await begin(storage)
        await storage.append_messages(run, [user("before", id="m")])
        await _may_not_write(storage, replace(run, **change))  # pyright: ignore[reportArgumentType]
        with pytest.raises(RunLostError):
            await storage.finish_run(replace(run, token=99), "interrupted")
        await storage.finish_run(run, "committed")
        assert await texts(storage) == ["before"]

    @pytest.mark.parametrize("state", ["committed", "discarded", "interrupted"])
    async def test_a_run_ends_once(self, storage: Storage, state: EndState) -> None:
        await storage.create_thread(thread())
        run = await begin(storage)
        await storage.append_messages(run, [user("hello", id="m")])
        await storage.finish_run(run, state)
        await storage.finish_run(run, state)
        for other in ENDS:
            if other == state:
                continue
            with pytest.raises(RunLostError, match=state):
                await storage.finish_run(run, other)
        for write in _writes(storage, run):
            with pytest.raises(RunLostError):
                await write()
        assert await texts(storage) == ([] if state == "discarded" else ["hello"])
        assert await storage.get_run(run.id) == replace(run, state=state)

    @pytest.mark.parametrize("state", ["committed", "discarded", "interrupted"])
    async def test_the_last_messages_are_stored_with_the_end(self, storage: Storage, state: EndState) -> None:
        await storage.create_thread(thread())
        run = await begin(storage, guarded=True)
        first = await storage.append_messages(run, [user("hello", id="m")], source="input")
        last = await storage.finish_run(run, state, messages=[user("and", id="n"), user("good-bye", id="o")])
        kept = {"committed": ["hello", "and", "good-bye"], "interrupted": ["hello"], "discarded": []}
        assert await texts(storage) == kept[state]  # as responses
        assert [*first, *last] == sorted({*first, *last})
        if state == "committed":
            assert numbers(await storage.list_messages("trip", after=first[0])) == last

    async def test_no_end_without_its_last_messages(self, storage: Storage) -> None:
        run = await begin(storage)
        await storage.append_messages(run, [user("hello", id="m")])
        with pytest.raises(ConflictError, match="same id"):
            await storage.finish_run(run, "committed", messages=[user("and", id="n"), user("again", id="m")])
        assert await storage.get_run(run.id) == run  # live
        assert await texts(storage, run_id=run.id) == ["hello"]
        await storage.finish_run(run, "committed")
        with pytest.raises(RunLostError):
            await storage.finish_run(run, "committed", messages=[user("late", id="p")])
        assert await texts(storage) == ["hello"]


def _writes(storage: Storage, run: Run) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: storage.append_messages(run, [user("late")]),
        lambda: storage.append_messages(run, []),
        lambda: storage.rewrite_messages(run, [user("late", id="m")]),
        lambda: storage.rewrite_messages(run, [], remove=["m"]),
        lambda: storage.heartbeat(run),
    ]


async def _may_not_write(storage: Storage, run: Run) -> None:
    for write in _writes(storage, run):
        with pytest.raises(RunLostError, match=run.id):
            await write()
    for state in ENDS[:2]:
        with pytest.raises(RunLostError, match=run.id):
            await storage.finish_run(run, state)
