"""A thread gets a title from its first message, in the background, unless the user has set one."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from diarist import Agent, Memory, Message, ObservationalMemoryConfig, ObservationConfig, Processor, ThreadRef
from diarist.exceptions import ConfigError, StorageError
from diarist.memory import MemoryHooks, TitleConfig
from diarist.models.base import ModelRequest
from diarist.processors import ProcessInputArgs
from diarist.storage import InMemoryStorage, Storage, Thread
from diarist.testing import ScriptedModel
from tests.memory.stores import made_storage, storage
from tests.scenarios.kit import answering, failing

__all__ = ["made_storage", "storage"]


def naming(*titles: str) -> ScriptedModel:
    return ScriptedModel(*titles, name="namer")


async def title(memory: Memory, thread: str = "t") -> str:
    await memory.settled()
    return (await memory.threads.get(thread)).title


async def test_it_is_made_from_the_first_message(storage: Storage) -> None:
    namer = naming(' "Flight to  Rome." \nSure!', "never asked for")
    memory = Memory(storage=storage, generate_title=TitleConfig(model=namer, instructions="Name it."))
    agent = Agent(model=answering(), memory=memory)
    await agent.generate("I want to fly to Rome.", thread="t")
    assert await title(memory) == "Flight to Rome."
    await agent.generate("And on to Oslo.", thread="t")
    assert await title(memory) == "Flight to Rome."
    (request,) = namer.requests
    assert "I want to fly to Rome." in request.text
    assert "Name it." in request.text


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("<think>hm</think>\nGood title", "Good title"),
        ("<thinking>one\n\ntwo</thinking>Good title", "Good title"),
        ("What is it about?\n</think>\n\nGood title", "Good title"),
        ("<think>cut short before", ""),
        ("I think, therefore I am", "I think, therefore I am"),
    ],
)
async def test_what_a_model_thinks_is_no_title(answer: str, wanted: str) -> None:
    memory = Memory(storage=InMemoryStorage(), generate_title=TitleConfig(model=naming(answer)))
    await Agent(model=answering(), memory=memory).generate("hello", thread="t")
    assert await title(memory) == wanted


async def test_by_default_the_agents_own_model_is_asked(storage: Storage) -> None:
    model = ScriptedModel("Hello!", "Greetings")
    memory = Memory(storage=storage, generate_title=True)
    await Agent(model=model, memory=memory).generate("hello", thread="t")
    assert await title(memory) == "Greetings"


async def test_the_turn_does_not_wait() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    memory = Memory(storage=InMemoryStorage(), generate_title=TitleConfig(model=slow(asked, answer)))
    result = await Agent(model=answering(), memory=memory).generate("hello", thread="t")
    assert result.text
    await asked.wait()
    assert (await memory.threads.get("t")).title == ""
    answer.set()
    assert await title(memory) == "Rome"


async def test_a_failing_title_fails_no_turn_and_is_tried_again(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    memory = Memory(storage=storage, generate_title=TitleConfig(model=failing()))
    agent = Agent(model=answering(), memory=memory)
    with caplog.at_level(logging.WARNING, "diarist"):
        assert (await agent.generate("hello", thread="t")).text
        assert await title(memory) == ""
    assert "title" in caplog.text
    memory = Memory(storage=storage, generate_title=TitleConfig(model=naming("Greetings")))
    await Agent(model=answering(), memory=memory).generate("again", thread="t")
    assert await title(memory) == "Greetings"


async def test_a_title_set_by_hand_stays(storage: Storage) -> None:
    namer = naming("never")
    memory = Memory(storage=storage, generate_title=TitleConfig(model=namer))
    agent = Agent(model=answering(), memory=memory)
    await agent.generate("hello", thread=ThreadRef(id="t", title="Mine"))
    assert await title(memory) == "Mine"
    assert namer.requests == []


async def test_a_title_set_during_the_model_call_stays() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()
    memory = Memory(storage=InMemoryStorage(), generate_title=TitleConfig(model=slow(asked, answer)))
    await Agent(model=answering(), memory=memory).generate("hello", thread="t")
    await asked.wait()
    await memory.threads.update("t", title="Mine")
    answer.set()
    assert await title(memory) == "Mine"


async def test_a_blocked_run_gets_none(storage: Storage) -> None:
    class Block(Processor[None]):
        async def process_input(self, args: ProcessInputArgs[None]) -> None:
            args.abort("no")

    namer = naming("never")
    memory = Memory(storage=storage, generate_title=TitleConfig(model=namer))
    await Agent(model=answering(), memory=memory, input_processors=[Block()]).generate("hello", thread="t")
    await memory.settled()
    assert (await memory.threads.list()).items == []
    assert namer.requests == []


async def test_forgetting_the_message_empties_its_title(storage: Storage) -> None:
    memory = Memory(storage=storage, generate_title=TitleConfig(model=naming("Family abroad", "Weather")))
    agent = Agent(model=answering(), memory=memory)
    await agent.generate([Message.user("My sister lives in Trieste.", id="m1")], thread="t")
    assert await title(memory) == "Family abroad"
    receipt = await memory.forget(message_ids=["m1"], thread="t")
    assert receipt.title_ids == ("t",)
    assert await title(memory) == ""


async def test_a_message_forgotten_during_titling_gives_no_title() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()
    memory = Memory(storage=InMemoryStorage(), generate_title=TitleConfig(model=slow(asked, answer)))
    agent = Agent(model=answering(), memory=memory)
    await agent.generate([Message.user("secret", id="m1")], thread="t")
    await asked.wait()
    await memory.forget(message_ids=["m1"], thread="t")
    answer.set()
    assert await title(memory) == ""


async def test_a_message_changed_during_titling_gives_no_title() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()
    memory = Memory(storage=InMemoryStorage(), generate_title=TitleConfig(model=slow(asked, answer)))
    agent = Agent(model=answering(), memory=memory)
    await agent.generate([Message.user("secret", id="m1")], thread="t")
    await asked.wait()
    await memory.messages.update("m1", thread="t", text="hello")
    answer.set()
    assert await title(memory) == ""


class Pausing(InMemoryStorage):
    """Waits before it removes messages."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    async def delete_messages(self, thread_id: str, ids: Sequence[str]) -> int:
        self.reached.set()
        await self.go_on.wait()
        return await super().delete_messages(thread_id, ids)


