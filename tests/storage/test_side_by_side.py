"""Random operations on the in-memory storage and on each database show the same, step by step.

The in-memory storage runs the SQL of SQLite; MongoDB's storage is the one that is written without SQL.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import is_dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from diarist.exceptions import DiaristError
from diarist.messages import Message
from diarist.storage import (
    Event,
    Forgotten,
    InMemoryStorage,
    Lease,
    ObservationLog,
    Page,
    Resource,
    Run,
    SearchStorage,
    SQLiteStorage,
    Storage,
    Thread,
    WorkingMemory,
)
from diarist.storage.mongodb import MongoDBStorage
from diarist.storage.postgres import PostgresStorage
from tests.loopback.mongodb_server import MongoDBServer
from tests.properties import examples

NOON = datetime(2026, 1, 20, 12, tzinfo=UTC)
THREADS = st.sampled_from(["a", "b"])
RESOURCES = st.sampled_from(["ada", "ada", "ada", "grace"])
MESSAGE_IDS = st.sampled_from(["m1", "m2", "m3", "m4", "m5", "m6"])
KEYS = st.sampled_from(["thread:a", "thread:b", "resource:ada"])
STATES = st.sampled_from(["committed", "discarded", "interrupted"])
TTLS = st.sampled_from([60, 60, 0])
SMALL = st.integers(0, 3)
METADATA = st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from([1, True, "1", [1], None]))


class SideBySide(RuleBasedStateMachine):
    """What both storages must agree on: each call's result or error, and then everything visible."""

    def __init__(self, empty_storage: Callable[[], Storage]) -> None:
        super().__init__()
        self.empty_storage = empty_storage

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.storages: list[Storage] = [InMemoryStorage(), self.empty_storage()]
        for storage in self.storages:
            storage.events_kept = 3
        self.runs: list[Run] = []
        self.leases: list[Lease] = []

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.run(self.storages[1].close())
            self.runner.close()

    def both(self, call: Callable[[Storage], Awaitable[Any]]) -> Any:
        """The common result of a call, None where it failed on both in the same way."""
        one, two = (self.runner.run(_outcome(call, storage)) for storage in self.storages)
        assert one == two
        return None if isinstance(one, type) else one

    # Threads

    @rule(id=THREADS, resource=RESOURCES, minutes=SMALL, metadata=METADATA)
    def create_thread(self, id: str, resource: str, minutes: int, metadata: dict[str, Any]) -> None:
        moment = NOON + timedelta(minutes=minutes)
        thread = Thread(id=id, resource_id=resource, metadata=metadata, created_at=moment)
        self.both(lambda storage: storage.create_thread(thread))

    @rule(id=THREADS, title=st.sampled_from([None, "", "new"]), metadata=METADATA)
    def update_thread(self, id: str, title: str | None, metadata: dict[str, Any]) -> None:
        self.both(lambda storage: storage.update_thread(id, title=title, metadata=metadata))

    @rule(id=THREADS)
    def delete_thread(self, id: str) -> None:
        self.both(lambda storage: storage.delete_thread(id))

    @rule(resource=RESOURCES, metadata=METADATA)
    def list_threads(self, resource: str, metadata: dict[str, Any]) -> None:
        def first_page(storage: Storage) -> Awaitable[Page[Thread]]:
            return storage.list_threads(resource_id=resource, metadata=metadata, limit=1)

        page = self.both(first_page)
        if page.cursor is not None:
            self.both(lambda storage: storage.list_threads(cursor=page.cursor, limit=1))

    # Runs

    @rule(thread=THREADS, resource=RESOURCES, ttl=TTLS, guarded=st.booleans(), again=st.integers(0, 9))
    def begin_run(self, thread: str, resource: str, ttl: int, guarded: bool, again: int) -> None:
        run_id = f"run-{len(self.runs) if again else 0}"
        place = Thread(id=thread, resource_id=resource, created_at=NOON)
        run = self.both(lambda storage: storage.begin_run(run_id, place, ttl=ttl, guarded=guarded))
        if run is not None:
            self.runs.append(run)

    def run(self, data: st.DataObject) -> Run:
        """One of the newest runs, sometimes with a stale token."""
        if not self.runs:
            return Run(id="none", thread_id="a", resource_id="ada", state="live", token=1)
        run = data.draw(st.sampled_from(self.runs[-3:]))
        return replace(run, token=run.token + (data.draw(st.integers(0, 9)) == 0))

    @rule(data=st.data(), ids=st.lists(MESSAGE_IDS, max_size=3), source=st.sampled_from(["input", "response"]))
    def append(self, data: st.DataObject, ids: list[str], source: Any) -> None:
        run, moment = self.run(data), data.draw(st.sampled_from([None, NOON]))
        messages = [Message.user(f"{id} of {run.id}", id=id, created_at=moment) for id in ids]
        self.both(lambda storage: storage.append_messages(run, messages, source=source))

    @rule(data=st.data(), ids=st.lists(MESSAGE_IDS, max_size=2), remove=st.lists(MESSAGE_IDS, max_size=2))
    def rewrite(self, data: st.DataObject, ids: list[str], remove: list[str]) -> None:
        run = self.run(data)
        messages = [Message.assistant("rewritten", id=id, created_at=None) for id in ids]
        self.both(lambda storage: storage.rewrite_messages(run, messages, remove=remove))

    @rule(data=st.data(), ttl=TTLS)
    def heartbeat(self, data: st.DataObject, ttl: int) -> None:
        run = self.run(data)
        self.both(lambda storage: storage.heartbeat(run, ttl=ttl))

    @rule(data=st.data(), state=STATES, last=st.one_of(st.just([]), st.lists(MESSAGE_IDS, max_size=2)))
    def finish_run(self, data: st.DataObject, state: Any, last: list[str]) -> None:
        run = self.run(data)
        messages = [Message.assistant(f"{id} ends {run.id}", id=id, created_at=None) for id in last]
        self.both(lambda storage: storage.finish_run(run, state, messages=messages))

    # Messages

    @rule(thread=THREADS, ids=st.lists(MESSAGE_IDS, max_size=3))
    def delete_messages(self, thread: str, ids: list[str]) -> None:
        self.both(lambda storage: storage.existing_ids(thread, ids))
        self.both(lambda storage: storage.delete_messages(thread, ids))

    @rule(thread=THREADS, ids=st.lists(MESSAGE_IDS, max_size=3), seq=SMALL, rank=SMALL)
    def note_forgotten(self, thread: str, ids: list[str], seq: int, rank: int) -> None:
        gaps = [Forgotten(seq, id, "user", rank + place) for place, id in enumerate(ids)]
        self.both(lambda storage: storage.note_forgotten(thread, gaps))
        self.both(lambda storage: storage.existing_ids(thread, ids, forgotten=True))

    @rule(
        thread=THREADS,
        after=st.none() | SMALL,
        before=st.none() | SMALL,
        limit=st.none() | SMALL,
        newest=st.booleans(),
    )
    def window(self, thread: str, after: Any, before: Any, limit: Any, newest: bool) -> None:
        self.both(
            lambda storage: storage.list_messages(thread, after=after, before=before, limit=limit, newest_first=newest)
        )

    # Resources, logs, leases, events

    @rule(id=RESOURCES, version=SMALL)
    def save_resource(self, id: str, version: int) -> None:
        self.both(lambda storage: storage.save_resource(Resource(id=id, version=version)))

    @rule(key=KEYS, version=SMALL)
    def save_working_memory(self, key: str, version: int) -> None:
        self.both(lambda storage: storage.save_working_memory(WorkingMemory(key=key, version=version, text=key)))

    @rule(key=KEYS, version=SMALL, generation=SMALL)
    def save_log(self, key: str, version: int, generation: int) -> None:
        log = ObservationLog(key=key, scope="thread", resource_id="ada", generation=generation)
        self.both(lambda storage: storage.save_log(log, expected_version=version))

    @rule(key=KEYS)
    def delete_log(self, key: str) -> None:
        self.both(lambda storage: storage.delete_log(key))

    @rule(owner=st.sampled_from("ab"), ttl=TTLS)
    def acquire_lease(self, owner: str, ttl: int) -> None:
        lease = self.both(lambda storage: storage.acquire_lease("work", owner, ttl=ttl))
        if lease is not None:
            self.leases.append(lease)

    @rule(ttl=TTLS, release=st.booleans(), data=st.data())
    def renew_or_release_lease(self, ttl: int, release: bool, data: st.DataObject) -> None:
        if self.leases:
            lease = data.draw(st.sampled_from(self.leases[-2:]))
            self.both(lambda storage: storage.renew_lease(lease, ttl=ttl))
            if release:
                self.both(lambda storage: storage.release_lease(lease))

    @rule(key=KEYS)
    def append_event(self, key: str) -> None:
        self.both(lambda storage: storage.append_event(key, "data-x", {"key": key}))

    @rule()
    def close(self) -> None:
        self.both(lambda storage: storage.close())

    @invariant()
    def both_show_the_same(self) -> None:
        if hasattr(self, "storages"):
            self.both(self.everything_visible)

    async def everything_visible(self, storage: Storage) -> list[Any]:
        seen: list[Any] = [await storage.list_threads()]
        for id in "ab":
            seen += [await storage.get_thread(id), await storage.list_messages(id)]
            seen += [set(enumerate(await storage.list_forgotten(id)))]
        for run in self.runs:
            seen += [await storage.get_run(run.id)]
        for run in self.runs[-3:]:
            seen += [await storage.list_messages(run.thread_id, run_id=run.id)]
        for key in ("thread:a", "thread:b", "resource:ada"):
            seen += [await storage.get_log(key), await storage.list_generations(key)]
            seen += [await storage.list_events(key), await storage.get_working_memory(key)]
        for resource in ("ada", "grace") if all(isinstance(one, SearchStorage) for one in self.storages) else ():
            assert isinstance(storage, SearchStorage)
            seen += [await storage.search_messages(word, resource_id=resource) for word in ("of", "rewritten")]
        return [*seen, await storage.get_resource("ada"), await storage.get_resource("grace")]


