"""One processor looks at what comes in and at what goes out; a blocked run is a result, and nothing of it is stored.

Prints::

    Tell me about Rome. -> answer 'Rome is old.'
    Tell me about project Falcon. -> tripwire in process_input
    Guess the code name! -> tripwire in process_output_stream
    messages stored: 2
"""

import asyncio
from typing import Any

from diarist import Agent, Memory, Processor
from diarist.chunks import Chunk
from diarist.processors import ProcessInputArgs, ProcessorArgs, ProcessOutputStreamArgs
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel


class CodeNames(Processor[Any]):
    """Blocks questions and answers that have one of these words in them."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def look(self, args: ProcessorArgs[Any], text: str) -> None:
        if found := [word for word in self.words if word in text.casefold()]:
            args.abort("a code name", metadata={"how many": len(found)})

    def process_input(self, args: ProcessInputArgs[Any]) -> None:
        self.look(args, args.messages[-1].text)

    def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Chunk:
        said = [part.payload.text for part in args.stream_parts if part.type == "text-delta"]
        self.look(args, "".join(said[-20:]))  # a word may come in several chunks
        return args.part


async def main() -> None:
    memory = Memory(storage=InMemoryStorage())
    model = ScriptedModel("Rome is old.", ["Is it", " Fal", "con?"])
    agent = Agent(model=model, processors=[CodeNames("falcon")], memory=memory)
    for question in ("Tell me about Rome.", "Tell me about project Falcon.", "Guess the code name!"):
        result = await agent.generate(question, thread="t")
        how = f"in {result.tripwire.hook}" if result.tripwire else repr(result.text)
        print(question, "->", result.stopped_by, how)
    print("messages stored:", len(await memory.messages.list(thread="t")))


asyncio.run(main())
