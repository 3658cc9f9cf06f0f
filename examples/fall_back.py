"""A model that is down is tried again, then another answers.

Prints::

    Hello from the second. (scripted/second, after 2 calls of the first)
"""

import asyncio

from diarist import Agent, ModelEntry
from diarist.exceptions import ModelAPIError
from diarist.testing import ScriptedModel


async def main() -> None:
    down = ModelAPIError("overloaded", status=529)
    first = ScriptedModel(lambda request: down, name="first")
    second = ScriptedModel("Hello from the second.", name="second")
    agent = Agent(model=[ModelEntry(model=first, max_retries=1, backoff=0), second])
    result = await agent.generate("Hi")
    print(f"{result.text} ({result.steps[0].model}, after {len(first.requests)} calls of the first)")


asyncio.run(main())
