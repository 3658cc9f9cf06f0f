"""The example about Strands: the diary reaches the model, the agent's messages stay complete, failures do no harm."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.types.exceptions import ContextWindowOverflowException

from diarist.storage import InMemoryStorage, SQLiteStorage
from diarist.testing.adapter_conformance import RecordingStorage
from tests.integrations.examples import check_output, check_pairs, load, memory_of, question

example = load("strands_memory")
pytestmark = pytest.mark.anyio


@tool
def weather(city: str) -> str:
    """Return the weather."""
    return f"sunny in {city}"


class Scripted(example.Polite):
    """Calls a tool first, then answers; raises ``error`` once, if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None

    async def stream(self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **options: Any) -> Any:
        if self.error is not None:
            error, self.error = self.error, None
            self.prompts.append((system_prompt or "", messages))
            raise error
        if "text" not in messages[-1]["content"][-1]:
            async for event in super().stream(messages, tool_specs, system_prompt, **options):
                yield event
            return
        self.prompts.append((system_prompt or "", messages))
        yield {"messageStart": {"role": "assistant"}}
        call = {"toolUseId": f"call-{len(self.prompts)}", "name": "weather"}
        yield {"contentBlockStart": {"start": {"toolUse": call}}}
        yield {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"city": "Rome"}'}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use"}}


def agent_of(model: Scripted) -> Agent:
    return Agent(
        model,
        tools=[weather],
        system_prompt="Be kind.",
        callback_handler=None,
        conversation_manager=NullConversationManager(),
        retry_strategy=None,
    )


def without_ids(messages: Any) -> list[Any]:
    return [(message["role"], message["content"]) for message in messages]


def pairs(messages: Any) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for block in (block for message in messages for block in message["content"]):
        if "toolUse" in block:
            found.append(("call", block["toolUse"]["toolUseId"]))
        if "toolResult" in block:
            found.append(("result", block["toolResult"]["toolUseId"]))
    return found


def test_the_example_prints_what_it_says(tmp_path: Path) -> None:
    check_output("strands_memory", tmp_path)


async def test_the_model_gets_the_diary_and_the_agent_keeps_every_message() -> None:
    plain, model = Scripted(), Scripted()
    bare, agent = agent_of(plain), agent_of(model)
    example.Diary(agent, memory_of(InMemoryStorage()), thread="pets", resource="ada")
    for number in range(12):
        await bare.invoke_async(question(number))
        before = copy.deepcopy(agent.messages)
        await agent.invoke_async(question(number))
        assert agent.messages[: len(before)] == before
    assert without_ids(agent.messages) == without_ids(bare.messages)
    system, sent = model.prompts[-1]
    assert system.startswith("Be kind.")
    assert "Tiger" in system
    assert len(sent) < len(plain.prompts[-1][1])
    for _, messages in model.prompts:
        assert messages[0]["role"] == "user"
        check_pairs(pairs(messages))


async def test_a_failing_memory_does_not_break_the_run() -> None:
    model, storage = Scripted(), RecordingStorage()
    agent = agent_of(model)
    example.Diary(agent, memory_of(storage), thread="pets", resource="ada")
    await agent.invoke_async(question(0))
    storage.away = True
    result = await agent.invoke_async(question(1))
    assert str(result).startswith("I see.")
    assert without_ids(model.prompts[-1][1]) == without_ids(agent.messages[:-1])
    storage.away = False
    await agent.invoke_async(question(2))
    assert len(agent.messages) == 12


async def test_a_failed_model_call_ends_the_turn_and_the_next_one_works() -> None:
    model, storage = Scripted(), RecordingStorage()
    agent = agent_of(model)
    memory = memory_of(storage)
    example.Diary(agent, memory, thread="pets", resource="ada")
    model.error = RuntimeError("the model is away")
    with pytest.raises(RuntimeError, match="the model is away"):
        await agent.invoke_async(question(0))
    assert "open" not in storage.outcomes.values()
    await agent.invoke_async(question(1))
    assert [m.text for m in await memory.messages.list(thread="pets") if m.role == "user"] == [question(0), question(1)]


async def test_a_prompt_that_is_too_long_is_made_shorter_and_sent_again() -> None:
    model = Scripted()
    agent = agent_of(model)
    example.Diary(agent, memory_of(InMemoryStorage()), thread="pets", resource="ada")
    for number in range(4):
        await agent.invoke_async(question(number))
    model.error = ContextWindowOverflowException("too long")
    await agent.invoke_async(question(4))
    (_, refused), (_, sent) = model.prompts[-3:-1]
    assert len(sent) < len(refused)


def test_the_blocking_call_works_too(tmp_path: Path) -> None:
    model = Scripted()
    agent = agent_of(model)
    example.Diary(agent, memory_of(SQLiteStorage(tmp_path / "memory.db")), thread="pets", resource="ada")
    for number in range(8):
        agent(question(number))
    assert "Tiger" in model.prompts[-1][0]
