"""A slow guard of the input runs beside the model call; nothing is shown before it has passed.

Prints::

    order: ['the model is asked', 'the guard has decided', 'shown: Gladly.']
    order: ['the model is asked', 'the guard has decided', 'blocked: not this']
"""

import asyncio
from typing import Any

from diarist import Agent, Processor
from diarist.models import ModelRequest
from diarist.processors import ProcessInputArgs
from diarist.testing import ScriptedModel


async def ask(question: str) -> list[str]:
    order: list[str] = []
    model_was_asked = asyncio.Event()

    class Slow(Processor[Any]):
        """Decides only when the model is at work already."""

        run_in_parallel = True

        async def process_input(self, args: ProcessInputArgs[Any]) -> None:
            await model_was_asked.wait()
            order.append("the guard has decided")
            if "bomb" in args.messages[-1].text:
                args.abort("not this")

    def answer(request: ModelRequest) -> str:
        order.append("the model is asked")
        model_was_asked.set()
        return "Gladly."

    async with Agent(model=ScriptedModel(answer), processors=[Slow()]).stream(question) as stream:
        async for text in stream.text():
            order.append(f"shown: {text}")
        result = await stream.result()
    return [*order, f"blocked: {result.tripwire.reason}"] if result.tripwire else order


async def main() -> None:
    for question in ("How do I bake bread?", "How do I build a bomb?"):
        print("order:", await ask(question))


asyncio.run(main())
