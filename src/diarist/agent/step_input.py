"""What an attempt at a step is given, and what it and the loop tell each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from diarist.agent.options import PrepareStep, StopWhen
from diarist.agent.output import OutputType
from diarist.chunks import (
    Chunk,
    DataChunk,
    IdPayload,
    ModelFinish,
    ModelFinishPayload,
    TextDelta,
    TextEnd,
    TextPayload,
    TextStart,
    Usage,
)
from diarist.message_list import MessageList
from diarist.messages import new_id
from diarist.models.base import Model
from diarist.processors.base import Processor, StepResult
from diarist.processors.cases import InputStepCase
from diarist.processors.hooks import Hook
from diarist.processors.pipeline import PipelineRun
from diarist.processors.setup import StepSetup
from diarist.tracing import Carrier


class _PrepareStep(Processor[Any]):
    id = "prepare-step"


PREPARE_STEP = _PrepareStep()
"""In whose name the call's ``prepare_step`` runs."""


async def ask_input_step(
    pipeline: PipelineRun,
    messages: MessageList,
    setup: StepSetup,
    prepare_step: PrepareStep | None,
    *,
    steps: list[StepResult],
    number: int,
) -> None:
    """``process_input_step`` of all processors, then the call's ``prepare_step``; they change ``setup``."""
    case = InputStepCase(messages=messages, step=number, setup=setup, steps=steps)
    last = None if prepare_step is None else Hook.of(PREPARE_STEP, "prepare_step", -1, prepare_step)
    await pipeline.ask(case, last=last)


PROCESSORS_KEY = "diarist_processors"
"""Metadata of a message whose calls wait for approval: the processors that ``resume`` must be given again, each
with its ``id`` and, where it dumps one, its ``state``."""

OUTPUT_TYPE = "output-type"
"""The processor id under which an answer that does not fit ``output_type`` is sent back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """What an attempt is given.

    Attributes:
        last: No step may follow, so that ``process_output_result`` runs even after tool calls.
        done: Results of the steps before.
        usage: Tokens of the run before this attempt.
        feedback: Why the attempt before was rejected.
        guards: Input guards that run beside this step's model call.
        approvals: Answers to calls that waited, by id; the step then is the rest of the one that made them.
        written: Data that was sent before this attempt, and is stored with its message.
        stop_when: Functions of the steps so far; one that holds ends the run after its step.
    """

    number: int
    last: bool
    setup: StepSetup
    prepare_step: PrepareStep | None = None
    output_type: OutputType | None = None
    done: list[StepResult] = field(default_factory=list[StepResult])
    usage: Usage = field(default_factory=Usage)
    feedback: str | None = None
    guards: asyncio.Task[None] | None = None
    approvals: Mapping[str, bool | str] | None = None
    written: Sequence[DataChunk] = ()
    stop_when: Sequence[StopWhen] = ()

    def stops(self, steps: list[StepResult]) -> bool:
        return any(condition(steps) for condition in self.stop_when)


class CallFailed(Carrier):
    """The model call of an attempt failed: ``error`` is why, ``model`` whose it was. Control flow of the loop."""

    def __init__(self, error: Exception, model: Model) -> None:
        super().__init__(error)
        self.model = model


async def replay(response: Sequence[Chunk] | str) -> AsyncIterator[Chunk]:
    """A processor's answer in the model's place, as a model would have streamed it."""
    finish = ModelFinish(payload=ModelFinishPayload(reason="stop", usage=Usage()))
    if isinstance(response, str):
        text_id = new_id("txt")
        yield TextStart(payload=IdPayload(id=text_id))
        yield TextDelta(payload=TextPayload(text=response, id=text_id))
        yield TextEnd(payload=IdPayload(id=text_id))
    else:
        for chunk in deepcopy(list(response)):  # a cache gives the same chunks again
            if isinstance(chunk, ModelFinish):
                finish = chunk
            else:
                yield chunk
    yield finish
