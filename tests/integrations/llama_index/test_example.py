"""The example about LlamaIndex: the diary reaches the model, the chat store stays complete, failures do no harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ToolCallBlock
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import ChatMessage
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.workflow import Context

from diarist.storage import InMemoryStorage
from diarist.testing.adapter_conformance import RecordingStorage
from tests.integrations.examples import check_output, check_pairs, load, memory_of, question

example = load("llama_index_memory")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),  # raised inside LlamaIndex
    pytest.mark.filterwarnings("ignore::workflows.context.state_store.UnserializableKeyWarning"),  # for any memory
]
THREAD = {"thread": "pets", "resource": "ada"}


def weather(city: str) -> str:
    """Return the weather."""
    return f"sunny in {city}"


class Scripted:
    """Calls a tool first, then answers; raises ``error`` once, if there is one."""

    def __init__(self) -> None:
        self.prompts: list[list[ChatMessage]] = []
        self.error: Exception | None = None
        self.llm = MockFunctionCallingLLM(response_generator=self.answer)

    def answer(self, messages: Any, **options: Any) -> ChatMessage:
        self.prompts.append(list(messages))
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if messages[-1].role == "user" and options.get("tools"):
            call = ToolCallBlock(
                tool_call_id=f"call-{len(self.prompts)}", tool_name="weather", tool_kwargs={"city": "Rome"}
            )
            return ChatMessage(role="assistant", blocks=[call])
        return ChatMessage(role="assistant", content="I see. " * 10)

    def agent(self) -> FunctionAgent:
        return FunctionAgent(llm=self.llm, tools=[weather], system_prompt="Be kind.", streaming=False)


def system_of(prompt: list[ChatMessage]) -> str:
    return "\n".join(message.content or "" for message in prompt if message.role == "system")


def pairs(messages: list[ChatMessage]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for message in messages:
        found += [("call", block.tool_call_id or "") for block in message.blocks if isinstance(block, ToolCallBlock)]
        if message.role == "tool":
            found.append(("result", message.additional_kwargs["tool_call_id"]))
    return found


def test_the_example_prints_what_it_says(tmp_path: Path) -> None:
    check_output("llama_index_memory", tmp_path)


@pytest.mark.parametrize("one_context", [True, False])
async def test_the_model_gets_the_diary_and_the_chat_store_keeps_every_message(one_context: bool) -> None:
    plain, model = Scripted(), Scripted()
    bare, agent = plain.agent(), model.agent()
    complete, history = ChatMemoryBuffer.from_defaults(token_limit=100_000), example.DiaryMemory()
    memory, context = memory_of(InMemoryStorage()), Context(agent) if one_context else None
    for number in range(12):
        await bare.run(user_msg=question(number), memory=complete)
        before = list(history.get_all())
        async with history.turn(memory, **THREAD):
            await agent.run(user_msg=question(number), memory=history, ctx=context)
        assert history.get_all()[: len(before)] == before
    assert history.get_all() == complete.get_all()
    assert [(m.role, m.text) for m in await memory.messages.list(thread="pets")] == [
        (str(message.role.value), message.content or "") for message in complete.get_all() if message.role != "tool"
    ]
    assert system_of(model.prompts[-1]).startswith("Be kind.")
    assert "Tiger" in system_of(model.prompts[-1])
    assert len(model.prompts[-1]) < len(plain.prompts[-1])
    for prompt in model.prompts:
        assert next(message.role for message in prompt if message.role != "system") == "user"
        check_pairs(pairs(prompt))


async def test_a_failing_memory_does_not_break_the_run() -> None:
    model, storage, history = Scripted(), RecordingStorage(), example.DiaryMemory()
    agent, memory = model.agent(), memory_of(storage)
    for number in range(3):
        storage.away = number == 1
        async with history.turn(memory, **THREAD):
            result = await agent.run(user_msg=question(number), memory=history)
        assert str(result).startswith("I see.")
        if storage.away:
            assert model.prompts[-1][1:] == history.get_all()[:-1]
    assert len(history.get_all()) == 12


async def test_a_failed_model_call_ends_the_turn_and_the_next_one_works() -> None:
    model, storage, history = Scripted(), RecordingStorage(), example.DiaryMemory()
    agent, memory = model.agent(), memory_of(storage)
    model.error = RuntimeError("the model is away")
    with pytest.raises(RuntimeError, match="the model is away"):
        async with history.turn(memory, **THREAD):
            await agent.run(user_msg=question(0), memory=history)
    assert list(storage.outcomes.values()) == ["discarded"]
    async with history.turn(memory, **THREAD):
        await agent.run(user_msg=question(1), memory=history)
    assert [m.text for m in await memory.messages.list(thread="pets") if m.role == "user"] == [question(0), question(1)]


async def test_a_chat_engine_reads_the_diary_too() -> None:
    model, history, memory = Scripted(), example.DiaryMemory(), memory_of(InMemoryStorage())
    engine = SimpleChatEngine(llm=model.llm, memory=history, prefix_messages=[])
    for number in range(12):
        async with history.turn(memory, **THREAD):
            await engine.achat(question(number))
    assert "Tiger" in system_of(model.prompts[-1])
    assert len(model.prompts[-1]) < len(history.get_all()) == 24
