"""Threads: reading back, listing, deleting."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from diarist.exceptions import ConflictError, InputError, NotFoundError, RunLostError
from diarist.storage import Storage, Thread
from diarist.testing.storage_conformance.helpers import begin, committed, log, texts, thread, user

NOON = datetime(2026, 1, 20, 12, 0, 0, 123456, tzinfo=UTC)


class ThreadConformance:
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
        found = await storage.get_thread("trip")
        assert found is not None
        assert found.metadata == {"tags": ["a"]}

    async def test_a_title_changes_only_from_the_expected_one(self, storage: Storage) -> None:
        await storage.create_thread(thread("trip"))
        assert (await storage.update_thread("trip", title="Rome", expected_title="")).title == "Rome"
        with pytest.raises(ConflictError, match="'Rome'"):
            await storage.update_thread("trip", title="Oslo", metadata={"n": 1}, expected_title="")
        found = await storage.get_thread("trip")
        assert found is not None
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
        kept, gone = [(await storage.list_messages(name))[0].run_id or "" for name in ("other", "trip")]
        assert await storage.delete_thread("trip")
        assert await storage.get_thread("trip") is None
        assert await texts(storage) == []
        assert await storage.get_run(gone) is None
        assert await storage.get_log("thread:trip") is None
        assert await storage.list_generations("thread:trip") == []
        assert await storage.list_events("thread:trip") == []
        assert not await storage.delete_thread("trip")

        assert await texts(storage, "other") == ["hello"]
        assert await storage.get_run(kept) is not None
        assert await storage.get_log("thread:other") is not None
        assert len(await storage.list_generations("thread:other")) == 1
        assert len(await storage.list_events("thread:other")) == 1

    async def test_a_deleted_thread_begins_anew(self, storage: Storage) -> None:
        await committed(storage, "old", "old")
        await storage.delete_thread("trip")
        assert [message.seq for message in await committed(storage, "new")] == [1]
        assert await texts(storage) == ["new"]
        assert [event.seq for event in [await storage.append_event("thread:trip", "data-x", {})]] == [1]

    async def test_deleting_a_thread_ends_its_live_run(self, storage: Storage) -> None:
        run = await begin(storage)  # which creates it: nobody else sees the thread
        await storage.append_messages(run, [user("hello")])
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


async def _ids(storage: Storage, **filters: object) -> list[str]:
    page = await storage.list_threads(**filters)  # pyright: ignore[reportArgumentType]
    return [item.id for item in page.items]
