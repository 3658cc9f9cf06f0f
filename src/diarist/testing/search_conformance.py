"""Tests that every storage with full-text search must pass, in addition to ``StorageConformance``.

Subclass ``SearchConformance`` in a test file, with the fixtures ``storage`` and, optionally, ``second_storage``.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from diarist.exceptions import InputError
from diarist.messages import DataPart, FilePart, Message, Part, ReasoningPart, SentBlock, SourcePart, TextPart, ToolPart
from diarist.storage import Hit, Page, SearchStorage, Storage
from diarist.testing.storage_conformance import Shared, begin, committed, live, texts, thread, user

__all__ = ["SearchConformance"]


NOON = datetime(2026, 1, 20, 12, tzinfo=UTC)


async def search(storage: Storage, query: str, resource_id: str = "ada", **more: Any) -> Page[Hit]:
    assert isinstance(storage, SearchStorage)
    return await storage.search_messages(query, resource_id=resource_id, **more)


async def found(storage: Storage, query: str, resource_id: str = "ada", **more: Any) -> list[str]:
    page = await search(storage, query, resource_id, **more)
    return [hit.message.text for hit in page.items]


async def found_in_pages(storage: Storage, query: str, limit: int) -> list[list[str]]:
    pages: list[list[str]] = []
    cursor = None
    while not pages or cursor is not None:
        page = await search(storage, query, limit=limit, cursor=cursor)
        pages.append([hit.message.text for hit in page.items])
        cursor = page.cursor
    return pages


async def say(storage: Storage, parts: Sequence[Part], **more: Any) -> Message:
    """Store a committed message with these parts, and return it as stored."""
    [stored] = await committed(storage, Message(role="assistant", parts=list(parts), **more))
    return stored


@pytest.mark.anyio
class SearchConformance(Shared):
    """Tests of the ``SearchStorage`` interface. Subclass it and define the fixture ``storage``."""

    # -- words: boundaries of words, and searched parts of a message

    async def test_all_words_must_be_there_in_any_order(self, storage: Storage, second_storage: Storage) -> None:
        await committed(storage, "We fly to Rome on Friday.", "Rome is old.", "Friday is near.")
        assert await found(second_storage, "rome") == ["Rome is old.", "We fly to Rome on Friday."]
        assert await found(storage, "friday, ROME!") == ["We fly to Rome on Friday."]
        assert await found(storage, "rome rome") == await found(storage, "rome")
        assert await found(storage, "rome paris") == []

    async def test_words_are_whole(self, storage: Storage) -> None:
        await committed(storage, "get_weather of Rome: 12.5 degrees, flight AZ204")
        for query in ("weather", "get", "12", "5", "az204", "get_weather", "12.5"):
            assert len(await found(storage, query)) == 1, query
        for query in ("weath", "rom", "romes", "az", "204"):
            assert await found(storage, query) == [], query

    @pytest.mark.parametrize(
        ("text", "query"),
        [
            ("Grüße aus Köln", "GRÜSSE köln"),
            ("cafe\u0301", "CAFÉ"),
            ("ＡＢＣ ﬁne", "abc fine"),
            ("Ὀδυσσεύς", "ὈΔΥΣΣΕΎΣ"),
            ("हिन्दी में", "हिन्दी"),
            ("Привет, МИР", "мир привет"),
            ("①", "1"),
        ],
    )
    async def test_case_and_form_do_not_matter(self, storage: Storage, text: str, query: str) -> None:
        await committed(storage, text)
        assert await found(storage, query) == [text]

    async def test_accents_matter(self, storage: Storage) -> None:
        await committed(storage, "café")
        assert await found(storage, "cafe") == []

    @pytest.mark.parametrize(
        ("text", "query"),
        [
            ("来週、東京都に行きます。", "東京"),
            ("来週、東京都に行きます。", "京"),
            ("来週、東京都に行きます。", "東京都に行"),
            ("来週、東京都に行きます。", "行きます 来週"),
            ("東京", "東京"),
            ("メールサーバー", "サーバー"),
            ("ﾒｰﾙ", "メール"),
            ("학교에서 만나요", "학교"),
            ("ฉันรักกรุงเทพ", "กรุงเทพ"),
            ("the 東京tower is open", "tower 東京"),
        ],
    )
    async def test_words_of_scripts_without_spaces(self, storage: Storage, text: str, query: str) -> None:
        await committed(storage, text)
        assert await found(storage, query) == [text]

    @pytest.mark.parametrize("query", ["京東", "東京タ", "大阪", "東 大"])
    async def test_other_words_of_such_scripts(self, storage: Storage, query: str) -> None:
        await committed(storage, "東京に行く", "東の京")
        assert await found(storage, query) == []

    async def test_a_very_long_word_is_known_by_its_beginning(self, storage: Storage) -> None:
        await committed(storage, "a" * 64 + "b" * 10_000)
        assert len(await found(storage, "a" * 64)) == 1
        assert await found(storage, "a" * 63) == []

    async def test_tools_files_and_sources_are_found(self, storage: Storage) -> None:
        args = {"city": "Rome", "days": [3, {"unit": "celsius"}], "exact": True}
        parts: list[Part] = [
            ToolPart(
                call_id="1", name="get_weather", args=args, state="result", result={"sky": "sunny\nwarm", "c": 18}
            ),
            ToolPart(call_id="2", name="book", args={}, state="error", result="overbooked"),
            FilePart(media_type="text/plain", data=b"secret", name="tickets.txt"),
            SourcePart(url="https://example.org/forum", title="Trevi"),
        ]
        await say(storage, parts)
        said = ["weather", "city", "rome", "3", "celsius", "sunny", "warm", "18", "overbooked", "tickets", "trevi"]
        for word in said:
            assert len(await found(storage, word)) == 1, word
        assert len(await found(storage, "forum example")) == 1
        for word in ("secret", "true", "nwarm"):
            assert await found(storage, word) == [], word

    async def test_unsaid_words_are_not_found(self, storage: Storage) -> None:
        parts: list[Part] = [
            TextPart(text="spoken", provider_data={"x": "hidden"}),
            ReasoningPart(text="hidden"),
            DataPart(type="data-hidden", data={"hidden": "hidden"}),
            ToolPart(call_id="hidden", name="f", args={}, state="call", result="hidden"),
        ]
        await say(
            storage, parts, metadata={"hidden": "hidden"}, sent=SentBlock(text="hidden", made_from={"a": "hidden"})
        )
        await committed(storage, Message.system("hidden"))
        assert await found(storage, "hidden") == []
        assert await found(storage, "spoken") == ["spoken"]

    async def test_a_hit_is_the_whole_message_with_an_excerpt(self, storage: Storage) -> None:
        text = f"{'before ' * 100}the\nneedle is here {'after ' * 100}"
        stored = await say(storage, [TextPart(text=text)])
        (hit,) = (await search(storage, "Needle")).items
        assert hit.message == stored
        assert "the needle is here" in hit.excerpt
        assert hit.excerpt.startswith("…")
        assert hit.excerpt.endswith("…")
        assert len(hit.excerpt) < 200

    @pytest.mark.parametrize(
        "text", ["", "NUL \0 between", "half \ud83d between", "quotes ' \" -- ; between", "Größe 👍 between " * 60_000]
    )
    async def test_any_text_can_be_searched(self, storage: Storage, text: str) -> None:
        await committed(storage, text)
        assert len(await found(storage, "between")) == ("between" in text)

    # -- order: order of results, pages, and invalid queries

    async def test_newest_first_by_when_it_was_said(self, storage: Storage) -> None:
        for number, hours in enumerate([3, 1, 2]):
            moment = NOON + timedelta(hours=hours)
            await committed(storage, user(f"word at {hours}", created_at=moment), of=thread(f"t{number}"))
        assert await found(storage, "word") == ["word at 3", "word at 2", "word at 1"]

    async def test_within_a_second_of_one_thread_what_was_stored_last(self, storage: Storage) -> None:
        for number in range(6):
            said = [user(f"word {number}.{n}", created_at=NOON + timedelta(milliseconds=9 - number)) for n in range(2)]
            await committed(storage, *said)
        assert await found(storage, "word") == [f"word {number}.{n}" for number in range(5, -1, -1) for n in (1, 0)]

    @pytest.mark.parametrize("moment", [None, datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, tzinfo=UTC)])
    async def test_any_time_and_none(self, storage: Storage, moment: datetime | None) -> None:
        await committed(storage, *(user(f"word {n}", created_at=moment) for n in range(3)))
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
        await committed(
            storage, user("word elsewhere", created_at=datetime(2100, 1, 1, tzinfo=UTC)), of=thread("other")
        )
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

    async def test_other_messages_are_found_while_one_is_rewritten(
        self, storage: Storage, second_storage: Storage
    ) -> None:
        first, *_ = await committed(storage, *(f"word {number}" for number in range(50)))

        async def rewrite() -> None:
            for _ in range(30):
                run = await begin(second_storage)
                await second_storage.rewrite_messages(run, [first])
                await second_storage.finish_run(run, "committed")

        rewriting = asyncio.create_task(rewrite())
        while not rewriting.done():
            assert await found(storage, "word 40") == ["word 40"]
            await asyncio.sleep(0)
        await rewriting

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

    # -- visibility: messages of other resources, and of live and discarded runs

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
        run = await live(storage, "word")
        assert await found(storage, "word") == []
        await storage.finish_run(run, "committed")
        assert await found(storage, "word") == ["word"]

    async def test_discarded_rows_are_gone(self, storage: Storage) -> None:
        run = await live(storage, "word")
        await storage.finish_run(run, "discarded")
        assert await found(storage, "word") == []

    async def test_only_the_input_of_a_guarded_run_that_broke_off(self, storage: Storage) -> None:
        run = await live(storage, "word asked", guarded=True, source="input")
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
        run = await live(storage, user("mine word", id="mine"), user("third word", id="third"))
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
