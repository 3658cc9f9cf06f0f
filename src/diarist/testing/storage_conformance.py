"""Tests that every storage must pass.

Subclass ``StorageConformance`` in a test file and define the fixture ``storage``::

    class TestMyStorage(StorageConformance):
        @pytest.fixture
        async def storage(self) -> AsyncIterator[Storage]:
            async with MyStorage(...) as storage:
                yield storage

Each test gets a fresh, empty storage. If several objects can share the same data, override the fixture
``second_storage`` as well: tests of concurrent writers then use both.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, TypeVar, get_args

import pytest

from diarist.chunks import Usage
from diarist.exceptions import ConflictError, InputError, NotFoundError, RunLostError, ThreadBusyError
from diarist.messages import (
    DataPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    SentBlock,
    SourcePart,
    TextPart,
    ToolPart,
    new_id,
)
from diarist.run_context import Outcome
from diarist.storage import (
    Failures,
    Forgotten,
    Hints,
    Lease,
    MessageSource,
    NewEvent,
    Observation,
    ObservationLog,
    PendingReflection,
    Replaced,
    Resource,
    RowRef,
    Run,
    Source,
    Storage,
    Thread,
    Tombstone,
    WorkingMemory,
    WorkingMemoryUpdate,
)

__all__ = ["StorageConformance"]

T = TypeVar("T")


def present(value: T | None) -> T:
    """Return a value that must not be None."""
    assert value is not None
    return value


def thread(id: str = "trip", resource_id: str = "ada", **more: Any) -> Thread:
    return Thread(id=id, resource_id=resource_id, **more)


def user(text: str, **more: Any) -> Message:
    return Message.user(text, **more)


async def begin(storage: Storage, run_id: str = "", *, of: Thread | None = None, **more: Any) -> Run:
    return await storage.begin_run(run_id or new_id("run"), of or thread(), **more)


async def live(storage: Storage, *said: str | Message, source: MessageSource = "response", **more: Any) -> Run:
    """Begin a run and store messages in it. A text becomes a user message."""
    run = await begin(storage, **more)
    messages = [user(each) if isinstance(each, str) else each for each in said]
    await storage.append_messages(run, messages, source=source)
    return run


async def committed(storage: Storage, *said: str | Message, of: Thread | None = None) -> list[Message]:
    """Store messages in one committed run, and return them as stored. A text becomes a user message."""
    run = await live(storage, *said, of=of)
    await storage.finish_run(run, "committed")
    return [message for message in await storage.list_messages(run.thread_id) if message.run_id == run.id]


async def moved(storage: Storage, end: int) -> list[str]:
    """Change the active branch in a run of its own; return the ids of the messages that became superseded."""
    run = await begin(storage)
    gone = await storage.set_branch(run, end)
    await storage.finish_run(run, "committed")
    return gone


async def branches(storage: Storage) -> dict[int | None, int]:
    """The numbers of the superseded messages, with those of the messages before them."""
    return {one.message.seq: one.parent for one in await storage.list_superseded("trip")}


async def texts(storage: Storage, thread_id: str = "trip", **window: Any) -> list[str]:
    return [message.text for message in await storage.list_messages(thread_id, **window)]


def numbers(messages: Sequence[Message]) -> list[int | None]:
    return [message.seq for message in messages]


def log(key: str = "thread:trip", **more: Any) -> ObservationLog:
    return ObservationLog(key=key, scope="thread", resource_id="ada", **more)


NOON = datetime(2026, 1, 20, 12, 0, 0, 123456, tzinfo=UTC)


async def _ids(storage: Storage, **filters: object) -> list[str]:
    page = await storage.list_threads(**filters)  # pyright: ignore[reportArgumentType]
    return [item.id for item in page.items]


ENDS: tuple[Outcome, ...] = get_args(Outcome)


def _writes(storage: Storage, run: Run) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: storage.append_messages(run, [user("late")]),
        lambda: storage.append_messages(run, []),
        lambda: storage.rewrite_messages(run, [user("late", id="m")]),
        lambda: storage.rewrite_messages(run, [], remove=["m"]),
        lambda: storage.set_branch(run, 0),
        lambda: storage.heartbeat(run),
    ]


async def _may_not_write(storage: Storage, run: Run) -> None:
    for write in _writes(storage, run):
        with pytest.raises(RunLostError, match=run.id):
            await write()
    for state in ENDS[:2]:
        with pytest.raises(RunLostError, match=run.id):
            await storage.finish_run(run, state)


ALL_PARTS: list[Part] = [
    TextPart(text="hello", provider_data={"id": "x"}),
    ReasoningPart(text="hm", signature="s", provider="p", provider_data={"a": [1]}),
    ToolPart(call_id="1", name="search", args={"q": "Rome", "n": 3}),
    ToolPart(call_id="2", name="search", args={}, state="result", result={"hits": [1, 2.5, None, True]}),
    ToolPart(call_id="3", name="search", args={}, state="error", result="boom", provider_executed=True),
    FilePart(media_type="image/png", data=bytes(range(256)), name="dot.png"),
    FilePart(media_type="image/png", url="https://example.org/dot.png"),
    SourcePart(url="https://example.org", title="Example", id="s1"),
    DataPart(type="data-weather", data={"c": 18}, id="d1"),
]

TEXTS = [
    "",
    "Grüße aus 東京 👩‍👩‍👧 \u202eabc",
    "quotes ' \" ; DROP TABLE messages; -- \\ %s :name ?",
    "NUL \0 and \x1b controls \r\n\t",
    "lone surrogate \ud83d here \udc00",
    " spaces around ",
    "\xe4 is not a\u0308",
]

KEY = "resource:ada"

VERSIONED = [Resource(id="ada"), WorkingMemory(key=KEY), log(KEY)]
"""Values that are saved by compare-and-set, as they are while nothing is stored."""


def marked(value: Any, mark: str) -> Any:
    changes: dict[type[Any], dict[str, Any]] = {
        Resource: {"metadata": {"mark": mark}},
        WorkingMemory: {"text": mark},
        ObservationLog: {"suppressed": (mark,)},
    }
    return replace(value, **changes[type(value)])


async def stored(storage: Storage, like: Any) -> Any:
    if isinstance(like, Resource):
        return await storage.get_resource("ada")
    if isinstance(like, WorkingMemory):
        return await storage.get_working_memory(KEY)
    return await storage.get_log(KEY) or log(KEY)


async def save(storage: Storage, value: Any) -> Any:
    if isinstance(value, Resource):
        return await storage.save_resource(value)
    if isinstance(value, WorkingMemory):
        return await storage.save_working_memory(value)
    return await storage.save_log(value, expected_version=value.version)


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
    observer_failures=Failures(count=2, last_at=NOON, last_error="timeout"),
    suppressed=("c0",),
)

GIVEN = [
    Resource(id="ada", metadata={"a": [1], "said": "Ada \ud83d \0"}),
    WorkingMemory(
        key=KEY,
        text="Ada \ud83d \0",
        updates=(
            WorkingMemoryUpdate(run_id="one", text="# Ada \ud83d \0", base="# \ud83d"),
            WorkingMemoryUpdate(run_id="two", patch={"a": {"b": None, "c": [1]}}),
        ),
    ),
    replace(FULL, key=KEY),
]
"""A full value of each of these types."""


class Shared:
    """The fixtures of every conformance suite of storages."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def second_storage(self, storage: Storage) -> Storage:
        """Return another object on the same data, or the same object if there is none."""
        return storage


