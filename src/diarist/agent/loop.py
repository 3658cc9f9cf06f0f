"""The loop of one run: from the input through the steps to one of four endings."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from diarist.agent.model_call import CallFailed
from diarist.agent.model_retry import ModelRetry
from diarist.agent.options import CallOptions, conditions
from diarist.agent.result import AgentResult, Rejected, StoppedBy, Tripwire
from diarist.agent.resume import check_results, suspend, suspended
from diarist.agent.step import OUTPUT_TYPE, StepAttempt, StepInput
from diarist.agent.stream_writer import ChunkQueue, StreamWriter
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
from diarist.concurrency import being_cancelled, cancel_and_wait, inner_cancel_as_error, shield_until_done
from diarist.exceptions import DiaristError, OutputError, ProcessorAbort, described, message_of
from diarist.message_list import SystemMessage
from diarist.models.fallbacks import ModelEntry
from diarist.models.output_type import OutputType
from diarist.processors.base import Processor, StepResult
from diarist.processors.pipeline import PipelineRun, in_use
from diarist.processors.setup import StepSetup
from diarist.run_context import Outcome, RunContext
from diarist.tracing import span

logger = logging.getLogger("diarist")


@dataclass(kw_only=True)
class Run:
    """One request: ``execute()`` it, once; then look at ``result`` and ``error``.

    Attributes:
        brought: Closable processors that came with the call, and are closed with it.
    """

    context: RunContext[Any]
    pipeline: PipelineRun
    setup: StepSetup
    options: CallOptions
    output_type: OutputType | None
    entries: list[ModelEntry]
    name: str = "agent"
    approvals: Mapping[str, bool | str] | None = None
    brought: Sequence[Processor[Any]] = ()
    queue: ChunkQueue = field(default_factory=ChunkQueue)
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.context.tool_names = frozenset(self.setup.tools)
        self.result: AgentResult[Any] = AgentResult(
            run_id=self.context.run_id,
            thread_id=self.context.thread_id,
            resource_id=self.context.resource_id,
            memory=self.context.report,
        )
        self._guards: asyncio.Task[None] | None = None
        self._last_chunk: Chunk | None = None
        self._stored = False

    async def execute(self) -> None:
        """Run to the end. Errors are left in ``error``; only cancellations and exits are raised."""
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": self.name,
            "gen_ai.conversation.id": self.context.thread_id,
            "diarist.run.id": self.context.run_id,
        }
        with self.context.counting(), span(f"invoke_agent {self.name}", **attributes) as current:
            try:
                async with in_use(self.pipeline.closable, self.brought):
                    await self._run()
            finally:
                if self._last_chunk is not None:
                    self._last_chunk.run_id = self.context.run_id
                self.queue.finish(self._last_chunk)
            result = self.result
            if current.recording:
                current.set(
                    **{
                        "diarist.stopped_by": result.stopped_by,
                        "diarist.tripwire.processor_id": result.tripwire.processor_id if result.tripwire else None,
                        "gen_ai.usage.input_tokens": result.usage.input_tokens,
                        "gen_ai.usage.output_tokens": result.usage.output_tokens,
                    }
                )
                if self.error is not None:
                    current.fail(self.error)

    async def read(self) -> AgentResult[Any]:
        """Run to the end in the caller's own task, without handing out chunks. Raises the run's error."""
        self.queue = ChunkQueue(discard=True)
        await self.execute()
        if self.error is not None:
            raise self.error
        return self.result

    async def skip(self) -> None:
        """Close a run that was never executed."""
        async with in_use(self.pipeline.closable, self.brought):
            self._keep_finished_steps("cancelled")
        self.queue.finish(AbortChunk(run_id=self.context.run_id, payload=AbortPayload(reason="never started")))

    async def _run(self) -> None:
        """Answer, tell memory how the run ended, then the caller."""
        context, result = self.context, self.result
        leaving: BaseException | None = None  # raised last: a cancellation from outside, or an exit
        context.cancel.attach()
        try:
            self._last_chunk = await self._answer()
            outcome: Outcome = "committed"
        except ProcessorAbort as abort:
            abort.__traceback__ = None  # its frames refer to the run, a cycle only the garbage collector would free
            outcome, self._last_chunk = "discarded", self._block(abort)
        except asyncio.CancelledError as error:
            outcome = "interrupted"
            if being_cancelled():
                leaving = self._from_outside(error)
                self._cancel()
            else:
                failure = DiaristError("something that the run waited for was cancelled, though the run was not")
                self._fail(failure, error)
        except Exception as error:
            outcome = "interrupted"
            self._fail(error)
        except BaseException as error:  # SystemExit: the thread must be free before the program goes on
            outcome, leaving = "interrupted", error
            self._fail(DiaristError(f"the run was broken off by {described(error)}"), error)

        result.usage += context.usage
        if isinstance(self._last_chunk, Finish):
            self._last_chunk.payload.usage = result.usage
        try:
            if context.has_endings:
                await shield_until_done(self._tell_memory(outcome), hurried=result.stopped_by == "cancelled")
                await context.settled()
        except BaseException as error:
            leaving = leaving or self._from_outside(error)
            if outcome == "committed" and not self._stored:  # cancelled while storing: nothing may be promised
                self._cancel()
        if self.error is not None:
            leaving = await self._send_error(self.error) or leaving
        try:
            await context.cancel.detach()
        except asyncio.CancelledError as error:
            leaving = leaving or error
        if self.error is not None:
            await self._call_back("on_error", self.error)
        else:
            await self._call_back("on_abort" if result.stopped_by == "cancelled" else "on_finish", result)
        if leaving is not None:
            raise leaving

    # -- the answer

    async def _answer(self) -> Chunk:
        """Process the input, take the steps, and return the finish chunk, which is sent once the run is stored."""
        context, pipeline, messages, result = self.context, self.pipeline, self.context.messages, self.result
        self._stream = stream = StreamWriter(context, pipeline, self.queue)
        await self.queue.send(Start(run_id=context.run_id))
        await context.cancel.checkpoint()

        new_input = self.approvals is None or bool(messages.input)
        guarded = messages.copy() if pipeline.has_guards and new_input else None
        if self.approvals is not None:
            opening = pipeline.reopen(lambda: suspended(messages, pipeline.ids), new_input=new_input)
            await (stream.during(opening) if guarded is None else opening)
        elif pipeline.has("process_input"):  # with guards, nothing is sent until they have passed
            await (stream.during(pipeline.open()) if guarded is None else pipeline.open())
        if any(message.role == "tool" for message in messages.input):
            check_results(messages)

        self._guards = None if guarded is None else pipeline.start_guards(guarded)
        system, max_steps = messages.system, self.options.get("max_steps", 5)
        try:
            calls = 1 if self.approvals is None else 0
            attempt = await self._step(system, last=calls == max_steps, approvals=self.approvals)
            while not (attempt.ended or attempt.stopped):
                if calls == max_steps:
                    result.stopped_by = "max_steps"
                    break
                calls += 1
                attempt = await self._step(system, last=calls == max_steps)
        finally:
            if self._guards is not None:
                await cancel_and_wait(self._guards)
        pipeline.state.step_number = None
        if attempt.waiting:
            result.stopped_by = "approval" if "approval" in attempt.waiting.values() else "client_tool"
            suspend(messages, [{"id": name} for name in pipeline.ids], attempt.waiting)
        elif attempt.stopped:
            result.stopped_by = "stop_when"

        result.messages, result.conversation = messages.response, messages.all
        finish: Chunk = Finish(
            payload=FinishPayload(
                reason=result.finish_reason,
                stopped_by=result.stopped_by,
                usage=result.usage,
                messages=result.messages,
            )
        )
        try:
            stream.complete()
            feeding = stream.feed(finish)
            passed = await (feeding if pipeline.hold_output or stream.is_sync else stream.during(feeding))
            for chunk in passed:
                if isinstance(chunk, Finish):
                    finish = chunk
                else:
                    chunk.run_id = context.run_id
                    await self.queue.send(chunk)
        except BaseException as error:
            stream.leave(error)
            if isinstance(error, Exception) and not pipeline.hold_output:
                await stream.drain()
                stream.leave()
            if isinstance(error, ProcessorAbort):
                result.steps = result.steps[:-1]  # blocked text is nowhere in the result
            raise
        stream.leave()
        pipeline.warn_of_silence()
        if result.stopped_by == "approval":  # every hook has had its say: the states are final
            suspend(messages, pipeline.state.dump(), attempt.waiting)
        return finish

    async def _step(
        self, system: list[SystemMessage], *, last: bool = False, approvals: Mapping[str, bool | str] | None = None
    ) -> StepAttempt:
        """Take one step, with further attempts after a rejection, a repair, a pause, or with the next model."""
        context, pipeline, messages, result = self.context, self.pipeline, self.context.messages, self.result
        pipeline.state.step_number = number = len(result.steps)
        pipeline.state.retry_count = 0
        edited = pipeline.edits_in_place or self.options.get("prepare_step") is not None
        before = messages.snapshot(contents=edited)
        feedback: str | None = None
        setup = self.setup
        retry: ModelRetry | None = None
        while True:
            await context.cancel.checkpoint()
            messages.replace_system(system)
            attempt = StepAttempt(
                StepInput(
                    number=number,
                    last=last,
                    setup=setup,
                    prepare_step=self.options.get("prepare_step"),
                    output_type=self.output_type,
                    done=result.steps,
                    usage=result.usage,
                    feedback=feedback,
                    guards=None if result.steps else self._guards,
                    approvals=approvals,
                    stop_when=conditions(self.options.get("stop_when")),
                ),
                context,
                pipeline,
                self._stream,
            )
            try:
                step = await attempt.run()
                break
            except asyncio.CancelledError:
                # Results of tools are kept, unless a processor was still to judge the answer.
                if being_cancelled() and not context.guarded and (unfinished := attempt.cut_short()):
                    self._add(unfinished)
                raise
            except (ProcessorAbort, CallFailed) as failure:
                broken = failure
            finally:
                result.usage += attempt.usage
                if attempt.answered:
                    messages.obsolete |= messages.dropped
            edits = messages.snapshot(contents=edited)
            messages.restore(before)
            context.writer.drain()
            try:
                delay = 0.0
                if isinstance(broken, CallFailed):
                    retry = retry or ModelRetry(pipeline, messages, self.entries)
                    try:
                        delay = await self._stream.during(retry.after(broken, number, result.steps))
                        setup = replace(self.setup, model=retry.model)
                        before = replace(messages.snapshot(contents=edited), system=before.system)
                    except ProcessorAbort as abort:
                        broken = abort
                        messages.restore(before)
                        context.writer.drain()
                if isinstance(broken, ProcessorAbort):
                    feedback = self._reject(broken, attempt, number)
                payload = StepFinishPayload(step_number=number, reason="retry", usage=attempt.usage)
                await self.queue.send(StepFinish(run_id=context.run_id, payload=payload))
                await asyncio.sleep(delay)
            except BaseException:
                messages.put_back(edits)  # no attempt follows: keep redactions that were made in place
                raise
        if approvals is None:
            self._stream.unkept.clear()  # stored with this step's message
        self._add(step)
        result.text, result.output = step.text, attempt.output
        result.finish_reason, result.pending = step.finish_reason, attempt.pending
        await self._call_back("on_step_finish", step)
        return attempt

    def _add(self, step: StepResult) -> None:
        self.result.steps.append(step)
        self.context.finished = {message.id for message in self.context.messages.of("input", "response")}

    def _reject(self, abort: ProcessorAbort, attempt: StepAttempt, number: int) -> str:
        """Record a rejected attempt and return the feedback for the next; raise if there may be no next attempt."""
        repeatable = abort.retry and abort.hook != "process_input" and attempt.repeatable
        if not repeatable or self.pipeline.state.retry_count >= self.options.get("max_processor_retries", 0):
            if abort.processor_id == OUTPUT_TYPE:
                raise OutputError(abort.reason, text=attempt.text) from abort
            raise abort
        self.pipeline.state.retry_count += 1
        self.result.rejected.append(
            Rejected(
                step_number=number,
                text=attempt.text,
                reason=abort.reason,
                processor_id=abort.processor_id,
                usage=attempt.usage,
            )
        )
        return abort.reason

    # -- endings

    def _block(self, abort: ProcessorAbort) -> Chunk:
        result = self.result
        result.text, result.output = "", None
        result.messages, result.conversation, result.pending = [], [], []
        result.stopped_by, result.finish_reason = "tripwire", "other"
        result.tripwire = Tripwire(
            reason=abort.reason,
            processor_id=abort.processor_id,
            hook=abort.hook,
            metadata=abort.metadata,
            retry=abort.retry,
        )
        return TripwireChunk(
            payload=TripwirePayload(
                reason=abort.reason, processor_id=abort.processor_id, retry=abort.retry, metadata=abort.metadata
            )
        )

    def _cancel(self) -> None:
        self._keep_finished_steps("cancelled")
        self._last_chunk = AbortChunk(payload=AbortPayload(reason=self.context.cancel.reason))

    def _fail(self, error: Exception, cause: BaseException | None = None) -> None:
        self._keep_finished_steps("error")
        self.error = error
        if cause is not None:
            error.__cause__ = cause

    def _keep_finished_steps(self, by: StoppedBy) -> None:
        self.result.stopped_by = by
        self.result.finish_reason = "error" if by == "error" else "other"
        self.result.messages = [message for step in self.result.steps for message in step.messages]

    async def _tell_memory(self, outcome: Outcome) -> None:
        """Commit or drop what was staged for this run."""
        try:
            await self.context.end(outcome)
        except Exception as error:
            if self.error is None:
                self._fail(error)
            else:
                self.error.add_note(f"ending the run failed as well: {error!r}")
        self._stored = True

    async def _send_error(self, error: Exception) -> BaseException | None:
        """Make the error chunk, with the text that stream hooks let through. Returns a cancellation from outside."""
        kind, withheld_by = type(error).__name__, "a stream hook"
        chunk = ErrorChunk(payload=ErrorPayload(error=message_of(error), kind=kind))
        cancelled: BaseException | None = None
        try:
            passed = await self.pipeline.open_stream().feed(chunk)
            if found := next((part for part in passed if isinstance(part, ErrorChunk)), None):
                self._last_chunk = found
                return None
        except (DiaristError, ProcessorAbort) as failed:
            if by := getattr(failed, "processor_id", ""):
                withheld_by = f"processor {by!r}"
        except asyncio.CancelledError as broken:
            cancelled = self._from_outside(broken) if being_cancelled() else None
        text = f"{withheld_by} withheld the text of this error"
        self._last_chunk = ErrorChunk(payload=ErrorPayload(error=text, kind=kind))
        return cancelled

    def _from_outside(self, error: BaseException) -> BaseException | None:
        """Return the error to pass on; None for a cancellation by this run's own signal."""
        return None if isinstance(error, asyncio.CancelledError) and self.context.cancel.take() else error

    async def _call_back(
        self, name: Literal["on_step_finish", "on_finish", "on_error", "on_abort"], value: Any
    ) -> None:
        """Call one of the caller's functions; its errors are logged and do not change the run."""
        function: Callable[[Any], Any] | None = self.options.get(name)
        if function is None:
            return
        try:
            answer = function(value)
            if inspect.isawaitable(answer):
                await inner_cancel_as_error(answer)
        except Exception:
            logger.exception("the callback %s failed; the run is not affected", name)
