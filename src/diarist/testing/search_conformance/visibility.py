"""Whose messages are found, and which of them count."""

from __future__ import annotations

from datetime import timedelta

import pytest

from diarist.storage import Storage
from diarist.testing.search_conformance.helpers import NOON, found, search
from diarist.testing.storage_conformance.helpers import begin, committed, texts, thread, user


class VisibilityConformance:
    async def test_another_resource_finds_nothing(self, storage: Storage) -> None:
        await committed(storage, "word of ada")
        await committed(storage, "word of grace", of=thread("other", "grace"))
        assert await found(storage, "word") == ["word of ada"]
        assert await found(storage, "word", "grace") == ["word of grace"]
        assert await found(storage, "word", "nobody") == []
        assert await found(storage, "word", "") == []
        assert await found(storage, "word", thread_id="other") == []
        assert await found(storage, "word", "grace", thread_id="trip") == []
        assert await found(storage, "word", "grace", thread_id="other") == ["word of grace"]

    async def test_a_cursor_opens_no_other_resource(self, storage: Storage) -> None:
        await committed(storage, "word 1", "word 2")
        await committed(storage, "word 3", "word 4", of=thread("other", "grace"))
        cursor = (await search(storage, "word", "grace", limit=1)).cursor
        assert set(await found(storage, "word", cursor=cursor)) <= {"word 1", "word 2"}

    async def test_one_thread(self, storage: Storage) -> None:
        await committed(storage, "word here")
        await committed(storage, "word there", of=thread("other"))
        assert await found(storage, "word", thread_id="other") == ["word there"]
        assert await found(storage, "word", thread_id="nowhere") == []

    @pytest.mark.parametrize(
        "query", ['"word', "word OR x", "word*", "NOT word", "NEAR(word)", "terms:word", "'; DROP TABLE x; --", "^word"]
    )
    async def test_a_query_is_only_words(self, storage: Storage, query: str) -> None:
        await committed(storage, "word", "word or x", "not a word", "near the word", "terms of a word", "drop table x")
        wanted = set("".join(c if c.isalnum() else " " for c in query.lower()).split())
        said = await texts(storage)
        assert set(await found(storage, query)) == {text for text in said if wanted <= set(text.split())}

    async def test_rows_of_a_live_run_are_invisible(self, storage: Storage) -> None:
        run = await begin(storage)
        await storage.append_messages(run, [user("word")])
        assert await found(storage, "word") == []
        await storage.finish_run(run, "committed")
        assert await found(storage, "word") == ["word"]

    async def test_discarded_rows_are_gone(self, storage: Storage) -> None:
        run = await begin(storage)
        await storage.append_messages(run, [user("word")])
        await storage.finish_run(run, "discarded")
        assert await found(storage, "word") == []

    async def test_only_the_input_of_a_guarded_run_that_broke_off(self, storage: Storage) -> None:
        run = await begin(storage, guarded=True)
        await storage.append_messages(run, [user("word asked")], source="input")
        await storage.append_messages(run, [user("word answered")])
        await storage.finish_run(run, "interrupted")
        assert await found(storage, "word") == ["word asked"]

    async def test_deleted_messages_are_gone(self, storage: Storage) -> None:
        one, _ = await committed(storage, "word 1", "word 2")
        await storage.delete_messages("trip", [one.id])
        assert await found(storage, "word") == ["word 2"]
        assert await found(storage, "1") == []

    async def test_a_deleted_thread_is_gone_and_another_may_take_its_id(self, storage: Storage) -> None:
        await committed(storage, "word of ada")
        await storage.delete_thread("trip")
        assert await found(storage, "word") == []
        await committed(storage, "word of grace", of=thread("trip", "grace"))
        assert await found(storage, "word") == []
        assert await found(storage, "word", thread_id="trip") == []
        assert await found(storage, "word", "grace") == ["word of grace"]

    async def test_rewritten_messages_are_found_by_what_they_say_now(self, storage: Storage) -> None:
        (earlier,) = await committed(storage, "old word")
        run = await begin(storage)
        await storage.append_messages(run, [user("mine word", id="mine"), user("third word", id="third")])
        again = [user("new word", id=earlier.id), user("my own word", id="mine")]
        await storage.rewrite_messages(run, again, remove=["third"])
        assert await found(storage, "word") == ["new word"]
        await storage.finish_run(run, "committed")
        assert await found(storage, "word") == ["my own word", "new word"]
        assert await found(storage, "old") == await found(storage, "mine") == await found(storage, "third") == []

    async def test_a_rewritten_message_keeps_its_place_unless_it_was_said_at_another_time(
        self, storage: Storage
    ) -> None:
        run = await begin(storage)
        moments = [NOON, NOON, None]
        await storage.append_messages(
            run, [user("word", id=f"m{n}", created_at=moment) for n, moment in enumerate(moments)]
        )
        await storage.rewrite_messages(
            run, [user("word 0", id="m0", created_at=NOON), user("word 2", id="m2", created_at=None)]
        )
        await storage.rewrite_messages(run, [user("word 1", id="m1", created_at=None)])
        await storage.finish_run(run, "committed")
        assert await found(storage, "word") == ["word 2", "word 1", "word 0"]
        run = await begin(storage)
        await storage.rewrite_messages(run, [user("word 2", id="m2", created_at=NOON - timedelta(days=1))])
        await storage.finish_run(run, "committed")
        assert await found(storage, "word") == ["word 1", "word 0", "word 2"]
