"""A resumed run has new states of its processors."""

from __future__ import annotations

from typing import Any

import pytest

from diarist import Agent, Processor, tool
from diarist.exceptions import ProcessorError
from diarist.testing import ScriptedModel, ToolCall


@tool(needs_approval=True)
def send(to: str) -> str:
    """Send a letter."""
    return f"sent to {to}"


class Plain(Processor[Any]):
    def __init__(self) -> None:
        self.end: list[str] = []

    def process_tool_result(self, args: Any) -> None:
        args.state["result"] = True

    def process_output_result(self, args: Any) -> None:
        self.end = sorted(args.state)
        args.state["end"] = True


async def test_state_is_created_again() -> None:
    plain = Plain()
    agent = Agent(
        model=ScriptedModel(ToolCall("send", {"to": "ada"}, id="s1"), "done"), tools=[send], processors=[plain]
    )
    waiting = await agent.generate("send it")
    assert plain.end == []
    await agent.resume({"s1": True}, of=waiting)
    assert plain.end == ["result"]


async def test_an_error_in_create_state_names_the_processor_and_the_method() -> None:
    class Odd(Plain):
        def create_state(self) -> Any:
            raise ValueError("broken")

    with pytest.raises(ProcessorError, match="'odd' failed in create_state: ValueError: broken") as raised:
        await Agent(model=ScriptedModel("hi"), processors=[Odd()]).generate("send it")
    assert (raised.value.processor_id, raised.value.hook) == ("odd", "create_state")
