"""``memory.sync``: memory for scripts and notebooks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import assert_type

import pytest

from diarist import Agent, Memory, Message, ObservationalMemoryConfig, ObservationConfig
from diarist.exceptions import DiaristError, InputError, NotFoundError
from diarist.memory import Receipt
from diarist.storage import InMemoryStorage, SQLiteStorage
from diarist.storage.records import ObservationLog, Page, Thread
from diarist.testing import ScriptedModel
from tests.processes import run_python
from tests.scenarios.kit import observational, words


def observing(storage: InMemoryStorage | SQLiteStorage) -> Memory:
    observation = ObservationConfig(message_tokens=60)
    return Memory(
        storage=storage, observational_memory=ObservationalMemoryConfig(model="extractive", observation=observation)
    )


def test_a_script_reads_and_changes_everything(tmp_path: Path) -> None:
    memory = Memory(storage=SQLiteStorage(tmp_path / "memory.db"), working_memory=True)
    agent = Agent(model=ScriptedModel("Noted."), memory=memory)
    agent.generate_sync("I fly to Rome.", thread="trip", resource="ada")
    sync = memory.sync
    assert [message.text for message in sync.messages.list(thread="trip")] == ["I fly to Rome.", "Noted."]
    assert sync.threads.update("trip", title="Rome").title == "Rome"
    assert sync.working.update("Likes tea.", resource="ada") == "Likes tea."
    lines = list(sync.threads.export("trip"))
    assert sync.threads.delete("trip").thread_ids == ("trip",)
    assert sync.threads.import_all(lines).threads == 1
    assert [hit.message.text for hit in sync.messages.search("rome", resource="ada").items] == ["I fly to Rome."]
    assert sync.forget(resource="ada").resource_ids == ("ada",)
    sync.close()


def test_types_are_those_of_the_async_methods() -> None:
    sync = Memory(storage=InMemoryStorage()).sync
    assert_type(sync.threads.create("t", resource="ada"), Thread)
    assert_type(sync.threads.list(resource="ada", limit=3), Page[Thread])
    assert_type(sync.messages.list(thread="t"), list[Message])
    assert_type(sync.messages.save("hi", thread="t", resource="ada"), int)
    assert_type(sync.diary.get(thread="t"), ObservationLog)
    assert_type(sync.threads.export("t"), Iterator[str])
    assert_type(sync.forget(thread="t"), Receipt)
    with pytest.raises(TypeError, match="limits"):
        sync.threads.list(limits=3)  # type: ignore[call-arg]


def test_every_async_method_has_its_form_and_keeps_its_help() -> None:
    memory = Memory(storage=InMemoryStorage())
    for name in ("threads", "messages", "diary", "working"):
        methods = {
            method: found
            for method, found in inspect.getmembers(getattr(memory, name), inspect.ismethod)
            if not method.startswith("_")
        }
        assert methods
        for method, found in methods.items():
            form = getattr(getattr(memory.sync, name), method)
            assert form.__doc__ == found.__doc__
            assert inspect.signature(form) == inspect.signature(found)
    own = {method for method, _ in inspect.getmembers(memory, inspect.iscoroutinefunction) if method[0] != "_"}
    assert own - set(dir(memory.sync)) == {"run_worker"}


async def test_it_works_beside_a_running_loop_as_in_a_notebook() -> None:
    memory = observing(InMemoryStorage())
    agent = Agent(model=ScriptedModel(lambda request: "Noted. " * 20), memory=memory)
    for number in range(4):
        await agent.generate(f"My number {number} is {number}. " * 20, thread="t")
    await memory.settled()
    assert len(memory.sync.messages.list(thread="t")) == 8
    assert memory.sync.diary.observe(thread="t").text
    memory.sync.close()


async def test_waiting_for_work_of_the_own_loop_is_an_error_and_not_a_deadlock() -> None:
    memory = observing(InMemoryStorage())
    agent = Agent(model=ScriptedModel(lambda request: "Noted."), memory=memory)
    await agent.generate("My number is 7. " * 8, thread="t")
    with pytest.raises(DiaristError, match=r"await memory\.settled"):
        memory.sync.settled()
    with pytest.raises(DiaristError, match=r"await memory\.settled"):
        memory.sync.close()
    await memory.settled()
    memory.sync.settled()


async def test_a_call_does_not_wait_for_work_on_the_loop_that_it_blocks(caplog: pytest.LogCaptureFixture) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    async def note(_: object) -> str:
        began.set()
        await go.wait()
        return "- 🟡 the number is 7"

    memory = observational(InMemoryStorage(), observer_model=ScriptedModel(note), buffer_tokens=20, observe_timeout=1)
    agent = Agent(model=ScriptedModel(lambda request: words("noted", 40)), memory=memory)
    await agent.generate(words("asked", 40), thread="t")
    await began.wait()
    for _ in range(6):
        assert agent.generate_sync(words("more", 40), thread="t").text
    assert not [record for record in caplog.records if "failed" in record.message]
    with pytest.raises(DiaristError, match=r"await memory\.diary\.observe"):
        memory.sync.diary.observe(thread="t")
    assert memory.sync.diary.get(thread="t").entries == ()
    go.set()
    await memory.settled()
    assert (await memory.diary.observe(thread="t")).entries


def test_background_work_of_synchronous_runs_is_waited_for() -> None:
    memory = observing(InMemoryStorage())
    agent = Agent(model=ScriptedModel(lambda request: "Noted."), memory=memory)
    agent.generate_sync("My number is 7. " * 8, thread="t")
    memory.sync.settled()
    assert "7" in "".join(entry.text for entry in memory.sync.diary.get(thread="t").entries)


_ONE_QUESTION = """
import asyncio, sys, threading
from diarist import Agent, Memory, ObservationalMemoryConfig, ObservationConfig
from diarist.testing import ScriptedModel

