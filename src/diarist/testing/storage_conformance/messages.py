"""Messages: order, windows, rewriting, deleting."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from diarist.exceptions import ConflictError, InputError, NotFoundError
from diarist.messages import Message, SentBlock
from diarist.storage import Storage
from diarist.testing.storage_conformance.helpers import begin, committed, numbers, texts, thread, user


class MessageConformance:
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
        run = await begin(storage)
        await storage.append_messages(run, [user("one", id="m")])
        for batch in ([user("two", id="m")], [user("x", id="n"), user("y", id="n")]):
            with pytest.raises(ConflictError, match=batch[0].id):
                await storage.append_messages(run, [user("new"), *batch])
        assert await texts(storage, run_id=run.id) == ["before", "one"]  # all or none
        assert (await storage.append_messages(run, [user("three")]))[0] > 2
        other = await begin(storage, of=thread("other"))
        await storage.append_messages(other, [user("one", id="m")])

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
        run = await begin(storage)
        await storage.append_messages(run, [user("hidden")])
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
        foreign = await storage.get_run("foreign")
        assert foreign is not None
        await storage.append_messages(foreign, [user("draft", id="draft")])
        run = await begin(storage)
        await storage.append_messages(run, [user("mine", id="mine")])
        for wrong in ("draft", "nowhere"):
            with pytest.raises(NotFoundError, match=wrong):
                await storage.rewrite_messages(run, [user("x", id="mine"), user("x", id=wrong)])
        for wrong in (earlier.id, "draft", "nowhere"):
            with pytest.raises(NotFoundError, match=wrong):
                await storage.rewrite_messages(run, [user("x", id="mine")], remove=["mine", wrong])
        assert await texts(storage, run_id=run.id) == ["earlier", "mine"]

    async def test_a_visible_row_is_repaired_in_its_place(self, storage: Storage, second_storage: Storage) -> None:
        (earlier,) = await committed(storage, "earlier")
        run = await begin(storage)
        await storage.append_messages(run, [user("mine", id="mine")])
        await storage.rewrite_messages(run, [user("repaired", id=earlier.id), user("my own", id="mine")])
        (found,) = await second_storage.list_messages("trip")
        assert (found.text, found.seq, found.run_id) == ("repaired", earlier.seq, earlier.run_id)
        await storage.finish_run(run, "discarded")
        assert await texts(second_storage) == ["repaired"], "the row is still the earlier run's"

    async def test_existing_ids(self, storage: Storage) -> None:
        run = await begin(storage)
        ids = [f"m{number}" for number in range(1200)]
        await storage.append_messages(run, [user("x", id=id) for id in ids])
        await storage.finish_run(run, "committed")
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

    async def test_what_was_sent_along_can_be_rewritten(self, storage: Storage) -> None:
        run = await begin(storage)
        blocks = {id: SentBlock(text=id, tokens=3, made_from={"date": "2026-01-20"}) for id in "abc"}
        await storage.append_messages(run, [user(id, id=id, sent=block) for id, block in blocks.items()])
        await storage.finish_run(run, "committed")
        given = {row.id: row for row in await storage.list_messages("trip")}
        other = SentBlock(text="other", tokens=1, made_from={"text": "\ud83d \0"})
        assert await storage.rewrite_sent("trip", {"a": None, "b": other, "unknown": None}) == 2
        assert await storage.rewrite_sent("trip", {}) == await storage.rewrite_sent("nothing", {"a": other}) == 0
        expected = [replace(given["a"], sent=None), replace(given["b"], sent=other), given["c"]]
        assert await storage.list_messages("trip") == expected

    async def test_what_a_live_run_sends_along_is_its_own(self, storage: Storage) -> None:
        run = await begin(storage)
        await storage.append_messages(run, [user("a", id="a", sent=SentBlock(text="note"))])
        assert await storage.rewrite_sent("trip", {"a": None}) == 0
        (row,) = await storage.list_messages("trip", run_id=run.id)
        assert row.sent == SentBlock(text="note")
