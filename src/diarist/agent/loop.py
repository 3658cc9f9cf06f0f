"""The loop of one run: steps until the model has answered, and one way to end for each outcome."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from diarist.agent.options import CallOptions
from diarist.agent.outlet import Outlet
from diarist.agent.output import OutputType
from diarist.agent.result import AgentResult, Rejected, StoppedBy, Tripwire
from diarist.agent.setup import StepSetup
from diarist.agent.step import OUTPUT_TYPE, StepAttempt, StepInput
from diarist.agent.waiting import being_cancelled, undisturbed
from diarist.chunks import (
    AbortChunk,
    AbortPayload,
    Chunk,
    ErrorChunk,
    ErrorPayload,
    Finish,
    FinishPayload,
    Start,
    StepFinish,
    StepFinishPayload,
    TripwireChunk,
    TripwirePayload,
)
from diarist.exceptions import DiaristError, OutputError, TripWire
from diarist.message_list import SystemMessage
from diarist.processors.pipeline import PipelineRun
from diarist.run_context import Outcome, RunContext


@dataclass(kw_only=True)
class Run:
    """One request at work: ``execute()`` it, once; then look at ``result`` and ``error``."""

    context: RunContext[Any]
    pipeline: PipelineRun
    setup: StepSetup
    options: CallOptions
    output_type: OutputType | None
    outlet: Outlet = field(default_factory=Outlet)
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.result: AgentResult[Any] = AgentResult(
            run_id=self.context.run_id, thread_id=self.context.thread_id, resource_id=self.context.resource_id
        )

    async def execute(self) -> None:
        """Do everything. What ends the run is in ``error``, never raised; but for the task's cancellation."""
        last: Chunk | None = None
        self.context.cancel.attach()
        try:
            outcome, last, cancelled = await self._outcome()
            try:
                await undisturbed(self._end(outcome))
            except asyncio.CancelledError as error:  # too late to change anything but what the caller is told
                cancelled = cancelled or self._from_outside(error)
            if self.error is not None:
                last = self._error_chunk(self.error)
            if cancelled is not None:
                raise cancelled
        finally:
            self.context.cancel.detach()
            if last is not None:
                last.run_id = self.context.run_id
            self.outlet.finish(last)

    def skip(self) -> None:
        """Close a run that was never executed."""
        self._broken_off("cancelled")
        self.outlet.finish(AbortChunk(run_id=self.context.run_id, payload=AbortPayload(reason="never started")))

    async def _outcome(self) -> tuple[Outcome, Chunk, asyncio.CancelledError | None]:
        """Run; how it ended, the last chunk, and a cancellation to pass on."""
        try:
            return "committed", await self._execute(), None
        except TripWire as wire:
            return "discarded", self._blocked(wire), None
        except asyncio.CancelledError as error:
            if being_cancelled():
                self._broken_off("cancelled")
                chunk = AbortChunk(payload=AbortPayload(reason=self.context.cancel.reason))
                return "interrupted", chunk, self._from_outside(error)
            self.error = DiaristError("something that the run waited for was cancelled, though the run was not")
            self.error.__cause__ = error
        except Exception as error:
            self.error = error
        self._broken_off("error")
        return "interrupted", self._error_chunk(self.error), None

    def _from_outside(self, error: asyncio.CancelledError) -> asyncio.CancelledError | None:
        """The cancellation if it is the task's, None if it was this run's own signal."""
        return None if self.context.cancel.take() else error

    async def _execute(self) -> Chunk:
        await self.outlet.send(Start(run_id=self.context.run_id))
        await self.pipeline.process_input()
        system = self.context.messages.system
        max_steps = self.options.get("max_steps", 5)
        for number in range(max_steps):
            self.pipeline.step_number = number
            if await self._step(number, last=number == max_steps - 1, system=system):
                break
        else:
            self.result.stopped_by = "max_steps"
        self.pipeline.step_number = None
        return await self._finish()

    async def _step(self, number: int, *, last: bool, system: list[SystemMessage]) -> bool:
        """One step with all its attempts; True if the model has answered."""
        messages = self.context.messages
        before = messages.snapshot()
        feedback: str | None = None
        self.pipeline.retry_count = 0
        while True:
            messages.replace_system(system)
            given = StepInput(
                number=number,
                last=last,
                setup=self.setup,
                prepare_step=self.options.get("prepare_step"),
                output_type=self.output_type,
                done=self.result.steps,
                usage=self.result.usage,
                feedback=feedback,
            )
            attempt = StepAttempt(given, self.context, self.pipeline, self.outlet)
            try:
                step = await attempt.run()
                break
            except TripWire as wire:
                self._reject(wire, attempt, number)
                feedback = wire.reason
                messages.restore(before)
                self.context.writer.drain()  # what was written in the rejected attempt and not sent yet
                payload = StepFinishPayload(step_number=number, reason="retry", usage=attempt.usage)
                await self.outlet.send(StepFinish(run_id=self.context.run_id, payload=payload))
            finally:
                self.result.usage += attempt.usage
        self.result.steps.append(step)
        self.result.text, self.result.output = step.text, attempt.output
        self.result.finish_reason = step.finish_reason
        return attempt.ended

    def _reject(self, wire: TripWire, attempt: StepAttempt, number: int) -> None:
        """Note a rejected attempt, or raise where there may be no further one: none is left, or tools have
        begun to do what cannot be undone."""
        allowed = self.options.get("max_processor_retries", 0)
        if not wire.retry or attempt.tools_started or self.pipeline.retry_count >= allowed:
            if wire.processor_id == OUTPUT_TYPE:
                raise OutputError(wire.reason, text=attempt.text) from wire
            raise wire
        self.pipeline.retry_count += 1
        self.result.rejected.append(
            Rejected(
                step_number=number,
                text=attempt.text,
                reason=wire.reason,
                processor_id=wire.processor_id,
                usage=attempt.usage,
            )
        )

    # -- endings

    async def _finish(self) -> Chunk:
        """The ``finish`` chunk as the stream hooks leave it; what they add goes before it. It is sent when the
        run is committed: who has seen it knows that nothing can be lost any more."""
        result, writer = self.result, self.context.writer
        result.messages = self.context.messages.response
        payload = FinishPayload(
            reason=result.finish_reason,
            stopped_by=result.stopped_by,
            usage=result.usage,
            messages=result.messages,
        )
        finish: Chunk = Finish(payload=payload)
        stream = self.pipeline.open_stream()
        passed = list(await stream.feed(finish))
        while writer:
            for written in writer.drain():
                passed += await stream.feed(written)
        for chunk in passed:
            if isinstance(chunk, Finish):
                finish = chunk
            else:
                chunk.run_id = self.context.run_id
                await self.outlet.send(chunk)
        self.pipeline.warn_of_silence()
        return finish

    def _blocked(self, wire: TripWire) -> Chunk:
        result = self.result
        result.text, result.output, result.messages = "", None, []
        result.stopped_by, result.finish_reason = "tripwire", "other"
        result.tripwire = Tripwire(
            reason=wire.reason,
            processor_id=wire.processor_id,
            hook=wire.hook,
            metadata=wire.metadata,
            retry=wire.retry,
        )
        payload = TripwirePayload(
            reason=wire.reason, processor_id=wire.processor_id, retry=wire.retry, metadata=wire.metadata
        )
        return TripwireChunk(payload=payload)

    def _broken_off(self, by: StoppedBy) -> None:
        """The result of a run that failed or was cancelled: its finished steps."""
        self.result.stopped_by = by
        self.result.finish_reason = "error" if by == "error" else "other"
        self.result.messages = [message for step in self.result.steps for message in step.messages]

    def _error_chunk(self, error: Exception) -> Chunk:
        return ErrorChunk(payload=ErrorPayload(error=str(error), kind=type(error).__name__))

    async def _end(self, outcome: Outcome) -> None:
        """Tell everyone who staged something for this run how it ended."""
        try:
            await self.context.end(outcome)
        except Exception as error:
            if self.error is None:
                self.error = error
                self._broken_off("error")
            else:
                self.error.add_note(f"ending the run failed as well: {error!r}")
