"""``PrepareStep``: a function changes each step."""

from __future__ import annotations

from typing import Any

import pytest

from diarist import Agent, tool
from diarist.exceptions import ConfigError
from diarist.processors import PrepareStep, ProcessInputStepArgs
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


async def test_several_prepare_steps_run_in_order() -> None:
    model = ScriptedModel("ok")
    quiet = PrepareStep(lambda args: {"tools": {}}, id="quiet")
    polite = PrepareStep(lambda args: {"system_messages": ["Be polite."]})
    await Agent(model=model, tools=[look], input_processors=[quiet, polite]).generate("?")
    assert model.requests[0].tools == []
    assert "Be polite." in model.requests[0].text


def test_wrong_options_are_named() -> None:
    with pytest.raises(ConfigError, match="PrepareStep: fn must be a function, not 7"):
        PrepareStep(7)  # type: ignore[arg-type]
