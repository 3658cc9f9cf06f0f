"""What is no Unicode, or larger than 64 bits, ends no turn: not the one it comes in, and none after it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from diarist import Agent, Memory, Message, ObservationalMemoryConfig, ObservationConfig, Tool
from diarist.exceptions import InputError
from diarist.processors import Processor, ProcessOutputResultArgs
from diarist.storage import Storage
from diarist.testing import ScriptedModel, ToolCall

OBSERVING = ObservationalMemoryConfig(model="extractive", observation=ObservationConfig(message_tokens=5))
NAME = b"caf\xe9.txt".decode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    "result", [{"files": [NAME]}, NAME, {"size": 2**70}], ids=["in a list", "a text", "an integer"]
)
@pytest.mark.parametrize("observes", [False, True])
async def test_results_of_tools(storage: Storage, result: Any, observes: bool) -> None:
    memory = Memory(storage=storage, observational_memory=OBSERVING if observes else False)
    model = ScriptedModel(ToolCall("ls", {}), "One file.", "Still here.")
    agent = Agent(model=model, memory=memory, tools=[Tool(name="ls", function=lambda: result)])
    assert (await agent.generate("List my files.", thread="t")).text == "One file."
    assert (await agent.generate("Still there?", thread="t")).text == "Still here."
    rows = await memory.messages.list(thread="t")
    assert [part.result for row in rows for part in row.tool_parts] == [result]


@pytest.mark.parametrize("number", [2**70, -(2**70)])
async def test_arguments_of_tools(storage: Storage, number: int) -> None:
    got: list[int] = []

    def look(id: int) -> None:
        got.append(id)

    model = ScriptedModel(ToolCall("look", f'{{"id": {number}}}'), "Found.")
    memory = Memory(storage=storage)
    await Agent(model=model, memory=memory, tools=[Tool(name="look", function=look)]).generate("Look.", thread="t")
    assert got == [number]
    rows = await memory.messages.list(thread="t")
    assert [part.args for row in rows for part in row.tool_parts] == [{"id": number}]


async def test_arguments_that_are_nested_too_deeply(storage: Storage) -> None:
    model = ScriptedModel(ToolCall("look", f'{{"id": {"[" * 1_000}{2**70}{"]" * 1_000}}}'), "Found.")
    agent = Agent(model=model, memory=Memory(storage=storage), tools=[Tool(name="look", function=lambda id: None)])
    assert (await agent.generate("Look.", thread="t")).text == "Found."


async def test_words_of_the_user(storage: Storage) -> None:
    memory = Memory(storage=storage)
    agent = Agent(model=ScriptedModel(lambda _: "Yes."), memory=memory)
    await agent.generate(f"What is in {NAME}?", thread="t")
    assert (await agent.generate("Well?", thread="t")).text == "Yes."
    assert (await memory.messages.list(thread="t"))[0].text == f"What is in {NAME}?"


async def test_half_a_character_does_not_stop_the_diary(storage: Storage) -> None:
    memory = Memory(storage=storage, observational_memory=OBSERVING)
    said = f"My sister Bea lives in Trieste, see {NAME}, and I was born in 1971."
    await memory.messages.save([Message.user(said), Message.assistant("Noted.")], thread="t")
    log = await memory.diary.observe(thread="t")
    assert "caf\ufffd.txt" in log.text
    titled = Memory(storage=storage, generate_title=True)
    await Agent(model=ScriptedModel("Yes.", f"About {NAME}"), memory=titled).generate("Well?", thread="u")
    await titled.settled()
    assert (await titled.threads.get("u")).title == "About caf\ufffd.txt"


@pytest.mark.parametrize("model", ["extractive", ScriptedModel()], ids=["extractive", "model"])
async def test_messages_without_words_do_not_stop_the_diary(storage: Storage, model: Any) -> None:
    memory = Memory(storage=storage, observational_memory=ObservationalMemoryConfig(model=model))
    await memory.messages.save([Message.user(" \n"), Message.assistant("")], thread="t")
    log = await memory.diary.observe(thread="t")
    assert (log.text.strip(), [entry.message_count for entry in log.entries]) == ("", [2])


@pytest.mark.parametrize("moment", [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, tzinfo=UTC)])
@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
async def test_the_first_and_the_last_day_of_the_calendar(storage: Storage, moment: datetime, zone: str) -> None:
    """The empty date of .NET is the first."""
    config = ObservationalMemoryConfig(
        model="extractive", timezone=zone, observation=ObservationConfig(message_tokens=5)
    )
    memory = Memory(storage=storage, observational_memory=config)
    agent = Agent(model=ScriptedModel(lambda _: "Yes."), memory=memory)
    await agent.generate(Message.user("I live in Rome.", created_at=moment), thread="t")
    assert "Rome" in (await memory.diary.observe(thread="t")).text
    assert (await agent.generate("Well?", thread="t")).text == "Yes."


async def test_a_run_that_cannot_be_stored_leaves_its_thread_free(storage: Storage) -> None:
    class Breaks(Processor[Any]):
        def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
            args.messages[-1].metadata["self"] = args.messages[-1].metadata

    memory = Memory(storage=storage, thread_wait=0)
    agent = Agent(model=ScriptedModel(lambda _: "Yes."), memory=memory)
    with pytest.raises(Exception, match=r"[Cc]ircular|[Rr]ecursion|nested"):
        await agent.generate("Well?", thread="t", output_processors=[Breaks()])
    assert (await agent.generate([Message.user("Again?")], thread="t")).text == "Yes."


@pytest.mark.parametrize(
    "moment",
    ["noon", datetime.min.replace(tzinfo=timezone(timedelta(hours=2))), datetime.max.replace(tzinfo=timezone.min)],
    ids=["no date", "before the year 1", "after the year 9999"],
)
async def test_a_date_that_none_can_read_back_is_refused(storage: Storage, moment: Any) -> None:
    memory = Memory(storage=storage, thread_wait=0)
    agent = Agent(model=ScriptedModel(lambda _: "Yes."), memory=memory)
    with pytest.raises(InputError, match=r"created_at .*(years 1 to 9999|must be datetime)"):
        await agent.generate(Message.user("When?", created_at=moment), thread="t")
    assert (await agent.generate("And now?", thread="t")).text == "Yes."
    assert [row.text for row in await memory.messages.list(thread="t")] == ["And now?", "Yes."]
