"""What is a word, and what of a message is searched."""

from __future__ import annotations

import pytest

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
)
from diarist.storage import Storage
from diarist.testing.search_conformance.helpers import found, say, search
from diarist.testing.storage_conformance.helpers import begin, committed


class WordConformance:
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
        for word in (
            "weather",
            "city",
            "rome",
            "3",
            "celsius",
            "sunny",
            "warm",
            "18",
            "overbooked",
            "tickets",
            "trevi",
        ):
            assert len(await found(storage, word)) == 1, word
        assert len(await found(storage, "forum example")) == 1
        for word in ("secret", "true", "nwarm"):
            assert await found(storage, word) == [], word

    async def test_what_is_not_said_is_not_found(self, storage: Storage) -> None:
        parts: list[Part] = [
            TextPart(text="spoken", provider_data={"x": "hidden"}),
            ReasoningPart(text="hidden"),
            DataPart(type="data-hidden", data={"hidden": "hidden"}),
            ToolPart(call_id="hidden", name="f", args={}, state="call", result="hidden"),
        ]
        await say(
            storage, parts, metadata={"hidden": "hidden"}, sent=SentBlock(text="hidden", made_from={"a": "hidden"})
        )
        run = await begin(storage)
        await storage.append_messages(run, [Message.system("hidden")])
        await storage.finish_run(run, "committed")
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
