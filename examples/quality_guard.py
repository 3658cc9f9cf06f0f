"""An answer that does not name its source is sent back; the client never sees it.

Prints::

    streamed: 2.8 million. Source: Istat.
    rejected: Rome has 2.8 million inhabitants. (name-the-source: Name your source, as in 'Source: ...'.)
"""

import asyncio
from typing import Any

from diarist import Agent, Processor
from diarist.processors import ProcessOutputStepArgs
from diarist.testing import ScriptedModel


class NameTheSource(Processor[Any]):
    """Wants a source in every answer; gives up after the second attempt."""

    hold_output = True

    def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> None:
        if not args.tool_calls and "Source:" not in args.text:
            args.abort("Name your source, as in 'Source: ...'.", retry=args.retry_count < 2)


async def main() -> None:
    model = ScriptedModel("Rome has 2.8 million inhabitants.", "2.8 million. Source: Istat.")
    agent = Agent(model=model, processors=[NameTheSource()], max_processor_retries=2)
    async with agent.stream("How many people live in Rome?") as stream:
        print("streamed:", "".join([text async for text in stream.text()]))
        result = await stream.result()
    for attempt in result.rejected:
        print(f"rejected: {attempt.text} ({attempt.processor_id}: {attempt.reason})")


asyncio.run(main())
