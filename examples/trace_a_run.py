"""The spans of a run, with OpenTelemetry's SDK and an exporter that keeps them in memory.

Prints::

    invoke_agent guide
      step 0
        chat model
        execute_tool look
      step 1
        chat model
"""

import asyncio

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from diarist import Agent, tool
from diarist.testing import ScriptedModel, ToolCall


@tool
def look() -> str:
    """Look around."""
    return "a door"


def show(exporter: InMemorySpanExporter, parent: int | None = None, depth: int = 0) -> None:
    for span in sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0):
        if (span.parent.span_id if span.parent else None) == parent:
            print("  " * depth + span.name)
            show(exporter, span.context and span.context.span_id, depth + 1)


async def main() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    agent = Agent(name="guide", model=ScriptedModel(ToolCall("look"), "A door."), tools=[look])
    await agent.generate("What is here?")
    show(exporter)


asyncio.run(main())
