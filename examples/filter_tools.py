"""The tools that a model sees are those that the user may use.

Prints::

    guest: search
    clerk: search, book
"""

import asyncio

from diarist import Agent, processor, tool
from diarist.models import ModelRequest
from diarist.processors import InputStepResult, ProcessInputStepArgs
from diarist.testing import ScriptedModel

RIGHTS = {"guest": ["search"], "clerk": ["search", "book"]}


@tool
def search(query: str) -> str:
    """Search for flights."""
    return "AZ 204"


@tool
def book(flight: str) -> str:
    """Book a flight."""
    return "booked"


@processor.input_step
def rights(args: ProcessInputStepArgs[str]) -> InputStepResult:
    """Offers what the user's role allows."""
    return {"active_tools": RIGHTS[args.deps]}


def what_it_sees(request: ModelRequest) -> str:
    return ", ".join(tool.name for tool in request.tools)


async def main() -> None:
    agent = Agent(model=ScriptedModel(what_it_sees), tools=[search, book], processors=[rights])
    for role in ("guest", "clerk"):
        result = await agent.generate("What can you do?", deps=role)
        print(f"{role}: {result.text}")


asyncio.run(main())
