"""The loop of one run: steps until the model has answered, and one way to end for each outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from diarist.agent.callbacks import Callbacks
from diarist.agent.options import CallOptions, conditions
from diarist.agent.outlet import Outlet
from diarist.agent.output import OutputType
from diarist.agent.remedies import Remedies
from diarist.agent.result import AgentResult, Rejected, StoppedBy, Tripwire
from diarist.agent.resuming import Resumed
from diarist.agent.step import StepAttempt
from diarist.agent.step_input import OUTPUT_TYPE, CallFailed, StepInput, ask_input_step
from diarist.agent.waiting import being_cancelled, stop, undisturbed, with_written
from diarist.chunks import (
    AbortChunk,
    AbortPayload,
    Chunk,
    DataChunk,
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
from diarist.message_list import MessageList, Snapshot, SystemMessage
from diarist.models.entry import ModelEntry
from diarist.processors.base import OutputResult, StepResult
from diarist.processors.cases import OutputResultCase
from diarist.processors.pipeline import PipelineRun
from diarist.processors.setup import StepSetup
from diarist.processors.streaming import StreamRun
from diarist.run_context import Outcome, RunContext
from diarist.tools import Tool
from diarist.tracing import span


@dataclass(kw_only=True)
class Run:
    """One request at work: ``execute()`` it, once; then look at ``result`` and ``error``."""

    context: RunContext[Any]
    pipeline: PipelineRun
    setup: StepSetup
    options: CallOptions
    output_type: OutputType | None
    entries: list[ModelEntry]
    callbacks: Callbacks
    name: str = "agent"
    approvals: Mapping[str, bool | str] | None = None
    outlet: Outlet = field(default_factory=Outlet)
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.result: AgentResult[Any] = AgentResult(
            run_id=self.context.run_id, thread_id=self.context.thread_id, resource_id=self.context.resource_id
        )

    async def execute(self) -> None:
        """Do everything. What ends the run is in ``error``, never raised; but for the task's cancellation."""
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": self.name,
            "gen_ai.conversation.id": self.context.thread_id,
            "diarist.run.id": self.context.run_id,
        }
        with span(f"invoke_agent {self.name}", **attributes) as current:
            await self._traced()
            if current.recording:
                result, error = self.result, self.error
                current.set(
                    **{
                        "diarist.stopped_by": result.stopped_by,
                        "diarist.tripwire.processor_id": result.tripwire.processor_id if result.tripwire else None,
                        "gen_ai.usage.input_tokens": result.usage.input_tokens,
                        "gen_ai.usage.output_tokens": result.usage.output_tokens,
                        "error.type": type(error).__qualname__ if error else None,
                    }
                )

    async def _traced(self) -> None:
        last: Chunk | None = None
        self._guards: asyncio.Task[None] | None = None
        self.context.cancel.attach()
        try:
            outcome, last, cancelled = await self._outcome()
            try:
                if self.context.has_endings:
                    await undisturbed(self._end(outcome))
            except asyncio.CancelledError as error:  # too late to change anything but what the caller is told
                cancelled = cancelled or self._from_outside(error)
            if self.error is not None:
                last = self._error_chunk(self.error)
            await self.callbacks.ended(self.result, self.error)
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
        if self.context.cancel.cancelled:
            await asyncio.sleep(0)  # a signal that was given before the call takes effect at the first wait
        messages = self.context.messages
        new_input = self.approvals is None or bool(messages.input)
        asked = messages.copy() if self.pipeline.has_guards and new_input else None
        await self.pipeline.open(new_input=new_input)
        self._guards = None if asked is None else self.pipeline.start_guards(asked)
        try:
            if self.approvals is not None and not await self._resume(self.approvals):
                return await self._finish()
            await self._steps(messages.system)
        finally:
            if self._guards is not None:
                await stop(self._guards)
        self.pipeline.step_number = None
        return await self._finish()

    async def _steps(self, system: list[SystemMessage]) -> None:
        max_steps = self.options.get("max_steps", 5)
        for number in range(max_steps):
            self.pipeline.step_number = number
            attempt = await self._step(number, last=number == max_steps - 1, system=system)
            if attempt.waiting:
                self.result.stopped_by = "approval" if "approval" in attempt.waiting.values() else "client_tool"
                return
            if attempt.ended:
                return
            if attempt.stopped:
                self.result.stopped_by = "stop_when"
                return
        self.result.stopped_by = "max_steps"

    async def _resume(self, approvals: Mapping[str, bool | str]) -> bool:
        """Run or refuse the calls that waited; False while some of their step still wait, and the user does not
        talk past them."""
        self.pipeline.step_number = 0
        if self._guards is not None:
            await self._guards  # no tool runs before the guards have passed
        messages, stream = self.context.messages, self.pipeline.open_stream()
        resumed = Resumed(self.context, self.pipeline, self.setup.tools, approvals)
        if resumed.missing():
            resumed.tools = await self._tools_of_processors()

        async def pass_on() -> None:
            for chunk in await self._written(stream):
                if isinstance(chunk, DataChunk) and not chunk.transient:
                    resumed.keep(chunk)

        await with_written(resumed.run(), self.context.writer, pass_on)
        stream.close()
        if not resumed.left or any(message.role == "user" for message in messages.input):
            return True
        self.result.pending, self.result.stopped_by = resumed.left, resumed.left_for
        self.result.finish_reason = "tool-calls"

        def result(_: MessageList) -> OutputResult:
            return OutputResult(text="", usage=self.result.usage, finish_reason="tool-calls", steps=[])

        await self.pipeline.ask(OutputResultCase(messages=messages, result=result))
        return False

    async def _tools_of_processors(self) -> dict[str, Tool]:
        """The tools as processors and ``prepare_step`` make them for a step; what else they change is taken back."""
        messages = self.context.messages
        before = messages.snapshot(contents=True)
        setup = replace(self.setup, tools=dict(self.setup.tools))
        await ask_input_step(self.pipeline, messages, setup, self.options.get("prepare_step"), steps=[], number=0)
        messages.restore(before)
        return setup.tools

    async def _written(self, stream: StreamRun) -> list[Chunk]:
        """Send what was written outside the steps, as the stream hooks leave it; returns what was sent."""
        sent: list[Chunk] = []
        while self.context.writer:
            for written in self.context.writer.drain():
                for chunk in await stream.feed(written):
                    chunk.run_id = self.context.run_id
                    await self.outlet.send(chunk)
                    sent.append(chunk)
        return sent

    async def _step(self, number: int, *, last: bool, system: list[SystemMessage]) -> StepAttempt:
        """One step with all its attempts: after a rejection, a repaired request, a pause, or with another model."""
        messages = self.context.messages
        edited = bool(self.pipeline.ids) or self.options.get("prepare_step") is not None
        before = messages.snapshot(contents=edited)
        feedback: str | None = None
        self.pipeline.retry_count = 0
        remedies = Remedies(self.pipeline, messages, self.entries, self.options.get("max_processor_retries"))
        while True:
            messages.replace_system(system)
            attempt = self._attempt(number, last, feedback, replace(self.setup, model=remedies.model))
            delay = 0.0
            try:
                step = await attempt.run()
                break
            except TripWire as wire:
                feedback = self._reject(wire, attempt, number)
                edits = messages.snapshot(contents=edited)
                self._undo(before)
            except CallFailed as failed:
                edits = messages.snapshot(contents=edited)
                self._undo(before)
                try:
                    delay = await remedies.after(failed, number, self.result.steps)
                    before = replace(messages.snapshot(contents=edited), system=before.system)
                except TripWire as wire:
                    feedback = self._reject(wire, attempt, number)
                    self._undo(before)
                except BaseException:
                    messages.put_back(edits)  # no further attempt will make them again: what was redacted stays so
                    raise
            finally:
                self.result.usage += attempt.usage
            payload = StepFinishPayload(step_number=number, reason="retry", usage=attempt.usage)
            try:
                await self.outlet.send(StepFinish(run_id=self.context.run_id, payload=payload))
                await asyncio.sleep(delay)
            except BaseException:
                messages.put_back(edits)
                raise
        self._take(step, attempt)
        await self.callbacks.step_finished(step)
        return attempt

    def _undo(self, before: Snapshot) -> None:
        """Take back what an attempt did to the messages, and what it wrote that was not sent yet."""
        self.context.messages.restore(before)
        self.context.writer.drain()

    def _attempt(self, number: int, last: bool, feedback: str | None, setup: StepSetup) -> StepAttempt:
        given = StepInput(
            number=number,
            last=last,
            setup=setup,
            prepare_step=self.options.get("prepare_step"),
            output_type=self.output_type,
            done=self.result.steps,
            usage=self.result.usage,
            feedback=feedback,
            guards=self._guards if number == 0 else None,
            stop_when=conditions(self.options.get("stop_when")),
        )
        return StepAttempt(given, self.context, self.pipeline, self.outlet)

    def _take(self, step: StepResult, attempt: StepAttempt) -> None:
        self.result.steps.append(step)
        self.result.text, self.result.output = step.text, attempt.output
        self.result.finish_reason = step.finish_reason
        self.result.pending = [call for call in step.tool_calls if call.call_id in attempt.waiting]

    def _reject(self, wire: TripWire, attempt: StepAttempt, number: int) -> str:
        """Note a rejected attempt and return why; or raise where there may be no further one: none is left, tools
        have begun to do what cannot be undone, or it was the input that was refused."""
        allowed = self.options.get("max_processor_retries", 0)
        repeatable = wire.retry and wire.hook != "process_input" and not attempt.tools_started
        if not repeatable or self.pipeline.retry_count >= allowed:
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
        return wire.reason

    # -- endings

    async def _finish(self) -> Chunk:
        """The ``finish`` chunk as the stream hooks leave it; what they add goes before it. It is sent when the
        run is committed: who has seen it knows that nothing can be lost any more."""
        result = self.result
        result.messages = self.context.messages.response
        result.conversation = self.context.messages.all
        payload = FinishPayload(
            reason=result.finish_reason,
            stopped_by=result.stopped_by,
            usage=result.usage,
            messages=result.messages,
        )
        finish: Chunk = Finish(payload=payload)
        stream = self.pipeline.open_stream()
        try:
            passed = await stream.feed(finish)
            finish = next((chunk for chunk in passed if isinstance(chunk, Finish)), finish)
            for chunk in passed:
                if chunk is not finish:
                    chunk.run_id = self.context.run_id
                    await self.outlet.send(chunk)
            await self._written(stream)
        except TripWire:
            self.result.steps = self.result.steps[:-1]  # what was blocked is nowhere in the result
            raise
        self.pipeline.warn_of_silence()
        return finish

    def _blocked(self, wire: TripWire) -> Chunk:
        result = self.result
        result.text, result.output = "", None
        result.messages, result.conversation, result.pending = [], [], []
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
