"""An address that the model cuts into pieces reaches neither the client nor the database.

Prints::

    ['Write to ', '[EMAIL] ', 'today.']
    stored: Write to [EMAIL] today.
"""

import asyncio

from diarist import Agent, Memory
from diarist.processors import RegexFilter
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel


async def main() -> None:
    model = ScriptedModel(["Write to a", "da@exam", "ple.org", " today."])
    memory = Memory(storage=InMemoryStorage())
    agent = Agent(model=model, memory=memory, processors=[RegexFilter(presets=("pii",))])
    async with agent.stream("Whom do I ask?", thread="t") as stream:
        print([text async for text in stream.text()])
    print("stored:", (await memory.messages.list(thread="t"))[-1].text)


asyncio.run(main())
