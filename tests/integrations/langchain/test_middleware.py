"""What is special to the LangChain adapter: interrupts, retries, threads, tools, streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ModelRetryMiddleware,
    dynamic_prompt,
)
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from diarist import Memory, ObservationalMemoryConfig, ObservationConfig
from diarist.chunks import DataChunk
from diarist.exceptions import ConfigError
from diarist.integrations.langchain import ObservationalMemoryMiddleware
from diarist.storage import InMemoryStorage
from diarist.testing import ToolCall
from diarist.testing.adapter_conformance import RecordingStorage, SentRequest, assert_whole
from tests.integrations.langchain.kit import FakeChat, Program, weather

both = pytest.mark.parametrize("entry", ["ainvoke", "invoke"])


def replies(*steps: Any) -> Callable[[SentRequest], Any]:
    left = list(steps)
    return lambda _: left.pop(0)


def call(name: str, call_id: str = "c1", **args: Any) -> list[ToolCall]:
    return [ToolCall(name, args, id=call_id)]


def memory_of(storage: InMemoryStorage | None = None, **options: Any) -> Memory:
    return Memory(
        storage=storage or InMemoryStorage(),
        observational_memory=ObservationalMemoryConfig(model="extractive", **options),
    )


async def lines(memory: Memory, thread: str = "trip") -> list[str]:
    """The stored messages, each with its role, its text and its calls."""
    return [
        " ".join([row.role, row.text, *map(str, row.tool_parts)]).strip()
        for row in await memory.messages.list(thread=thread)
    ]


async def ended(storage: RecordingStorage) -> None:
    """Wait until no run is open."""
    while True:
        await asyncio.sleep(0.01)
        if "open" not in storage.outcomes.values():
            return


@tool
def confirm(what: str) -> str:
    """Ask the user."""
    return f"said {interrupt(what)}"


# -- what is sent


async def test_only_the_request_changes() -> None:
    program = Program(replies("Hello.", call("weather", city="Rome"), "Sunny."), memory_of())
    await program.ask("I'm Ada.")
    messages = await program.run({"messages": [HumanMessage("How is Rome?")]})
    assert [message.type for message in messages] == ["human", "ai", "human", "ai", "tool", "ai"]
    assert [type(message.content) for message in messages] == [str] * 6  # no note of memory is in the state
    assert not any(isinstance(message, SystemMessage) for message in messages)


async def test_kept_messages_are_sent_as_the_same_objects() -> None:
    seen: list[Any] = []

    class Look(AgentMiddleware):
        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            seen.append((request.state["messages"], request.messages))
            return await handler(request)

    program = Program(replies("One.", call("weather", city="Rome"), "Two."), memory_of(), more=[Look()])
    await program.ask("First")
    await program.ask("Second")
    for state, sent in seen:
        assert len(sent) == len(state)
        assert all(one is other for one, other in zip(sent, state, strict=True) if not isinstance(one, HumanMessage))


async def test_messages_of_unknown_types_are_sent_and_named() -> None:
    events: list[DataChunk] = []
    program = Program(replies("Hello."), memory_of(), on_event=events.append)
    given = [ChatMessage("It rains.", role="narrator"), HumanMessage("Hi")]
    await program.run({"messages": given})
    assert [message.type for message in program.model.sent[0]] == ["system", "chat", "human"]
    assert [event.data for event in events if event.type == "data-om-unread"] == [{"types": ["chat"]}]


async def test_a_middleware_before_memory_may_add_a_message_as_a_dictionary() -> None:
    class Hint(AgentMiddleware):
        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            hint = {"role": "user", "content": "Be brief."}
            return await handler(request.override(messages=[*request.messages, hint]))

    memory, events = memory_of(), list[DataChunk]()
    model = FakeChat(script=replies("Hello."))
    middleware = [Hint(), ObservationalMemoryMiddleware(memory, thread="trip", on_event=events.append)]
    await create_agent(model, middleware=middleware).ainvoke({"messages": "Hi"})
    assert [event for event in events if event.type == "data-om-degraded"] == []
    assert [message.text.rpartition("</memory-note>")[2] for message in model.sent[0]] == ["Hi", "Be brief."]
    assert (await lines(memory))[0] == "user Hi"


async def test_events_are_in_the_custom_stream() -> None:
    program = Program(replies("Hello.", "Hello."), memory_of())
    given: Any = {"messages": "Hi"}
    config = program.config
    items = [item async for item in program.agent.astream(given, config, stream_mode="custom")]
    items += await asyncio.to_thread(lambda: list(program.agent.stream(given, config, stream_mode="custom")))
    assert [item["type"] for item in items] == ["data-om-status"] * 2


# -- interrupts


@both
async def test_an_interrupt_in_a_tool_ends_the_run_and_each_message_is_stored_once(entry: str) -> None:
    storage = RecordingStorage()
    memory = memory_of(storage)
    program = Program(replies(call("confirm", what="Book?"), "Booked."), memory, tools=[confirm])
    await program.run({"messages": "Book Rome"}, entry=entry)
    assert list(storage.outcomes.values()) == ["interrupted"]  # nothing holds the thread
    await program.run(Command(resume="yes"), entry=entry)
    assert list(storage.outcomes.values()) == ["interrupted", "committed"]
    assert await lines(memory) == [
        "user Book Rome",
        "assistant  confirm(what='Book?') -> 'said yes'",
        "assistant Booked.",
    ]
    assert_whole(program.requests[-1])


@both
async def test_a_pause_for_approval_does_not_hold_the_thread(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diarist.integrations.langchain.open_turn.IDLE", 0.02)
    storage = RecordingStorage()
    memory = memory_of(storage)
    approval: Any = HumanInTheLoopMiddleware(interrupt_on={"weather": True})
    program = Program(replies(call("weather", city="Rome"), "Sunny."), memory, more=[approval])
    await program.run({"messages": "How is Rome?"}, entry=entry)
    await ended(storage)
    assert list(storage.outcomes.values()) == ["interrupted"]
    await program.run(Command(resume={"decisions": [{"type": "approve"}]}), entry=entry)
    assert [line.partition(" ")[0] for line in await lines(memory)] == ["user", "assistant", "assistant"]
    assert list(storage.outcomes.values())[-1] == "committed"


@both
async def test_a_new_message_instead_of_an_answer_leaves_no_open_call_in_a_request(entry: str) -> None:
    memory = memory_of()
    program = Program(replies(call("confirm", what="Book?"), "Never mind."), memory, tools=[confirm])
    await program.run({"messages": "Book Rome"}, entry=entry)
    await program.run({"messages": "No, Oslo"}, entry=entry)
    assert_whole(program.requests[-1])
    assert (await lines(memory))[-2:] == ["user No, Oslo", "assistant Never mind."]


def test_a_pause_is_ended_with_the_event_loop_of_the_program() -> None:
    storage = RecordingStorage()
    approval: Any = HumanInTheLoopMiddleware(interrupt_on={"weather": True})
    program = Program(replies(call("weather", city="Rome"), "Sunny."), memory_of(storage), more=[approval])
    asyncio.run(program.run({"messages": "How is Rome?"}))
    assert list(storage.outcomes.values()) == ["interrupted"]
    asyncio.run(program.run(Command(resume={"decisions": [{"type": "approve"}]})))
    assert list(storage.outcomes.values()) == ["interrupted", "committed"]


# -- errors and retries


@both
async def test_a_run_that_failed_goes_on(entry: str) -> None:
    storage = RecordingStorage()
    memory = memory_of(storage)
    program = Program(replies(ZeroDivisionError(), "Hello."), memory)
    with pytest.raises(ZeroDivisionError):
        await program.run({"messages": "Hi"}, entry=entry)
    await program.run(None, entry=entry)
    assert list(storage.outcomes.values()) == ["interrupted", "committed"]
    assert await lines(memory) == ["user Hi", "assistant Hello."]


async def test_the_error_of_a_tool_ends_the_turn_with_the_next_one() -> None:
    @tool
    def broken() -> str:
        """Fail."""
        raise ZeroDivisionError

    storage = RecordingStorage()
    memory = memory_of(storage)
    program = Program(replies(call("broken"), "Hello."), memory, tools=[broken])
    with pytest.raises(ZeroDivisionError):
        await program.ask("Hi")
    await program.ask("Again")
    assert list(storage.outcomes.values()) == ["interrupted", "committed"]
    assert_whole(program.requests[-1])


async def test_a_stream_that_its_reader_leaves_ends_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diarist.integrations.langchain.open_turn.IDLE", 0.02)
    storage = RecordingStorage()
    program = Program(replies(call("weather", city="Rome"), "Sunny."), memory_of(storage))
    stream = program.agent.astream({"messages": "How is Rome?"}, program.config, stream_mode="updates")
    async for _ in stream:
        break
    await stream.aclose()
    await ended(storage)
    assert list(storage.outcomes.values()) == ["interrupted"]


@both
async def test_a_retry_inside_of_the_middleware_is_one_turn(entry: str) -> None:
    storage = RecordingStorage()
    memory = memory_of(storage)
    retry = ModelRetryMiddleware(retry_on=(ConnectionError,), initial_delay=0)
    program = Program(replies(ConnectionError(), "Hello."), memory, more=[retry])
    await program.run({"messages": "Hi"}, entry=entry)
    assert list(storage.outcomes.values()) == ["committed"]
    assert await lines(memory) == ["user Hi", "assistant Hello."]


async def test_an_answer_is_stored_also_after_a_long_pause_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diarist.integrations.langchain.open_turn.IDLE", 0.01)

    class Slow(AgentMiddleware):
        async def aafter_model(self, state: Any, runtime: Any) -> None:
            await asyncio.sleep(0.2)

    memory = memory_of()
    await Program(replies("Hello."), memory, more=[Slow()]).ask("Hi")
    assert await lines(memory) == ["user Hi", "assistant Hello."]


async def test_two_runs_of_a_thread_at_once_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diarist.memory.turn.LONGEST_FAILURE", 30)
    memory = memory_of()
    program = Program(lambda request: "Hello.", memory)
    await asyncio.gather(program.ask("One"), program.ask("Two"))
    await program.ask("Three")
    stored = await lines(memory)
    assert sorted(line for line in stored if line.startswith("user")) == ["user One", "user Three", "user Two"]
    assert stored[-2:] == ["user Three", "assistant Hello."]


async def test_a_guard_that_replaces_an_answer_is_believed() -> None:
    class Polite(AgentMiddleware):
        async def aafter_model(self, state: Any, runtime: Any) -> Any:
            return {"messages": [AIMessage("I can't say.", id=state["messages"][-1].id)]}

    memory = memory_of()
    await Program(replies("A secret."), memory, more=[Polite()]).ask("Hi")
    assert await lines(memory) == ["user Hi", "assistant I can't say."]


# -- threads


def bare(script: Any, middleware: Any, **options: Any) -> Any:
    return create_agent(FakeChat(script=script), [weather], middleware=[middleware], **options)


def test_without_a_thread_id_a_thread_must_be_given() -> None:
    agent = bare(replies("Hello."), ObservationalMemoryMiddleware(memory_of()))
    with pytest.raises(ConfigError, match="runs a thread_id"):
        agent.invoke({"messages": "Hi"})


async def test_without_a_checkpointer_the_whole_history_or_the_new_message_may_be_given() -> None:
    memory = memory_of()
    agent = bare(
        lambda request: f"Answer {len(request.messages)}.", ObservationalMemoryMiddleware(memory, thread="trip")
    )
    await agent.ainvoke({"messages": [{"role": "user", "content": "One"}]})
    history: Sequence[Any] = [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Answer 1."},
        {"role": "user", "content": "Two"},
    ]
    await agent.ainvoke({"messages": history})
    await asyncio.to_thread(agent.invoke, {"messages": [{"role": "user", "content": "Three"}]})
    assert await lines(memory) == [
        "user One",
        "assistant Answer 1.",
        "user Two",
        "assistant Answer 3.",
        "user Three",
        "assistant Answer 5.",
    ]


@dataclass
class User:
    name: str


async def test_thread_and_resource_may_be_functions_of_the_runtime() -> None:
    memory = memory_of()
    middleware = ObservationalMemoryMiddleware(
        memory, thread=lambda runtime: f"{runtime.context.name}-1", resource=lambda runtime: runtime.context.name
    )
    agent = bare(replies("Hello."), middleware, context_schema=User)
    await agent.ainvoke({"messages": "Hi"}, context=User("ada"))
    assert (await memory.threads.get("ada-1")).resource_id == "ada"


@pytest.mark.parametrize("thread_id", [UUID(int=7), 7])
async def test_a_thread_id_need_not_be_a_text(thread_id: Any) -> None:
    memory = memory_of()
    agent = bare(replies("Hello."), ObservationalMemoryMiddleware(memory), checkpointer=InMemorySaver())
    await agent.ainvoke({"messages": "Hi"}, {"configurable": {"thread_id": thread_id}})
    assert await lines(memory, str(thread_id)) == ["user Hi", "assistant Hello."]


async def test_the_diary_follows_a_prompt_that_an_earlier_middleware_sets() -> None:
    sent: list[list[str]] = []

    def answer(request: SentRequest) -> str:
        sent.append(request.system)
        return "Noted. " * 50

    @dynamic_prompt
    def prompt(request: Any) -> str:
        return f"Messages: {len(request.messages)}."

    memory = memory_of(observation=ObservationConfig(message_tokens=50))
    agent = create_agent(
        FakeChat(script=answer),
        middleware=[prompt, ObservationalMemoryMiddleware(memory, thread="trip")],
        checkpointer=InMemorySaver(),
    )
    for number in range(3):
        await agent.ainvoke({"messages": f"I like Rome {number}."}, {"configurable": {"thread_id": "trip"}})
    assert sent[0] == ["Messages: 1."]
    assert sent[2][0].startswith("Messages: 5.\n\n")
    assert "<observations>" in sent[2][0]


async def test_history_that_was_read_before_is_not_given_to_memory_again() -> None:
    given: list[int] = []

    class Counting(InMemoryStorage):
        async def existing_ids(self, thread_id: str, ids: Any, **options: Any) -> Any:
            given.append(len(list(ids)))
            return await super().existing_ids(thread_id, ids, **options)

    program = Program(lambda request: "Hello.", memory_of(Counting()))
    for number in range(5):
        await program.ask(f"Question {number}")
    assert given == [1] * 5
    assert [m.text for m in program.requests[-1].messages if m.role == "assistant"] == ["Hello."] * 4


@pytest.mark.parametrize("away", [False, True])
async def test_a_call_that_was_malformed_is_sent_with_its_result(away: bool) -> None:
    malformed: Any = {"type": "invalid_tool_call", "id": "c1", "name": "weather", "args": "{bad", "error": "no JSON"}
    storage = RecordingStorage()
    program = Program(replies(AIMessage("", invalid_tool_calls=[malformed]), "Sorry."), memory_of(storage))
    await program.run({"messages": "How is Rome?"})
    storage.away = away
    await program.run({"messages": "Hello?"})
    assert_whole(program.requests[-1])
    assert [message.role for message in program.requests[-1].messages] == ["user", "assistant", "tool", "user"]


async def test_without_memory_an_open_call_is_not_sent() -> None:
    storage = RecordingStorage()
    program = Program(replies("Hi.", call("confirm", what="Sure?"), "Fine."), memory_of(storage), tools=[confirm])
    await program.run({"messages": "Hello"})
    await program.run({"messages": "Go!"})
    storage.away = True
    await program.run({"messages": "Never mind."})
    assert [message.text for message in program.requests[-1].messages] == ["Hello", "Hi.", "Go!", "Never mind."]


# -- memory's tools


@both
async def test_memory_brings_its_tools_and_runs_them(entry: str) -> None:
    memory = Memory(
        storage=InMemoryStorage(),
        working_memory=True,
        observational_memory=ObservationalMemoryConfig(model="extractive", retrieval=True),
    )
    script = replies(
        [
            ToolCall("update_working_memory", {"memory": "Name: Ada"}, id="c1"),
            ToolCall("recall", {"mode": "search", "query": "Rome"}, id="c2"),
        ],
        "Hello Ada.",
    )
    program = Program(script, memory)
    messages = await program.run({"messages": "I'm Ada."}, entry=entry)
    assert set(program.requests[0].tools) == {"weather", "hotels", "trains", "update_working_memory", "recall"}
    results = [message for message in messages if isinstance(message, ToolMessage)]
    assert [result.name for result in results] == ["update_working_memory", "recall"]
    assert results[0].text == "Updated."
    assert "Ada" in await memory.working.get(resource="ada")


async def test_a_tool_of_memory_runs_after_a_pause() -> None:
    memory = memory_of(retrieval=True)
    approval: Any = HumanInTheLoopMiddleware(interrupt_on={"recall": True})
    program = Program(replies(call("recall", mode="search", query="Rome"), "Nothing."), memory, more=[approval])
    await program.run({"messages": "What of Rome?"})
    await program.run(Command(resume={"decisions": [{"type": "approve"}]}))
    assert [line.partition(" ")[0] for line in await lines(memory)] == ["user", "assistant", "assistant"]
    assert_whole(program.requests[-1])


@both
async def test_tools_of_memory_run_side_by_side_after_a_pause(entry: str) -> None:
    storage = RecordingStorage()
    memory = memory_of(storage, retrieval=True)
    approval: Any = HumanInTheLoopMiddleware(interrupt_on={"recall": True})
    both_calls = [ToolCall("recall", {"mode": "search", "query": query}, id=query) for query in ("Rome", "Oslo")]
    program = Program(replies(both_calls, "Nothing."), memory, more=[approval])
    await program.run({"messages": "What of Rome and Oslo?"}, entry=entry)
    messages = await program.run(Command(resume={"decisions": [{"type": "approve"}] * 2}), entry=entry)
    assert not any("no tool" in message.text for message in messages)
    assert list(storage.outcomes.values()) == ["interrupted", "committed"]
