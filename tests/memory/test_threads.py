"""Threads are made, found, changed and deleted by people, on every storage, and belong to one resource."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from diarist import Agent, Memory, Message
from diarist.exceptions import ConflictError, InputError, NotFoundError
from diarist.storage import InMemoryStorage, Storage
from tests.memory.stores import made_storage, storage
from tests.scenarios.kit import answering

__all__ = ["made_storage", "storage"]


@pytest.fixture
def memory(storage: Storage) -> Memory:
    return Memory(storage=storage)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def exported(memory: Memory) -> Callable[..., Awaitable[object]]:
    async def lines(**ids: Any) -> list[str]:
        return [line async for line in memory.threads.export_all(**ids)]

    return lines


async def test_a_thread_can_be_made_before_it_is_used(memory: Memory) -> None:
    made = await memory.threads.create("trip", resource="ada", title="Rome", metadata={"kind": "travel", "gone": None})
    assert (made.id, made.resource_id, made.title, made.metadata) == ("trip", "ada", "Rome", {"kind": "travel"})
    await Agent(model=answering(), memory=memory).generate("hello", thread="trip", resource="ada")
    assert (await memory.threads.get("trip", resource="ada")).title == "Rome"
    assert (await memory.messages.list(thread="trip"))[0].text == "hello"


async def test_without_an_id_it_gets_one_and_without_a_resource_it_is_its_own(memory: Memory) -> None:
    one, other = await memory.threads.create(), await memory.threads.create()
    assert one.id != other.id
    assert one.resource_id == f"@thread:{one.id}"


async def test_an_id_is_given_once(memory: Memory) -> None:
    await memory.threads.create("trip", resource="ada")
    with pytest.raises(ConflictError, match="'trip'"):
        await memory.threads.create("trip", resource="ada")


async def test_threads_are_found_by_resource_and_metadata_page_by_page(memory: Memory) -> None:
    for number in range(5):
        await memory.threads.create(f"t{number}", resource="ada", metadata={"kind": "travel", "n": number})
    await memory.threads.create("work", resource="ada", metadata={"kind": "work"})
    await memory.threads.create("other", resource="bob", metadata={"kind": "travel"})
    found: list[str] = []
    cursor = None
    while True:
        page = await memory.threads.list(resource="ada", metadata={"kind": "travel"}, limit=2, cursor=cursor)
        found += [thread.id for thread in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == ["t4", "t3", "t2", "t1", "t0"]
    assert [thread.id for thread in (await memory.threads.list(metadata={"n": 3})).items] == ["t3"]


async def test_title_and_metadata_change_by_themselves(memory: Memory) -> None:
    await memory.threads.create("trip", resource="ada", title="Rome", metadata={"a": 1, "b": 2})
    await memory.threads.update("trip", resource="ada", metadata={"a": None, "c": {"d": 3}})
    changed = await memory.threads.update("trip", title="Oslo")
    assert (changed.title, changed.metadata) == ("Oslo", {"b": 2, "c": {"d": 3}})
    assert await memory.threads.get("trip") == changed


async def test_a_thread_of_another_resource_is_refused_everywhere(memory: Memory) -> None:
    await memory.threads.create("trip", resource="ada")
    calls = [
        lambda: memory.threads.get("trip", resource="bob"),
        lambda: memory.threads.update("trip", resource="bob", title="mine"),
        lambda: memory.threads.delete("trip", resource="bob"),
        lambda: memory.threads.clone("trip", resource="bob"),
    ]
    for call in calls:
        with pytest.raises(InputError, match="does not belong to resource 'bob'"):
            await call()
    assert [thread.id for thread in (await memory.threads.list()).items] == ["trip"]


async def test_missing_ids_are_named(memory: Memory) -> None:
    calls = [memory.threads.get, memory.threads.update, memory.threads.delete, memory.threads.clone]
    for call in calls:
        with pytest.raises(NotFoundError, match="no thread 'nowhere'"):
            await call("nowhere")


async def test_deleting_removes_all_of_it(memory: Memory) -> None:
    await memory.messages.save([Message.user("hello")], thread="trip", resource="ada")
    await memory.threads.delete("trip", resource="ada")
    assert (await memory.threads.list()).items == []
    assert await memory.storage.list_messages("trip") == []


async def test_messages_are_read_page_by_page_in_both_directions(memory: Memory) -> None:
    await memory.messages.save([Message.user(str(n)) for n in range(1, 6)], thread="t", resource="ada")

    async def read(**where: int) -> list[str]:
        return [row.text for row in await memory.messages.list(thread="t", resource="ada", **where)]

    assert await read() == ["1", "2", "3", "4", "5"]
    assert [await read(limit=2), await read(limit=2, before=4), await read(limit=2, before=2)] == [
        ["4", "5"],
        ["2", "3"],
        ["1"],
    ]
    assert [await read(limit=2, after=0), await read(limit=2, after=2), await read(limit=2, after=4)] == [
        ["1", "2"],
        ["3", "4"],
        ["5"],
    ]
    assert await read(after=1, before=4) == ["2", "3"]
    with pytest.raises(InputError, match="limit"):
        await read(limit=-1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"title": 5}, "title .*must be a text, not 5"),
        ({"metadata": ["x"]}, "metadata must be a dictionary"),
        ({"metadata": {"tags": {"a"}}}, r"metadata\['tags'\] is not JSON"),
        ({"metadata": {5: "x"}}, "a key of metadata must be a text, not 5"),
    ],
)
async def test_what_cannot_be_kept_of_a_thread_is_refused_by_name(
    memory: Memory, options: dict[str, Any], words: str
) -> None:
    await memory.threads.create("trip")
    for call in (memory.threads.create(**options), memory.threads.update("trip", **options)):
        with pytest.raises(InputError, match=words):
            await call
    with pytest.raises(InputError, match=words):
        await memory.threads.clone("trip", **options)
    assert len((await memory.threads.list()).items) == 1


async def test_threads_are_found_by_texts_alone(memory: Memory) -> None:
    with pytest.raises(InputError, match="resource must be the id of a resource, a text, not 5"):
        await memory.threads.list(resource=5)  # pyright: ignore[reportArgumentType]


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("inf"), "inf is no finite number"),
        ({"deep": [float("nan")]}, "nan is no finite number"),
        ({1: 2}, "the key 1 is no text"),
        (object(), "object is no type of JSON"),
        (nested(900), "it is nested more than 100 deep"),
    ],
)
async def test_metadata_that_would_come_back_as_something_else_is_refused(value: Any, said: str) -> None:
    memory = Memory(storage=InMemoryStorage())
    refused = rf"metadata\['score'\] is not JSON \({said}\)"
    await memory.threads.create("there")
    with pytest.raises(InputError, match=refused):
        await memory.threads.create("t", metadata={"score": value})
    with pytest.raises(InputError, match=refused):
        await memory.threads.update("there", metadata={"score": value})
    with pytest.raises(InputError, match=refused):
        await memory.threads.list(metadata={"score": value})
    assert [thread.metadata for thread in (await memory.threads.list()).items] == [{}]


@pytest.mark.parametrize("value", [float("nan"), object(), {1: 2}])
async def test_metadata_of_messages_that_would_come_back_as_something_else_is_refused(value: Any) -> None:
    memory = Memory(storage=InMemoryStorage())
    agent = Agent(model=answering(), memory=memory)
    wrong = [Message.user("one"), Message.user("two", metadata={"score": value})]
    with pytest.raises(InputError, match=r"message 1: metadata\['score'\] is not JSON"):
        await memory.messages.save(wrong, thread="t")
    with pytest.raises(InputError, match=r"message 1: metadata\['score'\] is not JSON"):
        await agent.generate(wrong, thread="t")
    assert (await memory.threads.list()).items == []


async def test_an_empty_id_is_refused_by_the_name_of_its_argument() -> None:
    memory = Memory(storage=InMemoryStorage(), working_memory=True, observational_memory=True, embedder="wordllama")
    agent = Agent(model=answering(), memory=memory)
    await memory.messages.save("Hello", thread="t", resource="ada")
    calls: list[Callable[..., Awaitable[object]]] = [
        memory.threads.create,
        lambda **ids: memory.threads.get(**{"thread": "t", **ids}),
        lambda **ids: memory.messages.list(**{"thread": "t", **ids}),
        lambda **ids: memory.messages.save("Hi", **{"thread": "t", **ids}),
        lambda **ids: memory.messages.search("hello", **ids),
        lambda **ids: memory.recall("hello", **ids),
        lambda **ids: memory.working.update("Ada", **ids),
        lambda **ids: memory.diary.clear(**ids),
        lambda **ids: memory.forget(**ids),
        lambda **ids: memory.messages.embed(**ids),
        lambda **ids: memory.diary.get(**ids),
    ]
    for call in calls:
        for name in ("thread", "resource"):
            with pytest.raises(InputError, match=f"^{name} is empty"):
                await call(**{name: ""})
    for call in (memory.threads.list, lambda **ids: memory.threads.import_all([], **ids), exported(memory)):
        with pytest.raises(InputError, match=r"^resource is empty"):
            await call(resource="")
    with pytest.raises(InputError, match=r"^new_thread is empty"):
        await memory.threads.clone("t", new_thread="")
    with pytest.raises(InputError, match=r"^resource is empty"):
        await agent.generate("Hi", thread="t", resource="")
    assert len(await memory.messages.list(thread="t")) == 1
