"""The loop of one run: from the input through the steps to one of four endings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from diarist.agent.model_retry import ModelRetry
from diarist.agent.options import Approvals, CallOptions
from diarist.agent.response import CallFailed
from diarist.agent.result import AgentResult, Rejected, mark_blocked, mark_unfinished
from diarist.agent.resume import check_results, suspend, suspended_states, unanswered_calls, waits_for
from diarist.agent.step import OUTPUT_TYPE, StepAttempt
from diarist.agent.stream_writer import ChunkQueue, StreamWriter
from diarist.agent.tools import WaitsFor
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
from diarist.message_list import Snapshot, SystemMessage
from diarist.models.fallbacks import ModelEntry
from diarist.models.output_type import OutputType
from diarist.processors.base import StepResult, call_sync_or_async
from diarist.processors.pipeline import PipelineRun
from diarist.processors.setup import StepSetup
from diarist.run_context import Outcome, RunCancelled, RunContext
from diarist.tracing import span

logger = logging.getLogger("diarist")


@dataclass(kw_only=True)
class AgentRun:
    """One request: ``execute()`` it, once.

    The main path: ``_run`` calls ``_answer``, which opens the run, takes its steps and finishes the result; ``_run``
    then tells memory how the run ended.

    Attributes:
        entries: The models, the preferred one first.
        live: The agent's live runs: the task of each, by a future that is done when the run has ended.
        approvals: Answers to the calls that wait for approval, by id; None unless the run is resumed.
        queue: Takes the run's chunks; None if there is no reader.
        error: The exception that made the run fail.
    """

    context: RunContext[Any]
    pipeline: PipelineRun
    setup: StepSetup
    options: CallOptions
    output_type: OutputType | None
    entries: list[ModelEntry]
    live: dict[asyncio.Future[None], asyncio.Task[Any] | None]
    name: str = "agent"
    approvals: Approvals | None = None
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
        self._last_chunk: Chunk | None = None  # sent after the end of the run is stored
        self._stored = False  # True once memory was told how the run ended

    async def execute(self) -> AgentResult[Any]:
        """Run to the end and return the result. Raises ``error``; passes on cancellations and SystemExit."""
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": self.name,
            "gen_ai.conversation.id": self.result.thread_id,
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
        mark_unfinished(self.result, "cancelled")
        if self.queue is not None:
            self.queue.finish(AbortChunk(payload=AbortPayload(reason="never started")))

    async def _run(self) -> None:
        """Produce the answer, tell memory how the run ended, then call the caller's callback."""
        context, result = self.context, self.result
        outcome: Outcome = "interrupted"
        to_raise: BaseException | None = None  # at the very end: a cancellation from outside, or an exit
        try:
            async with context.cancel.scope():
                self._last_chunk = await self._answer()
            outcome = "committed"
        except ProcessorAbort as abort:
            abort.__traceback__ = None  # its frames refer to the run: a cycle that only the garbage collector frees
            self._last_chunk = mark_blocked(result, abort)
            outcome = "discarded"
        except RunCancelled:
            self._mark_cancelled()
        except asyncio.CancelledError as error:
            if being_cancelled():
                to_raise = error
                self._mark_cancelled()
            else:
                failure = DiaristError("a task that the run awaited was cancelled, but the run itself was not")
                self._mark_failed(failure, error)
        except Exception as error:
            self._mark_failed(error)
        except BaseException as error:  # SystemExit: first end the run in the storage
            to_raise = error
            self._mark_failed(DiaristError(f"the run was broken off by {described(error)}"), error)

        result.usage += context.usage
        if isinstance(self._last_chunk, Finish):
            self._last_chunk.payload.usage = result.usage
        if context.has_endings:
            tell, hurried = partial(self._tell_memory, outcome), result.stopped_by == "cancelled"
            try:
                async with context.cancel.scope():
                    await shield_until_done(tell, hurried=hurried)
                    await context.settled()
            except BaseException as error:
                if to_raise is None and not isinstance(error, RunCancelled):
                    to_raise = error
                if outcome == "committed" and not self._stored:  # the result must not promise an answer
                    self._mark_cancelled()

        finish = self._last_chunk
        if isinstance(finish, Finish) and finish.payload.messages is not result.messages:  # copies for stream hooks
            numbers = {message.id: message.seq for message in result.messages}
            for message in finish.payload.messages:
                message.seq = numbers.get(message.id)
        if self.error is not None:
            to_raise = await self._pass_error_chunk(self.error) or to_raise
            await self._call_back("on_error", self.error)
        else:
            await self._call_back("on_abort" if result.stopped_by == "cancelled" else "on_finish", result)
        if to_raise is not None:
            raise to_raise

    # -- the answer

    async def _answer(self) -> Chunk:
        """Process the input, take the steps, and return the finish chunk, which is sent once the run is stored."""
        self._stream = StreamWriter(self.context, self.pipeline, self.queue)
        await self._stream.forward(Start())
        self.context.cancel.check()
        await self._open()
        if self.approvals is None and (waiting := unanswered_calls(self.context.messages, self.setup.tools)):
            if self._guards is not None:
                await self._guards
            self.result.finish_reason, self.result.pending = "tool-calls", waiting
            return await self._finish({call.call_id: waits_for(call, self.setup.tools) for call in waiting})

        system, max_steps = self.context.messages.system, self.options.get("max_steps", 5)
        approvals, model_calls = self.approvals, 0
        try:
            while True:
                if approvals is None:
                    model_calls += 1
                attempt = await self._step(system, last=model_calls == max_steps, approvals=approvals)
                if attempt.ended or attempt.stopped:
                    break
                if model_calls == max_steps:
                    self.result.stopped_by = "max_steps"
                    break
                approvals = None  # only the first step of a resumed run answers calls
        finally:
            if self._guards is not None:
                await cancel_and_wait(self._guards)
        self.pipeline.state.step_number = None
        return await self._finish(attempt.waiting, stopped=attempt.stopped)

    async def _open(self) -> None:
        """Run the input hooks, and start the guards that run at the same time as the first model call."""
        pipeline, messages = self.pipeline, self.context.messages
        new_input = self.approvals is None or bool(messages.input)
        guarded = messages.copy() if pipeline.has_guards and new_input else None
        opening: Coroutine[Any, Any, None] | None = None
        if self.approvals is not None:
            opening = pipeline.reopen(lambda: suspended_states(messages, pipeline.state.ids), new_input=new_input)
        elif pipeline.has("process_input"):
            opening = pipeline.open()
        if opening is not None:  # with guards, nothing is sent until they have passed
            await (self._stream.during(opening) if guarded is None else opening)
        if any(message.role == "tool" for message in messages.input):
            check_results(messages)
        if guarded is not None:
            self._guards = pipeline.start_guards(guarded)

    async def _finish(self, waiting: Mapping[str, WaitsFor], *, stopped: bool = False) -> Chunk:
        """Complete the result after the last step. Returns the finish chunk, after the stream hooks."""
        pipeline, messages, result, stream = self.pipeline, self.context.messages, self.result, self._stream
        if waiting:
            result.stopped_by = "approval" if "approval" in waiting.values() else "client_tool"
        elif stopped:
            result.stopped_by = "stop_when"
        result.messages = messages.response
        result.end_with(messages.all)
        finish = Finish(
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
            at_once = stream.has_hooks and not pipeline.hold_output
            passed = await (stream.during(feeding) if at_once else feeding)
            await stream.drain()
            for chunk in passed:
                if isinstance(chunk, Finish):
                    finish = chunk
                else:
                    await stream.forward(chunk)
        except BaseException as error:
            if pipeline.hold_output:
                self.context.writer.discard()
            await stream.end_step(error)
            if isinstance(error, ProcessorAbort):
                result.steps = result.steps[:-1]  # the result must not contain blocked text
            raise
        stream.leave()
        pipeline.warn_of_dropped_chunks()
        if waiting and result.steps:  # all hooks have run: the states are final
            states = (
                pipeline.state.dump() if result.stopped_by == "approval" else [{"id": id} for id in pipeline.state.ids]
            )
            suspend(result.messages, states, waiting)
            if finish.payload.messages is not result.messages:  # copies for stream hooks
                suspend(finish.payload.messages, states, waiting)
        return finish

    # -- a step

    async def _step(self, system: list[SystemMessage], *, last: bool, approvals: Approvals | None) -> StepAttempt:
        """Take one step. After a rejection or a failed model call, try again, perhaps later or with the next model."""
        context, pipeline, messages, result = self.context, self.pipeline, self.context.messages, self.result
        pipeline.state.step_number = number = len(result.steps)
        pipeline.state.retry_count = 0
        edited = pipeline.edits_in_place or "prepare_step" in self.options
        setup = self.setup
        may_write = bool(pipeline.ids) or bool(setup.tools) or "prepare_step" in self.options
        feedback: str | None = None
        retry: ModelRetry | None = None
        while True:
            context.cancel.check()
            messages.replace_system(system)
            before = messages.snapshot(contents=edited)
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
                fallback=setup.model is not self.setup.model,
                approvals=approvals,
            )
            try:
                step = await (self._stream.during(attempt.run()) if may_write else attempt.run())
                break
            except asyncio.CancelledError:
                self._keep_unfinished(attempt)
                raise
            except (ProcessorAbort, CallFailed) as error:
                failure = error
            finally:
                result.usage += attempt.finish.usage
                if attempt.answered:
                    messages.obsolete |= messages.dropped

            edits = messages.snapshot(contents=edited)
            self._undo(before)
            try:
                delay = 0.0
                if isinstance(failure, CallFailed):
                    retry = retry or ModelRetry(pipeline, messages, self.entries)
                    try:
                        delay = await self._stream.during(retry.after(failure, result.steps))
                        setup = replace(self.setup, model=retry.model)
                    except ProcessorAbort as abort:
                        failure = abort
                        self._undo(before)
                if isinstance(failure, ProcessorAbort):
                    feedback = self._reject(failure, attempt)
                if self._stream.begun:
                    payload = StepFinishPayload(step_number=number, reason="retry", usage=attempt.finish.usage)
                    await self._stream.forward(StepFinish(payload=payload))
                await asyncio.sleep(delay)
            except BaseException:
                messages.put_back(edits)  # no attempt follows: keep redactions that were made in place
                raise

        if approvals is None:
            self._stream.unkept.clear()  # stored with this step's message
        self._add(step)
        result.text, result.output, result.has_output = step.text, attempt.output, attempt.has_output
        result.finish_reason, result.pending = step.finish_reason, attempt.pending if attempt.waiting else []
        await self._call_back("on_step_finish", step)
        return attempt

    def _undo(self, before: Snapshot) -> None:
        """Restore the messages as they were before an attempt, and drop the chunks that processors and tools wrote."""
        self.context.messages.restore(before)
        self.context.writer.discard()

    def _add(self, step: StepResult) -> None:
        self.result.steps.append(step)
        self.context.finished = {message.id for message in self.context.messages.of("input", "response")}

    def _keep_unfinished(self, attempt: StepAttempt) -> None:
        """Keep the tools' results of a cancelled attempt, and its text with ``on_stop="keep"``.

        Keeps nothing if a processor has yet to check the answer.
        """
        if self.context.guarded or not being_cancelled():
            return
        keep_text = self.options.get("on_stop") == "keep"
        unfinished = attempt.cut_short(keep=keep_text)
        if unfinished is None:
            return
        self._add(unfinished)
        if keep_text:
            self.result.text = unfinished.text

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

    def _mark_cancelled(self) -> None:
        mark_unfinished(self.result, "cancelled")
        self._last_chunk = AbortChunk(payload=AbortPayload(reason=self.context.cancel.reason))

    def _mark_failed(self, error: Exception, cause: BaseException | None = None) -> None:
        mark_unfinished(self.result, "error")
        self.error = error
        if cause is not None:
            error.__cause__ = cause

    async def _tell_memory(self, outcome: Outcome) -> None:
        """Commit or discard the staged work of this run."""
        try:
            await self.context.end(outcome)
        except Exception as error:
            if self.error is None:
                self._mark_failed(error)
            else:
                self.error.add_note(f"ending the run failed as well: {error!r}")
        self._stored = True

    async def _pass_error_chunk(self, error: Exception) -> BaseException | None:
        """Pass the error chunk through the stream hooks. If they fail or drop it, its text is replaced.

        Returns a cancellation from outside, if one arrives.
        """
        kind, withheld_by = type(error).__name__, "a stream hook"
        chunk = ErrorChunk(payload=ErrorPayload(error=message_of(error), kind=kind))
        cancelled: BaseException | None = None
        try:
            async with self.context.cancel.scope():
                passed = await self.pipeline.open_stream().feed(chunk)
            if found := next((part for part in passed if isinstance(part, ErrorChunk)), None):
                self._last_chunk = found
                return None
        except (DiaristError, ProcessorAbort, RunCancelled) as failure:
            if processor_id := getattr(failure, "processor_id", ""):
                withheld_by = f"processor {processor_id!r}"
        except asyncio.CancelledError as cancellation:
            cancelled = cancellation if being_cancelled() else None
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
            await inner_cancel_as_error(call_sync_or_async(function, value))
        except Exception:
            logger.exception("the callback %s failed; the run is not affected", name)