async def _outcome(call: Callable[[Storage], Awaitable[Any]], storage: Storage) -> Any:
    """The result without what the clock put in, or the class of the error."""
    try:
        return _timeless(await call(storage))
    except DiaristError as error:
        return type(error)


def _timeless(value: Any) -> Any:
    match value:
        case list():
            return [_timeless(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case Page():
            return replace(value, items=_timeless(value.items))
        case Thread():
            return replace(value, updated_at=None)
        case Event():
            return replace(value, created_at=NOON)
        case _:
            assert value is None or is_dataclass(value) or isinstance(value, bool | int | set)
            return value


def test_sqlite(tmp_path: Path) -> None:
    numbers = itertools.count()
    _play(lambda: SQLiteStorage(tmp_path / f"{next(numbers)}.db"), max_examples=examples(8))


@pytest.mark.slow
def test_mongodb() -> None:
    numbers = itertools.count()
    with MongoDBServer() as server:
        _play(lambda: MongoDBStorage(server.url, database=f"db{next(numbers)}"), max_examples=examples(10))


@pytest.mark.slow
def test_postgres(postgres_url: str) -> None:
    numbers = itertools.count()
    _play(lambda: PostgresStorage(postgres_url, schema=f"s{next(numbers)}"), max_examples=examples(8))


def _play(empty_storage: Callable[[], Storage], max_examples: int) -> None:
    run_state_machine_as_test(
        lambda: SideBySide(empty_storage),
        settings=settings(max_examples=max_examples, stateful_step_count=30, deadline=None),
    )