noting = threading.Event()

async def note(request):
    noting.set()
    await asyncio.Event().wait()

Agent(model=ScriptedModel("Hello.")).generate_sync("Hi")  # before the database's module is imported
from diarist.storage import SQLiteStorage

config = ObservationalMemoryConfig(
    model=ScriptedModel(note), observation=ObservationConfig(message_tokens=400, buffer_tokens=50)
)
memory = Memory(storage=SQLiteStorage(sys.argv[1]), observational_memory=config)
print(Agent(model=ScriptedModel("Noted."), memory=memory).generate_sync("I live in Rome. " * 60, thread="t").text)
noting.wait()
"""


async def test_a_program_that_ends_while_it_takes_notes_leaves_them_to_the_next(tmp_path: Path) -> None:
    assert run_python(_ONE_QUESTION, tmp_path / "memory.db") == "Noted.\n"
    memory = observing(SQLiteStorage(tmp_path / "memory.db"))
    assert "Rome" in (await memory.diary.observe(thread="t")).text
    await memory.close()


def test_errors_are_those_of_the_async_methods() -> None:
    sync = Memory(storage=InMemoryStorage()).sync
    with pytest.raises(NotFoundError, match="no thread 'nowhere'"):
        sync.threads.get("nowhere")


def test_an_iteration_may_end_early() -> None:
    sync = Memory(storage=InMemoryStorage()).sync
    for number in range(3):
        sync.messages.save(f"message {number}", thread="t", resource="ada")
    for line in sync.threads.export("t"):
        assert line
        break
    assert len(list(sync.threads.export("t"))) > 3


async def test_a_call_from_the_shared_loop_is_an_error_and_not_a_deadlock() -> None:
    memory = Memory(storage=InMemoryStorage())

    async def hook() -> None:
        memory.sync.threads.list()

    from diarist.sync import run_sync

    with pytest.raises(DiaristError, match="use the async method"):
        await asyncio.to_thread(run_sync, hook())


async def test_a_new_thread_has_no_messages() -> None:
    memory = Memory(storage=InMemoryStorage())
    assert await memory.messages.list(thread="new") == []
    assert await memory.messages.list(thread="new", resource="ada", newest_first=True, limit=3) == []
    await memory.messages.save("hi", thread="new", resource="ada")
    with pytest.raises(InputError, match="does not belong to resource 'bob'"):
        await memory.messages.list(thread="new", resource="bob")
