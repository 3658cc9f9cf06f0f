"""A function before each step, and a last step that answers."""

from __future__ import annotations

from typing import Any

import pytest

from diarist import Agent, tool
from diarist.exceptions import ConfigError
from diarist.processors import EnsureFinalResponse, PrepareStep, ProcessInputStepArgs
from diarist.testing import ScriptedModel, ToolCall


@tool
def look() -> str:
    """Look."""
    return "seen"


async def test_prepare_step_changes_a_step() -> None:
    first, second = ScriptedModel(ToolCall("look")), ScriptedModel("done")

    async def switch(args: ProcessInputStepArgs[Any]) -> Any:
        return {"model": second, "tool_choice": "none"} if args.step_number else None

    agent = Agent(model=first, tools=[look], input_processors=[PrepareStep(switch)])
    assert (await agent.generate("?")).text == "done"
    assert second.requests[0].tools == []


async def test_several_prepare_steps_stand_side_by_side() -> None:
    model = ScriptedModel("ok")
    quiet = PrepareStep(lambda args: {"tools": {}}, id="quiet")
    polite = PrepareStep(lambda args: {"system_messages": ["Be polite."]})
    await Agent(model=model, tools=[look], input_processors=[quiet, polite]).generate("?")
    assert model.requests[0].tools == []
    assert "Be polite." in model.requests[0].text


async def test_the_last_step_has_no_tools_and_a_hint() -> None:
    model = ScriptedModel(ToolCall("look"), ToolCall("look"), lambda request: "no more" if not request.tools else "?")
    final = EnsureFinalResponse(3, text="Now answer.")
    agent = Agent(model=model, tools=[look], max_steps=3, instructions="Hi.", input_processors=[final])
    result = await agent.generate("?")
    assert (result.text, result.stopped_by) == ("no more", "answer")
    assert ["Now answer." in request.text for request in model.requests] == [False, False, True]
    assert [message.text for message in model.requests[2].prompt if message.role == "system"] == ["Hi.", "Now answer."]
    assert model.requests[2].tool_choice == "none"


async def test_a_single_step_is_the_last() -> None:
    model = ScriptedModel("ok")
    final = EnsureFinalResponse(1)
    await Agent(model=model, tools=[look], max_steps=1, input_processors=[final]).generate("?")
    assert "last step" in model.requests[0].text


def test_wrong_options_are_named() -> None:
    with pytest.raises(ConfigError, match="EnsureFinalResponse: max_steps must be more than 0, not 0"):
        EnsureFinalResponse(0)
    with pytest.raises(ConfigError, match="EnsureFinalResponse: text must not be empty"):
        EnsureFinalResponse(1, text="")
    with pytest.raises(ConfigError, match="PrepareStep: fn must be a function, not 7"):
        PrepareStep(7)  # type: ignore[arg-type]