async def test_a_title_that_comes_while_its_message_is_removed_goes_too() -> None:
    storage, asked, answer = Pausing(), asyncio.Event(), asyncio.Event()
    memory = Memory(storage=storage, generate_title=TitleConfig(model=slow(asked, answer)))
    agent = Agent(model=answering(), memory=memory)
    await agent.generate([Message.user("secret", id="m1")], thread="t")
    await asked.wait()
    forgetting = asyncio.create_task(memory.forget(message_ids=["m1"], thread="t"))
    await storage.reached.wait()
    answer.set()
    assert await title(memory) != ""
    storage.go_on.set()
    await forgetting
    assert await title(memory) == ""


async def test_models_that_come_and_go_are_not_kept() -> None:
    memory = Memory(storage=InMemoryStorage(), generate_title=True)
    models: list[weakref.ref[ScriptedModel]] = []
    for number in range(100):
        model = ScriptedModel("Hello!", "A title")
        models.append(weakref.ref(model))
        await Agent(model=model, memory=memory).generate("hello", thread=f"t{number}")
    await memory.settled()
    gc.collect()
    assert sum(model() is not None for model in models) < 70


# --- together with the Observer's titles -----------------------------------------------------------------------


def observing() -> ObservationalMemoryConfig:
    """An Observer that names the thread by what was said in it last."""

    def write(request: ModelRequest) -> str:
        name = "Rome and Oslo" if "zebra" in request.text else "Trip to Rome"
        return f"<diary>\nDate: 2026-03-02\n- 🟡 noted\n</diary>\n<thread-title>{name}</thread-title>"

    model = ScriptedModel(write, name="observer")
    return ObservationalMemoryConfig(observation=ObservationConfig(model=model, thread_title=True))


async def test_the_observers_title_takes_the_place_of_a_generated_one(storage: Storage) -> None:
    memory = Memory(
        storage=storage,
        generate_title=TitleConfig(model=naming("Greetings")),
        observational_memory=observing(),
    )
    agent = Agent(model=answering(), memory=memory)
    await agent.generate("hello", thread="t")
    assert await title(memory) == "Greetings"
    await memory.diary.observe(thread="t")
    assert await title(memory) == "Trip to Rome"
    await agent.generate("zebra", thread="t")
    await memory.settled()
    await memory.diary.observe(thread="t")
    assert await title(memory) == "Rome and Oslo"


async def test_the_title_of_notes_that_were_made_in_the_background_is_set_by_hand(storage: Storage) -> None:
    config = replace(observing(), observation=replace(observing().observation, buffer_tokens=5))
    memory = Memory(storage=storage, observational_memory=config, await_background=True)
    await Agent(model=answering(), memory=memory).generate("I want to fly to Rome.", thread="t")
    assert [entry.state for entry in (await memory.diary.get(thread="t")).entries] == ["buffered"]
    await memory.diary.observe(thread="t")
    assert await title(memory) == "Trip to Rome"


