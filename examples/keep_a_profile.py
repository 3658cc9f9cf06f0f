"""What the agent has learned of a user in one conversation, it knows in the next.

Prints::

    known: {'name': 'Ada', 'diet': ['vegetarian']}
    in the next conversation: True
    after a blocked run: {'name': 'Ada', 'diet': ['vegetarian']}
"""

import asyncio
from typing import Any

from pydantic import BaseModel

from diarist import Agent, Memory, Processor
from diarist.memory import WorkingMemoryConfig
from diarist.processors import ProcessOutputResultArgs
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel, ToolCall


class Profile(BaseModel):
    name: str
    diet: list[str] = []


class Block(Processor[Any]):
    def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
        args.abort("not today")


def learns(**fields: Any) -> ToolCall:
    return ToolCall("update_working_memory", {"memory": fields})


async def main() -> None:
    memory = Memory(storage=InMemoryStorage(), working_memory=WorkingMemoryConfig(schema=Profile))

    model = ScriptedModel(learns(name="Ada", diet=["vegetarian"]), "Noted, Ada.", "How about a risotto?")
    agent = Agent(model=model, memory=memory)
    await agent.generate("I'm Ada, and I don't eat meat.", thread="hello", resource="ada")
    print("known:", await memory.working.get(resource="ada"))

    await agent.generate("What shall I cook?", thread="dinner", resource="ada")
    print("in the next conversation:", "vegetarian" in model.requests[-1].text)

    blocked = Agent(model=ScriptedModel(learns(diet=["steak"]), "Steak!"), memory=memory, processors=[Block()])
    await blocked.generate("I eat steak now.", thread="dinner", resource="ada")
    print("after a blocked run:", await memory.working.get(resource="ada"))


asyncio.run(main())
