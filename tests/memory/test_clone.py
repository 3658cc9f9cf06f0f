"""A clone is a thread of its own with the same words, and with the notes that were made from what it has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from diarist import Agent, Memory, Message
from diarist.exceptions import ConflictError, InputError, NotFoundError, StorageError
from diarist.memory.observational.log.coverage import Coverage, digest_rows
from diarist.memory.rows import seq_of
from diarist.storage import InMemoryStorage, Run, SQLiteStorage, Storage
from tests.memory.diary_kit import everything, keeping_diary, message, told, word
from tests.memory.stores import made_storage, storage
from tests.scenarios.kit import answering

__all__ = ["made_storage", "storage"]

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


async def texts(memory: Memory, thread: str) -> list[str]:
    return [row.text for row in await memory.messages.list(thread=thread)]


async def noted(memory: Memory, thread: str) -> set[str]:
    return set((await memory.diary.get(thread=thread)).text.split()) & {word(n) for n in range(30)}


async def check_covered_once(memory: Memory, thread: str) -> list[str]:
    """What every entry was made from is stored as it was read; returns the raw messages."""
    entries = (await memory.diary.get(thread=thread)).active
    for entry in entries:
        for source in entry.sources:
            if source.thread_id == thread:
                rows = await memory.storage.list_messages(
                    thread, after=source.first_seq - 1, before=source.last_seq + 1
                )
                assert rows
                assert digest_rows(rows) == source.digest
    raw: list[str] = []
    for row in await memory.storage.list_messages(thread):
        covering = sum(seq_of(row) in Coverage([entry], thread) for entry in entries)
        assert covering <= 1
        raw += [] if covering else [row.text]
    return raw


async def test_a_clone_names_its_source(storage: Storage) -> None:
    memory = Memory(storage=storage)
    await memory.messages.save("hello", thread="trip", resource="ada")
    first = await memory.threads.clone("trip", new_thread="first")
    second = await memory.threads.clone("first", new_thread="second")
    assert ((await memory.threads.get("trip")).cloned_from, first.cloned_from) == (None, "trip")
    assert (second.cloned_from, (await memory.threads.get("second")).cloned_from) == ("first", "first")
    assert [copy.id for copy in (await memory.threads.list(metadata={"cloned_from": "trip"})).items] == ["first"]
    anonymous = await memory.threads.clone("trip", metadata={"cloned_from": None})
    assert anonymous.cloned_from is None


async def test_a_clone_says_the_same_under_other_ids(storage: Storage) -> None:
    memory = Memory(storage=storage)
    await memory.threads.create("trip", resource="ada", title="Rome", metadata={"kind": "travel", "n": 1})
    await Agent(model=answering(), memory=memory).generate("hello", thread="trip", resource="ada")
    copy = await memory.threads.clone("trip", resource="ada", new_thread="copy", metadata={"n": 2})
    assert (copy.id, copy.resource_id, copy.title, copy.metadata) == (
        "copy",
        "ada",
        "Rome",
        {"kind": "travel", "n": 2, "cloned_from": "trip"},
    )
    old, new = [await memory.messages.list(thread=name) for name in ("trip", "copy")]
    assert [row.text for row in new] == [row.text for row in old]
    assert [row.created_at for row in new] == [row.created_at for row in old]
    assert {row.id for row in old}.isdisjoint(row.id for row in new)
    await memory.threads.delete("trip")
    assert len(await memory.messages.list(thread="copy")) == 2


async def test_a_clone_has_the_diary_and_the_same_next_prompt(storage: Storage) -> None:
    memory = keeping_diary(storage)
    await told(memory, [1, 2, 3, 4, 5, 6])
    await memory.diary.reflect(thread="t", guidance="keep all")
    await told(memory, [7, 8])
    await memory.messages.save([message(9)], thread="t", resource="ada")
    copy = await memory.threads.clone("t")
    assert await check_covered_once(memory, copy.id) == [message(9).text]
    assert (await memory.diary.get(thread=copy.id)).text == (await memory.diary.get(thread="t")).text
    assert [log.text for log in await memory.diary.history(thread=copy.id)] == [
        log.text for log in await memory.diary.history(thread="t")
    ]
    model = answering()
    agent = Agent(model=model, memory=memory)
    for name in ("t", copy.id):
        await agent.generate("go on", thread=name, resource="ada")
    assert model.requests[0].prompt.text == model.requests[1].prompt.text
    await memory.settled()


async def test_sources_of_the_clone_are_its_own_messages(storage: Storage) -> None:
    memory = keeping_diary(storage)
    await told(memory, [1, 2, 3])
    copy = await memory.threads.clone("t")
    for entry in (await memory.diary.get(thread=copy.id)).entries:
        rows = (await memory.diary.sources(entry.id, thread=copy.id)).items
        assert {row.thread_id for row in rows} == {copy.id}
    await memory.forget(thread="t")
    assert await noted(memory, copy.id) == {word(1), word(2), word(3)}


async def test_forgetting_in_one_thread_leaves_the_other(storage: Storage) -> None:
    memory = keeping_diary(storage)
    await told(memory, [1, 2])
    await told(memory, [3, 4])
    copy = await memory.threads.clone("t")
    await memory.forget(message_ids=["m1"], thread="t")
    assert await noted(memory, copy.id) == {word(n) for n in (1, 2, 3, 4)}
    (first, *_) = await memory.messages.list(thread=copy.id)
    receipt = await memory.forget(message_ids=[first.id], thread=copy.id)
    assert receipt.message_ids == (first.id,)
    assert word(1) not in await everything(storage)


def dated(numbers: Sequence[int]) -> list[Message]:
    return [Message.user(word(n), id=f"m{n}", created_at=NOON + timedelta(hours=n)) for n in numbers]


async def test_some_messages_only(storage: Storage) -> None:
    memory = Memory(storage=storage)
    undated = Message.user("undated", id="m0", created_at=None)
    await memory.messages.save([undated, *dated(range(1, 7))], thread="t", resource="ada")

    async def copied(**selection: object) -> list[str]:
        copy = await memory.threads.clone("t", **selection)  # type: ignore[arg-type]
        return await texts(memory, copy.id)

    at = [NOON + timedelta(hours=n) for n in range(8)]
    assert await copied(limit=2) == [word(5), word(6)]
    assert await copied(limit=0) == []
    assert await copied(limit=100) == ["undated", *(word(n) for n in range(1, 7))]
    assert await copied(since=at[2], until=at[4]) == [word(2), word(3)]
    assert await copied(message_ids=["m4", "m0"]) == ["undated", word(4)]
    assert await copied(until=at[5], limit=1) == [word(4)]
    with pytest.raises(NotFoundError, match="no message 'm9'"):
        await copied(message_ids=["m1", "m9"])
    with pytest.raises(InputError, match="time zone"):
        await copied(since=datetime(2026, 1, 1))
    with pytest.raises(InputError, match="since needs a datetime with a time zone, not '2026'"):
        await copied(since="2026")
    with pytest.raises(InputError, match="limit"):
        await copied(limit=-1)


async def test_of_the_diary_comes_what_was_made_from_copied_messages(storage: Storage) -> None:
    memory = keeping_diary(storage)
    for some in ([1, 2], [3, 4], [5, 6]):
        await told(memory, some)
    copy = await memory.threads.clone("t", limit=3)
    assert await noted(memory, copy.id) == {word(5), word(6)}
    assert await check_covered_once(memory, copy.id) == [message(4).text]
    assert word(1) not in (await memory.diary.get(thread=copy.id)).text


async def test_a_reflection_gives_way_to_the_entries_that_fit(storage: Storage) -> None:
    memory = keeping_diary(storage)
    for some in ([1, 2], [3, 4]):
        await told(memory, some)
    await memory.diary.reflect(thread="t", guidance="keep all")
    copy = await memory.threads.clone("t", message_ids=["m3", "m4"])
    (entry,) = (await memory.diary.get(thread=copy.id)).active
    assert entry.kind == "observation"
    assert await noted(memory, copy.id) == {word(3), word(4)}
    assert await check_covered_once(memory, copy.id) == []
    past = await memory.diary.history(thread=copy.id)
    assert word(1) not in "".join(log.text for log in past)


async def test_notes_sent_with_messages_keep_only_their_date_in_a_part(storage: Storage) -> None:
    memory = keeping_diary(storage)
    await told(memory, [1, 2])
    await Agent(model=answering(), memory=memory).generate("go on", thread="t", resource="ada")
    await memory.settled()
    whole, part = [await memory.threads.clone("t", limit=limit) for limit in (None, 2)]
    (sent,) = [row.sent for row in await memory.messages.list(thread=whole.id) if row.sent]
    assert word(2) in sent.text
    (sent,) = [row.sent for row in await memory.messages.list(thread=part.id) if row.sent]
    assert word(2) not in sent.text


async def test_the_copies_are_raw_where_threads_share_a_diary(storage: Storage) -> None:
    memory = keeping_diary(storage, scope="resource")
    await told(memory, [1, 2, 3, 4])
    before = await memory.diary.get(thread="t")
    copy = await memory.threads.clone("t")
    assert await memory.diary.get(thread="t") == before
    assert await check_covered_once(memory, copy.id) == [message(number).text for number in (1, 2, 3, 4)]
    await memory.diary.observe(thread=copy.id)
    assert await check_covered_once(memory, copy.id) == []


async def test_an_id_that_is_taken_is_refused(storage: Storage) -> None:
    memory = Memory(storage=storage)
    await memory.messages.save([message(1)], thread="t", resource="ada")
    await memory.threads.create("copy", resource="bob")
    for name in ("t", "copy"):
        with pytest.raises(ConflictError, match="already"):
            await memory.threads.clone("t", new_thread=name)
    assert len((await memory.threads.list()).items) == 2


class Breaking(InMemoryStorage):
    """Takes so many messages, and no more."""

    left = 600

    async def append_messages(self, run: Run, messages: Sequence[Message], **more: object) -> list[int]:  # type: ignore[override]
        self.left -= len(messages)
        if self.left < 0:
            raise StorageError("the disk is full")
        return await super().append_messages(run, messages, **more)  # type: ignore[arg-type]


async def test_nothing_is_left_of_a_clone_that_failed() -> None:
    storage = Breaking()
    memory = Memory(storage=storage)
    storage.left = 10_000
    await memory.messages.save([message(n) for n in range(1, 700)], thread="t", resource="ada")
    before = await everything(storage)
    storage.left = 600
    with pytest.raises(StorageError, match="full"):
        await memory.threads.clone("t", new_thread="copy")
    assert await everything(storage) == before
    storage.left = 10_000
    assert len(await texts(memory, (await memory.threads.clone("t", new_thread="copy")).id)) == 699


# --- killed in the middle ----------------------------------------------------------------------------------------

KILLED = """
import asyncio, os, sys
from diarist import Memory
from diarist.storage import SQLiteStorage