async def test_the_observers_title_goes_with_its_message_also_after_the_diary_was_cleared(storage: Storage) -> None:
    memory = Memory(storage=storage, observational_memory=observing())
    agent = Agent(model=answering(), memory=memory)
    await agent.generate([Message.user("to Rome", id="m1")], thread="t")
    await memory.diary.observe(thread="t")
    assert await title(memory) == "Trip to Rome"
    await memory.diary.clear(thread="t")
    assert await title(memory) == "Trip to Rome"
    receipt = await memory.forget(message_ids=["m1"], thread="t")
    assert await title(memory) == ""
    assert receipt.title_ids == ("t",)


async def test_a_title_that_later_notes_keep_goes_with_the_message_it_was_made_from(storage: Storage) -> None:
    memory = Memory(storage=storage, observational_memory=observing())
    for number, text in enumerate(["I want to fly to Rome.", "How is the weather?", "And the food?"]):
        await memory.messages.save([Message.user(text, id=f"m{number}")], thread="t")
        await memory.diary.observe(thread="t")
    await memory.forget(message_ids=["m1"], thread="t")
    assert await title(memory) == "Trip to Rome"
    receipt = await memory.forget(message_ids=["m0"], thread="t")
    assert (await title(memory), receipt.title_ids) == ("", ("t",))


async def test_a_nul_in_a_stored_title_breaks_no_turn(storage: Storage) -> None:
    hooks = MemoryHooks(after_observation=lambda observed: replace(observed, thread_title="Trip\0 to Rome"))
    memory = Memory(storage=storage, observational_memory=replace(observing(), hooks=hooks))
    agent = Agent(model=answering(), memory=memory)
    await agent.generate("hello", thread="t")
    await memory.diary.observe(thread="t")
    await agent.generate("zebra", thread="t")
    assert await title(memory) == "Trip to Rome"


class EndsAfterTitling(InMemoryStorage):
    """Forgets a message right before a title is stored, and fails from then on, as if the process had died."""

    async def update_thread(self, thread_id: str, **changes: Any) -> Thread:
        if not changes.get("title"):
            return await super().update_thread(thread_id, **changes)
        await Memory(storage=self, observational_memory=observing()).forget(message_ids=["m1"], thread=thread_id)
        await super().update_thread(thread_id, **changes)
        raise StorageError("the process died")


async def test_a_title_of_a_process_that_died_beside_a_removal_goes_when_the_thread_is_opened() -> None:
    storage = EndsAfterTitling()
    memory = Memory(storage=storage, observational_memory=observing())
    agent = Agent(model=answering(), memory=memory)
    await agent.generate([Message.user("to Rome", id="m1")], thread="t")
    with pytest.raises(StorageError):
        await memory.diary.observe(thread="t")
    assert (await memory.threads.get("t")).title == "Trip to Rome"
    await agent.generate("hello", thread="t")
    assert await title(memory) == ""


async def test_and_never_a_title_set_by_hand(storage: Storage) -> None:
    memory = Memory(storage=storage, observational_memory=observing())
    agent = Agent(model=answering(), memory=memory)
    await agent.generate("hello", thread="t")
    await memory.diary.observe(thread="t")
    assert await title(memory) == "Trip to Rome"
    await memory.threads.update("t", title="Mine")
    await agent.generate("zebra", thread="t")
    await memory.settled()
    await memory.diary.observe(thread="t")
    assert await title(memory) == "Mine"


def test_a_wrong_configuration_is_refused() -> None:
    with pytest.raises(ConfigError, match="generate_title"):
        Memory(storage=InMemoryStorage(), generate_title="openai/gpt-5-nano")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="nowhere"):
        Memory(storage=InMemoryStorage(), generate_title=TitleConfig(model="nowhere/none"))
    with pytest.raises(ConfigError, match="read_only"):
        Memory(storage=InMemoryStorage(), generate_title=True, read_only=True)


class _Slow(ScriptedModel):
    """Says that it was asked, and answers when it may."""

    def __init__(self, asked: asyncio.Event, answer: asyncio.Event) -> None:
        super().__init__("Rome", name="slow")
        self._asked, self._answer = asked, answer

    async def stream(self, request: ModelRequest):  # type: ignore[no-untyped-def,override]
        self._asked.set()
        await self._answer.wait()
        async for chunk in super().stream(request):
            yield chunk


def slow(asked: asyncio.Event, answer: asyncio.Event) -> ScriptedModel:
    return _Slow(asked, answer)


def test_options_of_titles_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"generate_title\.model: not a model: 5"):
        TitleConfig(model=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"generate_title\.instructions must be a text, not 5"):
        TitleConfig(instructions=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
