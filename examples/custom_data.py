"""A tool shows its progress, and a processor adds a note of its own.

Prints::

    data-progress {'page': 1, 'of': 2}
    data-progress {'page': 2, 'of': 2}
    data-words {'words': 2}
    stored with the answer: ['text', 'data-words']
"""

import asyncio
from typing import Any

from diarist import Agent, DataChunk, ToolContext, processor, tool
from diarist.processors import ProcessOutputStepArgs
from diarist.testing import ScriptedModel, ToolCall


@tool
async def fetch(pages: int, context: ToolContext[Any]) -> str:
    """Fetch pages."""
    for page in range(1, pages + 1):
        context.writer.custom(DataChunk("data-progress", {"page": page, "of": pages}, transient=True))
    return f"{pages} pages"


@processor.output_step
def count(args: ProcessOutputStepArgs[Any]) -> None:
    """Says how long an answer is."""
    if args.text:
        args.writer.custom(DataChunk("data-words", {"words": len(args.text.split())}))


async def main() -> None:
    model = ScriptedModel(ToolCall("fetch", {"pages": 2}), "Two pages.")
    agent = Agent(model=model, tools=[fetch], processors=[count])
    async with agent.stream("Fetch two pages.") as stream:
        async for chunk in stream:
            if isinstance(chunk, DataChunk):
                print(chunk.type, chunk.data)
        result = await stream.result()
    print("stored with the answer:", [part.type for part in result.messages[-1].parts])


asyncio.run(main())
