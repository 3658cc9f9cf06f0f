"""One attempt at one step: hooks, prompt, model call, response, tools."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from diarist.agent.message_assembler import MessageAssembler
from diarist.agent.model_call import ModelCall, make_request
from diarist.agent.options import PrepareStep, StopWhen
from diarist.agent.resume import answer_calls, check_answers, missing_tools, waiting_calls, waits_for
from diarist.agent.stream_writer import StreamWriter
from diarist.agent.tools import ToolCalls, WaitsFor
from diarist.chunks import (
    Chunk,
    DataChunk,
    ModelFinishPayload,
    ObjectChunk,
    ObjectPayload,
    StepFinish,
    StepFinishPayload,
    StepStart,
    StepStartPayload,
    ToolApprovalChunk,
    ToolCallPayload,
    Usage,
)
from diarist.concurrency import cancel_and_wait
from diarist.exceptions import InputError, ProcessorAbort
from diarist.message_list import MessageList
from diarist.messages import DataPart, Message, Part, ReasoningPart, ToolPart
from diarist.models.output_type import OutputType
from diarist.processors.base import OutputResult, Processor, StepResult
from diarist.processors.hook_calls import (
    HookCall,
    OnInputStep,
    OnOutputResult,
    OnOutputStep,
    OnRequest,
    OnResponse,
)
from diarist.processors.hooks import Hook
from diarist.processors.pipeline import PipelineRun
from diarist.processors.setup import StepSetup
from diarist.run_context import RunContext
from diarist.tracing import span

OUTPUT_TYPE = "output-type"
"""The processor id under which an answer that does not fit ``output_type`` is rejected."""


class _PrepareStep(Processor[Any]):
    id = "prepare-step"


PREPARE_STEP = _PrepareStep()
"""The processor under whose name the call's ``prepare_step`` runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """The input of an attempt.

    Attributes:
        last: No step may follow, so that ``process_output_result`` runs even after tool calls.
        done: Results of the steps before.
        usage: Tokens of the run before this attempt.
        feedback: Why the previous attempt was rejected.
        guards: Input guards that run beside this step's model call.
        approvals: Answers to waiting calls, by id: the step then only runs these, without a model call.
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
    stop_when: Sequence[StopWhen] = ()


