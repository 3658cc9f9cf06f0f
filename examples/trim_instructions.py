"""The first step has all the instructions; later ones, and a small model, get the beginning of them.

Prints::

    instructions of step 0: 600 characters
    instructions of step 1: 100 characters
"""

import asyncio
from typing import Any

from diarist import Agent, Processor, tool
from diarist.processors import InputStepResult, ProcessInputStepArgs
from diarist.testing import ScriptedModel, ToolCall


class Trim(Processor[Any]):
    """Cuts system messages from the second step on."""

    def process_input_step(self, args: ProcessInputStepArgs[Any]) -> InputStepResult:
        return {"system_messages": [message.text[:100] for message in args.system_messages]} if args.steps else {}


@tool
def look(at: str) -> str:
    """Look at something."""
    return f"{at}: closed"


async def main() -> None:
    model = ScriptedModel(ToolCall("look", {"at": "the door"}), "The door is closed.")
    agent = Agent(model=model, instructions="Be careful. " * 50, tools=[look], processors=[Trim()])
    await agent.generate("Is the door open?")
    for number, request in enumerate(model.requests):
        print(f"instructions of step {number}: {len(request.prompt.messages[0].text)} characters")


asyncio.run(main())