@pytest.mark.anyio
class StorageConformance(Shared):
    """Tests of the whole storage interface. Subclass it and define the fixture ``storage``."""

    # -- threads: reading back, listing, deleting

    async def test_metadata_of_none_is_no_metadata(self, storage: Storage) -> None:
        created = await storage.create_thread(thread(metadata={"a": 1, "x": None}))
        assert created.metadata == {"a": 1}
        assert (await storage.update_thread("trip", metadata={})).metadata == {"a": 1}
        assert (await storage.list_threads(metadata={"x": None})).items == []

    async def test_thread_comes_back_as_it_was_created(self, storage: Storage) -> None:
        given = thread(title="Rome", metadata={"city": {"name": "Rome"}}, created_at=NOON, updated_at=NOON)
        assert await storage.create_thread(given) == given
        assert await storage.get_thread("trip") == given

    async def test_thread_without_times_gets_them(self, storage: Storage) -> None:
        created = await storage.create_thread(thread())
        assert created.created_at is not None
        assert created.created_at.utcoffset() == timedelta(0)
        assert created.updated_at == created.created_at

    async def test_thread_id_is_unique(self, storage: Storage) -> None:
        await storage.create_thread(thread(title="first"))
        with pytest.raises(ConflictError, match="trip"):
            await storage.create_thread(thread(resource_id="grace"))
        assert await storage.get_thread("trip") == (await storage.list_threads()).items[0]

    async def test_unknown_thread(self, storage: Storage) -> None:
        assert await storage.get_thread("nowhere") is None
        assert not await storage.delete_thread("nowhere")
        with pytest.raises(NotFoundError, match="nowhere"):
            await storage.update_thread("nowhere", title="x")

    async def test_update_sets_the_title_and_merges_metadata(self, storage: Storage) -> None:
        await storage.create_thread(thread(title="old", metadata={"a": 1, "b": {"x": 1}}, updated_at=NOON))
        changed = await storage.update_thread("trip", title="new", metadata={"b": {"y": 2}, "c": [3]})
        assert (changed.title, changed.metadata) == ("new", {"a": 1, "b": {"y": 2}, "c": [3]})
        assert changed.updated_at is not None
        assert changed.updated_at > NOON
        changed = await storage.update_thread("trip", metadata={"a": None})
        assert (changed.title, changed.metadata) == ("new", {"b": {"y": 2}, "c": [3]})
        assert await storage.get_thread("trip") == changed

    async def test_threads_are_copied_in_and_out(self, storage: Storage) -> None:
        given = thread(metadata={"tags": ["a"]})
        returned = await storage.create_thread(given)
        given.metadata["tags"].append("in")
        returned.metadata["tags"].append("out")
        (await storage.list_threads()).items[0].metadata["tags"].append("listed")
        for _ in range(2):
            found = present(await storage.get_thread("trip"))
            assert found.metadata == {"tags": ["a"]}
            found.metadata["tags"].append("got")

    async def test_a_title_changes_only_from_the_expected_one(self, storage: Storage) -> None:
        await storage.create_thread(thread("trip"))
        assert (await storage.update_thread("trip", title="Rome", expected_title="")).title == "Rome"
        with pytest.raises(ConflictError, match="'Rome'"):
            await storage.update_thread("trip", title="Oslo", metadata={"n": 1}, expected_title="")
        found = present(await storage.get_thread("trip"))
        assert (found.title, found.metadata) == ("Rome", {})
        with pytest.raises(NotFoundError):
            await storage.update_thread("nowhere", title="Oslo", expected_title="")

    async def test_threads_are_listed_newest_first_then_by_id(self, storage: Storage) -> None:
        for name, minutes in [("b", 0), ("late", 5), ("a", 0), ("c", 0), ("early", -5)]:
            await storage.create_thread(thread(name, created_at=NOON + timedelta(minutes=minutes)))
        assert await _ids(storage) == ["late", "c", "b", "a", "early"]

    async def test_threads_are_listed_by_resource(self, storage: Storage) -> None:
        for name, resource in [("1", "ada"), ("2", "grace"), ("3", "ada")]:
            await storage.create_thread(thread(name, resource, created_at=NOON))
        assert await _ids(storage, resource_id="ada") == ["3", "1"]
        assert await _ids(storage, resource_id="nobody") == []

    async def test_threads_are_listed_by_metadata(self, storage: Storage) -> None:
        odd = "a.b\"c'$[0]"
        values = [{"n": 1}, {"n": 1.0}, {"n": True}, {"n": "1"}, {"n": {"b": 1, "a": 2}}, {odd: "x", "n": 1}]
        for number, metadata in enumerate(values):
            await storage.create_thread(thread(str(number), metadata=metadata, created_at=NOON))
        assert await _ids(storage, metadata={"n": 1}) == ["5", "0"]
        assert await _ids(storage, metadata={"n": 1.0}) == ["1"]
        assert await _ids(storage, metadata={"n": True}) == ["2"]
        assert await _ids(storage, metadata={"n": {"a": 2, "b": 1}}) == ["4"]
        assert await _ids(storage, metadata={odd: "x", "n": 1}) == ["5"]
        assert await _ids(storage, metadata={"missing": None}) == []
        await storage.update_thread("0", metadata={"n": 2})
        assert await _ids(storage, metadata={"n": 1}) == ["5"]

    async def test_pages_are_stable_while_threads_come_and_go(self, storage: Storage) -> None:
        for number in range(9):
            moment = NOON + timedelta(seconds=number // 2)  # some at the same time
            await storage.create_thread(thread(f"old-{number}", created_at=moment))
        seen: list[str] = []
        cursor = None
        for turn in range(20):
            page = await storage.list_threads(limit=2, cursor=cursor)
            seen += [item.id for item in page.items]
            await storage.create_thread(thread(f"new-{turn}", created_at=NOON + timedelta(hours=turn + 1)))
            await storage.update_thread("old-0", title=str(turn))
            await storage.delete_thread("old-8")
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == [f"old-{number}" for number in reversed(range(9))]

    async def test_pages_that_begin_with_the_oldest(self, storage: Storage) -> None:
        for number in range(5):
            await storage.create_thread(thread(str(number), created_at=NOON + timedelta(seconds=number // 2)))
        seen: list[str] = []
        cursor = None
        while not seen or cursor is not None:
            page = await storage.list_threads(limit=2, cursor=cursor, newest_first=False)
            seen += [item.id for item in page.items]
            await storage.update_thread("0", title=str(len(seen)))
            cursor = page.cursor
        assert seen == ["0", "1", "2", "3", "4"]

    async def test_last_page_has_no_cursor(self, storage: Storage) -> None:
        for number in range(4):
            await storage.create_thread(thread(str(number), created_at=NOON))
        first = await storage.list_threads(limit=2)
        second = await storage.list_threads(limit=2, cursor=first.cursor)
        assert first.cursor is not None
        assert ([item.id for item in second.items], second.cursor) == (["1", "0"], None)

    @pytest.mark.parametrize("cursor", ["nonsense", "", "é", "W10"])
    async def test_foreign_cursor_is_refused(self, storage: Storage, cursor: str) -> None:
        with pytest.raises(InputError, match="cursor"):
            await storage.list_threads(cursor=cursor)

    async def test_cursor_of_the_other_order_is_refused(self, storage: Storage) -> None:
        for number in range(3):
            await storage.create_thread(thread(str(number), created_at=NOON))
        for newest_first in (True, False):
            page = await storage.list_threads(limit=1, newest_first=newest_first)
            with pytest.raises(InputError, match="order"):
                await storage.list_threads(cursor=page.cursor, newest_first=not newest_first)

    async def test_limit_must_be_positive(self, storage: Storage) -> None:
        for limit in (0, -1):
            with pytest.raises(InputError, match="limit"):
                await storage.list_threads(limit=limit)

    async def test_deleting_a_thread_removes_all_that_belongs_to_it(self, storage: Storage) -> None:
        for name in ("trip", "other"):
            await committed(storage, "hello", of=thread(name))
            await storage.save_log(log(f"thread:{name}"), expected_version=0)
            await storage.save_log(log(f"thread:{name}", generation=1), expected_version=1)
            await storage.append_event(f"thread:{name}", "data-x", {})
        for key in ("thread:trip", "thread:other", KEY):
            await storage.save_working_memory(WorkingMemory(key=key, text="kept"))
        kept, gone = [(await storage.list_messages(name))[0].run_id or "" for name in ("other", "trip")]
        assert await storage.delete_thread("trip")
        assert await storage.get_thread("trip") is None
        assert await texts(storage) == []
        assert await storage.get_run(gone) is None
        assert await storage.get_log("thread:trip") is None
        assert await storage.list_generations("thread:trip") == []
        assert await storage.list_events("thread:trip") == []
        assert await storage.get_working_memory("thread:trip") == WorkingMemory(key="thread:trip")
        assert not await storage.delete_thread("trip")

        assert await texts(storage, "other") == ["hello"]
        assert await storage.get_run(kept) is not None
        assert await storage.get_log("thread:other") is not None
        assert len(await storage.list_generations("thread:other")) == 1
        assert len(await storage.list_events("thread:other")) == 1
        for key in ("thread:other", KEY):
            assert (await storage.get_working_memory(key)).text == "kept"

    async def test_a_deleted_thread_starts_empty(self, storage: Storage) -> None:
        await committed(storage, "old", "old")
        await storage.delete_thread("trip")
        assert [message.seq for message in await committed(storage, "new")] == [1]
        assert await texts(storage) == ["new"]
        assert [event.seq for event in [await storage.append_event("thread:trip", "data-x", {})]] == [1]

    async def test_deleting_a_thread_ends_its_live_run(self, storage: Storage) -> None:
        run = await live(storage, "hello")  # creates the thread, which other readers cannot see
        assert await storage.delete_thread("trip")
        assert await storage.get_run(run.id) is None
        with pytest.raises(RunLostError):
            await storage.append_messages(run, [user("more")])
        with pytest.raises(RunLostError):
            await storage.finish_run(run, "committed")
        await storage.create_thread(thread())
        with pytest.raises(RunLostError):
            await storage.append_messages(run, [user("more")])
        assert await texts(storage) == []

    @pytest.mark.parametrize(
        "bad",
        [
            Thread(id="a\0b", resource_id="ada"),
            Thread(id="t", resource_id="\ud800"),
            Thread(id="t", resource_id="ada", title="\udfff"),
            Thread(id="t", resource_id="ada", created_at=NOON.replace(tzinfo=None)),
        ],
    )
    async def test_what_no_database_can_keep_is_refused(self, storage: Storage, bad: Thread) -> None:
        with pytest.raises(InputError):
            await storage.create_thread(bad)
        with pytest.raises(InputError):
            await storage.begin_run("run", bad)
        assert await _ids(storage) == []
        assert await storage.get_run("run") is None

    # -- runs: visibility, endings, and permission to write

    async def test_live_run_and_the_thread_it_created_are_its_own_affair(
        self, storage: Storage, second_storage: Storage
    ) -> None:
        run = await live(storage, user("draft", id="m"))
        for other in (storage, second_storage):
            assert await other.get_thread("trip") is None
            assert (await other.list_threads()).items == []
            hidden = present(await other.get_thread("trip", hidden=True))
            assert (await other.list_threads(resource_id=hidden.resource_id, hidden=True)).items == [hidden]
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
        run = await live(storage, "draft")
        assert await texts(storage) == ["settled"]
        assert await texts(storage, run_id="another") == ["settled"]
        assert await texts(storage, run_id=run.id) == ["settled", "draft"]

    @pytest.mark.parametrize("state", ["committed", "interrupted"])
    async def test_rows_of_a_run_that_ended_well_count(
        self, storage: Storage, second_storage: Storage, state: Outcome
    ) -> None:
        run = await live(storage, "hello", of=thread(title="Rome", metadata={"a": 1}), source="input")
        await storage.append_messages(run, [user("answer")])
        await storage.finish_run(run, state)
        assert await texts(second_storage) == ["hello", "answer"]
        found = present(await second_storage.get_thread("trip"))
        assert (found.resource_id, found.title, found.metadata) == ("ada", "Rome", {"a": 1})
        assert await second_storage.get_run(run.id) == replace(run, state=state)

    async def test_discarded_run_leaves_nothing(self, storage: Storage) -> None:
        run = await live(storage, user("secret", id="m"), source="input")
        await storage.append_event("thread:trip", "data-x", {"secret": 1})
        await storage.save_log(log(), expected_version=0)
        await storage.save_working_memory(WorkingMemory(key="thread:trip", text="secret"))
        await storage.finish_run(run, "discarded")
        assert await storage.get_thread("trip") is None
        assert await storage.get_log("thread:trip") is None
        assert await storage.list_events("thread:trip") == []
        assert await storage.get_working_memory("thread:trip") == WorkingMemory(key="thread:trip")
        assert (await storage.list_threads()).items == []
        assert await texts(storage, run_id=run.id) == []
        assert present(await storage.get_run(run.id)).state == "discarded"
        again = await begin(storage, of=thread(resource_id="grace"))  # the id is free again
        assert await storage.append_messages(again, [user("new", id="m")]) == [1]

    async def test_discarded_run_leaves_earlier_runs_alone(self, storage: Storage) -> None:
        await committed(storage, "kept")
        before = await storage.get_thread("trip")
        run = await live(storage, "secret", of=thread(title="ignored"))
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
            with pytest.raises(ConflictError, match=run.id):  # not ThreadBusyError: waiting would not help
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
        crashed = await live(storage, "hello", ttl=0, source="input")
        await storage.append_messages(crashed, [user("step")])
        run = await begin(second_storage)
        assert await texts(storage) == ["hello", "step"]
        assert await storage.get_thread("trip") is not None
        assert await storage.get_run(crashed.id) == replace(crashed, state="interrupted")
        assert run.token > crashed.token

    @pytest.mark.parametrize("adopted", [True, False])
    async def test_interrupted_guarded_run_keeps_only_its_input(self, storage: Storage, adopted: bool) -> None:
        await committed(storage, "earlier")
        crashed = await live(storage, user("hello", id="in"), ttl=-1, guarded=True, source="input")
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
        slow = await live(storage, user("before", id="m"), ttl=0)
        await begin(second_storage)
        await _may_not_write(storage, slow)
        await storage.finish_run(slow, "interrupted")  # which it is
        assert await texts(storage) == ["before"]

    @pytest.mark.parametrize("change", [{"token": 0}, {"token": 99}, {"id": "nobody"}])
    async def test_a_stale_token_writes_nothing(
        self, storage: Storage, change: dict[Literal["token", "id"], int]
    ) -> None:
        run = await live(storage, user("before", id="m"))
        await _may_not_write(storage, replace(run, **change))  # pyright: ignore[reportArgumentType]
        with pytest.raises(RunLostError):
            await storage.finish_run(replace(run, token=99), "interrupted")
        await storage.finish_run(run, "committed")
        assert await texts(storage) == ["before"]

    @pytest.mark.parametrize("state", ENDS)
    async def test_a_run_ends_once(self, storage: Storage, state: Outcome) -> None:
        await storage.create_thread(thread())
        run = await live(storage, user("hello", id="m"))
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

    @pytest.mark.parametrize("state", ENDS)
    async def test_the_last_messages_are_stored_with_the_end(self, storage: Storage, state: Outcome) -> None:
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
        run = await live(storage, user("hello", id="m"))
        with pytest.raises(ConflictError, match=r"\bm\b"):
            await storage.finish_run(run, "committed", messages=[user("and", id="n"), user("again", id="m")])
        assert await storage.get_run(run.id) == run  # the run is live
        assert await texts(storage, run_id=run.id) == ["hello"]
        await storage.finish_run(run, "committed")
        with pytest.raises(RunLostError):
            await storage.finish_run(run, "committed", messages=[user("late", id="p")])
        assert await texts(storage) == ["hello"]

    # -- messages: order, ranges, rewriting, deleting

    async def test_seq_starts_at_one_and_rises_within_the_thread(self, storage: Storage) -> None:
        run = await begin(storage)
        assert await storage.append_messages(run, [user("a"), user("b")], source="input") == [1, 2]
        assert await storage.append_messages(run, [user("c")]) == [3]
        await storage.finish_run(run, "committed")
        assert numbers(await committed(storage, "elsewhere", of=thread("other"))) == [1]
        assert numbers(await committed(storage, "d")) == [4]
        assert numbers(await storage.list_messages("trip")) == [1, 2, 3, 4]

    async def test_rows_belong_to_the_run_whatever_they_say(self, storage: Storage) -> None:
        run = await begin(storage)
        claim = user("x", thread_id="other", resource_id="grace", run_id="another", seq=77)
        await storage.append_messages(run, [claim])
        await storage.finish_run(run, "committed")
        (found,) = await storage.list_messages("trip")
        assert (found.thread_id, found.resource_id, found.run_id, found.seq) == ("trip", "ada", run.id, 1)
        assert (claim.thread_id, claim.seq) == ("other", 77)

    async def test_appending_nothing(self, storage: Storage) -> None:
        assert await storage.append_messages(await begin(storage), []) == []

    async def test_message_id_is_unique_within_its_thread(self, storage: Storage) -> None:
        await committed(storage, "before")
        run = await live(storage, user("one", id="m"))
        for batch in ([user("two", id="m")], [user("x", id="n"), user("y", id="n")]):
            with pytest.raises(ConflictError, match=batch[0].id):
                await storage.append_messages(run, [user("new"), *batch])
        assert await texts(storage, run_id=run.id) == ["before", "one"]  # all or none
        assert (await storage.append_messages(run, [user("three")]))[0] > 2
        await live(storage, user("one", id="m"), of=thread("other"))

    async def test_windows(self, storage: Storage) -> None:
        await committed(storage, *"abcdefg")
        assert await texts(storage) == [*"abcdefg"]
        assert await texts(storage, after=2, before=6) == [*"cde"]
        assert await texts(storage, after=2, limit=2) == [*"cd"]
        assert await texts(storage, newest_first=True, limit=3) == [*"gfe"]
        assert await texts(storage, newest_first=True, before=4) == [*"cba"]
        assert await texts(storage, after=7) == []
        assert await texts(storage, before=1) == []
        assert await texts(storage, limit=0) == []
        assert await texts(storage, "nowhere") == []
        with pytest.raises(InputError, match="limit"):
            await storage.list_messages("trip", limit=-1)

    async def test_limit_counts_visible_rows_only(self, storage: Storage) -> None:
        await committed(storage, "a", "b")
        await live(storage, "hidden")
        assert await texts(storage, newest_first=True, limit=2) == ["b", "a"]

    async def test_concurrent_appends_keep_all_rows(self, storage: Storage, second_storage: Storage) -> None:
        stores = (storage, second_storage)
        runs = [await begin(storage, of=thread(f"t{number}")) for number in range(3)]
        jobs = [(run, f"{step}.") for step in range(8) for run in runs]
        given = await asyncio.gather(
            *(
                stores[index % 2].append_messages(run, [user(text + "a"), user(text + "b")])
                for index, (run, text) in enumerate(jobs)
            )
        )
        for run in runs:
            mine = [pair for (owner, _), pair in zip(jobs, given, strict=True) if owner is run]
            assert sorted(seq for pair in mine for seq in pair) == list(range(1, 17))
            assert all(second == first + 1 for first, second in mine)
            stored = await storage.list_messages(run.thread_id, run_id=run.id)
            assert numbers(stored) == list(range(1, 17))
            assert {message.text for message in stored} == {f"{s}.{p}" for s in range(8) for p in "ab"}

    async def test_rewriting_keeps_the_place(self, storage: Storage) -> None:
        await committed(storage, "earlier")
        run = await begin(storage)
        await storage.append_messages(run, [user(text, id=text) for text in "abcd"])
        new = Message.assistant("B", id="b", created_at=None, metadata={"k": 1}, part_tokens=(3,))
        await storage.rewrite_messages(run, [user("C", id="c"), new], remove=["a", "a"])
        assert await texts(storage, run_id=run.id) == ["earlier", "B", "C", "d"]
        found = (await storage.list_messages("trip", run_id=run.id))[1]
        assert found == Message.assistant(
            "B",
            id="b",
            created_at=None,
            metadata={"k": 1},
            part_tokens=(3,),
            seq=3,
            thread_id="trip",
            resource_id="ada",
            run_id=run.id,
        )
        assert (await storage.append_messages(run, [user("e")])) == [6]

    async def test_only_rows_that_a_run_sees_are_rewritten_and_only_its_own_removed(self, storage: Storage) -> None:
        (earlier,) = await committed(storage, "earlier")
        await storage.begin_run("foreign", thread("other"))
        foreign = present(await storage.get_run("foreign"))
        await storage.append_messages(foreign, [user("draft", id="draft")])
        run = await live(storage, user("mine", id="mine"))
        for wrong in ("draft", "nowhere"):
            with pytest.raises(NotFoundError, match=wrong):
                await storage.rewrite_messages(run, [user("x", id="mine"), user("x", id=wrong)])
        for wrong in (earlier.id, "draft", "nowhere"):
            with pytest.raises(NotFoundError, match=wrong):
                await storage.rewrite_messages(run, [user("x", id="mine")], remove=["mine", wrong])
        assert await texts(storage, run_id=run.id) == ["earlier", "mine"]

    async def test_a_visible_row_is_repaired_in_its_place(self, storage: Storage, second_storage: Storage) -> None:
        (earlier,) = await committed(storage, "earlier")
        run = await live(storage, user("mine", id="mine"))
        await storage.rewrite_messages(run, [user("repaired", id=earlier.id), user("my own", id="mine")])
        (found,) = await second_storage.list_messages("trip")
        assert (found.text, found.seq, found.run_id) == ("repaired", earlier.seq, earlier.run_id)
        await storage.finish_run(run, "discarded")
        assert await texts(second_storage) == ["repaired"], "the row is still the earlier run's"

    async def test_existing_ids(self, storage: Storage) -> None:
        ids = [f"m{number}" for number in range(1200)]
        await committed(storage, *(user("x", id=id) for id in ids))
        assert await storage.existing_ids("trip", [*ids, "n", "m1"]) == set(ids)
        assert await storage.existing_ids("trip", []) == set()
        assert await storage.existing_ids("other", ids) == set()
        assert await storage.delete_messages("trip", [*ids[1:], "n", "m1"]) == 1199
        assert await storage.existing_ids("trip", ids) == {"m0"}

    async def test_deleted_numbers_do_not_come_back(self, storage: Storage) -> None:
        a, b = await committed(storage, "a", "b")
        assert await storage.delete_messages("trip", [b.id, b.id, "nowhere"]) == 1
        assert await storage.delete_messages("trip", [b.id]) == 0
        assert await storage.delete_messages("other", [a.id]) == 0
        assert await texts(storage) == ["a"]
        assert numbers(await committed(storage, "c")) == [3]

    # -- branches

    async def test_messages_behind_the_end_of_the_branch_are_superseded(
        self, storage: Storage, second_storage: Storage
    ) -> None:
        # neither ids nor times are in the order of the messages
        rows = await committed(
            storage, *(user(str(n), id=f"m{9 - n}", created_at=NOON - timedelta(days=n)) for n in (1, 2, 3, 4))
        )
        gone = await moved(storage, 2)
        assert gone == ["m6", "m5"]
        assert await texts(second_storage) == ["1", "2"]
        assert await second_storage.existing_ids("trip", [row.id for row in rows]) == {rows[0].id, rows[1].id}
        superseded = await second_storage.list_superseded("trip")
        assert [one.message for one in superseded] == rows[2:]
        assert [one.parent for one in superseded] == [2, 3]
        assert await moved(storage, 2) == []
        await committed(storage, "5")
        assert await texts(second_storage) == ["1", "2", "5"]
        assert numbers(await storage.list_messages("trip"))[-1] == 5

    async def test_a_branch_comes_back_whole(self, storage: Storage, second_storage: Storage) -> None:
        said = [user("1"), Message(role="assistant", parts=ALL_PARTS, metadata={"a": 1}), user("3")]
        rows = await committed(storage, *said)
        await moved(storage, 1)
        await committed(storage, "4", "5")
        assert len(await moved(storage, 3)) == 2
        assert await second_storage.list_messages("trip") == rows
        assert [one.message.text for one in await storage.list_superseded("trip")] == ["4", "5"]
        assert await branches(storage) == {4: 1, 5: 4}
        await moved(storage, 5)
        assert await texts(second_storage) == ["1", "4", "5"]

    async def test_branches_of_branches(self, storage: Storage) -> None:
        await committed(storage, "1", "2", "3")
        await moved(storage, 2)
        await committed(storage, "4", "5")
        await moved(storage, 1)
        await committed(storage, "6")
        assert await branches(storage) == {2: 1, 3: 2, 4: 2, 5: 4}
        await moved(storage, 4)
        assert await texts(storage) == ["1", "2", "4"]
        assert await branches(storage) == {3: 2, 5: 4, 6: 1}
        await moved(storage, 0)
        assert await texts(storage) == []
        await moved(storage, 3)
        assert await texts(storage) == ["1", "2", "3"]

    async def test_a_deleted_message_is_gone_from_every_branch(self, storage: Storage) -> None:
        rows = await committed(storage, "1", "2", "3", "4", "5")
        await moved(storage, 2)
        await committed(storage, "6")
        assert await storage.delete_messages("trip", [rows[1].id, rows[2].id, rows[4].id]) == 3
        assert await branches(storage) == {4: 1}
        await moved(storage, 4)
        assert await texts(storage) == ["1", "4"]
        assert await branches(storage) == {6: 1}
        await storage.delete_thread("trip")
        assert await storage.list_superseded("trip") == []

    async def test_an_id_may_be_on_two_branches(self, storage: Storage) -> None:
        await committed(storage, "1", user("old", id="x"))
        await moved(storage, 1)
        await committed(storage, user("new", id="x"))
        assert await moved(storage, 2) == ["x"]
        assert await texts(storage) == ["1", "old"]
        assert await storage.delete_messages("trip", ["x"]) == 2
        assert await storage.list_superseded("trip") == []

    @pytest.mark.parametrize("state", ENDS)
    @pytest.mark.parametrize("says", [True, False])
    async def test_a_run_without_messages_leaves_the_branch_as_it_was(
        self, storage: Storage, state: Outcome, says: bool
    ) -> None:
        await committed(storage, "1", "2")
        run = await begin(storage)
        await storage.set_branch(run, 1)
        if says:
            await storage.append_messages(run, [user("3")])
        await storage.finish_run(run, state)
        stays = state == "committed" or (state == "interrupted" and says)
        assert await texts(storage) == (["1", "3"] if stays and says else ["1"] if stays else ["1", "2"])
        assert len(await storage.list_superseded("trip")) == stays

    async def test_a_run_whose_process_died_leaves_the_branch_as_it_was(self, storage: Storage) -> None:
        await committed(storage, "1", "2")
        run = await begin(storage, ttl=60)
        await storage.set_branch(run, 1)
        await storage.heartbeat(run, ttl=0)
        await begin(storage)
        assert await texts(storage) == ["1", "2"]

    async def test_a_branch_needs_an_existing_message(self, storage: Storage) -> None:
        await committed(storage, "1")
        run = await begin(storage)
        with pytest.raises(NotFoundError, match="7"):
            await storage.set_branch(run, 7)
        assert await texts(storage) == ["1"]

    async def test_logs_change_with_the_branch_or_not_at_all(self, storage: Storage, second_storage: Storage) -> None:
        await committed(storage, "1", "2")
        first = await storage.save_log(log(), expected_version=0)
        changed = replace(first, actor="m")
        await second_storage.save_log(replace(first, actor="n"), expected_version=1)
        run = await begin(storage)
        for stale in (first, changed):
            with pytest.raises(ConflictError):
                await storage.set_branch(run, 1, logs=[(first, stale)])
        missing = log("thread:other")
        now = present(await storage.get_log("thread:trip"))
        assert await storage.set_branch(run, 1, logs=[(now, replace(now, actor="m")), (missing, missing)]) != []
        stored = present(await second_storage.get_log("thread:trip"))
        assert (stored.version, stored.actor) == (3, "m")
        assert await texts(second_storage) == ["1"]

    async def test_no_log_covers_a_superseded_message(self, storage: Storage) -> None:
        rows = await committed(storage, "1", "2")
        await moved(storage, 1)
        with pytest.raises(ConflictError):
            await storage.save_log(log(), expected_version=0, rows=[RowRef("trip", 2, rows[1].id)])

    # -- what was forgotten

    async def test_what_was_forgotten_keeps_its_place_and_id(self, storage: Storage, second_storage: Storage) -> None:
        a, b = await committed(storage, "a", "b")
        gaps = [Forgotten(2, b.id, "user"), Forgotten(1, "y", "assistant", 1), Forgotten(1, "x", "tool")]
        await storage.note_forgotten("trip", gaps)
        later = [Forgotten(7, "x", "user"), Forgotten(0, "w", "user"), Forgotten(7, "w", "user")]
        await storage.note_forgotten("trip", later)
        await storage.delete_messages("trip", [b.id])
        expected = [Forgotten(0, "w", "user"), gaps[2], gaps[1], gaps[0]]
        assert await second_storage.list_forgotten("trip") == expected
        ids = [a.id, b.id, "w", "x", "nowhere"]
        assert await second_storage.existing_ids("trip", ids) == {a.id}
        assert await second_storage.existing_ids("trip", ids, forgotten=True) == {a.id, b.id, "w", "x"}
        assert await texts(storage) == ["a"]

    async def test_what_was_forgotten_goes_with_its_thread(self, storage: Storage) -> None:
        await storage.note_forgotten("trip", [Forgotten(1, "x", "user")])
        assert await storage.list_forgotten("trip") == []
        assert await storage.existing_ids("trip", ["x"], forgotten=True) == set()
        run = await begin(storage)
        await storage.note_forgotten("trip", [Forgotten(1, "x", "user")])
        assert len(await storage.list_forgotten("trip")) == 1
        await storage.finish_run(run, "discarded")
        await committed(storage, "a")
        assert await storage.list_forgotten("trip") == []
        await storage.note_forgotten("trip", [Forgotten(1, "x", "user")])
        await storage.delete_thread("trip")
        await committed(storage, "a")
        assert await storage.list_forgotten("trip") == []

    async def test_what_was_sent_along_can_be_rewritten(self, storage: Storage) -> None:
        blocks = {id: SentBlock(text=id, tokens=3, made_from={"date": "2026-01-20"}) for id in "abc"}
        rows = await committed(storage, *(user(id, id=id, sent=block) for id, block in blocks.items()))
        given = {row.id: row for row in rows}
        other = SentBlock(text="other", tokens=1, made_from={"text": "\ud83d \0"})
        assert await storage.rewrite_sent("trip", {"a": None, "b": other, "unknown": None}) == 2
        assert await storage.rewrite_sent("trip", {}) == await storage.rewrite_sent("nothing", {"a": other}) == 0
        expected = [replace(given["a"], sent=None), replace(given["b"], sent=other), given["c"]]
        assert await storage.list_messages("trip") == expected

    async def test_what_was_sent_along_with_superseded_messages_can_be_rewritten(self, storage: Storage) -> None:
        rows = await committed(storage, *(user(id, id=id, sent=SentBlock(text=id)) for id in "abc"))
        await moved(storage, 1)
        await committed(storage, user("b", id="b", sent=SentBlock(text="again")))
        other = SentBlock(text="other")
        assert await storage.rewrite_sent("trip", {"b": other}) == 2
        assert [one.message.sent for one in await storage.list_superseded("trip")] == [other, rows[2].sent]
        assert [row.sent for row in await storage.list_messages("trip")] == [rows[0].sent, other]
        assert await storage.rewrite_sent("trip", {"c": None}) == 1
        assert [one.message.sent for one in await storage.list_superseded("trip")] == [other, None]

    async def test_what_a_live_run_sends_along_is_its_own(self, storage: Storage) -> None:
        run = await live(storage, user("a", id="a", sent=SentBlock(text="note")))
        assert await storage.rewrite_sent("trip", {"a": None}) == 0
        (row,) = await storage.list_messages("trip", run_id=run.id)
        assert row.sent == SentBlock(text="note")

    # -- values: returned unchanged, and not shared with the caller

    async def test_every_part_comes_back(self, storage: Storage) -> None:
        message = Message(
            id="m",
            role="assistant",
            parts=ALL_PARTS,
            metadata={"nested": {"list": [1, "two", None]}},
            part_tokens=tuple(range(len(ALL_PARTS))),
            sent=SentBlock(text="<today>Tuesday</today>", tokens=7, made_from={"date": "2026-01-20"}),
        )
        run = await live(storage, message)
        await storage.finish_run(run, "committed")
        [found] = await storage.list_messages("trip")
        assert found == replace(message, thread_id="trip", resource_id="ada", run_id=run.id, seq=1)

    @pytest.mark.parametrize("text", TEXTS)
    async def test_text_comes_back_as_it_was(self, storage: Storage, text: str) -> None:
        parts: list[Part] = [
            TextPart(text=text),
            ToolPart(call_id=text, name="echo", args={"text": text}, state="result", result=[text]),
        ]
        [found] = await committed(storage, Message(role="user", parts=parts, metadata={"text": text}))
        assert (found.parts, found.metadata) == (parts, {"text": text})

    async def test_strange_ids_are_only_names(self, storage: Storage) -> None:
        ids = [text for text in TEXTS if text.isprintable() and text] + ["%", "_", "a", "A", "a ", "\xe4", "a\u0308"]
        await committed(storage, *(user(id, id=id) for id in ids))
        assert await texts(storage) == ids
        assert await storage.existing_ids("trip", ids) == set(ids)
        assert await storage.delete_messages("trip", ["%"]) == 1
        assert await texts(storage) == [id for id in ids if id != "%"]
        for id in ids:
            assert await storage.get_thread(id) is None
            await storage.create_thread(thread(id, resource_id=id))
            assert [found.id for found in (await storage.list_threads(resource_id=id)).items] == [id]

    @pytest.mark.parametrize("id", ["a\0b", "\ud800"])
    async def test_ids_that_no_database_can_keep_are_refused(self, storage: Storage, id: str) -> None:
        run = await begin(storage)
        with pytest.raises(InputError, match="message id"):
            await storage.append_messages(run, [user("fine"), user("x", id=id)])
        assert await texts(storage, run_id=run.id) == []

    async def test_large_parts(self, storage: Storage) -> None:
        text, data = "Größe 👍 " * 150_000, bytes(range(256)) * 4096
        message = Message(
            role="user",
            parts=[TextPart(text=text), FilePart(media_type="application/octet-stream", data=data)],
        )
        [found] = await committed(storage, message)
        assert found.parts == message.parts

    async def test_numbers_stay_exact(self, storage: Storage) -> None:
        numbers = [1, 1.0, True, 0.1, 2**53 + 1, -(2**63), 2**64, 10**40]
        [found] = await committed(storage, user("x", metadata={"numbers": numbers}))
        saved = await storage.save_resource(Resource(id="ada", metadata={"numbers": numbers}))
        for stored in (found, saved, await storage.get_resource("ada")):
            assert str(stored.metadata) == str({"numbers": numbers})  # 1 == 1.0 == True

    async def test_values_that_json_does_not_know_become_strings(self, storage: Storage) -> None:
        given: dict[Any, Any] = {"price": Decimal("1.50"), "ids": [1], 5: "five", "when": datetime(2026, 1, 20)}
        [found] = await committed(storage, user("x", metadata=given))
        assert found.metadata == {"price": "1.50", "ids": [1], "5": "five", "when": "2026-01-20T00:00:00"}

    async def test_values_that_cannot_be_written_down_are_refused(self, storage: Storage) -> None:
        circle: list[Any] = []
        circle.append(circle)
        run = await begin(storage)
        with pytest.raises(InputError):
            await storage.append_messages(run, [user("fine"), user("x", metadata={"circle": circle})])
        assert await texts(storage, run_id=run.id) == []

    @pytest.mark.parametrize(
        "moment",
        [
            None,
            datetime(2026, 1, 20, 9, 30, 15, 123457, tzinfo=UTC),
            datetime(2026, 1, 20, 23, 30, tzinfo=timezone(timedelta(hours=-8))),
            datetime(1890, 5, 1, tzinfo=UTC),
        ],
    )
    async def test_times_keep_their_microseconds(self, storage: Storage, moment: datetime | None) -> None:
        [found] = await committed(storage, user("x", created_at=moment))
        assert found.created_at == moment
        if found.created_at is not None:
            assert found.created_at.utcoffset() == timedelta(0)

    async def test_time_without_a_zone_is_refused(self, storage: Storage) -> None:
        run = await begin(storage)
        with pytest.raises(InputError, match="time zone"):
            await storage.append_messages(run, [user("x", created_at=datetime(2026, 1, 20))])

    async def test_messages_are_copied_in_and_out(self, storage: Storage) -> None:
        part = ToolPart(call_id="1", name="f", args={"a": [1]})
        message = Message(role="assistant", parts=[part], metadata={"tags": ["a"]})
        run = await live(storage, message)
        part.args["a"].append("in")
        message.metadata["tags"].append("in")
        message.parts.append(TextPart(text="in"))
        (first,) = await storage.list_messages("trip", run_id=run.id)
        first.tool_parts[0].args["a"].append("out")
        first.metadata["tags"].append("out")
        (second,) = await storage.list_messages("trip", run_id=run.id)
        assert second.parts == [ToolPart(call_id="1", name="f", args={"a": [1]})]
        assert second.metadata == {"tags": ["a"]}

    # -- resources, working memories and logs: saved by compare-and-set

    @pytest.mark.parametrize("empty", VERSIONED)
    async def test_unknown_value_is_empty(self, storage: Storage, empty: Any) -> None:
        assert await stored(storage, empty) == empty

    @pytest.mark.parametrize("version", [0, 1, 3])
    @pytest.mark.parametrize("empty", VERSIONED)
    async def test_only_the_stored_version_is_replaced(self, storage: Storage, empty: Any, version: int) -> None:
        first = await save(storage, empty)
        second = await save(storage, marked(first, "kept"))
        with pytest.raises(ConflictError, match="ada"):
            await save(storage, marked(replace(second, version=version), "lost"))
        assert await stored(storage, empty) == second

    @pytest.mark.parametrize("empty", VERSIONED)
    async def test_what_is_not_stored_has_no_later_version(self, storage: Storage, empty: Any) -> None:
        with pytest.raises(ConflictError):
            await save(storage, replace(empty, version=4))

    @pytest.mark.parametrize("empty", VERSIONED)
    async def test_of_many_savers_one_wins(self, storage: Storage, second_storage: Storage, empty: Any) -> None:
        stores = (storage, second_storage)
        for version in (0, 1):
            values = [marked(replace(empty, version=version), str(n)) for n in range(8)]
            outcomes = await asyncio.gather(
                *(save(stores[n % 2], value) for n, value in enumerate(values)), return_exceptions=True
            )
            winners = [outcome for outcome in outcomes if isinstance(outcome, type(empty))]
            assert sum(isinstance(outcome, ConflictError) for outcome in outcomes) == 7
            assert [await stored(storage, empty)] == winners

    @pytest.mark.parametrize("given", GIVEN)
    async def test_a_value_comes_back_with_its_version(self, storage: Storage, given: Any) -> None:
        saved = await save(storage, given)
        assert saved == replace(given, version=1)
        assert await stored(storage, given) == saved
        empty = next(value for value in VERSIONED if type(value) is type(given))
        changed = await save(storage, replace(empty, version=1))
        assert changed == replace(empty, version=2)
        assert await stored(storage, given) == changed

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
        cursor = None
        while not found or cursor is not None:
            page = await storage.list_resources(limit=3, cursor=cursor)
            found += page.items
            cursor = page.cursor
        assert found == names
        assert (await storage.list_resources(limit=len(names))).cursor is None

    async def test_a_limit_or_cursor_of_resources_that_is_none_is_refused(self, storage: Storage) -> None:
        with pytest.raises(InputError, match="limit"):
            await storage.list_resources(limit=0)
        for cursor in ("!", "WzEsImEiXQ"):
            with pytest.raises(InputError, match="cursor"):
                await storage.list_resources(cursor=cursor)

    async def test_working_memories_of_a_thread_and_a_resource_are_two(self, storage: Storage) -> None:
        await storage.save_working_memory(WorkingMemory(key="resource:x", text="of the resource"))
        await storage.save_working_memory(WorkingMemory(key="thread:x", text="of the thread"))
        assert (await storage.get_working_memory("resource:x")).text == "of the resource"
        assert (await storage.get_working_memory("thread:x")).text == "of the thread"

    # -- observation logs: one value per key, saved by compare-and-set

    async def test_unknown_log(self, storage: Storage) -> None:
        assert await storage.get_log("thread:trip") is None
        assert await storage.list_generations("thread:trip") == []
        assert not await storage.delete_log("thread:trip")

    async def test_a_log_is_read_again_only_where_it_changed(self, storage: Storage) -> None:
        first = await storage.save_log(FULL, expected_version=0)
        assert await storage.get_log("thread:trip", after=first.version) is None
        second = await storage.save_log(log(), expected_version=first.version)
        assert await storage.get_log("thread:trip", after=first.version) == second

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
        run = await live(storage, "here")
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

    async def test_a_recreated_thread_gets_no_notes_of_the_old_one(self, storage: Storage) -> None:
        [row] = await committed(storage, "I fly to Rome")
        await storage.delete_thread("trip")
        await committed(storage, "I fly to Oslo")
        with pytest.raises(ConflictError):
            await storage.save_log(FULL, expected_version=0, rows=[RowRef("trip", row.seq or 0, row.id)])

    async def test_outgoing_generations_are_kept_once(self, storage: Storage) -> None:
        outgoing: list[ObservationLog] = []
        for version, generation in enumerate([0, 0, 1, 1, 2, 5]):
            saved = await storage.save_log(log(generation=generation), expected_version=version)
            if outgoing and outgoing[-1].generation == generation:
                outgoing.pop()
            outgoing.append(saved)
        for version in (0, 1, 7):
            with pytest.raises(ConflictError, match="thread:trip"):
                await storage.save_log(log(generation=9), expected_version=version)
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
        assert present(await storage.get_log("thread:trip")).suppressed == ("2",)

    async def test_one_of_many_generation_rewrites_wins(self, storage: Storage, second_storage: Storage) -> None:
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

    # -- leases: expiry and fencing

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
            lease = present(await storage.acquire_lease("observe", owner, ttl=ttl))
            tokens.append(lease.token)
        await storage.release_lease(lease)
        again = present(await storage.acquire_lease("observe", "b", ttl=60))
        tokens.append(again.token)
        assert tokens == sorted(set(tokens))

    async def test_expired_lease_is_lost(self, storage: Storage, second_storage: Storage) -> None:
        old = present(await storage.acquire_lease("observe", "a", ttl=0))
        assert not await storage.renew_lease(old, ttl=60)
        new = present(await second_storage.acquire_lease("observe", "b", ttl=60))
        assert not await storage.renew_lease(old, ttl=60)
        await storage.release_lease(old)
        assert await storage.acquire_lease("observe", "c", ttl=60) is None
        assert await second_storage.renew_lease(new, ttl=60)

    async def test_claiming_again_fences_off_the_earlier_lease(self, storage: Storage) -> None:
        first = present(await storage.acquire_lease("observe", "a", ttl=60))
        second = present(await storage.acquire_lease("observe", "a", ttl=60))
        assert not await storage.renew_lease(first, ttl=60)
        await storage.release_lease(first)
        assert await storage.renew_lease(second, ttl=60)

    async def test_renewing_counts_from_now(self, storage: Storage) -> None:
        lease = present(await storage.acquire_lease("observe", "a", ttl=60))
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
        lease = present(await storage.acquire_lease("observe", "a", ttl=60))
        assert await storage.acquire_lease("observe", "a", ttl=60) is not None
        assert await storage.acquire_lease("reflect", "a", ttl=60) is not None
        assert await second_storage.delete_lease("observe")
        assert not await storage.delete_lease("observe")
        assert not await storage.renew_lease(lease, ttl=60)
        again = await second_storage.acquire_lease("observe", "b", ttl=60)
        assert again == Lease(name="observe", owner="b", token=1)
        assert await second_storage.acquire_lease("reflect", "b", ttl=60) is None

    # -- events: a sequence per key, with retention

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

    async def test_events_are_stored_with_a_runs_messages(self, storage: Storage) -> None:
        def event(number: int) -> NewEvent:
            return NewEvent("thread:trip", f"data-{number}", {"n": number})

        run = await begin(storage)
        await storage.append_messages(run, [user("hello", id="a")], events=[event(1), event(2)])
        with pytest.raises(ConflictError):
            await storage.append_messages(run, [user("again", id="a")], events=[event(3)])
        await storage.finish_run(run, "committed", messages=[user("answer")], events=[event(4)])
        await storage.finish_run(run, "committed", events=[event(5)])
        gone = await begin(storage, "gone")
        await storage.append_messages(gone, [user("more")], events=[event(6)])
        await storage.finish_run(gone, "discarded", events=[event(7)])
        assert [found.data["n"] for found in await storage.list_events("thread:trip")] == [1, 2, 4, 6]

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
        for _ in range(2):
            (found,) = await storage.list_events("k")
            assert found.data == {"tags": ["a"]}
            found.data["tags"].append("listed")

    async def test_numbers_go_on_after_events_were_removed(self, storage: Storage) -> None:
        for key in ("k", "k", "other"):
            await storage.append_event(key, "data-x", {})
        assert await storage.delete_events("k") == 2
        assert await storage.delete_events("k") == 0
        assert await storage.delete_events("nothing") == 0
        assert await storage.list_events("k") == []
        assert len(await storage.list_events("other")) == 1
        assert (await storage.append_event("k", "data-x", {})).seq == 3

    # -- lifecycle: opening, closing, cancelling, and use from several event loops

    async def test_location_is_for_people(self, storage: Storage) -> None:
        assert storage.location

    async def test_opening_and_closing_twice_does_nothing(self, storage: Storage) -> None:
        await storage.open()
        await storage.open()
        await storage.close()
        await storage.close()

    async def test_closed_storage_opens_again(self, storage: Storage) -> None:
        async with storage:
            await committed(storage, "hello")
        assert await texts(storage) == ["hello"]

    async def test_purging_changes_nothing_that_can_be_read(self, storage: Storage) -> None:
        await committed(storage, "hello")
        left = await storage.purge()
        assert left == tuple(map(str, left))
        assert await storage.purge() == left
        assert await texts(storage) == ["hello"]

    async def test_closing_does_not_disturb_pending_writes(self, storage: Storage) -> None:
        for _ in range(5):
            writes = (storage.append_event("k", "data-x", {}) for _ in range(4))
            await asyncio.gather(storage.close(), *writes, storage.close(), storage.open(), storage.close())
        assert [event.seq for event in await storage.list_events("k")] == list(range(1, 21))

    async def test_what_one_object_wrote_the_other_reads(self, storage: Storage, second_storage: Storage) -> None:
        await committed(storage, "one")
        await committed(second_storage, "two")
        assert await texts(storage) == await texts(second_storage) == ["one", "two"]

    async def test_several_event_loops_at_once(self, storage: Storage) -> None:
        failures: list[BaseException] = []

        async def turns(name: str) -> None:
            for number in range(5):
                await committed(storage, f"{name}.{number}", of=thread(name))
                await storage.append_event("all", "data-x", {})

        def loop_of_its_own(name: str) -> None:
            try:
                asyncio.run(turns(name))
            except BaseException as error:
                failures.append(error)

        workers = [threading.Thread(target=loop_of_its_own, args=(name,)) for name in "abc"]
        for worker in workers:
            worker.start()
        await turns("here")
        for worker in workers:
            await asyncio.to_thread(worker.join)
        assert failures == []
        for name in ("a", "b", "c", "here"):
            assert await texts(storage, name) == [f"{name}.{number}" for number in range(5)]
        assert len(await storage.list_events("all")) == 20

    async def test_cancelled_writes_happen_whole_or_not_at_all(self, storage: Storage) -> None:
        run = await begin(storage)
        for pause in range(12):
            job = asyncio.create_task(storage.append_messages(run, [user("a"), user("b")]))
            for _ in range(pause % 4):
                await asyncio.sleep(0)
            job.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await job
        await storage.append_messages(run, [user("a"), user("b")])
        stored = await storage.list_messages("trip", run_id=run.id)
        assert "".join(message.text for message in stored) == "ab" * (len(stored) // 2)
        assert numbers(stored) == sorted(set(numbers(stored)), key=lambda seq: seq or 0)
