"""One attempt at one step: hooks, prompt, model call, response, tools."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from diarist.agent.options import Approvals, CallOptions, listed
from diarist.agent.response import read_response
from diarist.agent.result import AgentResult
from diarist.agent.resume import answer_calls, check_answers, missing_tools, waiting_calls, waits_for
from diarist.agent.stream_writer import MessageAssembler, StreamWriter
from diarist.agent.tools import ToolCalls, WaitsFor, cancel
from diarist.chunks import (
    Chunk,
    ModelFinish,
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
from diarist.messages import Message, Part, ReasoningPart, ToolPart
from diarist.models.base import ModelRequest
from diarist.models.output_type import OutputType
from diarist.processors.base import OutputResult, Processor, StepResult, call_sync_or_async
from diarist.processors.hook_calls import HookCall, OnInputStep, OnOutputResult, OnOutputStep, OnRequest, OnResponse
from diarist.processors.hooks import Hook
from diarist.processors.pipeline import PipelineRun
from diarist.processors.setup import StepSetup
from diarist.prompting import build_prompt
from diarist.run_context import RunContext
from diarist.tracing import client_span, span

OUTPUT_TYPE = "output-type"
"""The processor id under which an answer that does not fit ``output_type`` is rejected."""


_CUT_OFF = {
    "length": "the answer was cut off at the limit of output tokens; raise ModelSettings(max_output_tokens=...)",
    "content-filter": "the answer was cut off by the provider's content filter; change the prompt, or the model",
}
"""By finish reason, why an answer is no complete value of ``output_type``, and the remedy."""


PREPARE_STEP, STOP_WHEN = Processor[Any](), Processor[Any]()
PREPARE_STEP.id, STOP_WHEN.id = "prepare-step", "stop-when"
"""The processors that run the call's ``prepare_step`` and ``stop_when``; errors and spans name them."""


