"""The loop of one run: from the input through the steps to one of four endings."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from diarist.agent.model_retry import ModelRetry
from diarist.agent.options import CallOptions
from diarist.agent.response import CallFailed
from diarist.agent.result import AgentResult, Rejected, blocked, broken_off
from diarist.agent.resume import check_results, suspend, suspended
from diarist.agent.step import OUTPUT_TYPE, StepAttempt
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
)
from diarist.concurrency import being_cancelled, cancel_and_wait, inner_cancel_as_error, shield_until_done
from diarist.exceptions import DiaristError, OutputError, ProcessorAbort, described, message_of
from diarist.message_list import SystemMessage
from diarist.models.fallbacks import ModelEntry
from diarist.models.output_type import OutputType
from diarist.processors.base import StepResult
from diarist.processors.pipeline import PipelineRun
from diarist.processors.setup import StepSetup
from diarist.run_context import Outcome, RunCancelled, RunContext
from diarist.tracing import span

logger = logging.getLogger("diarist")


@dataclass(kw_only=True)
class AgentRun:
    """One request: ``execute()`` it, once.

    Attributes:
        queue: Takes the run's chunks; None if there is no reader.
        error: The exception that made the run fail.
        live: The agent's live runs: the task of each, by a future that is done when the run has ended.
    """

    context: RunContext[Any]
    pipeline: PipelineRun
    setup: StepSetup
    options: CallOptions
    output_type: OutputType | None
    entries: list[ModelEntry]
    live: dict[asyncio.Future[None], asyncio.Task[Any] | None]
    name: str = "agent"
    approvals: Mapping[str, bool | str] | None = None
    queue: ChunkQueue | None = None
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

    async def execute(self) -> AgentResult[Any]:
        """Run to the end and return the result. Raises ``error``; passes on cancellations and SystemExit."""
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": self.name,
            "gen_ai.conversation.id": self.context.thread_id,
            "diarist.run.id": self.context.run_id,
        }
        result, ended = self.result, asyncio.get_running_loop().create_future()
        with self.context.counting(), span(f"invoke_agent {self.name}", **attributes) as current:
            self.live[ended] = asyncio.current_task()
            try:
                await self._run()
            finally:
                del self.live[ended]
                ended.set_result(None)
                if self.queue is not None:
                    self.queue.finish(self._last_chunk)
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
        if self.error is not None:
            raise self.error
        return result

    def skip(self) -> None:
        """Close a run that was never executed."""
        broken_off(self.result, "cancelled")
        if self.queue is not None:
            self.queue.finish(AbortChunk(payload=AbortPayload(reason="never started")))

    async def _run(self) -> None:
        """Produce the answer, tell memory how the run ended, then call the caller's callback."""
        context, result = self.context, self.result
        leaving: BaseException | None = None  # raised last: a cancellation from outside, or an exit
        try:
            async with context.cancel.scope():
                self._last_chunk = await self._answer()
            outcome: Outcome = "committed"
        except ProcessorAbort as abort:
            abort.__traceback__ = None  # its frames refer to the run: a cycle that only the garbage collector frees
            outcome, self._last_chunk = "discarded", blocked(result, abort)
        except RunCancelled:
            outcome = "interrupted"
            self._cancel()
        except asyncio.CancelledError as error:
            outcome = "interrupted"
            if being_cancelled():
                leaving = error
                self._cancel()
            else:
                failure = DiaristError("something that the run waited for was cancelled, though the run was not")
                self._fail(failure, error)
        except Exception as error:
            outcome = "interrupted"
            self._fail(error)
        except BaseException as error:  # SystemExit: first end the run in the storage
            outcome, leaving = "interrupted", error
            self._fail(DiaristError(f"the run was broken off by {described(error)}"), error)

        result.usage += context.usage
        if isinstance(self._last_chunk, Finish):
            self._last_chunk.payload.usage = result.usage
        if context.has_endings:
            try:
                async with context.cancel.scope():
                    await shield_until_done(self._tell_memory(outcome), hurried=result.stopped_by == "cancelled")
                    await context.settled()
            except BaseException as error:
                leaving = leaving or (None if isinstance(error, RunCancelled) else error)
                if outcome == "committed" and not self._stored:  # not stored: the result must not promise an answer
                    self._cancel()
        if self.error is not None:
            leaving = await self._send_error(self.error) or leaving
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
        await stream.forward(Start())
        context.cancel.check()

        new_input = self.approvals is None or bool(messages.input)
        guarded = messages.copy() if pipeline.has_guards and new_input else None
        opening: Coroutine[Any, Any, None] | None = None
        if self.approvals is not None:
            opening = pipeline.reopen(lambda: suspended(messages, pipeline.ids), new_input=new_input)
        elif pipeline.has("process_input"):
            opening = pipeline.open()
        if opening is not None:  # with guards, nothing is sent until they have passed
            await (stream.during(opening) if guarded is None else opening)
        if any(message.role == "tool" for message in messages.input):
            check_results(messages)

        if guarded is not None:
            self._guards = pipeline.start_guards(guarded)
        system, max_steps = messages.system, self.options.get("max_steps", 5)
        approvals, calls = self.approvals, 0
        try:
            while True:
                calls += approvals is None
                attempt = await self._step(system, last=calls == max_steps, approvals=approvals)
                if attempt.ended or attempt.stopped:
                    break
                if calls == max_steps:
                    result.stopped_by = "max_steps"
                    break
                approvals = None
        finally:
            if self._guards is not None:
                await cancel_and_wait(self._guards)
        pipeline.state.step_number = None
        if attempt.waiting:
            result.stopped_by = "approval" if "approval" in attempt.waiting.values() else "client_tool"
        elif attempt.stopped:
            result.stopped_by = "stop_when"

        result.messages = messages.response
        result.end_with(messages.all)
        finish: Chunk = Finish(
            payload=FinishPayload(
                reason=result.finish_reason,
                stopped_by=result.stopped_by,
                usage=result.usage,
                messages=result.messages,
            )
        )
        stream.complete()
        try:
            feeding = stream.feed(finish)
            at_once = pipeline.has("process_output_stream") and not pipeline.hold_output
            passed = await (stream.during(feeding) if at_once else feeding)
            await stream.drain()
            for chunk in passed:
                if isinstance(chunk, Finish):
                    finish = chunk
                else:
                    await stream.forward(chunk)
        except BaseException as error:
            if pipeline.hold_output:
                context.writer.drain()
            await stream.end_step(error)
            if isinstance(error, ProcessorAbort):
                result.steps = result.steps[:-1]  # the result must not contain blocked text
            raise
        stream.leave()
        pipeline.warn_of_silence()
        if attempt.waiting:  # all hooks have run: the states are final
            states = pipeline.state.dump() if result.stopped_by == "approval" else [{"id": id} for id in pipeline.ids]
            suspend(messages, states, attempt.waiting)
        return finish

    async def _step(
        self, system: list[SystemMessage], *, last: bool, approvals: Mapping[str, bool | str] | None
    ) -> StepAttempt:
        """Take one step. After a rejection or a failed model call, try again, perhaps later or with the next model."""
        context, pipeline, messages, result = self.context, self.pipeline, self.context.messages, self.result
        pipeline.state.step_number = number = len(result.steps)
        pipeline.state.retry_count = 0
        edited = pipeline.edits_in_place or "prepare_step" in self.options
        messages.replace_system(system)
        before = messages.snapshot(contents=edited)
        feedback: str | None = None
        setup = self.setup
        retry: ModelRetry | None = None
        while True:
            context.cancel.check()
            attempt = StepAttempt(
                context=context,
                pipeline=pipeline,
                stream=self._stream,
                options=self.options,
                so_far=result,
                setup=setup,
                output_type=self.output_type,
                last=last,
                feedback=feedback,
                guards=None if result.steps else self._guards,
                approvals=approvals,
            )
            may_write = bool(pipeline.ids) or bool(setup.tools) or "prepare_step" in self.options
            try:
                step = await (self._stream.during(attempt.run()) if may_write else attempt.run())
                break
            except asyncio.CancelledError:
                # Keep the results of tools, unless a processor has yet to check the answer.
                keep = self.options.get("on_stop") == "keep"
                if being_cancelled() and not context.guarded and (unfinished := attempt.cut_short(keep=keep)):
                    self._add(unfinished)
                    if keep:
                        result.text = unfinished.text
                raise
            except (ProcessorAbort, CallFailed) as failure:
                broken = failure
            finally:
                result.usage += attempt.finish.usage
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
                        delay = await self._stream.during(retry.after(broken, result.steps))
                        setup = replace(self.setup, model=retry.model)
                        messages.replace_system(system)
                        before = messages.snapshot(contents=edited)
                    except ProcessorAbort as abort:
                        broken = abort
                        messages.restore(before)
                        context.writer.drain()
                if isinstance(broken, ProcessorAbort):
                    feedback = self._reject(broken, attempt)
                payload = StepFinishPayload(step_number=number, reason="retry", usage=attempt.finish.usage)
                await self._stream.forward(StepFinish(payload=payload))
                await asyncio.sleep(delay)
            except BaseException:
                messages.put_back(edits)  # no attempt follows: keep redactions that were made in place
                raise
        if approvals is None:
            self._stream.unkept.clear()  # stored with this step's message
        self._add(step)
        result.text, result.output = step.text, attempt.output
        result.finish_reason, result.pending = step.finish_reason, attempt.pending if attempt.waiting else []
        await self._call_back("on_step_finish", step)
        return attempt

    def _add(self, step: StepResult) -> None:
        self.result.steps.append(step)
        self.context.finished = {message.id for message in self.context.messages.of("input", "response")}

    def _reject(self, abort: ProcessorAbort, attempt: StepAttempt) -> str:
        """Record a rejected attempt and return the feedback for the next; raise if there may be no next attempt."""
        repeatable = abort.retry and abort.hook != "process_input" and attempt.repeatable
        if not repeatable or self.pipeline.state.retry_count >= self.options.get("max_processor_retries", 0):
            if abort.processor_id == OUTPUT_TYPE:
                raise OutputError(abort.reason, text=attempt.text) from abort
            raise abort
        self.pipeline.state.retry_count += 1
        self.result.rejected.append(
            Rejected(
                step_number=attempt.number,
                text=attempt.text,
                reason=abort.reason,
                processor_id=abort.processor_id,
                usage=attempt.finish.usage,
            )
        )
        return abort.reason

    # -- endings

    def _cancel(self) -> None:
        broken_off(self.result, "cancelled")
        self._last_chunk = AbortChunk(payload=AbortPayload(reason=self.context.cancel.reason))

    def _fail(self, error: Exception, cause: BaseException | None = None) -> None:
        broken_off(self.result, "error")
        self.error = error
        if cause is not None:
            error.__cause__ = cause

    async def _tell_memory(self, outcome: Outcome) -> None:
        """Commit or discard the staged work of this run."""
        try:
            await self.context.end(outcome)
        except Exception as error:
            if self.error is None:
                self._fail(error)
            else:
                self.error.add_note(f"ending the run failed as well: {error!r}")
        self._stored = True

    async def _send_error(self, error: Exception) -> BaseException | None:
        """Pass the error chunk through the stream hooks. Returns a cancellation from outside, if one arrives."""
        kind, withheld_by = type(error).__name__, "a stream hook"
        chunk = ErrorChunk(payload=ErrorPayload(error=message_of(error), kind=kind))
        cancelled: BaseException | None = None
        try:
            async with self.context.cancel.scope():
                passed = await self.pipeline.open_stream().feed(chunk)
            if found := next((part for part in passed if isinstance(part, ErrorChunk)), None):
                self._last_chunk = found
                return None
        except (DiaristError, ProcessorAbort, RunCancelled) as failed:
            if by := getattr(failed, "processor_id", ""):
                withheld_by = f"processor {by!r}"
        except asyncio.CancelledError as broken:
            cancelled = broken if being_cancelled() else None
        text = f"{withheld_by} withheld the text of this error"
        self._last_chunk = ErrorChunk(payload=ErrorPayload(error=text, kind=kind))
        return cancelled

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
