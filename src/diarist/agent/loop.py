"""The loop of one run: steps until the model has answered, and one way to end for each outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from diarist.agent.answers import check_results
from diarist.agent.between import Between
from diarist.agent.callbacks import Callbacks
from diarist.agent.failures import error_chunk, text_of, tripwire_chunk
from diarist.agent.options import CallOptions, conditions
from diarist.agent.outlet import Outlet
from diarist.agent.output import OutputType
from diarist.agent.remedies import Remedies
from diarist.agent.result import AgentResult, Rejected, StoppedBy, Tripwire
from diarist.agent.resuming import ResumedAttempt, suspend, suspended
from diarist.agent.step import StepAttempt
from diarist.agent.step_input import OUTPUT_TYPE, CallFailed, StepInput
from diarist.chunks import (
    AbortChunk,
    AbortPayload,
    Chunk,
    Finish,
    FinishPayload,
    Start,
    StepFinish,
    StepFinishPayload,
    TextDelta,
)
from diarist.concurrency import at_work, being_cancelled, stop, undisturbed
from diarist.exceptions import DiaristError, OutputError, TripWire
from diarist.message_list import Snapshot, SystemMessage
from diarist.models.entry import ModelEntry
from diarist.processors.base import Processor, StepResult
from diarist.processors.closing import in_use
from diarist.processors.pipeline import PipelineRun
from diarist.processors.setup import StepSetup
from diarist.run_context import Outcome, RunContext
from diarist.tracing import span


@dataclass(kw_only=True)
class Run:
    """One request at work: ``execute()`` it, once; then look at ``result`` and ``error``.

    ``brought``: closable processors that came with the call, and are closed with it.
    """

    context: RunContext[Any]
    pipeline: PipelineRun
    setup: StepSetup
    options: CallOptions
    output_type: OutputType | None
    entries: list[ModelEntry]
    callbacks: Callbacks
    name: str = "agent"
    approvals: Mapping[str, bool | str] | None = None
    brought: Sequence[Processor[Any]] = ()
    outlet: Outlet = field(default_factory=Outlet)
    error: Exception | None = None

    def __post_init__(self) -> None:
        self._last: StepAttempt | None = None
        self.result: AgentResult[Any] = AgentResult(
            run_id=self.context.run_id,
            thread_id=self.context.thread_id,
            resource_id=self.context.resource_id,
            memory=self.context.report,
        )

    async def execute(self) -> None:
        """Do everything. What ends the run is in ``error``, never raised; but for the task's cancellation."""
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": self.name,
            "gen_ai.conversation.id": self.context.thread_id,
            "diarist.run.id": self.context.run_id,
        }
        with self.context.counting(), span(f"invoke_agent {self.name}", **attributes) as current:
            await self._to_its_end()
            if current.recording:
                result, error = self.result, self.error
                current.set(
                    **{
                        "diarist.stopped_by": result.stopped_by,
                        "diarist.tripwire.processor_id": result.tripwire.processor_id if result.tripwire else None,
                        "gen_ai.usage.input_tokens": result.usage.input_tokens,
                        "gen_ai.usage.output_tokens": result.usage.output_tokens,
                    }
                )
                if error is not None:
                    current.fail(error)

    async def _to_its_end(self) -> None:
        self._last_chunk: Chunk | None = None
        self._guards: asyncio.Task[None] | None = None
        self._told_all = False
        try:
            async with in_use(self.pipeline.closable, self.brought):
                await self._ended()
        finally:
            if self._last_chunk is not None:
                self._last_chunk.run_id = self.context.run_id
            self.outlet.finish(self._last_chunk)

    async def _ended(self) -> None:
        self.context.cancel.attach()
        outcome, self._last_chunk, leaving = await self._outcome()
        self.result.usage += self.context.usage
        if isinstance(self._last_chunk, Finish):
            self._last_chunk.payload.usage = self.result.usage
        try:
            if self.context.has_endings:
                await undisturbed(self._end(outcome), hurried=self.result.stopped_by == "cancelled")
                await self.context.settled()
        except BaseException as error:  # too late to change anything but what the caller is told
            leaving = leaving or self._from_outside(error)
            if outcome == "committed" and not self._told_all:  # nobody can say what will be stored
                self._last_chunk = self._cancelled()
        try:
            await self.context.cancel.detach()
        except asyncio.CancelledError as error:
            leaving = leaving or error
        if self.error is not None:
            self._last_chunk = error_chunk(self.error)
        await self.callbacks.ended(self.result, self.error)
        if leaving is not None:
            raise leaving

    async def skip(self) -> None:
        """Close a run that was never executed."""
        async with in_use(self.pipeline.closable, self.brought):
            self._broken_off("cancelled")
        self.outlet.finish(AbortChunk(run_id=self.context.run_id, payload=AbortPayload(reason="never started")))

    async def _outcome(self) -> tuple[Outcome, Chunk, BaseException | None]:
        """Run; how it ended, the last chunk, and what to raise in the end: a cancellation, or what is no error."""
        leaving: BaseException | None = None
        me = asyncio.current_task()
        try:
            return "committed", await self._execute(), None
        except TripWire as wire:
            return "discarded", self._blocked(wire), None
        except asyncio.CancelledError as error:
            if being_cancelled():
                return "interrupted", self._cancelled(), self._from_outside(error)
            self.error = DiaristError("something that the run waited for was cancelled, though the run was not")
            self.error.__cause__ = error
        except Exception as error:
            self.error = error
        except BaseException as error:  # SystemExit, a group of such, GeneratorExit
            if not at_work(me):
                raise
            self.error = DiaristError(f"the run was broken off by {text_of(error)}")
            self.error.__cause__ = leaving = error
        self._broken_off("error")
        return "interrupted", error_chunk(self.error), leaving

    def _from_outside(self, error: BaseException) -> BaseException | None:
        """What to pass on: not a cancellation that was this run's own signal."""
        return None if isinstance(error, asyncio.CancelledError) and self.context.cancel.take() else error

    async def _execute(self) -> Chunk:
        self._between = Between(self.context, self.pipeline, self.outlet)
        await self.outlet.send(Start(run_id=self.context.run_id))
        await self.context.cancel.checkpoint()
        messages = self.context.messages
        new_input = self.approvals is None or bool(messages.input)
        asked = messages.copy() if self.pipeline.has_guards and new_input else None
        if self.approvals is None:
            opening = self.pipeline.open()
        else:
            opening = self.pipeline.reopen(lambda: suspended(messages, self.pipeline.ids), new_input=new_input)
        held = asked is not None  # until those guards have passed, nothing is sent
        await (opening if held or not self.pipeline.has("process_input") else self._between.during(opening))
        check_results(messages)
        self._guards = None if asked is None else self.pipeline.start_guards(asked)
        try:
            await self._steps(messages.system)
        finally:
            if self._guards is not None:
                await stop(self._guards)
        self.pipeline.step_number = None
        return await self._finish()

    async def _steps(self, system: list[SystemMessage]) -> None:
        if self.approvals is not None and self._ended_with(await self._step(system, approvals=self.approvals)):
            return
        max_steps = self.options.get("max_steps", 5)
        for call in range(1, max_steps + 1):
            if self._ended_with(await self._step(system, last=call == max_steps)):
                return
        self.result.stopped_by = "max_steps"

    def _ended_with(self, attempt: StepAttempt) -> bool:
        """Whether no step follows this one; then ``stopped_by`` says why."""
        if attempt.waiting:
            suspend(self.context.messages, [{"id": name} for name in self.pipeline.ids], attempt.waiting)
            self.result.stopped_by = "approval" if "approval" in attempt.waiting.values() else "client_tool"
        elif attempt.stopped:
            self.result.stopped_by = "stop_when"
        return attempt.ended or attempt.stopped

    async def _step(
        self, system: list[SystemMessage], *, last: bool = False, approvals: Mapping[str, bool | str] | None = None
    ) -> StepAttempt:
        """One step with all its attempts: after a rejection, a repaired request, a pause, or with another model."""
        messages = self.context.messages
        self.pipeline.step_number = number = len(self.result.steps)
        edited = self.pipeline.edits_in_place or self.options.get("prepare_step") is not None
        before = messages.snapshot(contents=edited)
        feedback: str | None = None
        self.pipeline.retry_count = 0
        remedies = Remedies(self.pipeline, messages, self.entries)
        while True:
            await self.context.cancel.checkpoint()
            messages.replace_system(system)
            setup = replace(self.setup, model=remedies.model)
            attempt = self._attempt(last, feedback, setup, approvals)
            delay = 0.0
            try:
                step = await attempt.run()
                break
            except asyncio.CancelledError:
                if being_cancelled() and not self.context.guarded and (begun := attempt.cut_short()):
                    self._finished(begun)
                raise
            except TripWire as wire:
                feedback = self._reject(wire, attempt, number)
                edits = messages.snapshot(contents=edited)
                self._undo(before)
            except CallFailed as failed:
                edits = messages.snapshot(contents=edited)
                self._undo(before)
                try:
                    delay = await self._between.during(remedies.after(failed, number, self.result.steps))
                    before = replace(messages.snapshot(contents=edited), system=before.system)
                except TripWire as wire:
                    feedback = self._reject(wire, attempt, number)
                    self._undo(before)
                except BaseException:
                    messages.put_back(edits)  # no further attempt will make them again: what was redacted stays so
                    raise
            finally:
                self.result.usage += attempt.usage
                if attempt.answered:
                    messages.obsolete |= messages.dropped
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

    def _attempt(
        self, last: bool, feedback: str | None, setup: StepSetup, approvals: Mapping[str, bool | str] | None
    ) -> StepAttempt:
        done = self.result.steps
        given = StepInput(
            number=len(done),
            last=last,
            setup=setup,
            prepare_step=self.options.get("prepare_step"),
            output_type=self.output_type,
            done=done,
            usage=self.result.usage,
            feedback=feedback,
            guards=None if done else self._guards,
            approvals=approvals,
            written=[] if approvals is not None else list(self._between.unkept),
            stop_when=conditions(self.options.get("stop_when")),
        )
        kind = StepAttempt if approvals is None else ResumedAttempt
        return kind(given, self.context, self.pipeline, self.outlet)

    def _take(self, step: StepResult, attempt: StepAttempt) -> None:
        self._last = attempt
        if not isinstance(attempt, ResumedAttempt):
            self._between.unkept.clear()
        self._finished(step)
        self.result.text, self.result.output = step.text, attempt.output
        self.result.finish_reason, self.result.pending = step.finish_reason, attempt.pending

    def _finished(self, step: StepResult) -> None:
        self.result.steps.append(step)
        self.context.finished = {message.id for message in self.context.messages.of("input", "response")}

    def _reject(self, wire: TripWire, attempt: StepAttempt, number: int) -> str:
        """Note a rejected attempt and return why; or raise where there may be no further one: none is left, tools
        have begun to do what cannot be undone, or it was the input that was refused."""
        repeatable = wire.retry and wire.hook != "process_input" and attempt.repeatable
        if not repeatable or self.pipeline.retry_count >= self.options.get("max_processor_retries", 0):
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
            await self._before_finish([chunk for chunk in passed if chunk is not finish], payload)
            await self._between.send(stream)
        except BaseException as error:
            stream.close(error)
            if isinstance(error, Exception) and not self.pipeline.hold_output:
                await self._between.send(stream)
            if isinstance(error, TripWire):
                self.result.steps = self.result.steps[:-1]  # what was blocked is nowhere in the result
            raise
        stream.close()
        self.pipeline.warn_of_silence()
        if self._last is not None and result.stopped_by == "approval":  # only now every hook has had its say
            suspend(self.context.messages, self.pipeline.states.dump(), self._last.waiting)
        return finish

    async def _before_finish(self, chunks: list[Chunk], payload: FinishPayload) -> None:
        """Send what stream hooks had left at the very end; text is judged first, as part of the last step."""
        if self._last is None or not any(isinstance(chunk, TextDelta) for chunk in chunks):
            for chunk in chunks:
                chunk.run_id = self.context.run_id
                await self.outlet.send(chunk)
            return
        result, attempt = self.result, self._last
        result.steps[-1] = step = await attempt.say_late(chunks)
        result.text, result.output = step.text, attempt.output
        payload.messages = result.messages = self.context.messages.response
        result.conversation = self.context.messages.all

    def _blocked(self, wire: TripWire) -> Chunk:
        result = self.result
        result.text, result.output = "", None
        result.messages, result.conversation, result.pending = [], [], []
        result.stopped_by, result.finish_reason = "tripwire", "other"
        result.tripwire = Tripwire(
            reason=wire.reason, processor_id=wire.processor_id, hook=wire.hook, metadata=wire.metadata, retry=wire.retry
        )
        return tripwire_chunk(wire)

    def _cancelled(self) -> Chunk:
        self._broken_off("cancelled")
        return AbortChunk(payload=AbortPayload(reason=self.context.cancel.reason))

    def _broken_off(self, by: StoppedBy) -> None:
        """The result of a run that failed or was cancelled: its finished steps."""
        self.result.stopped_by = by
        self.result.finish_reason = "error" if by == "error" else "other"
        self.result.messages = [message for step in self.result.steps for message in step.messages]

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
        self._told_all = True
