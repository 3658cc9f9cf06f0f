"""``EnsureFinalResponse``: the last step has no tools and answers."""

from __future__ import annotations

import pytest

from diarist import Agent, tool
from diarist.exceptions import ConfigError
from diarist.processors import EnsureFinalResponse
from diarist.testing import ScriptedModel, ToolCall


@tool
def look() -> str:
    """Look."""
    return "seen"


async def test_the_last_step_has_no_tools_and_a_system_message() -> None:
    model = ScriptedModel(ToolCall("look"), ToolCall("look"), lambda request: "no more" if not request.tools else "?")
    final = EnsureFinalResponse(3, text="Now answer.")
    agent = Agent(model=model, tools=[look], max_steps=3, instructions="Hi.", input_processors=[final])
    result = await agent.generate("?")
    assert (result.text, result.stopped_by) == ("no more", "answer")
    assert ["Now answer." in request.text for request in model.requests] == [False, False, True]
    assert [message.text for message in model.requests[2].prompt if message.role == "system"] == ["Hi.", "Now answer."]
    assert model.requests[2].tool_choice == "none"


async def test_a_single_step_is_the_last_step() -> None:
    model = ScriptedModel("ok")
    final = EnsureFinalResponse()
    await Agent(model=model, tools=[look], max_steps=1, input_processors=[final]).generate("?")
    assert "last step" in model.requests[0].text


async def test_a_call_with_fewer_steps_has_an_earlier_last_step() -> None:
    model = ScriptedModel(ToolCall("look"), lambda request: "no more" if not request.tools else ToolCall("look"))
    agent = Agent(model=model, tools=[look], max_steps=8, input_processors=[EnsureFinalResponse()])
    assert (await agent.generate("?", max_steps=2)).text == "no more"


async def test_an_answer_may_be_due_before_the_last_step() -> None:
    model = ScriptedModel(ToolCall("look"), lambda request: "no more" if not request.tools else ToolCall("look"))
    agent = Agent(model=model, tools=[look], max_steps=8, input_processors=[EnsureFinalResponse(2)])
    assert (await agent.generate("?")).text == "no more"


async def test_a_resumed_run_has_as_many_model_calls() -> None:
    pay = tool(name="pay", needs_approval=True)(lambda: "paid")
    model = ScriptedModel(ToolCall("pay"), ToolCall("look"), "done")
    agent = Agent(model=model, tools=[look, pay], max_steps=2, input_processors=[EnsureFinalResponse()])
    stopped = await agent.generate("?")
    await agent.resume({stopped.pending[0].call_id: True}, of=stopped)
    assert [bool(request.tools) for request in model.requests] == [True, True, False]


def test_wrong_options_are_named() -> None:
    with pytest.raises(ConfigError, match="EnsureFinalResponse: max_steps must be a whole number from 1 on, not 0"):
        EnsureFinalResponse(0)
    with pytest.raises(ConfigError, match="EnsureFinalResponse: text must not be empty"):
        EnsureFinalResponse(1, text="")
