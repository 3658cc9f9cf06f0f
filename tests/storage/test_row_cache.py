"""Readers of a thread cache its rows, and still return what is stored after any change by another process."""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from diarist import Message
from diarist.chunks import Usage
from diarist.memory.observational.log.transitions import replaced_by
from diarist.messages import DataPart, FilePart, SentBlock, TextPart, ToolPart
from diarist.storage import ObservationLog, Run, SQLiteStorage, Storage, Thread, records
from diarist.storage.codec import decode_log, encode_log, encode_message
from diarist.storage.postgres import PostgresStorage
from diarist.storage.records import Failures, Hints, Observation, PendingReflection, Source, Tombstone
from diarist.storage.sql.row_cache import size_of_rows

TRIP = Thread(id="trip", resource_id="ada")


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Storage]:
    if request.param == "sqlite":
        return lambda: SQLiteStorage(tmp_path / "memory.db")
    url: str = request.getfixturevalue("postgres_url")
    return lambda: PostgresStorage(url)


@pytest.fixture
async def pair(opened: Callable[[], Storage]) -> AsyncIterator[tuple[Storage, Storage]]:
    """Two processes' ways to the same data."""
    async with opened() as one, opened() as other:
        yield one, other


async def say(storage: Storage, *texts: str, run_id: str | None = None) -> Run:
    run = await storage.begin_run(run_id or f"run {texts[0]}", TRIP)
    await storage.append_messages(run, [Message.user(text, id=text) for text in texts])
    await storage.finish_run(run, "committed")
    return run


async def shared(storage: Storage, *, after: int = 0, run_id: str | None = None) -> list[Message]:
    _, rows = await storage.log_and_messages("thread:trip", "trip", lambda _: [(after, None)], run_id=run_id)
    return rows


async def texts(storage: Storage, *, after: int = 0, run_id: str | None = None) -> list[str]:
    rows = await shared(storage, after=after, run_id=run_id)
    assert rows == await storage.list_messages("trip", after=after, run_id=run_id)
    return [message.text for message in rows]


async def rewritten(storage: Storage) -> None:
    run = await storage.begin_run("rewriting", TRIP)
    await storage.rewrite_messages(run, [Message.user("B", id="b")])
    await storage.finish_run(run, "discarded")


async def begun_anew(storage: Storage) -> None:
    await storage.delete_thread("trip")
    await say(storage, "x", "y", "z", "zz", run_id="run a")


CHANGES: list[tuple[Callable[[Storage], Awaitable[Any]], list[str]]] = [
    (lambda storage: say(storage, "d"), ["a", "b", "c", "d"]),
    (rewritten, ["a", "B", "c"]),
    (lambda storage: storage.delete_messages("trip", ["b"]), ["a", "c"]),
    (lambda storage: storage.delete_thread("trip"), []),
    (begun_anew, ["x", "y", "z", "zz"]),
]


@pytest.mark.parametrize(("change", "expected"), CHANGES, ids=["said", "rewritten", "deleted", "gone", "begun anew"])
@pytest.mark.parametrize("by", [0, 1], ids=["here", "elsewhere"])
async def test_it_shows_what_others_changed(
    pair: tuple[Storage, Storage],
    by: int,
    change: Callable[[Storage], Awaitable[Any]],
    expected: list[str],
) -> None:
    await say(pair[0], "a", "b", "c")
    for _ in range(2):
        assert await texts(pair[0]) == ["a", "b", "c"]
    await change(pair[by])
    for storage in pair:
        assert await texts(storage) == expected
        assert await texts(storage, after=1) == expected[1:] or expected == ["a", "c"]


@pytest.mark.parametrize("since", [[], ["d", "e", "f"]])
async def test_it_shows_no_message_that_the_database_has_lost(tmp_path: Path, since: list[str]) -> None:
    path = tmp_path / "memory.db"
    async with SQLiteStorage(path) as storage, SQLiteStorage(path) as other:
        await say(storage, "a")
        with closing(sqlite3.connect(path)) as live, closing(sqlite3.connect(":memory:")) as backup:
            live.backup(backup)
            await say(storage, "b", "c")
            assert await texts(storage) == ["a", "b", "c"]
            backup.backup(live)  # as after a failover to a server that lagged behind
        if since:
            await say(other, *since)
        assert await texts(storage) == ["a", *since]


async def test_the_notes_sent_along_are_those_stored(pair: tuple[Storage, Storage]) -> None:
    one, other = pair
    await say(one, "a", "b")
    await shared(one)
    await other.rewrite_sent("trip", {"a": SentBlock(text="today", tokens=1, made_from={"days": ["Tuesday"]})})
    for _ in range(2):
        (row, _) = await shared(one)
        assert row.sent == SentBlock(text="today", tokens=1, made_from={"days": ["Tuesday"]})


async def test_rows_of_a_run_count_for_others_once_it_has_ended(pair: tuple[Storage, Storage]) -> None:
    one, other = pair
    await say(one, "a")
    run = await one.begin_run("live", TRIP)
    await one.append_messages(run, [Message.user("b", id="b")])
    assert await texts(one, run_id="live") == ["a", "b"]
    assert await texts(one) == await texts(other) == ["a"]
    await other.finish_run(run, "discarded")
    await say(other, "c")
    assert await texts(one, run_id="live") == await texts(one) == ["a", "c"]


