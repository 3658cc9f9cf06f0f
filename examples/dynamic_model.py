"""A strong model plans and answers; a cheap one goes through what tools return.

Prints::

    scripted/strong: calls search
    scripted/cheap: calls search
    scripted/strong: The 9:40 is the cheapest.
"""

import asyncio
from typing import Any

from diarist import Agent, Model, Processor, tool
from diarist.processors import InputStepResult, ProcessInputStepArgs
from diarist.testing import ScriptedModel, ToolCall


class CheapInTheMiddle(Processor[Any]):
    """Gives the step after the first tool results to another model."""

    def __init__(self, cheap: Model) -> None:
        self.cheap = cheap

    def process_input_step(self, args: ProcessInputStepArgs[Any]) -> InputStepResult:
        return {"model": self.cheap} if len(args.steps) == 1 else {}


@tool
def search(query: str) -> str:
    """Search for flights."""
    return f"two flights for {query}"


async def main() -> None:
    strong = ScriptedModel(ToolCall("search", {"query": "Rome"}), "The 9:40 is the cheapest.", name="strong")
    cheap = ScriptedModel(ToolCall("search", {"query": "Rome, prices"}), name="cheap")
    agent = Agent(model=strong, tools=[search], processors=[CheapInTheMiddle(cheap)])
    result = await agent.generate("Which flight to Rome is the cheapest?")
    for step in result.steps:
        print(f"{step.model}: {step.text or 'calls ' + step.tool_calls[0].name}")


asyncio.run(main())
