"""``memory.messages.update``: a message says something else, and nothing that was made from its old words is left."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict
from operator import attrgetter
from typing import Any

import pytest

from diarist import Agent, Memory, Message, ObservationalMemoryConfig
from diarist.exceptions import InputError, NotFoundError, StorageError, ThreadBusyError
from diarist.messages import TextPart
from diarist.storage import InMemoryStorage, Storage
from diarist.storage.postgres import PostgresStorage
from diarist.testing import ScriptedModel
from diarist.vectors.postgres import PgVectorStore
from tests.memory.semantic.kit import TopicEmbedder
from tests.memory.stores import made_storage, storage

__all__ = ["made_storage", "storage"]

SAID = ["I decided to fly to Rome on 12 June 2026.", "I work on a compiler.", "I met Grace on 3 May 2026."]


def keeping(storage: Storage, scope: Any = "thread", **more: Any) -> Memory:
    """Its vectors are where the storage has them, or in the same PostgreSQL."""
    config = ObservationalMemoryConfig(model="extractive", scope=scope)
    vector = PgVectorStore(storage.url) if isinstance(storage, PostgresStorage) else None
    return Memory(storage=storage, observational_memory=config, embedder=TopicEmbedder(), vector=vector, **more)


async def keep(memory: Memory) -> list[Message]:
    rows = [Message.user(text, metadata={"n": n}) for n, text in enumerate(SAID)]
    await memory.messages.save(rows, thread="t", resource="ada")
    await memory.diary.observe(thread="t")
    await memory.settled()
    return await memory.messages.list(thread="t")


async def found(memory: Memory, verb: str, query: str) -> list[str]:
    near = {"threshold": 0.5} if verb == "recall" else {}
    page = await attrgetter(verb)(memory)(query, resource="ada", **near)
    return [hit.message.text for hit in page.items]


@pytest.mark.parametrize("scope", ["thread", "resource"])
async def test_everything_follows_the_new_words(storage: Storage, scope: str) -> None:
    memory = keeping(storage, scope)
    first, *others = await keep(memory)
    assert await found(memory, "messages.search", "rome") == [SAID[0]]
    assert "Rome" in str(asdict(await memory.diary.get(thread="t")))
    changed = await memory.messages.update(
        first.id, thread="t", resource="ada", text="I decided to plant roses on 12 June 2026."
    )
    await memory.settled()
    rows = await memory.messages.list(thread="t")
    assert rows == [changed, *others]
    assert (rows[0].id, rows[0].seq, rows[0].created_at) == (first.id, first.seq, first.created_at)
    assert await found(memory, "messages.search", "rome") == []
    assert await found(memory, "messages.search", "roses") == [rows[0].text]
    assert await found(memory, "recall", "italy") == []
    assert (await found(memory, "recall", "garden"))[0] == rows[0].text
    assert "Rome" not in str(asdict(await memory.diary.get(thread="t")))
    await memory.diary.observe(thread="t")
    notes = str(asdict(await memory.diary.get(thread="t")))
    assert "roses" in notes
    assert "Rome" not in notes


async def test_the_next_prompt_has_the_new_words(storage: Storage) -> None:
    memory = keeping(storage)
    first, *_ = await keep(memory)
    await memory.messages.update(first.id, thread="t", parts=[TextPart(text="I decided to"), TextPart(text=" stay.")])
    model = ScriptedModel("Fine.")
    await Agent(model=model, memory=memory).generate("And?", thread="t", resource="ada")
    assert "I decided to stay." in model.requests[-1].text
    assert "Rome" not in model.requests[-1].text


async def test_metadata_changes_by_itself(storage: Storage) -> None:
    memory = keeping(storage)
    first, *_ = await keep(memory)
    before = await memory.diary.get(thread="t")
    await memory.messages.update(first.id, thread="t", metadata={"n": None, "topic": "work"})
    await memory.settled()
    (row,) = await memory.messages.list(thread="t", metadata={"topic": "work"})
    assert (row.text, row.metadata) == (SAID[0], {"topic": "work"})
    assert await memory.diary.get(thread="t") == before
    page = await memory.recall("italy", resource="ada", metadata={"topic": "work"}, threshold=0.5)
    assert [hit.message.id for hit in page.items] == [first.id]


async def test_what_cannot_be_changed(storage: Storage) -> None:
    memory = keeping(storage, thread_wait=0)
    first, *_ = rows = await keep(memory)
    for options, words in (
        ({}, "nothing to change"),
        ({"text": "x", "parts": [TextPart(text="x")]}, "not both"),
        ({"text": ""}, "use forget"),
        ({"parts": []}, "use forget"),
        ({"text": "x", "resource": "grace"}, "'grace'"),
        ({"metadata": {"x": {1}}}, "is not JSON"),
    ):
        with pytest.raises(InputError, match=words):
            await memory.messages.update(first.id, thread="t", **options)  # pyright: ignore
    with pytest.raises(NotFoundError, match="'nowhere'"):
        await memory.messages.update(first.id, thread="nowhere", text="x")
    with pytest.raises(NotFoundError, match="no message 'm'"):
        await memory.messages.update("m", thread="t", text="x")
    run = await storage.begin_run("r", await memory.threads.get("t"))
    with pytest.raises(ThreadBusyError, match="thread_wait"):
        await memory.messages.update(first.id, thread="t", text="x")
    await storage.finish_run(run, "discarded")
    assert await memory.messages.list(thread="t") == rows
    assert "Rome" in str(asdict(await memory.diary.get(thread="t")))


class Failing(InMemoryStorage):
    """Every write from the n-th on fails, as if the process had ended, until ``left`` is None again."""

    left: int | None = None

    def _count(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise StorageError("the process has ended")

    async def save_log(self, *args: Any, **options: Any) -> Any:
        self._count()
        return await super().save_log(*args, **options)

    async def rewrite_messages(self, *args: Any, **options: Any) -> None:
        self._count()
        await super().rewrite_messages(*args, **options)

    async def finish_run(self, *args: Any, **options: Any) -> None:
        self._count()
        await super().finish_run(*args, **options)


async def test_after_any_failed_step_the_notes_agree_with_the_message() -> None:
    seen: set[bool] = set()
    for step in range(9):
        storage = Failing()
        memory = keeping(storage)
        first, *_ = await keep(memory)
        storage.left = step
        with suppress(StorageError):
            await memory.messages.update(first.id, thread="t", text="I decided to stay on 12 June 2026.")
        storage.left = None
        is_old = "Rome" in (await memory.messages.list(thread="t"))[0].text
        seen.add(is_old)
        if not is_old:
            assert "Rome" not in str(asdict(await memory.diary.get(thread="t")))
            await memory.settled()
            assert await found(memory, "recall", "italy") == []
    assert seen == {True, False}


async def test_notes_that_are_being_made_of_the_old_words_are_dropped() -> None:
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def observe(request: Any) -> str:
        reading.set()
        await go_on.wait()
        return f"<diary>\nDate: 2026-03-02\n- 🔴 {'Rome' if 'Rome' in request.text else 'stay'}\n</diary>"

    config = ObservationalMemoryConfig(model=ScriptedModel(observe, observe))
    memory = Memory(storage=InMemoryStorage(), observational_memory=config)
    await memory.messages.save([Message.user(SAID[0], id="m")], thread="t", resource="ada")
    observing = asyncio.ensure_future(memory.diary.observe(thread="t"))
    await reading.wait()
    await memory.messages.update("m", thread="t", text="I decided to stay.")
    go_on.set()
    await asyncio.gather(observing, return_exceptions=True)
    assert "Rome" not in str(asdict(await memory.diary.get(thread="t")))


class NotedLate(InMemoryStorage):
    """Just before a message changes, other work takes notes of its old words; then the diary cannot be saved."""

    others: Memory | None = None
    fails = False

    async def rewrite_messages(self, *args: Any, **options: Any) -> None:
        others, self.others = self.others, None
        if others is not None:
            await others.diary.observe(thread="t")
        await super().rewrite_messages(*args, **options)
        self.fails = others is not None

    async def save_log(self, *args: Any, **options: Any) -> Any:
        if self.fails:
            raise StorageError("the disk is full")
        return await super().save_log(*args, **options)


async def test_repeating_a_failed_change_removes_what_is_left_of_the_old_words() -> None:
    storage = NotedLate()
    memory = keeping(storage)
    first, *_ = await keep(memory)
    storage.others = keeping(storage)
    with pytest.raises(StorageError, match="disk is full"):
        await memory.messages.update(first.id, thread="t", text="I decided to stay.")
    storage.fails = False
    assert (await memory.messages.list(thread="t"))[0].text == "I decided to stay."
    await memory.messages.update(first.id, thread="t", text="I decided to stay.")
    assert "Rome" not in str(asdict(await memory.diary.get(thread="t")))


async def test_a_changed_message_does_not_count_as_use_of_its_thread(storage: Storage) -> None:
    memory = keeping(storage)
    first, *_ = await keep(memory)
    before = await memory.threads.get("t")
    await memory.messages.update(first.id, thread="t", text="I decided to stay.", metadata={"n": 9})
    assert await memory.threads.get("t") == before
