"""A payment waits until somebody approves it; another agent object, as in another process, goes on.

Prints::

    waits: pay {'to': 'the roofer', 'amount': 5000}
    The roofer is paid. Paid: ['the roofer']
"""

import asyncio

from diarist import Agent, Memory, tool
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel, ToolCall

paid: list[str] = []


@tool(needs_approval=lambda args: args["amount"] > 100)
def pay(to: str, amount: int) -> str:
    """Pay a bill, in euros."""
    paid.append(to)
    return f"paid {amount}"


async def main() -> None:
    storage = InMemoryStorage()
    bill = ToolCall("pay", {"to": "the roofer", "amount": 5_000})
    agent = Agent(model=ScriptedModel(bill), tools=[pay], memory=Memory(storage=storage))
    stopped = await agent.generate("Pay the roofer.", thread="bills")
    [call] = stopped.pending
    print("waits:", call.name, call.args)

    later = Agent(model=ScriptedModel("The roofer is paid."), tools=[pay], memory=Memory(storage=storage))
    result = await later.resume({call.call_id: True}, thread="bills")
    print(result.text, "Paid:", paid)


asyncio.run(main())
