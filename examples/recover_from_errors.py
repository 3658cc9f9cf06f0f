"""The prompt was too long: an error processor drops the older half of it, and the call is repeated.

Prints::

    7 messages were refused, 4 were not: Rome it is.
"""

import asyncio
from typing import Any

from diarist import Agent, Message, Processor
from diarist.exceptions import ContextOverflowError
from diarist.processors import APIErrorResult, ProcessAPIErrorArgs
from diarist.testing import ScriptedModel


class Shorter(Processor[Any]):
    """Leaves out the older half of a conversation that the model has no room for."""

    def process_api_error(self, args: ProcessAPIErrorArgs[Any]) -> APIErrorResult | None:
        if not isinstance(args.error, ContextOverflowError) or args.retry_count >= 3:
            return None
        args.message_list.remove(message.id for message in args.messages[: len(args.messages) // 2])
        return {"retry": True}


async def main() -> None:
    model = ScriptedModel(ContextOverflowError("the prompt is too long", status=400), "Rome it is.")
    agent = Agent(model=model, error_processors=[Shorter()])
    history = [Message.user(f"Note {number}") for number in range(6)]
    result = await agent.generate([*history, Message.user("Where do we go?")])
    refused, taken = (len(request.prompt.messages) for request in model.requests)
    print(f"{refused} messages were refused, {taken} were not: {result.text}")


asyncio.run(main())
