"""What people can ask for of messages and threads: dates, metadata, order, neighbours; page by page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

import pytest

from diarist import Memory, Message
from diarist.exceptions import InputError
from diarist.storage import Storage
from diarist.storage.postgres import PostgresStorage
from diarist.vectors.postgres import PgVectorStore
from tests.memory.semantic.kit import TopicEmbedder
from tests.memory.stores import made_storage, storage

__all__ = ["made_storage", "storage"]

MONDAY = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def memory(storage: Storage) -> Memory:
    """Its vectors are where the storage has them, or in the same PostgreSQL."""
    vector = PgVectorStore(storage.url) if isinstance(storage, PostgresStorage) else None
    return Memory(storage=storage, embedder=TopicEmbedder(), vector=vector)


def on_day(day: int, text: str | None = None, **metadata: Any) -> Message:
    return Message.user(text or f"rome {day}", created_at=MONDAY + day * DAY, metadata=metadata)


async def keep(memory: Memory, *messages: Message, thread: str = "t", resource: str = "ada") -> None:
    await memory.messages.save(list(messages), thread=thread, resource=resource)
    await memory.settled()


async def asked(memory: Memory, verb: str, **options: Any) -> list[str]:
    """The texts that a verb gives for a thread, in their order."""
    if verb == "messages.list":
        return [row.text for row in await memory.messages.list(thread="t", **options)]
    return [hit.message.text for hit in (await attrgetter(verb)(memory)("rome", thread="t", **options)).items]


@pytest.mark.parametrize("verb", ["messages.list", "messages.search", "recall"])
async def test_only_what_was_said_in_a_time(memory: Memory, verb: str) -> None:
    await keep(memory, *[on_day(day) for day in range(6)])
    assert set(await asked(memory, verb, since=MONDAY + 4 * DAY)) == {"rome 4", "rome 5"}
    assert set(await asked(memory, verb, until=MONDAY + 2 * DAY)) == {"rome 0", "rome 1"}
    assert set(await asked(memory, verb, since=MONDAY + DAY, until=MONDAY + 3 * DAY)) == {"rome 1", "rome 2"}
    assert await asked(memory, verb, since=MONDAY + 9 * DAY) == []


@pytest.mark.parametrize("verb", ["messages.list", "messages.search", "recall"])
async def test_only_what_has_all_of_this_metadata(memory: Memory, verb: str) -> None:
    await keep(
        memory,
        on_day(0, topic="work", n=1),
        on_day(1, topic="work", n=1.0),
        on_day(2, topic="work", n=True),
        on_day(3, topic="home", n=1),
        on_day(4, tags=["a", {"b": 1, "c": 2}]),
        on_day(5, **{"topic.sub": None}),
    )
    assert set(await asked(memory, verb, metadata={"topic": "work"})) == {"rome 0", "rome 1", "rome 2"}
    assert await asked(memory, verb, metadata={"topic": "work", "n": 1}) == ["rome 0"]
    assert await asked(memory, verb, metadata={"n": True}) == ["rome 2"]
    assert await asked(memory, verb, metadata={"tags": ["a", {"c": 2, "b": 1}]}) == ["rome 4"]
    assert await asked(memory, verb, metadata={"topic": "work"}, since=MONDAY + 2 * DAY) == ["rome 2"]
    assert await asked(memory, verb, metadata={"unknown": "x"}) == []


@pytest.mark.parametrize("verb", ["messages.list", "messages.search", "recall"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"since": MONDAY.replace(tzinfo=None)}, "since needs a datetime with a time zone"),
        ({"until": "2026"}, "until needs a datetime with a time zone"),
        ({"metadata": ["x"]}, "metadata must be a dictionary"),
        ({"metadata": {"x": {1}}}, r"metadata\['x'\] is not JSON"),
        ({"metadata": {"topic": "work"}, "limit": -1}, "limit must be"),
    ],
)
async def test_what_cannot_be_asked_for(memory: Memory, verb: str, options: dict[str, Any], words: str) -> None:
    await keep(memory, on_day(0))
    with pytest.raises(InputError, match=words):
        await asked(memory, verb, **options)


@pytest.mark.parametrize("size", [1, 3, 250])
@pytest.mark.parametrize("verb", ["messages.search", "recall"])
async def test_pages_of_what_passes_have_each_message_once(memory: Memory, verb: str, size: int) -> None:
    """More messages than are read at a time, few of which pass."""
    many = [
        on_day(0, f"rome {n}", topic="rare" if n % 23 == 0 else "often").to_dict() | {"id": f"m{n}"} for n in range(230)
    ]
    await keep(memory, *[Message.from_dict(row) for row in many])
    found: list[str] = []
    cursor: str | None = None
    for number in range(20):
        page = await attrgetter(verb)(memory)("rome", thread="t", metadata={"topic": "rare"}, limit=size, cursor=cursor)
        assert len(page.items) <= size
        found += [hit.message.text for hit in page.items]
        cursor = page.cursor
        if cursor is None:
            break
        if verb == "messages.search":  # the best first is an order that others can change
            await keep(memory, on_day(1, f"rome new {number}", topic="rare"))
    assert sorted(found) == sorted(f"rome {n}" for n in range(0, 230, 23))
    assert verb == "recall" or found == [f"rome {n}" for n in reversed(range(0, 230, 23))]


async def test_pages_of_messages_that_pass(memory: Memory) -> None:
    await keep(memory, *[on_day(n, str(n), topic="rare" if n % 100 == 0 else "often") for n in range(430)])
    pages: list[list[str]] = []
    before = None
    while rows := await memory.messages.list(thread="t", limit=2, before=before, metadata={"topic": "rare"}):
        pages.append([row.text for row in rows])
        before = rows[0].seq
    assert pages == [["300", "400"], ["100", "200"], ["0"]]
    rows = await memory.messages.list(thread="t", limit=2, after=1, metadata={"topic": "rare"})
    assert [row.text for row in rows] == ["100", "200"]
    assert len(await memory.messages.list(thread="t", metadata={"topic": "often"})) == 425


async def test_messages_newest_first_page_by_page(memory: Memory) -> None:
    await keep(memory, *[on_day(n, str(n + 1)) for n in range(5)])

    async def read(**where: Any) -> list[str]:
        return [row.text for row in await memory.messages.list(thread="t", newest_first=True, **where)]

    assert await read() == ["5", "4", "3", "2", "1"]
    assert [await read(limit=2), await read(limit=2, before=4), await read(limit=2, before=2)] == [
        ["5", "4"],
        ["3", "2"],
        ["1"],
    ]
    assert await read(after=1, limit=3) == ["5", "4", "3"]
    assert await read(after=1, before=4) == ["3", "2"]
    assert await read(limit=1, until=MONDAY + 3 * DAY) == ["3"]


async def test_threads_oldest_first_page_by_page(memory: Memory) -> None:
    for number in range(5):
        await memory.threads.create(f"t{number}", resource="ada", metadata={"kind": "travel"})
    found: list[str] = []
    cursor = None
    for turn in range(9):
        page = await memory.threads.list(
            resource="ada", metadata={"kind": "travel"}, limit=2, cursor=cursor, newest_first=False
        )
        found += [thread.id for thread in page.items]
        cursor = page.cursor
        if cursor is None:
            break
        await memory.threads.update("t0", title=str(turn))
    assert found == ["t0", "t1", "t2", "t3", "t4"]


@pytest.mark.parametrize("verb", ["messages.search", "recall"])
async def test_the_messages_around_a_hit(memory: Memory, verb: str) -> None:
    texts = ["one", "two", "rome", "four", "five"]
    await keep(memory, *[on_day(n, text) for n, text in enumerate(texts)])
    await keep(memory, on_day(0, "of another thread"), thread="u")

    async def around(message_range: Any) -> tuple[list[str], list[str]]:
        (hit,) = (await attrgetter(verb)(memory)("rome", resource="ada", message_range=message_range)).items
        return [row.text for row in hit.before], [row.text for row in hit.after]

    assert await around(0) == ([], [])
    assert await around(1) == (["two"], ["four"])
    assert await around((2, 0)) == (["one", "two"], [])
    assert await around(50) == (["one", "two"], ["four", "five"])
    for wrong in (-1, 101, (1,), "1", True):
        with pytest.raises(InputError, match="message_range"):
            await around(wrong)


async def test_how_near_it_must_be(memory: Memory) -> None:
    await keep(memory, on_day(0, "rome"), on_day(1, "italy with pizza"), on_day(2, "pizza and roses, a flight"))

    async def near(threshold: float | None) -> list[str]:
        page = await memory.recall("a trip to italy: rome", resource="ada", threshold=threshold)
        return [hit.message.text for hit in page.items]

    assert await near(None) == ["rome", "italy with pizza", "pizza and roses, a flight"]
    assert await near(0.6) == ["rome", "italy with pizza"]
    assert await near(0.9) == ["rome"]
    for wrong in (2, "0.5", True):
        with pytest.raises(InputError, match="threshold must be from -1 to 1"):
            await near(wrong)  # pyright: ignore[reportArgumentType]