class StepAttempt:
    """One attempt at a step: ``run()`` it, once.

    Attributes:
        answered: The model has answered to its end.
        output: The answer's value, by the schema that the step asked for; None without one.
        ended: The run is over: the model called no tools, or calls have to wait.
        stopped: ``stop_when`` held after this step.
        waiting: Tool calls that wait for approval or for the client, by id; they end the run.
    """

    def __init__(self, given: StepInput, context: RunContext[Any], pipeline: PipelineRun, stream: StreamWriter) -> None:
        self._given = given
        self._context = context
        self._pipeline = pipeline
        self._stream = stream
        self._setup = replace(given.setup, tools=dict(given.setup.tools))
        self._assembler = MessageAssembler(context.run_id)
        self._before = {message.id for message in context.messages.response}
        self._message: Message | None = None
        self._finish = ModelFinishPayload(reason="error", usage=Usage())
        self._model_id = ""
        self._calls: ToolCalls | None = None
        self._open: dict[str, ToolPart] = {}  # of a resumed step: the calls that are still not answered
        self.answered = False
        self.output: Any = None
        self.ended = False
        self.stopped = False
        self.waiting: dict[str, WaitsFor] = {}
        guards = given.guards
        passed = guards is None or (guards.done() and not guards.cancelled() and guards.exception() is None)
        resumed = given.approvals is not None
        for chunk in () if resumed else stream.unkept:
            self._assembler.add(chunk)
        stream.begin_step(self._keep, hold=pipeline.hold_output and not resumed, guards=not passed)

    @property
    def usage(self) -> Usage:
        """Tokens of this attempt's model call."""
        return self._finish.usage

    @property
    def repeatable(self) -> bool:
        """True if another attempt may follow: no tool has run, which cannot be undone."""
        return self._given.approvals is None and (self._calls is None or not self._calls.started)

    @property
    def pending(self) -> list[ToolPart]:
        """The calls that wait."""
        if not self.waiting:
            return []
        calls = self._open or {part.call_id: part for part in self._tool_parts()}
        return [calls[call_id] for call_id in self.waiting if call_id in calls]

    @property
    def text(self) -> str:
        """The text of this attempt so far, after the stream hooks."""
        message = self._message or self._assembler.message()
        return "" if message is None else message.text

    def cut_short(self) -> StepResult | None:
        """Return the step of a cancelled run as far as it came: unfinished calls are errors. None without calls."""
        if self._calls is None:
            return None
        self._calls.cut_short()
        return self.result()

    async def run(self) -> StepResult:
        """Raises ProcessorAbort if a processor blocks or asks for a retry, CallFailed if the model fails."""
        with span(f"step {self._given.number}", **{"diarist.step": self._given.number}):
            may_write = bool(self._pipeline.ids) or bool(self._setup.tools) or self._given.prepare_step is not None
            return await (self._stream.during(self._run()) if may_write else self._run())

    async def _run(self) -> StepResult:
        given, stream = self._given, self._stream
        try:
            if given.approvals is None:
                await (self._before_guards(self._call_model()) if given.guards else self._call_model())
                if self._pipeline.has(OnOutputStep.hook):
                    await self._judge_step()
                await self._run_tools()
            else:
                await self._resume(given.approvals)
            result = self.result()
            self.stopped = not self.ended and any(stop([*given.done, result]) for stop in given.stop_when)
            if self.ended or self.stopped or given.last:
                await self._judge_answer()
                if stream.before_verdict:
                    await stream.release(self._parts())
                if self.output is not None:
                    await stream.send(ObjectChunk(payload=ObjectPayload(object=self.output)))
            finish = StepFinishPayload(step_number=given.number, reason=self._finish.reason, usage=self.usage)
            await stream.send(StepFinish(payload=finish))
        except BaseException as error:
            await stream.end_step(error)
            raise
        await stream.end_step()
        return self.result()

    # -- the model

    async def _before_guards(self, work: Coroutine[Any, Any, None]) -> None:
        """Await ``work`` beside the input guards. A guard that blocks wins over the outcome of ``work``."""
        guards = self._given.guards
        if guards is None or not self._stream.before_guards:  # they have passed already
            await work
            return
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, guards}, return_when=asyncio.FIRST_COMPLETED)
            await guards
            await self._stream.guards_passed()
            await task
        finally:
            await cancel_and_wait(task)

    async def _call_model(self) -> None:
        given, messages, setup, stream = self._given, self._context.messages, self._setup, self._stream
        if given.prepare_step is not None or self._pipeline.has(OnInputStep.hook):
            await self._prepare()
        setup.check_names(given.setup.tools)
        self._context.tool_names = frozenset(setup.tools)
        asked = OnRequest(
            messages=messages,
            step=given.number,
            request=make_request(messages, setup, given.feedback),
            model=setup.model,
        )
        if self._pipeline.has(OnRequest.hook):
            await self._ask(asked)
        start = StepStartPayload(step_number=given.number, model=setup.model.id)
        await stream.send_start(StepStart(payload=start))
        call = ModelCall(asked)
        try:
            await call.run(stream.send, self._ask if self._pipeline.has(OnResponse.hook) else None)
        finally:
            self._finish = call.finish
        self.answered, self._model_id = True, setup.model.id
        stream.complete()
        self._message = self._assembler.message()
        if self._message is not None:
            messages.add(self._message, "response")

    async def _prepare(self) -> None:
        """``process_input_step`` of all processors, then the call's ``prepare_step``; they change the setup."""
        given = self._given
        last = None
        if given.prepare_step is not None:
            last = Hook.of(PREPARE_STEP, "prepare_step", given.prepare_step)
        call = OnInputStep(messages=self._context.messages, step=given.number, setup=self._setup, steps=given.done)
        await self._ask(call, last=last)

    async def _ask(self, call: HookCall, *, last: Hook | None = None) -> None:
        """Ask the processors, and send what they wrote."""
        await self._pipeline.ask(call, last=last)
        await self._stream.drain()

    async def _judge_step(self) -> None:
        call = OnOutputStep(
            messages=self._context.messages,
            step=self._given.number,
            steps=self._given.done,
            added=self.result,
            finish_reason=self._finish.reason,
            usage=self.usage,
        )
        await self._ask(call)

    async def _judge_answer(self) -> None:
        """``process_output_result``, then the typed value of the answer it left."""
        given = self._given

        def run_so_far(messages: MessageList) -> OutputResult:
            step = self.result(messages)
            return OutputResult(
                text=step.text,
                usage=given.usage + self.usage + self._context.usage,
                finish_reason=step.finish_reason,
                steps=[*given.done, step],
            )

        if self._pipeline.has(OnOutputResult.hook):
            await self._ask(OnOutputResult(messages=self._context.messages, step=given.number, result=run_so_far))
        if self._setup.structured_output is None and given.output_type is None:
            return
        wanted = OutputType.judging(self._setup.structured_output, given.output_type)
        if wanted is not None and self.ended and not self.waiting:
            try:
                self.output = wanted.parse(self.result().text)
            except InputError as error:
                raise ProcessorAbort(str(error), retry=True, processor_id=OUTPUT_TYPE, hook=OUTPUT_TYPE) from error

    # -- tools

    async def _run_tools(self) -> None:
        """Run the step's tool calls. Calls that have to wait end the run when the others are done."""
        calls = [part for part in self._tool_parts() if part.state == "call" and not part.provider_executed]
        self.ended = not calls
        if not calls:
            return
        tools = ToolCalls(
            calls, self._setup.offered, self._context, self._pipeline, self._stream.send, self._assembler.args_errors
        )
        await tools.consider()
        await self._stream.drain()
        if self._stream.before_verdict:
            await self._stream.release(self._parts(), running=[call.call_id for call in calls])
        self.waiting = tools.waiting()
        self._calls = tools
        await tools.run(but=self.waiting)
        for call in calls:
            if self.waiting.get(call.call_id) == "approval":
                payload = ToolCallPayload(tool_call_id=call.call_id, tool_name=call.name, args=call.args)
                await self._stream.send(ToolApprovalChunk(payload=payload))
        self.ended = bool(self.waiting)

    async def _resume(self, answers: Mapping[str, bool | str]) -> None:
        """Run the approved calls of an earlier run and deny the others. No model is called."""
        messages, setup = self._context.messages, self._setup
        if self._given.guards is not None:
            await self._given.guards  # no tool runs before the guards have passed
            await self._stream.guards_passed()
        self._open = waiting_calls(messages)
        if missing_tools(answers, self._open, setup.tools):  # processors may add them; their other changes are undone
            before = messages.snapshot(contents=True)
            await self._prepare()
            messages.restore(before)
        check_answers(answers, self._open, setup.tools)
        self._message = await answer_calls(self._context, answers, self._open)
        for call_id in answers:
            del self._open[call_id]
        self._finish, self.answered = ModelFinishPayload(reason="tool-calls", usage=Usage()), True
        self._stream.complete()
        self._calls = ToolCalls(self._tool_parts(), setup.tools, self._context, self._pipeline, self._stream.send)
        await self._calls.run()
        if not any(message.role == "user" for message in messages.input):  # a new user message closes the open calls
            self.waiting = {call_id: waits_for(call, setup.tools) for call_id, call in self._open.items()}
        self.ended = bool(self.waiting)

    # -- what the step added, as processors left it

    def result(self, messages: MessageList | None = None) -> StepResult:
        """Return the step's result by these messages: the run's, or a branch's copy."""
        added = self._added(messages)
        thoughts = [part.text for m in added for part in m.parts if isinstance(part, ReasoningPart)]
        return StepResult(
            step_number=self._given.number,
            text="".join(message.text for message in added),
            reasoning="".join(thoughts),
            tool_calls=[part for message in added for part in message.tool_parts],
            finish_reason=self._finish.reason,
            usage=self._finish.usage,
            messages=added,
            model=self._model_id,
        )

    def _added(self, messages: MessageList | None = None) -> list[Message]:
        response = (messages or self._context.messages).response
        return [message for message in response if message.id not in self._before]

    def _parts(self) -> list[Part]:
        return [part for message in self._added() for part in message.parts]

    def _tool_parts(self) -> list[ToolPart]:
        return [part for message in self._added() for part in message.tool_parts]

    def _keep(self, chunk: Chunk) -> bool:
        """Put a chunk into the step's message. A complete message takes only data."""
        if not self.answered:
            self._assembler.add(chunk)
        elif isinstance(chunk, DataChunk) and not chunk.transient:
            if added := self._added():
                added[0].parts.append(DataPart(type=chunk.type, data=chunk.data, id=chunk.id))
            else:
                chunk.transient = True  # the step left no message to store it with
        return True