@dataclass(kw_only=True, eq=False)
class StepAttempt:
    """One attempt at a step: ``run()`` it, once.

    Attributes:
        so_far: The run's result before this step.
        last: No step may follow; then ``process_output_result`` runs even after tool calls.
        feedback: Why the previous attempt was rejected.
        guards: Input guards that run at the same time as this step's model call.
        fallback: The setup has a fallback model, which ``process_input_step`` and ``prepare_step`` do not replace.
        approvals: Answers to waiting calls, by id. Given these, the step runs the approved calls, without a model call.
        answered: The model's response is complete.
        output: The answer's value, parsed with the step's schema; None without a schema.
        has_output: The answer was parsed; its value may be None.
        ended: The run is over: the model called no tools, or calls have to wait.
        stopped: A ``stop_when`` function returned True after this step.
        waiting: Tool calls that wait for approval or for the client, by id; they end the run.
        finish: The model's finish reason and tokens; ``error`` and no tokens until the response has ended.
    """

    context: RunContext[Any]
    pipeline: PipelineRun
    stream: StreamWriter
    options: CallOptions
    so_far: AgentResult[Any]
    setup: StepSetup
    output_type: OutputType | None
    last: bool
    feedback: str | None = None
    guards: asyncio.Task[None] | None = None
    fallback: bool = False
    approvals: Approvals | None = None

    def __post_init__(self) -> None:
        self.number = len(self.so_far.steps)
        self.answered = self.ended = self.stopped = False
        self.output: Any = None
        self.has_output = False
        self.waiting: dict[str, WaitsFor] = {}
        self.finish = ModelFinishPayload(reason="error", usage=Usage())
        self._own_tools = self.setup.tools
        choice = self.setup.tool_choice
        if choice != "none" and any(step.tool_calls for step in self.so_far.steps):
            choice = "auto"  # a model that must call a tool at every step would never answer
        self.setup = replace(self.setup, tools=dict(self._own_tools), tool_choice=choice)
        self._ids_before = {message.id for message in self.context.messages.response}
        self._message: Message | None = None
        self._model_id = ""
        self._request: ModelRequest | None = None
        self._calls: ToolCalls | None = None
        self._unanswered: dict[str, ToolPart] = {}  # in a resumed step: the calls that still wait
        self._assembler = MessageAssembler(self.context.run_id)
        hold = False
        if self.approvals is None:
            hold = self.pipeline.hold_output
            for chunk in self.stream.unkept:
                self._assembler.add(chunk)
        self.stream.begin_step(self._assembler, self._added, hold=hold, guards=self.guards is not None)

    @property
    def repeatable(self) -> bool:
        """True if another attempt may follow, because no tool has run yet (a tool cannot be undone)."""
        return self.approvals is None and (self._calls is None or not self._calls.started)

    @property
    def pending(self) -> list[ToolPart]:
        """The tool calls that wait."""
        calls = self._unanswered or {part.call_id: part for part in self._tool_parts()}
        return [calls[call_id] for call_id in self.waiting if call_id in calls]

    @property
    def text(self) -> str:
        """The text of this attempt so far, after the stream hooks."""
        message = self._message or self._assembler.message()
        return "" if message is None else message.text

    def cut_short(self, *, keep: bool) -> StepResult | None:
        """Return the unfinished step of a cancelled run, with unfinished calls as errors.

        None if no tools ran, unless ``keep`` asks for the text so far, and nothing has yet to check it.
        """
        if self._calls is not None:
            self._calls.cut_short()
            return self.result()
        guards = self.guards
        passed = guards is None or (guards.done() and not guards.cancelled() and guards.exception() is None)
        if not keep or not passed or self.pipeline.has(OnOutputStep.hook) or self.approvals is not None:
            return None
        message = None if self.answered else self._assembler.cut()
        if message is not None:
            self.finish = replace(self.finish, reason="other")
            self.context.messages.add(message, "response")
        cancel(part for part in self._tool_parts() if part.state == "call" and not part.provider_executed)
        return self.result() if self._added() else None

    async def run(self) -> StepResult:
        """Make the attempt. Raises ProcessorAbort if a processor blocks or asks for a retry, and CallFailed."""
        stream = self.stream
        with span(f"step {self.number}", **{"diarist.step": self.number}):
            try:
                if self.approvals is not None:
                    await self._resume(self.approvals)
                else:
                    if self.guards is not None:
                        await self._call_model_beside_guards(self.guards)
                    else:
                        await self._call_model()
                    if self.pipeline.has(OnOutputStep.hook):
                        await self._judge_step()
                    await self._run_tools()
                if not self.ended and (conditions := listed(self.options.get("stop_when", ()))):
                    steps = [*self.so_far.steps, self.result()]
                    for condition in conditions:
                        with Hook.of(STOP_WHEN, "stop_when", condition).naming(self.number):
                            self.stopped = bool(await call_sync_or_async(condition, steps))
                        if self.stopped:
                            break
                if self.ended or self.stopped or self.last:
                    await self._judge_answer()
                    if stream.before_verdict:
                        await stream.release(self._parts())
                    if self.has_output:
                        await stream.send(ObjectChunk(payload=ObjectPayload(object=self.output)))
                finish = StepFinishPayload(step_number=self.number, reason=self.finish.reason, usage=self.finish.usage)
                await stream.send(StepFinish(payload=finish))
            except BaseException as error:
                await stream.end_step(error)
                raise
            await stream.end_step()
            return self.result()

    # -- the model

    async def _call_model_beside_guards(self, guards: asyncio.Task[None]) -> None:
        """Call the model while the input guards run. If a guard blocks, the outcome of the call does not count."""
        task = asyncio.create_task(self._call_model())
        try:
            await asyncio.wait({task, guards}, return_when=asyncio.FIRST_COMPLETED)
            await guards
            await self.stream.guards_passed()
            await task
        finally:
            await cancel_and_wait(task)

    async def _call_model(self) -> None:
        """Prepare the step, send the request, and stream the response into the step's message."""
        messages, pipeline, setup, stream = self.context.messages, self.pipeline, self.setup, self.stream
        if "prepare_step" in self.options or pipeline.has(OnInputStep.hook):
            await self._prepare()
        setup.check_names(self._own_tools)
        self.context.tool_names = frozenset(setup.tools)
        self.context.has_schema = setup.structured_output is not None
        model, settings = setup.model, setup.model_settings
        request = ModelRequest(
            prompt=build_prompt(
                messages.system,
                messages.messages,
                feedback=self.feedback,
                cache_breakpoints=model.cache_breakpoints,
                reuse=not self.context.edits_in_place,
            ),
            tools=[tool.definition for tool in setup.offered.values()],
            tool_choice=setup.tool_choice,
            settings=settings,
            output=setup.structured_output,
            provider_options=setup.provider_options,
        )
        request_call = OnRequest(messages=messages, request=request, model=model)
        if pipeline.has(OnRequest.hook):
            await self._ask(request_call)
        self._request, model_id = request, model.id
        await stream.send(StepStart(payload=StepStartPayload(step_number=self.number, model=model_id)))
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": model.provider,
            "gen_ai.request.model": model.name,
            "gen_ai.request.temperature": settings.temperature,
            "gen_ai.request.max_tokens": settings.max_output_tokens,
            "gen_ai.request.top_p": settings.top_p,
        }
        with client_span(f"chat {model.name}", **attributes) as current:
            original: list[Chunk] = []
            async with aclosing(read_response(request_call, original)) as response:
                async for chunk in response:
                    if isinstance(chunk, ModelFinish):
                        self.finish = chunk.payload
                    else:
                        await stream.send(chunk)
            if pipeline.has(OnResponse.hook):
                await self._ask(
                    OnResponse(
                        messages=messages,
                        request=request,
                        model=model,
                        response=original,
                        from_cache=request_call.response is not None,
                    )
                )
            if current.recording:
                finish = self.finish
                current.set(
                    **{
                        "gen_ai.response.model": finish.model or None,
                        "gen_ai.response.id": finish.response_id or None,
                        "gen_ai.response.finish_reasons": [finish.reason],
                        "gen_ai.usage.input_tokens": finish.usage.input_tokens,
                        "gen_ai.usage.output_tokens": finish.usage.output_tokens,
                        "gen_ai.usage.cache_read.input_tokens": finish.usage.cached_tokens,
                    }
                )
        self.answered, self._model_id = True, model_id
        stream.complete()
        self._message = self._assembler.message()
        if self._message is not None:
            messages.add(self._message, "response")

    async def _prepare(self) -> None:
        """Call ``process_input_step`` of all processors, then ``prepare_step``; both may change the setup."""
        function, model = self.options.get("prepare_step"), self.setup.model
        last = None if function is None else Hook.of(PREPARE_STEP, "prepare_step", function)
        call = OnInputStep(messages=self.context.messages, setup=self.setup, steps=self.so_far.steps, is_last=self.last)
        await self._ask(call, last=last)
        if self.fallback:
            self.setup.model = model

    async def _ask(self, call: HookCall, *, last: Hook | None = None) -> None:
        """Call the hook of all processors, then ``last``; send the chunks that they wrote."""
        await self.pipeline.ask(call, last=last)
        await self.stream.drain()

    async def _judge_step(self) -> None:
        """Call ``process_output_step``, which may change the response or reject it."""
        await self._ask(
            OnOutputStep(
                messages=self.context.messages,
                steps=self.so_far.steps,
                added=self.result,
                finish_reason=self.finish.reason,
                usage=self.finish.usage,
            )
        )

    async def _judge_answer(self) -> None:
        """Call ``process_output_result``, then parse the answer into its typed value."""

        def run_with_this_step(messages: MessageList) -> OutputResult:
            step = self.result(messages)
            return OutputResult(
                text=step.text,
                usage=self.so_far.usage + self.finish.usage + self.context.usage,
                finish_reason=step.finish_reason,
                steps=[*self.so_far.steps, step],
            )

        if self.pipeline.has(OnOutputResult.hook):
            await self._ask(OnOutputResult(messages=self.context.messages, result=run_with_this_step))
        schema = self.setup.structured_output
        if schema is None or not self.ended or self.waiting:
            return
        try:
            kind = self.output_type
            if kind is None or kind.schema != schema:  # a processor has set the schema: return plain JSON
                kind = OutputType(schema)
            self.output = kind.parse(self.result().text)
            self.has_output = True
        except InputError as error:
            cut = _CUT_OFF.get(self.finish.reason)  # another attempt would end there too
            raise ProcessorAbort(
                cut or str(error), retry=cut is None, processor_id=OUTPUT_TYPE, hook=OUTPUT_TYPE
            ) from error

    # -- tools

    async def _run_tools(self) -> None:
        """Run the step's tool calls. If some have to wait, the run ends after the others."""
        calls = [part for part in self._tool_parts() if part.state == "call" and not part.provider_executed]
        self.ended = not calls
        if not calls:
            return
        tools = ToolCalls(
            calls, self.setup.offered, self.context, self.pipeline, self.stream.send, self._assembler.args_errors
        )
        await tools.ask_processors()
        await self.stream.drain()
        if self.stream.before_verdict:
            await self.stream.release(self._parts(), running=[call.call_id for call in calls])
        self.waiting = tools.find_waiting()
        self._calls = tools
        await tools.run(skip=self.waiting)
        for call in calls:
            if self.waiting.get(call.call_id) == "approval":
                payload = ToolCallPayload(tool_call_id=call.call_id, tool_name=call.name, args=call.args)
                await self.stream.send(ToolApprovalChunk(payload=payload))
        self.ended = bool(self.waiting)

    async def _resume(self, answers: Approvals) -> None:
        """Run the approved calls of an earlier run and deny the others. No model is called."""
        messages, setup = self.context.messages, self.setup
        if self.guards is not None:
            await self.guards  # no tool runs before the guards have passed
            await self.stream.guards_passed()
        self._unanswered = waiting_calls(messages)
        if missing_tools(answers, self._unanswered, setup.tools):
            # Processors may add the tools. Undo their other changes.
            before = messages.snapshot(contents=True)
            await self._prepare()
            messages.restore(before)
        check_answers(answers, self._unanswered, setup.tools, messages)
        self._message = await answer_calls(self.context, answers, self._unanswered)
        for call_id in answers:
            del self._unanswered[call_id]
        self.finish, self.answered = ModelFinishPayload(reason="tool-calls", usage=Usage()), True
        self.stream.complete()
        self._calls = ToolCalls(self._tool_parts(), setup.tools, self.context, self.pipeline, self.stream.send)
        await self._calls.run()
        if not any(message.role == "user" for message in messages.input):  # a new user message closes the open calls
            self.waiting = {call_id: waits_for(call, setup.tools) for call_id, call in self._unanswered.items()}
        self.ended = bool(self.waiting)

    # -- what the step added, as processors left it

    def result(self, messages: MessageList | None = None) -> StepResult:
        """Return the step's result, computed from ``messages`` (a branch's copy); by default from the run's."""
        added = self._added(messages)
        thoughts = [part.text for message in added for part in message.parts if isinstance(part, ReasoningPart)]
        return StepResult(
            step_number=self.number,
            text="".join([message.text for message in added]),
            reasoning="".join(thoughts),
            tool_calls=[part for message in added for part in message.tool_parts],
            finish_reason=self.finish.reason,
            usage=self.finish.usage,
            messages=added,
            model=self._model_id,
            request=self._request,
        )

    def _added(self, messages: MessageList | None = None) -> list[Message]:
        response = (messages or self.context.messages).response
        return [message for message in response if message.id not in self._ids_before]

    def _parts(self) -> list[Part]:
        return [part for message in self._added() for part in message.parts]

    def _tool_parts(self) -> list[ToolPart]:
        return [part for message in self._added() for part in message.tool_parts]
