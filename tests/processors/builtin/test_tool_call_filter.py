"""``ToolCallFilter``: removes calls of earlier runs from the prompt, with their results."""

from __future__ import annotations

from typing import Any

import pytest

from diarist import Agent, Memory, Message, tool
from diarist.exceptions import ConfigError
from diarist.messages import Json, ReasoningPart, TextPart, ToolPart
from diarist.processors import ToolCallFilter
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel, ToolCall
from tests.processors.builtin.kit import Past, turn, with_tool


async def prompt(filter: ToolCallFilter, *past: Message) -> str:
    model = ScriptedModel("ok")
    await Agent(model=model, input_processors=[Past(*past), filter]).generate("now")
    return model.requests[0].text


PAST = [
    *turn(1),
    with_tool(1, "look", "seen 1"),
    *turn(2),
    with_tool(2, "read", "read 2"),
    with_tool(3, "look", "seen 3"),
]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, []),
        ({"exclude": ["look"]}, ["read 2"]),
        ({"exclude": ["read"]}, ["seen 1", "seen 3"]),
        ({"exclude": []}, ["seen 1", "read 2", "seen 3"]),
        ({"keep_recent": 1}, ["seen 3"]),
        ({"keep_recent": 2}, ["read 2", "seen 3"]),
        ({"keep_recent": 4}, ["seen 1", "read 2", "seen 3"]),
        ({"keep_recent": 9}, ["seen 1", "read 2", "seen 3"]),
        ({"exclude": ["look"], "keep_recent": 1}, ["read 2", "seen 3"]),
    ],
)
async def test_calls_are_removed_with_their_results(options: dict[str, Any], left: list[str]) -> None:
    text = await prompt(ToolCallFilter(**options), *PAST)
    assert [result for result in ("seen 1", "read 2", "seen 3") if result in text] == left
    assert text.count("look(") + text.count("read(") == len(left)
    assert "question 1" in text
    assert "answer 2" in text


async def test_text_beside_a_call_stays_and_reasoning_alone_is_removed() -> None:
    call: dict[str, Json] = {"name": "look", "args": {}, "state": "result", "result": "seen"}
    past = [
        Message.user("question"),
        Message(role="assistant", parts=[ReasoningPart(text="hm 1"), ToolPart(call_id="a", **call)]),
        Message(role="assistant", parts=[TextPart(text="I looked."), ToolPart(call_id="b", **call)]),
    ]
    text = await prompt(ToolCallFilter(), *past)
    assert "hm 1" not in text
    assert "I looked." in text


@tool
def look() -> str:
    """Look."""
    return "seen"


async def test_a_resumed_run_sees_the_call_that_was_approved() -> None:
    pay = tool(name="pay", needs_approval=True)(lambda: "paid 5 euros")
    model = ScriptedModel(ToolCall("pay"), "done", "next")
    agent = Agent(model=model, tools=[pay], memory=Memory(storage=InMemoryStorage()), processors=[ToolCallFilter()])
    stopped = await agent.generate("pay", thread="t")
    await agent.resume({stopped.pending[0].call_id: True}, thread="t")
    assert "paid 5 euros" in model.requests[-1].text
    await agent.generate("what now?", thread="t")
    assert "paid 5 euros" not in model.requests[-1].text


async def test_the_current_run_sees_its_own_calls_and_storage_keeps_them() -> None:
    storage = InMemoryStorage()
    model = ScriptedModel(ToolCall("look"), "first", ToolCall("look"), "second")
    agent = Agent(model=model, tools=[look], memory=Memory(storage=storage), input_processors=[ToolCallFilter()])
    await agent.generate("one", thread="t")
    await agent.generate("two", thread="t")
    assert [request.text.count("seen") for request in model.requests] == [0, 1, 0, 1]
    assert sum(len(message.tool_parts) for message in await storage.list_messages("t")) == 2


def test_wrong_options_are_named() -> None:
    with pytest.raises(ConfigError, match="ToolCallFilter: keep_recent must be a whole number from 0 on, not -1"):
        ToolCallFilter(keep_recent=-1)
    with pytest.raises(ConfigError, match="ToolCallFilter: exclude must be a list of texts"):
        ToolCallFilter("look")
