"""Two judges look at an answer at the same time; the stricter set of them is for the public.

Prints::

    staff: What a stupid question, ada@example.com.
    public: blocked by tone
"""

import asyncio
from typing import Any

from diarist import Agent, Processor
from diarist.processors import Branch, Parallel, ProcessorArgs, ProcessOutputStepArgs
from diarist.testing import ScriptedModel


class Judge(Processor[Any]):
    """Blocks answers with a word in them."""

    hold_output = True

    def __init__(self, name: str, word: str) -> None:
        self.id, self.word = name, word

    async def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> None:
        await asyncio.sleep(0)  # here a model would be asked
        if self.word in args.text:
            args.abort(f"says {self.word!r}")


def is_public(args: ProcessorArgs[Any]) -> bool:
    return args.request_context["audience"] == "public"


async def main() -> None:
    judges = Branch((is_public, Parallel(Judge("tone", "stupid"), Judge("spoilers", "the butler"))))
    model = ScriptedModel(lambda request: "What a stupid question, ada@example.com.")
    agent = Agent(model=model, processors=[judges])
    for audience in ("staff", "public"):
        result = await agent.generate("Why?", request_context={"audience": audience})
        print(f"{audience}: {result.text or 'blocked by ' + (result.tripwire.processor_id if result.tripwire else '')}")


asyncio.run(main())
