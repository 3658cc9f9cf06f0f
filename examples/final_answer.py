"""A model that would search for ever has to answer in its last step.

Prints::

    max_steps: (nothing)
    answer: Three results, as far as I got.
"""

import asyncio

from diarist import Agent, tool
from diarist.models import ModelRequest
from diarist.processors import EnsureFinalResponse
from diarist.testing import ScriptedModel, ToolCall


@tool
def search(query: str) -> str:
    """Search."""
    return "one result"


def researcher(request: ModelRequest) -> ToolCall | str:
    return ToolCall("search", {"query": "more"}) if request.tools else "Three results, as far as I got."


async def main() -> None:
    agent = Agent(model=ScriptedModel(researcher), tools=[search], max_steps=4)
    for processors in ([], [EnsureFinalResponse()]):
        result = await agent.generate("Find everything.", extra_processors=processors)
        print(f"{result.stopped_by}: {result.text or '(nothing)'}")


asyncio.run(main())
