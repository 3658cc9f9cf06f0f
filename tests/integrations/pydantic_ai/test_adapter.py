"""Observational memory in an agent of Pydantic AI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import (
    Agent,
    AgentRunResult,
    CompactionPart,
    DeferredToolRequests,
    DeferredToolResults,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ModelRetry,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UsageLimits,
    UserPromptPart,
    capture_run_messages,
)
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelContextWindowExceededError, UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.result import FinalResult
from pydantic_graph import End

from diarist import Memory, ObservationalMemoryConfig, ObservationConfig
from diarist.chunks import DataChunk
from diarist.exceptions import StorageError
from diarist.integrations.pydantic_ai import MemoryEvent, ObservationalMemory
from diarist.storage import InMemoryStorage, SQLiteStorage
from diarist.testing import AdapterConformance
from diarist.testing.adapter_conformance import AdapterProgram, RecordingStorage, Script, SentRequest, assert_whole
from tests.integrations.pydantic_ai.program import ENTRY_POINTS, Program, sent
from tests.processes import run_python


class TestObservationalMemory(AdapterConformance):
    module = "diarist.integrations.pydantic_ai"
    package = "pydantic_ai"
    entry_points = ENTRY_POINTS
    server_state = ("openai_previous_response_id", "openai_conversation_id")
    refusal = UnexpectedModelBehavior

    def program(
        self,
        script: Script,
        *,
        memory: Memory | None,
        thread: str = "trip",
        resource: str = "ada",
        reject: str = "",
        retries: bool = False,
        server_state: str = "",
        **options: Any,
    ) -> AdapterProgram:
        return Program(
            script,
            memory=memory,
            thread=thread,
            resource=resource,
            reject=reject,
            retries=retries,
            server_state=server_state,
            **options,
        )

    def overflow(self) -> Exception:
        return ModelContextWindowExceededError("test", "too long")


def memory_of(**options: Any) -> Memory:
    return Memory(**{"storage": InMemoryStorage(), **options})


def answering(
    *steps: ModelResponse | str | Exception,
) -> tuple[FunctionModel, list[tuple[list[ModelMessage], AgentInfo]]]:
    script, asked = list(steps), list[tuple[list[ModelMessage], AgentInfo]]()

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append((messages, info))
        step = script.pop(0)
        if isinstance(step, Exception):
            raise step
        return ModelResponse([TextPart(step)]) if isinstance(step, str) else step

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        yield answer(messages, info).text or ""

    return FunctionModel(answer, stream_function=stream), asked


async def rows(memory: Memory, thread: str = "trip") -> list[str]:
    return [row.text for row in await memory.messages.list(thread=thread)]


async def test_kept_messages_are_the_given_objects() -> None:
    model, asked = answering("one", "two", "three")
    agent = Agent(model, capabilities=[ObservationalMemory(memory_of())])
    first = await agent.run("First")
    before = first.all_messages_json()
    second = await agent.run("Second", message_history=first.all_messages())
    third = await agent.run("Third", message_history=second.all_messages())
    assert all(any(one is other for other in third.all_messages()) for one in asked[-1][0])
    assert len(asked[-1][0]) == 5
    assert third.all_messages_json().startswith(before[:-1])


async def test_messages_without_ids_of_the_framework_are_stored_once() -> None:
    memory, history = memory_of(), list[ModelMessage]()
    model, asked = answering("two", "three", "four")
    agent = Agent(model, capabilities=[ObservationalMemory(memory)])
    history += [ModelRequest([UserPromptPart("First")]), ModelResponse([TextPart("one")])]
    for text in ("Second", "Third"):
        result = await agent.run(text, message_history=history, conversation_id="trip")
        history = result.all_messages()
    history = ModelMessagesTypeAdapter.validate_json(result.all_messages_json())
    await agent.run("Fourth", message_history=history)
    assert await rows(memory) == ["First", "one", "Second", "two", "Third", "three", "Fourth", "four"]
    assert len(asked[-1][0]) == 7


async def captured(agent: Agent[None, str], text: str, history: list[ModelMessage]) -> list[ModelMessage]:
    """The messages of a run that fails."""
    with capture_run_messages() as messages, pytest.raises(RuntimeError):
        await agent.run(text, message_history=history, conversation_id="trip")
    return list(messages)


async def test_questions_of_failed_runs_are_stored_once() -> None:
    """The framework merges requests that follow each other, and forgets their runs."""
    memory = memory_of()
    model, asked = answering(RuntimeError("down"), RuntimeError("down"), "three", "four")
    agent = Agent(model, capabilities=[ObservationalMemory(memory)])
    history = list[ModelMessage]()
    for text in ("First", "Second"):
        history = await captured(agent, text, history)
    for text in ("Third", "Fourth"):
        history = (await agent.run(text, message_history=history, conversation_id="trip")).all_messages()
        history = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(history))
    stored = await rows(memory)
    assert stored == ["First", "Second", "Third", "three", "Fourth", "four"]
    assert [message.text for message in sent(asked[-1][0])] == stored[:-1]


async def test_a_list_to_which_the_messages_of_each_run_are_added_is_stored_once() -> None:
    memory = memory_of()
    model, _ = answering(ModelResponse([ToolCallPart("broken", {}, "c1")]), "two", "three", "four", "five")
    agent = Agent(model, capabilities=[ObservationalMemory(memory)])

    @agent.tool_plain
    def broken() -> str:
        raise RuntimeError("broken")

    history = await captured(agent, "First", [])
    history += (await agent.run("Second", conversation_id="trip")).new_messages()
    for text in ("Third", "Fourth", "Fifth"):
        history += (await agent.run(text, message_history=list(history), conversation_id="trip")).new_messages()
    stored = [text for text in await rows(memory) if text]
    assert stored == ["First", "Second", "two", "Third", "three", "Fourth", "four", "Fifth", "five"]


async def test_a_history_that_the_program_makes_again_for_each_run_is_stored_once() -> None:
    memory, log = memory_of(), list[tuple[str, str]]()
    model, _ = answering("one", "two", "three")
    for text in ("First", "Second", "Third"):
        agent = Agent(model, capabilities=[ObservationalMemory(memory)])
        history = list[ModelMessage]()
        for question, answer in log:
            history += [ModelRequest([UserPromptPart(question)]), ModelResponse([TextPart(answer)])]
        result = await agent.run(text, message_history=history, conversation_id="trip")
        log.append((text, result.output))
    assert await rows(memory) == ["First", "one", "Second", "two", "Third", "three"]


async def test_a_question_sent_again_after_the_answer_before_it_is_stored_once() -> None:
    memory = memory_of()
    model, _ = answering("one", RuntimeError("down"), "two")
    agent = Agent(model, capabilities=[ObservationalMemory(memory)])
    history = (await agent.run("First", conversation_id="trip")).all_messages()
    await captured(agent, "Second", history)
    await agent.run("Second", message_history=history, conversation_id="trip")
    assert await rows(memory) == ["First", "one", "Second", "two"]


async def test_brought_messages_come_after_the_system_prompt() -> None:
    memory = memory_of()
    model, asked = answering("one", "two")
    agent = Agent(model, system_prompt="Be brief.", capabilities=[ObservationalMemory(memory, thread="trip")])
    await agent.run("First")
    result = await agent.run("Second")
    parts = [part for message in asked[-1][0] for part in message.parts]
    assert [getattr(part, "content", None) for part in parts] == ["Be brief.", "First", "one", "Second"]
    assert len(result.all_messages()) == 2


async def test_a_memory_note_is_inside_the_users_message_of_the_request_only() -> None:
    memory = memory_of(observational_memory=ObservationalMemoryConfig(model="extractive"))
    model, asked = answering("one")
    result = await Agent(model, capabilities=[ObservationalMemory(memory)]).run("First")
    [sent], [kept] = asked[0][0][0].parts, result.all_messages()[0].parts
    assert isinstance(sent, UserPromptPart)
    assert sent.content[0].startswith("<memory-note>")  # type: ignore[union-attr]
    assert sent.content[1] == "First"
    assert kept.content == "First"  # type: ignore[union-attr]


@pytest.mark.parametrize("loaded", [False, True], ids=["kept", "loaded from JSON"])
async def test_a_run_that_waits_for_an_approval_is_stored_once(loaded: bool) -> None:
    def history(result: AgentRunResult[Any]) -> list[ModelMessage]:
        whole = result.all_messages()
        return ModelMessagesTypeAdapter.validate_json(result.all_messages_json()) if loaded else whole

    memory = memory_of()
    model, asked = answering(ModelResponse([ToolCallPart("pay", {}, "c1")]), "Paid.", "Yes.")
    agent = Agent(model, output_type=[str, DeferredToolRequests], capabilities=[ObservationalMemory(memory)])

    @agent.tool_plain(requires_approval=True)
    def pay() -> str:
        return "done"

    first = await agent.run("Pay.", conversation_id="trip")
    assert isinstance(first.output, DeferredToolRequests)
    second = await agent.run(
        message_history=history(first), deferred_tool_results=DeferredToolResults(approvals={"c1": True})
    )
    await agent.run("Sure?", message_history=history(second))
    stored = await memory.messages.list(thread="trip")
    assert [row.role for row in stored] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert [(part.state, part.result) for part in stored[2].tool_parts] == [("result", "done")]
    for messages, _ in asked[1:]:
        assert_whole(SentRequest(system=[], messages=list(sent(messages))))
        assert any(isinstance(part, ToolReturnPart) for message in messages for part in message.parts)


async def test_an_answer_that_a_validator_sends_back_is_stored_once() -> None:
    memory = memory_of()
    model, _ = answering("bad", "good", "fine")
    agent = Agent(model, capabilities=[ObservationalMemory(memory)])

    @agent.output_validator
    def check(output: str) -> str:
        if output == "bad":
            raise ModelRetry("try again")
        return output

    result = await agent.run("Hi", conversation_id="trip")
    await agent.run("And?", message_history=result.all_messages())
    assert await rows(memory) == ["Hi", "bad", "good", "And?", "fine"]


async def test_a_run_without_a_new_message_has_the_diary() -> None:
    diary = ObservationalMemoryConfig(model="extractive", observation=ObservationConfig(message_tokens=200))
    model, asked = answering(*["cats like fish " * 30] * 5, "done")
    memory = memory_of(observational_memory=diary, await_background=True)
    agent = Agent(model, instructions="Be kind.", capabilities=[ObservationalMemory(memory)])
    history = list[ModelMessage]()
    for number in range(5):
        history = (await agent.run(f"Question {number}", message_history=history)).all_messages()
    await agent.run(message_history=history)
    messages, info = asked[-1]
    assert len(messages) < len(history)
    assert "Question 0" in (info.instructions or "")


async def test_a_limit_ends_the_turn_and_keeps_the_finished_steps() -> None:
    memory = memory_of()
    model, asked = answering(ModelResponse([ToolCallPart("pay", {}, "c1")]), "Paid.")
    agent = Agent(model, capabilities=[ObservationalMemory(memory)])

    @agent.tool_plain
    def pay() -> str:
        return "paid 20 €"

    with pytest.raises(UsageLimitExceeded):
        await agent.run("Pay.", conversation_id="trip", usage_limits=UsageLimits(request_limit=1))
    await agent.run("Did you pay?", conversation_id="trip")
    assert await rows(memory) == ["Pay.", "", "Did you pay?", "Paid."]
    assert "paid 20 €" in str(asked[-1][0])


async def test_a_run_that_another_capability_rescues_is_stored() -> None:
    class Rescue(AbstractCapability[Any]):
        async def on_node_run_error(self, ctx: Any, *, node: Any, error: Exception) -> End[FinalResult[Any]]:
            return End(FinalResult("I stop here."))

    memory = memory_of()
    model, _ = answering(ModelResponse([ToolCallPart("look", {}, "c1")]))
    agent = Agent(model, capabilities=[Rescue(), ObservationalMemory(memory)])

    @agent.tool_plain
    def look() -> str:
        return "sunny"

    result = await agent.run("Look.", conversation_id="trip", usage_limits=UsageLimits(request_limit=1))
    assert result.output == "I stop here."
    assert await rows(memory) == ["Look.", ""]


async def test_memory_tools_are_offered_and_run() -> None:
    memory = memory_of(
        working_memory=True, observational_memory=ObservationalMemoryConfig(model="extractive", retrieval=True)
    )
    model, asked = answering(
        ModelResponse([ToolCallPart("update_working_memory", {"memory": "Name: Ada"}, "c1")]),
        ModelResponse([ToolCallPart("recall", {"mode": "threads"}, "c2")]),
        "Done.",
    )
    agent = Agent(model, capabilities=[ObservationalMemory(memory, resource="ada", thread="trip")])
    result = await agent.run("I am Ada.")
    assert {tool.name for tool in asked[0][1].function_tools} == {"update_working_memory", "recall"}
    returns = [part for m in result.all_messages() for part in m.parts if isinstance(part, ToolReturnPart)]
    assert [part.outcome for part in returns] == ["success", "success"]
    assert returns[0].content == "Updated."
    assert "Ada" in await memory.working.get(resource="ada")


async def test_events_are_in_the_stream_of_the_run() -> None:
    memory = memory_of(observational_memory=ObservationalMemoryConfig(model="extractive"))
    model, _ = answering("one")
    agent = Agent(model, capabilities=[ObservationalMemory(memory)])
    async with agent.run_stream_events("First") as events:
        found = [event async for event in events if isinstance(event, MemoryEvent)]
    assert [event.type for event in found] == ["data-om-status"]
    assert found[0].values


async def test_types_that_memory_cannot_read_are_sent_and_named() -> None:
    named = list[DataChunk]()
    model, asked = answering("two")
    agent = Agent(model, capabilities=[ObservationalMemory(memory_of(), on_event=named.append)])
    compaction = CompactionPart("Before: much.")
    history = [ModelRequest([UserPromptPart("First")]), ModelResponse([compaction, TextPart("one")])]
    await agent.run("Second", message_history=history)
    assert any(part is compaction for message in asked[0][0] for part in message.parts)
    assert [event.data for event in named if event.type == "data-om-unread"] == [{"types": ["compaction"]}]


async def test_a_failure_can_end_the_run() -> None:
    storage = RecordingStorage()
    storage.away = True
    model, _ = answering("one")
    agent = Agent(model, capabilities=[ObservationalMemory(Memory(storage=storage), fail_open=False)])
    with pytest.raises(StorageError, match="away"):
        await agent.run("First")


async def test_without_an_id_each_run_is_a_thread_of_its_own() -> None:
    memory = memory_of()
    model, asked = answering("one", "two")
    agent = Agent(
        model, capabilities=[ObservationalMemory(memory, resource=lambda ctx: f"user-{ctx.deps}")], deps_type=str
    )
    for text in ("First", "Second"):
        await agent.run(text, deps="ada")
    assert len(asked[-1][0]) == 1
    assert len((await memory.threads.list(resource="user-ada")).items) == 2


_ONE_QUESTION = """
import asyncio, sys
from pydantic_ai import Agent, ModelResponse, TextPart
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models.function import FunctionModel
from diarist import Memory, ObservationalMemoryConfig, ObservationConfig
from diarist.integrations.pydantic_ai import ObservationalMemory
from diarist.storage import SQLiteStorage
from diarist.testing import ScriptedModel

