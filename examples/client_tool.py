"""A tool that only the caller can run: the run ends with the call, and goes on with its result.

Prints::

    the client is asked: position {}
    You are in Rome.
"""

import asyncio

from diarist import Agent, Tool
from diarist.testing import ScriptedModel, ToolCall


async def main() -> None:
    position = Tool(name="position", description="Where the user is.")
    agent = Agent(model=ScriptedModel(ToolCall("position"), "You are in Rome."), tools=[position])
    stopped = await agent.generate("Where am I?")
    [call] = stopped.pending
    print("the client is asked:", call.name, call.args)

    answer = {"role": "tool", "tool_call_id": call.call_id, "content": "41.9 N, 12.5 E"}
    result = await agent.generate([*stopped.conversation, answer])
    print(result.text)


asyncio.run(main())
