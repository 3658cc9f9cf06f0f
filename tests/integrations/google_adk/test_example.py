"""The example about Google ADK: the diary reaches the model, the session stays complete, failures do no harm."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from diarist import Memory
from diarist.storage import InMemoryStorage
from diarist.testing.adapter_conformance import RecordingStorage
from tests.integrations.examples import check_output, check_pairs, load, memory_of, question

example = load("google_adk_memory")
pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::DeprecationWarning:google.*")]


def weather(city: str) -> dict[str, str]:
    """Return the weather."""
    return {"weather": f"sunny in {city}"}


class Scripted(BaseLlm):
    """Calls a tool twice at once, then answers; raises ``error`` or waits once, if there is one."""

    model: str = "scripted"
    requests: list[LlmRequest] = []  # noqa: RUF012 - pydantic copies it
    error: Exception | None = None
    waits: asyncio.Event | None = None

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> Any:
        self.requests.append(llm_request)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if self.waits is not None:
            self.waits.set()
            await asyncio.Event().wait()
        last = llm_request.contents[-1].parts or []
        if any(part.text for part in last):
            calls = [types.Part(function_call=types.FunctionCall(name="weather", args={"city": c})) for c in ("A", "B")]
            yield LlmResponse(content=types.Content(role="model", parts=calls))
            return
        if stream:
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="I ")]), partial=True)
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="I see. " * 10)]))


class Program:
    def __init__(self, memory: Memory | None) -> None:
        self.model = Scripted(requests=[])
        plugins = [example.DiaryPlugin(memory, agent="friend")] if memory else []
        agent = LlmAgent(name="friend", model=self.model, instruction="Be kind.", tools=[weather])
        self.runner = InMemoryRunner(app=App(name="pets", root_agent=agent, plugins=plugins))

    async def ask(self, text: str, streaming: StreamingMode = StreamingMode.NONE) -> str:
        whose = {"user_id": "ada", "session_id": "cats"}
        if await self.session() is None:
            await self.runner.session_service.create_session(app_name="pets", **whose)
        message = types.Content(role="user", parts=[types.Part(text=text)])
        config, answer = RunConfig(streaming_mode=streaming), ""
        async for event in self.runner.run_async(**whose, new_message=message, run_config=config):
            if event.is_final_response() and event.content and event.content.parts:
                answer = event.content.parts[0].text or ""
        return answer

    async def session(self) -> Any:
        return await self.runner.session_service.get_session(app_name="pets", user_id="ada", session_id="cats")

    async def history(self) -> list[Any]:
        return [without_ids(event.content) for event in (await self.session()).events]


def without_ids(content: Any) -> Any:
    return content.model_dump(
        exclude={"parts": {"__all__": {"function_call": {"id"}, "function_response": {"id"}}}}, exclude_none=True
    )


def check(request: LlmRequest) -> None:
    """Check that each function call is followed by its response; they have names and an order, but no ids."""
    calls, results, found = 0, 0, list[tuple[str, str]]()
    for part in (part for content in request.contents for part in content.parts or []):
        if part.function_call:
            found.append(("call", str(calls := calls + 1)))
        if part.function_response:
            found.append(("result", str(results := results + 1)))
    check_pairs(found)
    assert request.contents[0].role == "user"


def test_the_example_prints_what_it_says(tmp_path: Path) -> None:
    check_output("google_adk_memory", tmp_path)


@pytest.mark.parametrize("streaming", [StreamingMode.NONE, StreamingMode.SSE])
async def test_the_model_gets_the_diary_and_the_session_keeps_every_event(streaming: StreamingMode) -> None:
    memory = memory_of(InMemoryStorage())
    plain, program = Program(None), Program(memory)
    for number in range(12):
        await plain.ask(question(number), streaming)
        before = await program.history() if number else []
        await program.ask(question(number), streaming)
        assert (await program.history())[: len(before)] == before
    assert await program.history() == await plain.history()
    request = program.model.requests[-1]
    system = str(request.config.system_instruction)
    assert system.startswith("Be kind.")
    assert "Tiger" in system
    assert len(request.contents) < len(plain.model.requests[-1].contents)
    for sent in program.model.requests:
        check(sent)
    stored = await memory.messages.list(thread="pets/ada/cats")
    assert [m.text for m in stored if m.role == "user"] == [question(number) for number in range(12)]
    assert [m.text for m in stored if m.role == "assistant" and m.text] == ["I see. " * 10] * 12
    assert [part.state for m in stored for part in m.tool_parts] == ["result"] * 24


async def test_calls_of_earlier_turns_reach_the_model() -> None:
    program = Program(Memory(storage=InMemoryStorage()))
    for number in range(3):
        await program.ask(question(number))
    request = program.model.requests[-1]
    check(request)
    assert sum(bool(part.function_call) for content in request.contents for part in content.parts or []) == 6


async def test_a_failing_memory_does_not_break_the_run() -> None:
    storage = RecordingStorage()
    program = Program(memory_of(storage))
    for number in range(3):
        storage.away = number == 1
        assert (await program.ask(question(number))).startswith("I see.")
        if storage.away:
            assert [without_ids(c) for c in program.model.requests[-1].contents] == (await program.history())[:-1]
    assert len(await program.history()) == 12


async def test_a_failed_model_call_ends_the_turn_and_the_next_one_works() -> None:
    storage = RecordingStorage()
    memory = memory_of(storage)
    program = Program(memory)
    program.model.error = RuntimeError("the model is away")
    with pytest.raises(RuntimeError, match="the model is away"):
        await program.ask(question(0))
    assert list(storage.outcomes.values()) == ["discarded"]
    await program.ask(question(1))
    stored = await memory.messages.list(thread="pets/ada/cats")
    assert [m.text for m in stored if m.role == "user"] == [question(0), question(1)]


async def test_a_cancelled_run_is_closed_by_the_next_one() -> None:
    storage = RecordingStorage()
    memory = memory_of(storage)
    program = Program(memory)
    program.model.waits = asyncio.Event()
    task = asyncio.create_task(program.ask(question(0)))
    await program.model.waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list(storage.outcomes.values()) == ["open"]
    program.model.waits = None
    await program.ask(question(1))
    assert list(storage.outcomes.values()) == ["discarded", "committed"]
    stored = await memory.messages.list(thread="pets/ada/cats")
    assert [m.text for m in stored if m.role == "user"] == [question(0), question(1)]
