"""The example about Agent Framework: the diary reaches the model, the session stays complete, failures do no harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agent_framework import Agent, ChatResponse, Content, Message

from diarist import Memory
from diarist.storage import InMemoryStorage
from diarist.testing.adapter_conformance import RecordingStorage
from tests.integrations.examples import check_output, check_pairs, load, memory_of, question

example = load("agent_framework_memory")
pytestmark = pytest.mark.anyio


def weather(city: str) -> str:
    """Return the weather."""
    return f"sunny in {city}"


class Scripted(example.Polite):
    """Calls a tool first, then answers; raises ``error`` once, if there is one."""

    error: Exception | None = None

    async def _inner_get_response(self, *, messages: Any, **rest: Any) -> ChatResponse:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if messages[-1].role != "user":
            return await super()._inner_get_response(messages=messages, **rest)
        self.prompts.append(list(messages))
        call = Content.from_function_call(f"call-{len(self.prompts)}", "weather", arguments='{"city": "Rome"}')
        return ChatResponse(messages=[Message("assistant", [call])])


def agent_of(client: Scripted, memory: Memory | None) -> Agent:
    middleware = [example.DiaryTurn(memory, resource="ada"), example.DiaryView()] if memory else []
    return Agent(client, "Be kind.", tools=[weather], middleware=middleware)


def outline(messages: Any) -> list[Any]:
    return [(m.role, [(c.type, c.text, c.call_id) for c in m.contents]) for m in messages]


def check(prompt: Any) -> None:
    kinds = {"function_call": "call", "function_result": "result"}
    check_pairs([(kinds[c.type], c.call_id) for m in prompt for c in m.contents if c.type in kinds])


def test_the_example_prints_what_it_says(tmp_path: Path) -> None:
    check_output("agent_framework_memory", tmp_path)


async def test_the_model_gets_the_diary_and_the_session_keeps_every_message() -> None:
    plain, client = Scripted(), Scripted()
    bare, agent = agent_of(plain, None), agent_of(client, memory_of(InMemoryStorage()))
    theirs, session = bare.create_session(), agent.create_session()
    for number in range(12):
        await bare.run(question(number), session=theirs)
        await agent.run(question(number), session=session)
    kept, complete = (s.state["in_memory"]["messages"] for s in (session, theirs))
    assert outline(kept) == outline(complete)
    assert "Tiger" in "".join(m.text for m in client.prompts[-1] if m.role == "system")
    assert len(client.prompts[-1]) < len(plain.prompts[-1])
    for prompt in client.prompts:
        check(prompt)


async def test_a_failing_memory_or_model_does_no_harm() -> None:
    client, storage = Scripted(), RecordingStorage()
    agent = agent_of(client, memory_of(storage))
    session = agent.create_session()
    storage.away = True
    assert (await agent.run(question(0), session=session)).text.startswith("I see.")
    storage.away = False
    client.error = RuntimeError("the model is away")
    with pytest.raises(Exception, match="the model is away"):
        await agent.run(question(1), session=session)
    assert "open" not in storage.outcomes.values()
    assert (await agent.run(question(2), session=session)).text.startswith("I see.")
