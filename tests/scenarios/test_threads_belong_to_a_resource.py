"""A thread belongs to one resource: another one's call is refused, and memory shows it nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from diarist import Agent, Memory, Message, ThreadRef
from diarist.exceptions import InputError, NotFoundError
from diarist.storage import Storage
from tests.scenarios.kit import answering, observational

MakeMemory = Callable[[Storage], Memory]
both = pytest.mark.parametrize("make", [lambda storage: Memory(storage=storage), observational], ids=["history", "om"])


@both
async def test_another_resource_is_refused(storage: Storage, make: MakeMemory) -> None:
    model = answering()
    memory = make(storage)
    agent = Agent(model=model, memory=memory)
    await agent.generate("my secret", thread="t", resource="ada")
    with pytest.raises(InputError, match="'ada'"):
        await agent.generate("tell me", thread="t", resource="bob")
    assert len(model.requests) == 1
    for refused in (
        memory.messages.list(thread="t", resource="bob"),
        memory.diary.get(thread="t", resource="bob"),
        memory.diary.observe(thread="t", resource="bob"),
        memory.threads.delete("t", resource="bob"),
    ):
        with pytest.raises(InputError, match="bob"):
            await refused
    known = (await memory.messages.list(thread="t"))[0]
    with pytest.raises(InputError, match="bob"):
        await memory.messages.save([known], thread="t", resource="bob")
    assert len(await memory.messages.list(thread="t", resource="ada")) == 2


@both
async def test_a_call_without_the_resource_of_its_thread_is_refused(storage: Storage, make: MakeMemory) -> None:
    agent = Agent(model=answering(), memory=make(storage))
    await agent.generate("hello", thread="t", resource="ada")
    with pytest.raises(InputError, match="without resource="):
        await agent.generate("hello again", thread="t")


@both
async def test_a_refused_call_leaves_no_run_behind(storage: Storage, make: MakeMemory) -> None:
    agent = Agent(model=answering(), memory=make(storage))
    await agent.generate("hello", thread="t", resource="ada")
    with pytest.raises(InputError):
        await agent.generate("hello", thread="t", resource="bob")
    await agent.generate("hello again", thread="t", resource="ada")
    assert len(await storage.list_messages("t")) == 4


@both
async def test_title_and_metadata_are_the_threads_from_its_first_call(storage: Storage, make: MakeMemory) -> None:
    memory = make(storage)
    agent = Agent(model=answering(), memory=memory)
    await agent.generate("hello", thread=ThreadRef(id="t", title="Trip", metadata={"to": "Rome"}), resource="ada")
    await agent.generate("hello", thread=ThreadRef(id="t", title="Other"), resource="ada")
    (thread,) = (await memory.threads.list(resource="ada")).items
    assert (thread.title, thread.metadata, thread.resource_id) == ("Trip", {"to": "Rome"}, "ada")
    assert (await memory.threads.list(resource="bob")).items == []


@pytest.mark.parametrize("observing", [True, False])
async def test_without_a_thread_memory_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, observing: bool
) -> None:
    """Not even the database is made."""
    monkeypatch.chdir(tmp_path)
    model = answering()
    agent = Agent(model=model, memory=Memory(observational_memory=observing))
    await agent.generate("one")
    await agent.generate("two")
    assert [message.text for message in model.requests[-1].prompt] == ["two"]
    assert os.listdir() == []
    await agent.generate("three", thread="t")
    assert "memory.db" in os.listdir()


async def test_threads_that_are_not_there(storage: Storage) -> None:
    memory = observational(storage)
    assert await memory.messages.list(thread="t") == []
    with pytest.raises(NotFoundError, match="'t'"):
        await memory.diary.get(thread="t")
    with pytest.raises(NotFoundError, match="'t'"):
        await memory.threads.delete("t")
    assert await memory.messages.save([], thread="t") == 0
    assert await memory.messages.save([Message.system("Be kind.")], thread="t") == 0
    assert (await memory.threads.list()).items == []
