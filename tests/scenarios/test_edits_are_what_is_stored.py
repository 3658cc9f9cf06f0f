"""What output processors make of a message is what is stored, in whichever hook they do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from diarist import Agent, DataChunk, Memory, Message, Processor, Tool
from diarist.exceptions import ModelConnectionError
from diarist.messages import DataPart, TextPart
from diarist.processors import ProcessInputStepArgs, ProcessOutputResultArgs, ProcessOutputStepArgs
from diarist.storage import Storage
from diarist.testing import ScriptedModel, ToolCall
from tests.scenarios.kit import Recount, answering, log_of, observational, play, raw_rows, told, ways, words

SECRET = "4711-0815"

MakeMemory = Callable[[Storage], Memory]
both = pytest.mark.parametrize("make", [lambda storage: Memory(storage=storage), observational], ids=["history", "om"])


def redacted(message: Message) -> Message:
    message.parts = [
        TextPart(text=part.text.replace(SECRET, "***")) if isinstance(part, TextPart) else part
        for part in message.parts
    ]
    return message


async def stored(memory: Memory) -> list[str]:
    return [row.text for row in await memory.messages.list(thread="t")]


class AtTheStep(Processor[Any]):
    def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> list[Message]:
        return [redacted(message) for message in args.messages]


class AtTheEnd(Processor[Any]):
    def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> list[Message]:
        return [redacted(message) for message in args.messages]


class InPlaceAtTheEnd(Processor[Any]):
    def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
        for message in args.messages:
            redacted(message)


class OfTheInput(Processor[Any]):
    def process_input_step(self, args: ProcessInputStepArgs[Any]) -> None:
        for message in args.messages:
            redacted(message)


@both
@pytest.mark.parametrize("redaction", [AtTheStep, AtTheEnd, InPlaceAtTheEnd])
async def test_redaction(storage: Storage, make: MakeMemory, redaction: type[Processor[Any]]) -> None:
    memory = make(storage)
    model = ScriptedModel([f"It is {SECRET}.", ToolCall("look", {})], f"Again: {SECRET}.", lambda _: "Fine.")
    agent = Agent(
        model=model,
        memory=memory,
        tools=[Tool(name="look", function=lambda: "seen")],
        output_processors=[redaction()],
    )
    await agent.generate("what is it?", thread="t")
    assert await stored(memory) == ["what is it?", "It is ***.", "Again: ***."]
    await agent.generate("thanks", thread="t")
    assert SECRET not in model.requests[-1].text


@both
async def test_redaction_of_the_input(storage: Storage, make: MakeMemory) -> None:
    memory = make(storage)
    model = answering()
    agent = Agent(model=model, memory=memory, input_processors=[OfTheInput()])
    await agent.generate(f"I am {SECRET}.", thread="t")
    assert SECRET not in model.requests[-1].text
    assert await stored(memory) == ["I am ***.", "Understood, noted."]


@both
async def test_a_message_that_is_removed_at_the_end_is_not_stored(storage: Storage, make: MakeMemory) -> None:
    class KeepLast(Processor[Any]):
        def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> list[Message]:
            return args.messages[-1:]

    memory = make(storage)
    model = ScriptedModel(["Wait.", ToolCall("look", {})], "Here.")
    agent = Agent(
        model=model, memory=memory, tools=[Tool(name="look", function=lambda: "seen")], output_processors=[KeepLast()]
    )
    await agent.generate("go", thread="t")
    assert await stored(memory) == ["go", "Here."]


@both
async def test_a_message_that_is_added_at_the_end_is_stored(storage: Storage, make: MakeMemory) -> None:
    class Sign(Processor[Any]):
        def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> list[Message]:
            return [*args.messages, Message.assistant("Yours, the assistant.")]

    memory = make(storage)
    agent = Agent(model=answering(), memory=memory, output_processors=[Sign()])
    await agent.generate("go", thread="t")
    assert await stored(memory) == ["go", "Understood, noted.", "Yours, the assistant."]


@both
async def test_metadata_and_data_parts_of_the_last_hook_are_stored(storage: Storage, make: MakeMemory) -> None:
    class Mark(Processor[Any]):
        def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
            args.messages[-1].metadata["rated"] = 5
            args.writer.custom(DataChunk("data-rating", {"stars": 5}))
            args.writer.custom(DataChunk("data-progress", {"done": 1}, transient=True))

    memory = make(storage)
    agent = Agent(model=answering(), memory=memory, output_processors=[Mark()])
    await play(agent, "go", thread="t")
    last = (await memory.messages.list(thread="t"))[-1]
    assert last.metadata == {"rated": 5}
    assert [part for part in last.parts if isinstance(part, DataPart)] == [
        DataPart(type="data-rating", data={"stars": 5})
    ]


@ways
async def test_an_edit_of_a_step_that_was_observed_already_undoes_its_note(
    storage: Storage, buffer_tokens: float
) -> None:
    """The diary must not know what the final guard took out."""
    memory = observational(storage, buffer_tokens=buffer_tokens)
    steps: list[Any] = [[f"{words('said', 30)} {SECRET}", ToolCall("look", {})] for _ in range(8)]
    model = ScriptedModel(*steps, "Done.", lambda _: "Yes.")
    agent = Agent(
        model=model,
        memory=memory,
        tools=[Tool(name="look", function=lambda: words("found", 20))],
        max_steps=20,
        output_processors=[AtTheEnd()],
    )
    await agent.generate("go", thread="t")
    assert await told(storage, "end"), "the loop must be long enough"
    await memory.settled()  # what is at work when the run ends must not come in late
    raw = await raw_rows(storage)
    assert sum("***" in row.text for row in raw) == 8
    agent = Agent(model=model, memory=memory, input_processors=[Recount(storage)])
    await agent.generate("and now?", thread="t")
    assert SECRET not in model.requests[-1].text
    await raw_rows(storage)


class OfEarlierSteps(Processor[Any]):
    """Redacts what a step said at the beginning of the next one, when memory has stored it already."""

    def process_input_step(self, args: ProcessInputStepArgs[Any]) -> None:
        for message in args.messages:
            redacted(message)


@both
@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
async def test_an_edit_after_the_step_was_stored(storage: Storage, make: MakeMemory, fails: bool) -> None:
    """It is stored too, also if the run breaks off later, and a long loop is observed as edited."""
    memory = make(storage)
    steps: list[Any] = [[f"{words('said', 30)} {SECRET}", ToolCall("look", {})] for _ in range(10)]
    model = ScriptedModel(*steps, ModelConnectionError("cut") if fails else "Done.")
    agent = Agent(
        model=model,
        memory=memory,
        tools=[Tool(name="look", function=lambda: words("found", 20))],
        max_steps=20,
        input_processors=[OfEarlierSteps()],
    )
    await play(agent, f"go {SECRET}", thread="t", expect=ModelConnectionError if fails else None)
    assert all(SECRET not in row.text for row in await memory.messages.list(thread="t"))
    assert all(SECRET not in request.text for request in model.requests)
    if make is observational:
        await memory.settled()
        assert await told(storage, "end")
        assert {data["error"] for data in await told(storage, "failed")} <= {"ConflictError"}
        assert SECRET not in str(asdict(await log_of(storage)))
        await raw_rows(storage)


@both
async def test_a_step_that_is_removed_within_the_run_is_gone_at_once(storage: Storage, make: MakeMemory) -> None:
    class OnlyTheNewest(Processor[Any]):
        def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> list[Message]:
            answers = [message for message in args.messages if message.role == "assistant"]
            return [message for message in args.messages if message not in answers[:-1]]

    memory = make(storage)
    model = ScriptedModel(*[[f"Step {n}.", ToolCall("look", {})] for n in range(4)], "Done.")
    agent = Agent(
        model=model,
        memory=memory,
        tools=[Tool(name="look", function=lambda: "seen")],
        output_processors=[OnlyTheNewest()],
    )
    await agent.generate("go", thread="t")
    assert "Step 3." in model.requests[-1].text
    assert "Step 1." not in model.requests[-1].text
    assert await stored(memory) == ["go", "Done."]


@ways
async def test_a_late_edit_takes_back_what_was_noted_within_the_run(storage: Storage, buffer_tokens: float) -> None:
    class Late(Processor[Any]):
        def process_input_step(self, args: ProcessInputStepArgs[Any]) -> None:
            if args.step_number == 8:
                for message in args.message_list.response:
                    redacted(message)

    notes = ScriptedModel(lambda request: f"- 🔴 they said {SECRET if SECRET in request.text else 'it'}")
    memory = observational(storage, observer_model=notes, buffer_tokens=buffer_tokens)
    steps: list[Any] = [[f"{words('said', 30)} {SECRET if n < 8 else ''}", ToolCall("look", {})] for n in range(12)]
    model = ScriptedModel(*steps, "Done.")
    agent = Agent(
        model=model,
        memory=memory,
        tools=[Tool(name="look", function=lambda: words("found", 20))],
        max_steps=20,
        input_processors=[Recount(storage), Late()],
    )
    await agent.generate("go", thread="t")
    assert f"they said {SECRET}" in model.requests[8].text
    assert all(SECRET not in request.text for request in model.requests[9:])
    await memory.settled()
    assert SECRET not in str(asdict(await memory.diary.get(thread="t")))
    await raw_rows(storage)
