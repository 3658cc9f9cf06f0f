"""What the tests of the agent share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from diarist import Agent, AgentResult, AgentStream, Model, Processor
from diarist.chunks import Chunk, StepFinish, TextDelta
from diarist.processors import ProcessInputArgs, ProcessOutputResultArgs
from diarist.run_context import Outcome


class Recorder(Processor[Any]):
    """Stands where a memory's processor stands, and notes when it was asked and how each run ended."""

    id = "memory"

    def __init__(self) -> None:
        self.events: list[str] = []
        self.outcomes: list[Outcome] = []

    def process_input(self, args: ProcessInputArgs[Any]) -> None:
        self.events.append("memory: input")
        args.context.on_end(self._end)

    def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
        self.events.append("memory: result")

    async def _end(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


class RecordingMemory:
    """A memory that keeps nothing but notes of what the agent asked of it."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.closed = 0

    @property
    def events(self) -> list[str]:
        return self.recorder.events

    @property
    def outcomes(self) -> list[Outcome]:
        return self.recorder.outcomes

    def input_processors(self, model: Model) -> Sequence[Processor[Any]]:
        return [self.recorder]

    def output_processors(self, model: Model) -> Sequence[Processor[Any]]:
        return [self.recorder]

    async def close(self) -> None:
        self.closed += 1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def collect(stream: AgentStream[Any]) -> list[Chunk]:
    """All chunks of a stream."""
    async with stream:
        return [chunk async for chunk in stream]


async def run_both(make: Any, input: str = "hi", **options: Any) -> tuple[AgentResult[Any], list[Chunk]]:
    """Run ``make()``'s agent with ``generate``, and another one with ``stream``; both results must be alike.

    Returns the result and the stream's chunks.
    """
    generated = await make().generate(input, **options)
    agent: Agent = make()
    async with agent.stream(input, **options) as stream:
        chunks = [chunk async for chunk in stream]
        streamed = await stream.result()
    assert outline(generated) == outline(streamed)
    return generated, chunks


def outline(result: AgentResult[Any]) -> dict[str, Any]:
    """A result without what differs from run to run: ids and times."""
    return {
        "text": result.text,
        "output": result.output,
        "steps": [
            (step.step_number, step.text, step.reasoning, step.finish_reason, step.usage) for step in result.steps
        ],
        "usage": result.usage,
        "finish_reason": result.finish_reason,
        "stopped_by": result.stopped_by,
        "tripwire": result.tripwire,
        "messages": [(message.role, message.parts) for message in result.messages],
        "rejected": result.rejected,
    }


def types(chunks: Sequence[Chunk]) -> list[str]:
    return [chunk.type for chunk in chunks]


def streamed_text(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.payload.text for chunk in chunks if isinstance(chunk, TextDelta))


def reasons(chunks: Sequence[Chunk]) -> list[str]:
    """The reasons of the step-finish chunks, in order."""
    return [chunk.payload.reason for chunk in chunks if isinstance(chunk, StepFinish)]