async def test_each_reader_gets_messages_of_its_own(pair: tuple[Storage, Storage]) -> None:
    storage = pair[0]
    run = await storage.begin_run("parts", TRIP)
    parts = [
        ToolPart(call_id="c", name="look", args={"at": [1]}, state="result", result={"found": [2]}),
        ToolPart(call_id="d", name="ask", args={"at": 1}, state="error", result="no", provider_executed=True),
        FilePart(media_type="image/png", data=b"\x89"),
        DataPart(type="data-x", data={"deep": [3]}),
        TextPart(text="cited", provider_data={"id": [4]}),
    ]
    said = [
        Message.user("plain", id="p", metadata={"tags": [5]}),
        Message.assistant("words", id="w", part_tokens=(1,)),
        Message(role="assistant", id="q", parts=[*parts]),
        Message(role="assistant", id="n", parts=[], created_at=None),
        Message(role="assistant", id="f", parts=[ToolPart(call_id="e", name="go", args={"to": "sea"})]),
    ]
    await storage.append_messages(run, said)
    await storage.finish_run(run, "committed")
    fresh = await pair[1].list_messages("trip")
    assert await shared(storage) == await shared(storage) == fresh
    for _ in range(3):
        read = await storage.list_messages("trip")
        assert read == fresh
        for message in read:
            message.metadata["changed"] = True
            message.parts.append(TextPart(text="more"))
            message.part_tokens = None
        read[1].parts[0] = TextPart(text="other")
        read[0].metadata["tags"].append(6)
        read[2].parts[0].args["at"].append(7)  # type: ignore[union-attr]
        read[4].tool_parts[0].args["to"] = "land"
    assert await shared(storage) == fresh


async def test_messages_that_turns_read_are_decoded_once(pair: tuple[Storage, Storage]) -> None:
    storage = pair[0]
    await say(storage, "a", "b")
    first = await shared(storage)
    await say(storage, "c")
    second = await shared(storage)
    assert [row.text for row in second] == ["a", "b", "c"]
    assert second[0] is first[0]
    assert second[1] is first[1]


@pytest.mark.parametrize("by", [0, 1], ids=["here", "elsewhere"])
async def test_a_diary_is_the_one_that_is_stored(pair: tuple[Storage, Storage], by: int) -> None:
    reader, writer = pair[0], pair[by]

    def log(**more: Any) -> ObservationLog:
        return ObservationLog(key="thread:trip", scope="thread", resource_id="ada", **more)

    first = await writer.save_log(log(actor="noon"), expected_version=0)
    for _ in range(3):
        read = await reader.get_log("thread:trip")
        assert read is not None
        assert read == first
    assert await reader.get_log("thread:trip", after=1) is None
    second = await writer.save_log(log(actor="later"), expected_version=1)
    assert await reader.get_log("thread:trip") == await reader.get_log("thread:trip", after=1) == second
    await writer.delete_log("thread:trip")
    assert await reader.get_log("thread:trip") is None
    anew = await writer.save_log(log(), expected_version=0)  # of the same version as the first
    assert await reader.get_log("thread:trip") == anew != first


NOON = datetime(2026, 3, 2, 12, 0, 0, 5, tzinfo=timezone(timedelta(hours=2)))


def diary() -> ObservationLog:
    """One with something in each of its fields."""
    source = Source(thread_id="trip", first_seq=1, last_seq=2, digest="d")
    entry = Observation(
        id="o",
        text="- 🟡 tea\u2028",
        tokens=3,
        sources=(source,),
        message_tokens=9,
        message_count=2,
        observed_at=NOON,
        cycle_id="c",
        citations=(("a", "b"), ()),
        hints=(Hints(current_task="go", updated_at=NOON, thread_id="trip"),),
        usage=Usage(input_tokens=7, cached_tokens=2),
    )
    return ObservationLog(
        key="thread:trip",
        scope="thread",
        resource_id="ada",
        entries=(entry,),
        reflection=PendingReflection(entry=entry, replaces=replaced_by([entry]), tokens=3),
        tombstones=(Tombstone(thread_id="trip", run_id="r"),),
        observer_failures=Failures(count=1, last_at=NOON),
        suppressed=("x",),
    )


async def test_a_saved_diary_reads_the_same_in_the_writer_and_in_others(pair: tuple[Storage, Storage]) -> None:
    await pair[0].save_log(diary(), expected_version=0)
    mine, theirs = [await storage.get_log("thread:trip") for storage in pair]
    assert mine is not None
    assert mine == theirs
    assert (mine.version, mine.entries[0].observed_at) == (1, NOON)


def test_a_diary_is_encoded_without_building_its_type_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    log = diary()
    with monkeypatch.context() as patched:
        patched.setattr(records, "_log_adapter", None)
        text = encode_log(log)
    assert decode_log(text, log.key) == log


def test_metadata_takes_room_too() -> None:
    message = Message.user("hi", metadata={"page": "x" * 5_000}, seq=1)
    row = encode_message(message, run_id="r", source="input")
    assert size_of_rows([row]) > 5_000


@pytest.mark.slow
async def test_after_a_purge_no_deleted_message_is_left_in_memory(pair: tuple[Storage, Storage]) -> None:
    def in_memory() -> bool:
        gc.collect()
        return any(type(each) is Message and each.id == "to be forgotten" for each in gc.get_objects())

    storage = pair[0]
    await say(storage, "to be forgotten", "b")
    await shared(storage)
    assert in_memory()
    await storage.delete_messages("trip", ["to be forgotten"])
    await storage.purge()
    assert not in_memory()
