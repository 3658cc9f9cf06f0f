"""A thread without a resource belongs to no named resource, also where both have the same name."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from diarist import Agent, Memory, Message, ObservationalMemoryConfig
from diarist.exceptions import InputError
from diarist.memory import SemanticRecallConfig
from diarist.storage import InMemoryStorage, ObservationLog, Storage, Thread
from diarist.testing import ScriptedModel, ToolCall
from tests.memory.semantic.kit import TopicEmbedder
from tests.scenarios.kit import words

SECRET = "Ada's cat is called Rome"


def working(storage: Storage) -> Memory:
    return Memory(storage=storage, working_memory=True)


def observing(storage: Storage, **options: Any) -> Memory:
    config = ObservationalMemoryConfig(model="extractive", scope="resource", **options)
    return Memory(storage=storage, observational_memory=config, working_memory=True)


async def call(
    memory: Memory, thread: Any, resource: Any = None, *, asks: str = "what do you know?", says: Any = ("ok",)
) -> list[str]:
    """One turn; returns the prompt of each model call as text."""
    model = ScriptedModel(*says)
    await Agent(model=model, memory=memory).generate(asks, thread=thread, resource=resource)
    await memory.settled()
    return [request.text for request in model.requests]


def notes_of(log: ObservationLog) -> str:
    return "\n".join(entry.text for entry in log.entries)


# --- nothing of a named resource is read or written -------------------------------------------------------------


async def test_it_does_not_read_or_write_her_working_memory(storage: Storage) -> None:
    memory = working(storage)
    await call(memory, "t1", "alice")
    await memory.working.update(SECRET, resource="alice")
    update = ToolCall("update_working_memory", {"memory": "Mallory was here"})
    first, _ = await call(memory, "alice", says=(update, "done"))
    assert SECRET not in first
    assert await memory.working.get(resource="alice") == SECRET
    assert await memory.working.get(thread="alice") == "Mallory was here"


async def test_it_does_not_share_her_diary(storage: Storage) -> None:
    memory = observing(storage)
    await call(memory, "t1", "alice", asks=SECRET)
    await memory.diary.observe(resource="alice")
    before = await memory.diary.get(resource="alice")
    assert SECRET in notes_of(before)
    (prompt,) = await call(memory, "alice", asks="Mallory lives in Oslo")
    assert SECRET not in prompt
    await memory.diary.observe(thread="alice")
    assert "Mallory" in notes_of(await memory.diary.get(thread="alice"))
    assert await memory.diary.get(resource="alice") == before
    assert await memory.diary.search("Mallory", resource="alice") == []


@pytest.mark.parametrize(
    "args",
    [
        {"mode": "threads"},
        {"mode": "search", "query": "Rome"},
        {"mode": "browse", "thread": "t1"},
    ],
)
async def test_the_tool_recall_does_not_reach_her_threads(storage: Storage, args: dict[str, Any]) -> None:
    memory = observing(storage, retrieval=True)
    await memory.messages.save([Message.user(SECRET)], thread="t1", resource="alice")
    prompts = await call(memory, "alice", says=(ToolCall("recall", args), "done"))
    assert SECRET not in prompts[-1]
    assert args.get("thread") == "t1" or "t1" not in prompts[-1]


async def test_semantic_recall_does_not_reach_her_threads(storage: Storage) -> None:
    memory = Memory(storage=storage, embedder=TopicEmbedder(), semantic_recall=SemanticRecallConfig(threshold=0.1))
    await memory.messages.save([Message.user(SECRET)], thread="t1", resource="alice")
    await memory.settled()
    model = ScriptedModel("ok")
    await Agent(model=model, memory=memory).generate("Where is Rome?", thread="alice")
    assert SECRET not in model.requests[-1].text
    await memory.settled()
    assert [hit.message.thread_id for hit in (await memory.recall("Rome", resource="alice")).items] == ["t1"]
    assert [hit.message.thread_id for hit in (await memory.recall("Rome", thread="alice")).items] == ["alice"]


async def test_it_is_not_listed_searched_or_forgotten_with_her(storage: Storage) -> None:
    memory = working(storage)
    await memory.messages.save([Message.user(SECRET)], thread="t1", resource="alice")
    await memory.messages.save([Message.user("Rome, said Mallory")], thread="alice")
    assert [thread.id for thread in (await memory.threads.list(resource="alice")).items] == ["t1"]
    assert len((await memory.threads.list()).items) == 2
    assert [hit.message.thread_id for hit in (await memory.messages.search("Rome", resource="alice")).items] == ["t1"]
    assert [hit.message.thread_id for hit in (await memory.messages.search("Rome", thread="alice")).items] == ["alice"]
    with pytest.raises(InputError, match="without a resource"):
        await memory.messages.list(thread="alice", resource="alice")
    receipt = await memory.forget(resource="alice")
    assert receipt.thread_ids == ("t1",)
    assert len(await memory.messages.list(thread="alice")) == 1


@pytest.mark.parametrize("made_by", ["generate", "create_thread", "save_messages"])
async def test_the_named_resource_is_refused_there(storage: Storage, made_by: str) -> None:
    memory = Memory(storage=storage)
    if made_by == "generate":
        await call(memory, "alice")
    elif made_by == "create_thread":
        await memory.threads.create("alice")
    else:
        await memory.messages.save("hello", thread="alice")
    for refused in (
        call(memory, "alice", "alice"),
        memory.messages.save("hello", thread="alice", resource="alice"),
        memory.threads.get("alice", resource="alice"),
    ):
        with pytest.raises(InputError, match="without a resource"):
            await refused
    assert len(await call(memory, "alice")) == 1


async def test_no_resource_can_be_given_its_name(storage: Storage) -> None:
    memory = working(storage)
    await call(memory, "alice")
    reserved = (await memory.threads.get("alice")).resource_id
    message = "leave resource= out"
    for refused in (
        call(memory, "t1", reserved),
        call(memory, "alice", reserved),
        call(memory, Thread(id="t1", resource_id=reserved)),
        memory.threads.create("t1", resource=reserved),
        memory.messages.save("hello", thread="t1", resource=reserved),
        memory.threads.list(resource=reserved),
        memory.messages.search("hello", resource=reserved),
        memory.forget(resource=reserved),
        memory.working.get(resource=reserved),
        memory.working.update("mine", resource=reserved),
        memory.threads.import_all([], resource=reserved),
    ):
        with pytest.raises(InputError, match=message):
            await refused
    with pytest.raises(InputError, match=message):
        _ = [line async for line in memory.threads.export_all(resource=reserved)]


async def test_a_thread_object_says_that_it_has_none(storage: Storage) -> None:
    memory = Memory(storage=storage)
    thread = await memory.threads.create()
    await call(memory, thread)
    assert len(await memory.messages.list(thread=thread.id)) == 2


async def test_a_read_only_memory_keeps_them_apart(storage: Storage) -> None:
    memory = working(storage)
    await memory.messages.save("hello", thread="t1", resource="alice")
    await memory.working.update(SECRET, resource="alice")
    await memory.threads.create("alice")
    await memory.working.update("of nobody", thread="alice")
    reader = Memory(storage=storage, working_memory=True, read_only=True)
    (prompt,) = await call(reader, "alice")
    assert SECRET not in prompt
    assert "of nobody" in prompt


# --- what is kept for it goes with it ---------------------------------------------------------------------------


async def test_a_deleted_thread_leaves_nothing_to_the_next_of_its_name(storage: Storage) -> None:
    memory = observing(storage)
    await call(memory, "alice", asks=words("secret", 50))
    await memory.diary.observe(thread="alice")
    await memory.working.update(SECRET, thread="alice")
    receipt = await memory.forget(thread="alice")
    assert (receipt.thread_ids, receipt.resource_ids) == (("alice",), ())
    (prompt,) = await call(memory, "alice")
    assert SECRET not in prompt
    assert "secret" not in prompt
    assert not (await memory.diary.get(thread="alice")).entries


async def test_a_copy_has_no_resource_either(storage: Storage) -> None:
    memory = working(storage)
    await call(memory, "alice")
    await memory.working.update("likes tea", thread="alice")
    copy = await memory.threads.clone("alice", new_thread="copy")
    assert copy.resource_id == (await Memory(storage=InMemoryStorage()).threads.create("copy")).resource_id
    assert await memory.working.get(thread="copy") == "likes tea"
    await memory.working.update("likes coffee", thread="copy")
    assert await memory.working.get(thread="alice") == "likes tea"
    assert len(await call(memory, "copy")) == 1


# --- files ------------------------------------------------------------------------------------------------------


async def lines_of(memory: Memory) -> list[str]:
    return [line async for line in memory.threads.export_all()]


async def test_it_comes_out_of_a_file_as_it_was(storage: Storage) -> None:
    memory = working(storage)
    await memory.messages.save([Message.user(SECRET)], thread="t1", resource="alice")
    await memory.messages.save("hello", thread="alice")
    await memory.working.update("likes tea", thread="alice")
    lines = await lines_of(memory)
    other = working(InMemoryStorage())
    await other.threads.import_all(lines)
    assert await lines_of(other) == lines
    assert await other.working.get(thread="alice") == "likes tea"
    assert [thread.id for thread in (await other.threads.list(resource="alice")).items] == ["t1"]


async def test_a_file_cannot_put_another_thread_beside_it(storage: Storage) -> None:
    memory = working(storage)
    await memory.messages.save("hello", thread="alice")
    lines = [orjson.loads(line) for line in await lines_of(memory)]
    lines[1]["id"] = "mallory"
    with pytest.raises(InputError, match=r"line 2: .*'@thread:alice'"):
        await memory.threads.import_all([orjson.dumps(line).decode() for line in lines])
