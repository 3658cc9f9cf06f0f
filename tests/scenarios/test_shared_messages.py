"""Turns of a process share the messages of a thread, but a change in place stays in the run that makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Memory, Message, Processor, ToolContext, tool
from diarist.messages import TextPart
from diarist.processors import ProcessInputStepArgs
from diarist.storage import SQLiteStorage
from diarist.testing import ScriptedModel, ToolCall


class Shouting(Processor[Any]):
    """Changes every message in place."""

    async def process_input_step(self, args: ProcessInputStepArgs[Any]) -> None:
        shout(args.message_list.all)


def shout(messages: list[Message]) -> None:
    for message in messages:
        for part in message.parts:
            if isinstance(part, TextPart):
                part.text = part.text.upper()


@tool
def look(context: ToolContext[Any]) -> str:
    """Look."""
    shout(context.run.messages.all)
    return "seen"


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(storage=SQLiteStorage(tmp_path / "memory.db"), observational_memory=True)


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel(lambda request: "fine")


async def test_a_processor_changes_its_own_run_only(memory: Memory, model: ScriptedModel) -> None:
    plain, shouting = (
        Agent(model=model, memory=memory),
        Agent(model=model, memory=memory, input_processors=[Shouting()]),
    )
    await plain.generate("hello", thread="trip")
    await shouting.generate("and now", thread="trip")
    assert "HELLO" in model.requests[-1].text
    await plain.generate("again", thread="trip")
    assert "hello" in model.requests[-1].text
    assert "HELLO" not in model.requests[-1].text


async def test_a_tool_changes_its_own_run_only(memory: Memory, model: ScriptedModel) -> None:
    plain = Agent(model=model, memory=memory)
    await plain.generate("hello", thread="trip")
    other = ScriptedModel(ToolCall("look"), "seen")
    await Agent(model=other, memory=memory, tools=[look]).generate("look around", thread="trip")
    assert "HELLO" in other.requests[-1].text
    await plain.generate("again", thread="trip")
    assert "hello" in model.requests[-1].text
    assert "HELLO" not in model.requests[-1].text


async def test_a_result_can_be_changed(memory: Memory, model: ScriptedModel) -> None:
    agent = Agent(model=model, memory=memory)
    await agent.generate("hello", thread="trip")
    result = await agent.generate("and now", thread="trip")
    shout(result.conversation)
    assert [message.text for message in result.conversation] == ["hello", "fine", "and now", "fine"]
    await agent.generate("again", thread="trip")
    assert "hello" in model.requests[-1].text
    assert "HELLO" not in model.requests[-1].text


async def test_a_prompt_that_repeats_is_the_same(memory: Memory, model: ScriptedModel) -> None:
    """Messages that were rendered for one turn are the same bytes in the next."""
    agent = Agent(model=model, memory=memory)
    for turn in range(4):
        await agent.generate(f"turn {turn}", thread="trip")
    for before, after in zip(model.requests, model.requests[1:], strict=False):
        assert after.prompt.messages[: len(before.prompt.messages)] == before.prompt.messages