class Killed(SQLiteStorage):
    async def append_messages(self, run, messages, **more):
        if sys.argv[2] == "rows" and len(messages) < 500:
            os._exit(9)
        return await super().append_messages(run, messages, **more)

    async def save_log(self, log, **more):
        saved = await super().save_log(log, **more)
        if sys.argv[2] == "log":
            os._exit(9)
        return saved

    async def finish_run(self, run, state, **messages):
        numbers = await super().finish_run(run, state, **messages)
        if sys.argv[2] == "end":
            os._exit(9)

asyncio.run(Memory(storage=Killed(sys.argv[1])).threads.clone("t", new_thread="copy"))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


async def filled(path: Path) -> None:
    async with SQLiteStorage(path) as storage:
        memory = keeping_diary(storage)
        await told(memory, range(1, 5))
        await memory.messages.save([message(n) for n in range(5, 700)], thread="t", resource="ada")


@pytest.mark.slow
@pytest.mark.parametrize("where", ["rows", "log"])
async def test_a_clone_of_a_killed_process_is_not_visible(path: Path, where: str) -> None:
    await filled(path)
    assert run_killed(KILLED, path, where) == 9
    async with SQLiteStorage(path) as storage:
        memory = keeping_diary(storage)
        assert [thread.id for thread in (await memory.threads.list()).items] == ["t"]
        assert await storage.list_messages("copy") == []
        with pytest.raises(NotFoundError):
            await memory.diary.get(thread="copy")
        assert len(await texts(memory, (await memory.threads.clone("t")).id)) == 699


@pytest.mark.slow
async def test_killed_at_its_very_end_it_is_whole(path: Path) -> None:
    await filled(path)
    assert run_killed(KILLED, path, "end") == 9
    async with SQLiteStorage(path) as storage:
        memory = keeping_diary(storage)
        model = answering()
        await Agent(model=model, memory=memory).generate("go on", thread="copy", resource="ada")
        await memory.settled()
        assert "noted" in model.requests[0].text
        assert message(1).text not in model.requests[0].text
        await check_covered_once(memory, "copy")


def run_killed(script: str, *arguments: object) -> int:
    return subprocess.run([sys.executable, "-c", script, *map(str, arguments)], check=False).returncode
