"""A conversation moves to a provider that refuses the tool ids of the first; the history is repaired once.

Prints::

    A bird.
    functions.look:0 became functions_look_0_be75a00170f6
"""

import asyncio

from diarist import Agent, Message
from diarist.exceptions import BadRequestError
from diarist.messages import ToolPart
from diarist.processors import ProviderHistoryCompat
from diarist.testing import ScriptedModel


async def main() -> None:
    call = ToolPart(call_id="functions.look:0", name="look", args={}, state="result", result="a bird")
    history = [Message.user("Look!"), Message(role="assistant", parts=[call]), Message.user("What was it?")]
    refusal = BadRequestError("tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'", status=400)
    model = ScriptedModel(refusal, "A bird.", provider="anthropic")
    agent = Agent(model=model, processors=[ProviderHistoryCompat()])
    result = await agent.generate(history)
    print(result.text)
    print(call.call_id, "became", result.conversation[1].tool_parts[0].call_id)


asyncio.run(main())
