"""Full-text search keeps its contract on every back end, and finds what a naive search finds."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from unicodedata import category, name, normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarist.exceptions import InputError
from diarist.messages import Message
from diarist.storage import InMemoryStorage, SearchStorage, SQLiteStorage, Storage, Thread
from diarist.storage.postgres import PostgresStorage
from diarist.storage.sql.schema import SCHEMA
from diarist.storage.sql.search import BATCH
from diarist.testing import SearchConformance
from tests.properties import examples
from tests.storage.old_versions import back_to


class TestInMemorySearch(SearchConformance):
    @pytest.fixture
    def storage(self) -> Storage:
        return InMemoryStorage()


class TestSQLiteSearch(SearchConformance):
    @pytest.fixture
    async def storage(self, tmp_path: Path) -> AsyncIterator[Storage]:
        async with SQLiteStorage(tmp_path / "memory.db") as storage:
            yield storage

    @pytest.fixture
    async def second_storage(self, storage: Storage) -> AsyncIterator[Storage]:
        async with SQLiteStorage(storage.location) as second:
            yield second


class TestPostgresSearch(SearchConformance):
    @pytest.fixture
    async def storage(self, postgres_url: str) -> AsyncIterator[Storage]:
        async with PostgresStorage(postgres_url) as storage:
            yield storage

    @pytest.fixture
    async def second_storage(self, storage: Storage, postgres_url: str) -> AsyncIterator[Storage]:
        async with PostgresStorage(postgres_url) as second:
            yield second


# --- beside a naive search -----------------------------------------------------------------------------------

CHARACTERS = [*"aAbBéÉßſẞσςΣİıﬁ1²½", *"東京都行タワーカ々学교กรุน", *" \t\n.,_-'’\"*@:\0👍"]
CHARACTERS += ["e\u0301", "का", "か\u3099", "\ud83d"]
TEXTS = st.lists(st.sampled_from(CHARACTERS), max_size=12).map("".join)
UNSPACED = ("CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "HANGUL", "THAI")


def naive_rows(text: str) -> list[tuple[str, bool]]:
    """Rows of letters, digits and marks of one kind, character by character, and whether they need no spaces."""
    rows: list[tuple[str, bool]] = []
    last: bool | None = None
    for character in normalize("NFKC", normalize("NFKC", text).casefold()):
        is_word = category(character)[0] in "LMN"
        kind = name(character, "").startswith(UNSPACED) if is_word else None
        if kind is not None:
            if kind == last:
                rows[-1] = (rows[-1][0] + character, kind)
            else:
                rows.append((character, kind))
        last = kind
    return rows


def naive_match(text: str, query: str) -> bool:
    said = naive_rows(text)
    for word, unspaced in naive_rows(query):
        pieces = [word[at : at + 3] for at in range(max(1, len(word) - 2))] if unspaced else [word]
        for piece in pieces:
            if not any(piece in row if unspaced else piece == row for row, kind in said if kind == unspaced):
                return False
    return True


async def fill(storage: Storage, texts: list[str]) -> None:
    run = await storage.begin_run("run", Thread(id="t", resource_id="ada"))
    await storage.append_messages(run, [Message.user(text, id=str(n)) for n, text in enumerate(texts)])
    await storage.finish_run(run, "committed")


async def find(storage: Storage, query: str) -> list[str] | None:
    assert isinstance(storage, SearchStorage)
    try:
        hits = await storage.search_messages(query, resource_id="ada", limit=100)
    except InputError:
        return None
    return [hit.message.text for hit in hits.items]


@settings(max_examples=examples(150), deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=6), queries=st.lists(TEXTS, max_size=6))
def test_finds_what_a_naive_search_finds(texts: list[str], queries: list[str]) -> None:
    asyncio.run(_compare(texts, [*queries, *(text[:4] for text in texts)]))


async def _compare(texts: list[str], queries: list[str]) -> None:
    folder = tempfile.mkdtemp()
    in_memory = InMemoryStorage()
    try:
        async with SQLiteStorage(Path(folder) / "memory.db") as in_file:
            for storage in (in_memory, in_file):
                await fill(storage, texts)
            for query in queries:
                expected = [text for text in reversed(texts) if naive_match(text, query)] if naive_rows(query) else None
                assert await find(in_memory, query) == await find(in_file, query) == expected
    finally:
        shutil.rmtree(folder)


@settings(max_examples=examples(50), deadline=None)
@given(text=st.text(max_size=200))
def test_every_text_is_found_by_itself(text: str) -> None:
    async def check() -> None:
        storage = InMemoryStorage()
        await fill(storage, [text])
        assert await find(storage, text) in ([text], None)

    asyncio.run(check())


# --- files of version 1 --------------------------------------------------------------------------------------


def make_version_1(path: Path) -> None:
    """Take out of a file what version 2 added."""
    connection = sqlite3.connect(path)
    connection.executescript(";".join(back_to(1)))
    connection.close()


async def test_a_file_of_version_1_is_searched_once_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    storage = SQLiteStorage(path)
    await fill(storage, [f"old word {number}" for number in range(2500)])
    other = await storage.begin_run("other", Thread(id="u", resource_id="ada"))
    await storage.append_messages(other, [Message.user("old undated", created_at=None), Message.system("old rules")])
    await storage.finish_run(other, "committed")
    await storage.close()
    make_version_1(path)

    async with SQLiteStorage(path) as opened:
        assert await find(opened, "word 2499") == ["old word 2499"]
        assert await find(opened, "word 0") == ["old word 0"]
        assert await find(opened, "undated") == ["old undated"]
        assert len((await opened.search_messages("old", resource_id="ada", limit=5000)).items) == 2501
        run = await opened.begin_run("new", Thread(id="t", resource_id="ada"))
        await opened.rewrite_messages(run, [Message.user("new word", id="1")])
        await opened.finish_run(run, "committed")
        assert await find(opened, "new") == ["new word"]
        assert await find(opened, "word 1") == []
        await opened.delete_thread("t")
        assert await find(opened, "word") == []
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO diarist_search_index (diarist_search_index, rank) VALUES ('integrity-check', 1)")
    assert connection.execute("SELECT version FROM diarist_schema WHERE name = 'storage'").fetchone() == (
        SCHEMA.version,
    )
    connection.close()


async def test_a_file_of_version_2_finds_no_words_of_live_runs(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    async with SQLiteStorage(path) as storage:
        await fill(storage, ["old word"])
        run = await storage.begin_run("live", Thread(id="t", resource_id="ada"))
        await storage.append_messages(run, [Message.user("new word")])
    make_version_2(path)
    async with SQLiteStorage(path) as opened:
        assert await find(opened, "word") == ["old word"]
        assert words_in_index(path) == {"old", "word"}
        await opened.finish_run(run, "committed")
        assert await find(opened, "word") == ["new word", "old word"]


def make_version_2(path: Path) -> None:
    """Let a file have what version 2 had: messages were among what is found before their run had ended."""
    connection = sqlite3.connect(path)
    connection.executescript(
        "INSERT INTO diarist_search SELECT thread_id, seq, seq, 1, 1, 'new word' FROM diarist_messages WHERE seq > 1;"
        "INSERT INTO diarist_search_index (rowid, terms) SELECT position, terms FROM diarist_search"
        " WHERE terms = 'new word'"
    )
    connection.executescript(";".join(back_to(2)))
    connection.close()


def words_in_index(path: Path) -> set[str]:
    """Checks the index, too."""
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO diarist_search_index (diarist_search_index, rank) VALUES ('integrity-check', 1)")
    connection.execute("CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab('main', 'diarist_search_index', 'row')")
    words = {word for (word,) in connection.execute("SELECT term FROM temp.vocabulary") if not word.startswith("@")}
    connection.close()
    return words


async def test_the_index_of_a_file_follows_every_removal(tmp_path: Path) -> None:
    async with SQLiteStorage(tmp_path / "memory.db") as storage:
        await fill(storage, ["one word", "two words"])
        assert await find(storage, "one word") == ["one word"]
        await storage.delete_messages("t", ["0"])
        run = await storage.begin_run("more", Thread(id="t", resource_id="ada"))
        await storage.append_messages(run, [Message.user("three", id="3"), Message.user("four", id="4")])
        await storage.rewrite_messages(run, [Message.user("five", id="3"), Message.user("six", id="1")], remove=["4"])
        await storage.finish_run(run, "committed")
        assert words_in_index(tmp_path / "memory.db") == set()
        assert await find(storage, "five") == ["five"]
    assert words_in_index(tmp_path / "memory.db") == {"five", "six"}


async def test_messages_are_indexed_by_the_first_search_and_each_only_once(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    async with SQLiteStorage(path) as storage:
        await fill(storage, [f"old word {number}" for number in range(2 * BATCH + 1)])
        assert words_in_index(path) == set()
        await storage.search_messages("word", resource_id="grace")
        assert words_in_index(path) == set()
        assert await find(storage, f"word {2 * BATCH}") == [f"old word {2 * BATCH}"]
        run = await storage.begin_run("more", Thread(id="t", resource_id="ada"))
        await storage.append_messages(run, [Message.user("new word", id="new")])
        assert await find(storage, "new") == []
        await storage.finish_run(run, "committed")
        assert await find(storage, "new") == ["new word"]
        assert len((await storage.search_messages("word", resource_id="ada", limit=5000)).items) == 2 * BATCH + 2