path, entry = sys.argv[1:]
ended = asyncio.Event()

class Ending(AbstractCapability):
    async def wrap_run(self, ctx, *, handler):
        try:
            return await handler()
        finally:
            ended.set()

async def note(request):
    await ended.wait()
    return "<diary>\\nDate: 2026-03-02\\n- 🔴 They live in Rome.\\n</diary>"

def answer(messages, info):
    if entry == "fails":
        raise RuntimeError("down")
    return ModelResponse([TextPart("Noted.")])

async def stream(messages, info):
    yield "Noted."

config = ObservationalMemoryConfig(
    model=ScriptedModel(note), observation=ObservationConfig(message_tokens=2000, buffer_tokens=50)
)
memory = Memory(storage=SQLiteStorage(path), observational_memory=config)
agent = Agent(
    FunctionModel(answer, stream_function=stream), capabilities=[ObservationalMemory(memory, thread="trip"), Ending()]
)
question = "I live in Rome. " * 60
if entry == "run_stream_sync":
    with agent.run_stream_sync(question) as result:
        print(result.get_output())
else:
    try:
        print(agent.run_sync(question).output)
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.parametrize(("entry", "said"), [("run_sync", "Noted."), ("run_stream_sync", "Noted."), ("fails", "down")])
async def test_a_program_with_one_synchronous_run_takes_its_notes(tmp_path: Path, entry: str, said: str) -> None:
    if entry == "fails":  # after a question whose notes are due
        earlier = memory_of(storage=SQLiteStorage(tmp_path / "memory.db"))
        await earlier.messages.save("I live in Rome. " * 60, thread="trip")
        await earlier.close()
    assert run_python(_ONE_QUESTION, tmp_path / "memory.db", entry) == f"{said}\n"
    memory = memory_of(storage=SQLiteStorage(tmp_path / "memory.db"))
    [notes] = (await memory.diary.get(thread="trip")).entries
    assert "They live in Rome." in notes.text
    await memory.close()
