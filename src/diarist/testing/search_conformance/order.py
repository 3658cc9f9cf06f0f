"""The order of what is found, pages, and queries that are refused."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from datetime import UTC, datetime, timedelta

import pytest

from diarist.exceptions import InputError
from diarist.storage import Storage
from diarist.testing.search_conformance.helpers import NOON, found, found_in_pages, search
from diarist.testing.storage_conformance.helpers import begin, committed, thread, user


class OrderConformance:
    async def test_newest_first_by_when_it_was_said(self, storage: Storage) -> None:
        for number, hours in enumerate([3, 1, 2]):
            run = await begin(storage, of=thread(f"t{number}"))
            moment = NOON + timedelta(hours=hours)
            await storage.append_messages(run, [user(f"word at {hours}", created_at=moment)])
            await storage.finish_run(run, "committed")
        assert await found(storage, "word") == ["word at 3", "word at 2", "word at 1"]

    async def test_within_a_second_what_was_stored_last(self, storage: Storage) -> None:
        for number in range(6):
            run = await begin(storage, of=thread(f"t{number % 2}"))
            said = [user(f"word {number}.{n}", created_at=NOON + timedelta(milliseconds=9 - number)) for n in range(2)]
            await storage.append_messages(run, said)
            await storage.finish_run(run, "committed")
        assert await found(storage, "word") == [f"word {number}.{n}" for number in range(5, -1, -1) for n in (1, 0)]

    @pytest.mark.parametrize("moment", [None, datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, tzinfo=UTC)])
    async def test_any_time_and_none(self, storage: Storage, moment: datetime | None) -> None:
        run = await begin(storage)
        await storage.append_messages(run, [user(f"word {n}", created_at=moment) for n in range(3)])
        await storage.finish_run(run, "committed")
        assert await found_in_pages(storage, "word", 2) == [["word 2", "word 1"], ["word 0"]]

    async def test_pages(self, storage: Storage) -> None:
        await committed(storage, *(f"word {number}" for number in range(7)))
        newest_first = [f"word {number}" for number in range(6, -1, -1)]
        for limit in (1, 2, 6, 7, 8):
            pages = await found_in_pages(storage, "word", limit)
            assert [text for page in pages for text in page] == newest_first
            assert all(len(page) == limit for page in pages[:-1])
        assert (await search(storage, "nothing")).cursor is None

    async def test_many_messages(self, storage: Storage) -> None:
        await committed(storage, "needle of word", *(f"word {number}" for number in range(1, 1200)))
        await committed(storage, "word elsewhere", of=thread("other"))
        assert await found(storage, "needle") == ["needle of word"]
        assert await found(storage, "elsewhere word", thread_id="other") == ["word elsewhere"]
        pages = await found_in_pages(storage, "word", 250)
        newest_first = ["word elsewhere", *(f"word {number}" for number in range(1199, 0, -1)), "needle of word"]
        assert [text for page in pages for text in page] == newest_first
        assert await found_in_pages(storage, "word", 2000) == [newest_first]

    async def test_paging_is_stable_while_rows_come_and_go(self, storage: Storage, second_storage: Storage) -> None:
        stored = await committed(storage, *(f"word {number}" for number in range(6)))
        page = await search(storage, "word", limit=2)
        await committed(second_storage, "word new", of=thread("other"))
        await second_storage.delete_messages("trip", [stored[4].id, stored[3].id])
        rest = await search(storage, "word", limit=10, cursor=page.cursor)
        said = [hit.message.text for hit in (*page.items, *rest.items)]
        assert said == ["word 5", "word 4", "word 2", "word 1", "word 0"]

    async def test_a_cursor_names_nothing(self, storage: Storage) -> None:
        await committed(storage, "word", "word", of=thread("secret-thread"))
        cursor = (await search(storage, "word", limit=1)).cursor
        assert cursor is not None
        assert cursor.isascii()
        assert cursor.replace("-", "").replace("_", "").isalnum()
        assert b"secret" not in urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))

    @pytest.mark.parametrize("query", ["", " ", "!?", "👍", "\0", "\ud83d"])
    async def test_a_query_without_words_is_refused(self, storage: Storage, query: str) -> None:
        with pytest.raises(InputError, match="at least one word"):
            await search(storage, query)

    async def test_a_query_of_many_words(self, storage: Storage) -> None:
        many = [f"w{number}" for number in range(100)]
        await committed(storage, " ".join(many))
        assert len(await found(storage, " ".join(many))) == 1
        with pytest.raises(InputError, match="at most 100 words, not 101"):
            await search(storage, " ".join([*many, "more"]))

    async def test_bad_limits_and_cursors_are_refused(self, storage: Storage) -> None:
        with pytest.raises(InputError, match="limit"):
            await search(storage, "word", limit=0)
        for cursor in ("x", "", "WzFd", "bnVsbA", "WyJhIiwiYiJd", "é"):
            with pytest.raises(InputError, match="cursor"):
                await search(storage, "word", cursor=cursor)
