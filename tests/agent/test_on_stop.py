"""``on_stop="keep"``: what an answer said before the user stopped it stays in the conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Literal

import pytest

from diarist import Agent, AgentResult, CancelSignal, Memory, Message, Processor
from diarist.chunks import Chunk
from diarist.exceptions import ConfigError, ModelAPIError
from diarist.models.base import ModelRequest
from diarist.processors import (
    PIIDetector,
    ProcessInputArgs,
    ProcessOutputStepArgs,
    ProcessOutputStreamArgs,
    RegexFilter,
    SystemPromptScrubber,
)
from diarist.storage import InMemoryStorage
from diarist.testing import Reasoning, ScriptedModel, ToolCall

NOTE = "[The user stopped your answer here.]"


class Stopped(ScriptedModel):
    """A model that goes silent after the pieces of its first answer."""

    def __init__(self, *pieces: Any) -> None:
        super().__init__(list(pieces), lambda request: "later")
        self.silent = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        first = not self.requests
        async for chunk in super().stream(request):
            if first and chunk.type in ("text-end", "finish", "model-finish"):
                self.silent.set()
                await asyncio.Event().wait()
            yield chunk


async def stopped(agent: Agent, model: Stopped, on_stop: Literal["drop", "keep"] = "keep") -> AgentResult[Any]:
    """Run the agent until its model is silent, then leave the stream."""
    async with agent.stream("Tell me.", thread="t", on_stop=on_stop) as stream:
        reader = asyncio.create_task(anext(stream))
        await model.silent.wait()
        await reader
    return await stream.result()


@pytest.fixture
def memory() -> Memory:
    return Memory(storage=InMemoryStorage())


async def rows(memory: Memory) -> list[tuple[str, str, bool]]:
    return [(row.role, row.text, row.is_cut) for row in await memory.messages.list(thread="t")]


async def test_the_words_so_far_are_stored_and_marked(memory: Memory) -> None:
    model = Stopped("Once upon", " a time")
    agent = Agent(model=model, memory=memory)
    result = await stopped(agent, model)
    assert (result.stopped_by, result.text) == ("cancelled", "Once upon a time")
    assert [message.is_cut for message in result.messages] == [True]
    assert await rows(memory) == [("user", "Tell me.", False), ("assistant", "Once upon a time", True)]


async def test_the_next_prompt_says_that_the_answer_was_stopped(memory: Memory) -> None:
    model = Stopped("Once upon a time")
    agent = Agent(model=model, memory=memory)
    await stopped(agent, model)
    await agent.generate("Go on.", thread="t")
    said = [(message.role, message.text) for message in model.requests[-1].prompt]
    assert said == [("user", "Tell me."), ("assistant", "Once upon a time"), ("user", NOTE), ("user", "Go on.")]


async def test_by_default_nothing_is_kept(memory: Memory) -> None:
    model = Stopped("Once upon a time")
    result = await stopped(Agent(model=model, memory=memory), model, "drop")
    assert (result.text, result.messages) == ("", [])
    assert await rows(memory) == [("user", "Tell me.", False)]


async def test_a_signal_keeps_it_too_also_without_a_stream(memory: Memory) -> None:
    model, signal = Stopped("Once upon a time"), CancelSignal()
    agent = Agent(model=model, memory=memory, default_options={"on_stop": "keep"})
    run = asyncio.create_task(agent.generate("Tell me.", thread="t", cancel=signal))
    await model.silent.wait()
    signal.cancel()
    assert (await run).text == "Once upon a time"
    assert (await rows(memory))[1:] == [("assistant", "Once upon a time", True)]


async def test_complete_calls_get_the_result_of_cancelled_calls(memory: Memory) -> None:
    model = Silent()
    agent = Agent(model=model, tools=[look_around], memory=memory)
    async with agent.stream("Tell me.", thread="t", on_stop="keep") as stream:
        async for chunk in stream:
            if chunk.type == "tool-call":
                break
        await model.silent.wait()
    await agent.generate("Go on.", thread="t")
    prompt = model.requests[-1].prompt.messages
    assert [(message.role, message.text) for message in prompt] == [
        ("user", "Tell me."),
        ("assistant", "Let me see.look_around({})"),
        ("tool", "cancelled"),
        ("user", NOTE),
        ("user", "Go on."),
    ]


def look_around() -> str:
    """Look around."""
    return "a door"


class Silent(ScriptedModel):
    """A model that goes silent after a complete tool call."""

    def __init__(self) -> None:
        super().__init__(["Let me see.", ToolCall("look_around")], lambda request: "later")
        self.silent = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        first = not self.requests
        async for chunk in super().stream(request):
            yield chunk
            if first and chunk.type == "tool-call":
                self.silent.set()
                await asyncio.Event().wait()


async def test_finished_steps_stay_as_they_are(memory: Memory) -> None:
    silent = asyncio.Event()

    async def hang(request: ModelRequest) -> str:
        silent.set()
        await asyncio.Event().wait()
        return "never"

    signal = CancelSignal()
    agent = Agent(model=ScriptedModel(["First.", ToolCall("look_around")], hang), tools=[look_around], memory=memory)
    run = asyncio.create_task(agent.generate("Tell me.", thread="t", cancel=signal, on_stop="keep"))
    await silent.wait()
    signal.cancel()
    assert [step.text for step in (await run).steps] == ["First."]
    assert await rows(memory) == [("user", "Tell me.", False), ("assistant", "First.", False)]


async def test_reasoning_alone_is_not_kept(memory: Memory) -> None:
    model = Stopped(Reasoning("Hm."), " ", "\n")
    result = await stopped(Agent(model=model, memory=memory), model)
    assert result.messages == []
    assert await rows(memory) == [("user", "Tell me.", False)]


class Shout(Processor[Any]):
    def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
        if args.part.type == "text-delta":
            args.part.payload.text = args.part.payload.text.upper()
        return args.part


async def test_what_is_kept_is_what_the_stream_hooks_let_through(memory: Memory) -> None:
    model = Stopped("Once upon a time")
    await stopped(Agent(model=model, memory=memory, processors=[Shout()]), model)
    assert (await rows(memory))[1:] == [("assistant", "ONCE UPON A TIME", True)]


class Judge(Processor[Any]):
    def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> None: ...


class Holding(Processor[Any]):
    hold_output = True


class Guard(Processor[Any]):
    run_in_parallel = True

    async def process_input(self, args: ProcessInputArgs[Any]) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("processor", [Judge(), Holding(), Guard()], ids=["judge", "hold", "guard"])
async def test_words_that_nothing_has_checked_yet_are_not_kept(memory: Memory, processor: Processor[Any]) -> None:
    model = Stopped("Once upon a time")
    result = await stopped(Agent(model=model, memory=memory, processors=[processor]), model)
    assert (result.text, result.messages) == ("", [])
    assert await rows(memory) == [("user", "Tell me.", False)]


@pytest.mark.parametrize(
    "answer", [None, "Once", "Once upon a time"], ids=["no answer", "what it had read", "all of it"]
)
async def test_a_client_may_send_its_version_of_the_history(memory: Memory, answer: str | None) -> None:
    model = Stopped("Once upon a time")
    agent = Agent(model=ScriptedModel("Hello!"), memory=memory)
    await agent.generate("Hi", thread="t")
    agent = Agent(model=model, memory=memory)
    await stopped(agent, model)
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Tell me."},
        *([{"role": "assistant", "content": answer}] if answer else []),
        {"role": "user", "content": "Go on."},
    ]
    await agent.generate(history, thread="t")
    assert [text for _, text, _ in await rows(memory)] == [
        "Hi",
        "Hello!",
        "Tell me.",
        "Once upon a time",
        "Go on.",
        "later",
    ]


async def test_exports_and_clones_keep_the_mark(memory: Memory) -> None:
    model = Stopped("Once upon a time")
    await stopped(Agent(model=model, memory=memory), model)
    copy = await memory.threads.clone("t")
    assert [row.is_cut for row in await memory.messages.list(thread=copy.id)] == [False, True]
    other = Memory(storage=InMemoryStorage())
    await other.threads.import_all([line async for line in memory.threads.export("t")])
    assert [row.is_cut for row in await other.messages.list(thread="t")] == [False, True]


async def test_other_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="on_stop must be one of 'drop', 'keep', not 'save'"):
        await Agent(model=ScriptedModel("ok")).generate("hi", on_stop="save")  # type: ignore[arg-type]


def test_messages_of_callers_may_be_marked() -> None:
    assert not Message.assistant("whole").is_cut
    assert Message.from_dict(Message.assistant("half", metadata={"diarist_cut": True}).to_dict()).is_cut


REDACTORS = [
    PIIDetector(redaction_method="placeholder"),
    RegexFilter(),
    SystemPromptScrubber(secrets=["ada@example.com"], placeholder_text="[EMAIL]"),
]


@pytest.mark.parametrize("redactor", REDACTORS, ids=lambda redactor: redactor.id)
async def test_the_words_so_far_are_stored_redacted(memory: Memory, redactor: Processor[Any]) -> None:
    model = Stopped("Mail ada@example.com", " and ada@exam")
    agent = Agent(model=model, memory=memory, processors=[redactor], instructions="Be brief.")
    await stopped(agent, model)
    (_, answer) = await rows(memory)
    assert answer[1].startswith("Mail [EMAIL] and")
    assert "ada@" not in answer[1]


@pytest.mark.parametrize("redactor", REDACTORS, ids=lambda redactor: redactor.id)
@pytest.mark.parametrize("ending", ["cancel", "error"])
async def test_a_redactor_does_not_make_a_run_forget_its_tools(
    memory: Memory, redactor: Processor[Any], ending: str
) -> None:
    cancel = CancelSignal()

    def refund() -> str:
        """Refund."""
        return "refunded to ada@example.com"

    async def second(request: ModelRequest) -> Any:
        if ending == "error":
            return ModelAPIError("down", status=400)
        cancel.cancel()
        await asyncio.Event().wait()

    model = ScriptedModel(ToolCall("refund"), second)
    agent = Agent(model=model, tools=[refund], memory=memory, processors=[redactor])
    with suppress(ModelAPIError):
        await agent.generate("Refund.", thread="t", cancel=cancel)
    stored = await memory.messages.list(thread="t")
    assert [call.result for row in stored for call in row.tool_parts] == ["refunded to [EMAIL]"]


async def test_nothing_is_kept_if_another_processor_may_change_what_was_redacted(memory: Memory) -> None:
    class Names(Processor[Any]):
        def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> None:
            """Write the names again."""

    def look() -> str:
        """Look."""
        return "a door"

    model = ScriptedModel(ToolCall("look"), ModelAPIError("down", status=400))
    agent = Agent(model=model, tools=[look], memory=memory, processors=[RegexFilter(), Names()])
    with suppress(ModelAPIError):
        await agent.generate("Look.", thread="t")
    assert [row.role for row in await memory.messages.list(thread="t")] == ["user"]
