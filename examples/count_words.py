"""Words are counted while the answer streams; the count is stored with the message and comes with the last chunk.

Prints::

    Rome has 2.8 million inhabitants.
    finish: {'words': 5}
    stored: {'words': 5}
"""

import asyncio
from typing import Any

from diarist import Agent, Memory, Processor
from diarist.chunks import Chunk
from diarist.processors import ProcessOutputResultArgs, ProcessOutputStreamArgs
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel


class CountWords(Processor[Any]):
    """Keeps what it has seen in a state of the request, which all its hooks share."""

    def create_state(self) -> list[str]:
        return []

    def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Chunk:
        if args.part.type == "text-delta":
            args.state.append(args.part.payload.text)
        return args.part

    def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
        args.messages[-1].metadata["words"] = len("".join(args.state).split())


async def main() -> None:
    memory = Memory(storage=InMemoryStorage())
    agent = Agent(model=ScriptedModel("Rome has 2.8 million inhabitants."), processors=[CountWords()], memory=memory)
    async with agent.stream("How many people live in Rome?", thread="rome") as stream:
        async for chunk in stream:
            if chunk.type == "text-delta":
                print(chunk.payload.text, end="")
            elif chunk.type == "finish":
                print(f"\nfinish: {chunk.payload.messages[-1].metadata}")
    print("stored:", (await memory.messages.list(thread="rome"))[-1].metadata)


asyncio.run(main())
