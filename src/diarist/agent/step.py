"""One attempt at one step: hooks, prompt, model call, response, tools."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from diarist.agent.assembly import MessageAssembler, append_text, with_text
from diarist.agent.outlet import Outlet
from diarist.agent.step_input import (
    OUTPUT_TYPE,
    PROCESSORS_KEY,
    CallFailed,
    StepInput,
    ask_input_step,
    replay,
)
from diarist.agent.tool_calls import ToolCalls, WaitsFor
from diarist.agent.waiting import stop, with_written
from diarist.chunks import (
    Chunk,
    DataChunk,
    ModelFinish,
    ModelFinishPayload,
    ObjectChunk,
    ObjectPayload,
    StepFinish,
    StepFinishPayload,
    StepStart,
    StepStartPayload,
    TextDelta,
    ToolApprovalChunk,
    ToolCallPayload,
    Usage,
)
from diarist.exceptions import InputError, TripWire
from diarist.message_list import MessageList
from diarist.messages import DataPart, Message, ReasoningPart, ToolPart
from diarist.models.base import ModelRequest
from diarist.processors.base import OutputResult, StepResult
from diarist.processors.cases import InputStepCase, OutputResultCase, OutputStepCase, RequestCase, ResponseCase
from diarist.processors.pipeline import PipelineRun
from diarist.prompting import build_prompt
from diarist.run_context import RunContext
from diarist.tracing import span


class StepAttempt:
    """One attempt at a step. ``run()`` does it and returns the step's result.

    Attributes:
        usage: Tokens of this attempt's model call.
        output: The typed answer, with ``output_type``.
        ended: The model called no tools: the run is over.
        stopped: ``stop_when`` held after this step.
        waiting: Tool calls that wait for approval or for the client, by id; they end the run.
        tools_started: Tools have begun to run, so that the attempt cannot be repeated.
    """

    def __init__(self, given: StepInput, context: RunContext[Any], pipeline: PipelineRun, outlet: Outlet) -> None:
        self._given = given
        self._setup = replace(given.setup, tools=dict(given.setup.tools))
        self._context = context
        self._pipeline = pipeline
        self._outlet = outlet
        self._stream = pipeline.open_stream()
        self._assembler = MessageAssembler(context.run_id)
        self._before = {message.id for message in context.messages.response}
        self._message: Message | None = None
        self._complete = False
        self._finish = ModelFinishPayload(reason="error", usage=Usage())
        self._unguarded = given.guards is not None and not _passed(given.guards)
        self._unjudged = False
        self._held: deque[Chunk] = deque()
        self.output: Any = None
        self.ended = False
        self.stopped = False
        self.tools_started = False
        self.waiting: dict[str, WaitsFor] = {}

    @property
    def usage(self) -> Usage:
        return self._finish.usage

    @property
    def text(self) -> str:
        """What the model said so far in this attempt, as it passed the stream hooks."""
        message = self._message or self._assembler.message()
        return "" if message is None else message.text

    async def run(self) -> StepResult:
        """Raises TripWire where a processor blocks or asks for another attempt, CallFailed where the model fails."""
        with span(f"step {self._given.number}", **{"diarist.step": self._given.number}):
            try:
                result = await self._run()
            except BaseException as error:
                self._stream.close(error)
                raise
            self._stream.close()
            return result

    async def _run(self) -> StepResult:
        await self._guarded(self._ask_model())
        if self._pipeline.has(OutputStepCase.hook):
            await self._during(self._output_step())
        await self._tools()
        result = self._result()
        self.stopped = not self.ended and self._given.stops([*self._given.done, result])
        if self.ended or self.stopped or self._given.last:
            await self._conclude()
            result = self._result()
        finish = StepFinishPayload(step_number=self._given.number, reason=result.finish_reason, usage=self.usage)
        await self._pass(StepFinish(payload=finish))
        return self._result()

    # -- phases

    async def _ask_model(self) -> None:
        if self._given.prepare_step is not None or self._pipeline.has(InputStepCase.hook):
            await self._during(self._input_step())
        case = RequestCase(
            messages=self._context.messages, step=self._given.number, request=self._request(), model=self._setup.model
        )
        if self._pipeline.has(case.hook):
            await self._pipeline.ask(case)
        self._unjudged = self._pipeline.hold_output
        start = StepStartPayload(step_number=self._given.number, model=self._setup.model.id)
        await self._pass(StepStart(payload=start))
        await self._traced_call(case)

    async def _input_step(self) -> None:
        given, messages = self._given, self._context.messages
        await ask_input_step(
            self._pipeline, messages, self._setup, given.prepare_step, steps=given.done, number=given.number
        )

    def _request(self) -> ModelRequest:
        messages, setup = self._context.messages, self._setup
        prompt = build_prompt(
            messages.system,
            messages.messages,
            feedback=self._given.feedback,
            cache_breakpoints=setup.model.cache_breakpoints,
        )
        return ModelRequest(
            prompt=prompt,
            tools=[tool.definition for tool in setup.offered.values()],
            tool_choice=setup.tool_choice,
            settings=setup.model_settings,
            output=setup.structured_output,
            provider_options=setup.provider_options,
        )

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Await ``work`` beside the input guards: nothing reaches the client before they have passed, the first that
        blocks ends the work, and their verdict counts before whatever the work came to."""
        guards = self._given.guards
        if guards is None or not self._unguarded:
            await work
            return
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, guards}, return_when=asyncio.FIRST_COMPLETED)
            await guards
            self._unguarded = False
            await self._flush()
            await task
        finally:
            await stop(task)

    async def _traced_call(self, case: RequestCase) -> None:
        model, settings = self._setup.model, case.request.settings
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": model.provider,
            "gen_ai.request.model": model.name,
            "gen_ai.request.temperature": settings.temperature,
            "gen_ai.request.max_tokens": settings.max_output_tokens,
            "gen_ai.request.top_p": settings.top_p,
        }
        with span(f"chat {model.name}", **attributes) as current:
            await self._model_call(case)
            if current.recording:
                current.set(
                    **{
                        "gen_ai.response.model": self._finish.model or None,
                        "gen_ai.response.id": self._finish.response_id or None,
                        "gen_ai.response.finish_reasons": [self._finish.reason],
                        "gen_ai.usage.input_tokens": self.usage.input_tokens,
                        "gen_ai.usage.output_tokens": self.usage.output_tokens,
                        "gen_ai.usage.cache_read.input_tokens": self.usage.cached_tokens,
                    }
                )

    async def _model_call(self, case: RequestCase) -> None:
        cached = case.response is not None
        source = self._setup.model.stream(case.request) if case.response is None else replay(case.response)
        whole: list[Chunk] | None = [] if self._pipeline.has("process_llm_response") else None
        try:
            while True:
                try:
                    chunk = await anext(source)
                except StopAsyncIteration:
                    break
                except Exception as error:
                    raise CallFailed(error, self._setup.model) from error
                if whole is not None:
                    whole.append(chunk)
                if isinstance(chunk, ModelFinish):
                    self._finish = chunk.payload
                else:
                    await self._pass(chunk)
        finally:
            if isinstance(source, AsyncGenerator):
                await source.aclose()
        if whole is not None:
            await self._pipeline.ask(
                ResponseCase(
                    messages=self._context.messages,
                    step=self._given.number,
                    request=case.request,
                    model=self._setup.model,
                    response=whole,
                    from_cache=cached,
                )
            )
        self._complete = True
        self._message = self._assembler.message()
        if self._message is not None:
            self._context.messages.add(self._message, "response")

    async def _output_step(self) -> None:
        await self._pipeline.ask(
            OutputStepCase(
                messages=self._context.messages,
                step=self._given.number,
                steps=self._given.done,
                added=self._result,
                finish_reason=self._finish.reason,
                usage=self._finish.usage,
            )
        )

    async def _tools(self) -> None:
        """Run the step's tool calls. Those that wait for somebody end the run when the others are done."""
        pending = [part for part in self._calls() if part.state == "call" and not part.provider_executed]
        self.ended = not pending
        if not pending:
            return
        calls = ToolCalls(pending, self._setup.offered, self._context, self._pipeline, self._assembler.args_errors)
        await self._during(calls.consider())
        await self._release()
        self.waiting = calls.waiting()
        self.tools_started = len(self.waiting) < len(pending)
        await self._during(calls.run(but=self.waiting))
        for call in pending:
            if self.waiting.get(call.call_id) == "approval":
                payload = ToolCallPayload(tool_call_id=call.call_id, tool_name=call.name, args=call.args)
                await self._pass(ToolApprovalChunk(payload=payload))
        if self.waiting:
            self.ended = True
            for message in self._added():
                message.metadata[PROCESSORS_KEY] = self._pipeline.ids

    async def _conclude(self) -> None:
        """The end of the run's last step: ``process_output_result``, then the typed answer of what it left."""
        if self._pipeline.has(OutputResultCase.hook):
            await self._during(self._output_result())
        if self._given.output_type is not None and self.ended and not self.waiting:
            try:
                self.output = self._given.output_type.parse(self._result().text)
            except InputError as error:
                raise TripWire(str(error), retry=True, processor_id=OUTPUT_TYPE, hook=OUTPUT_TYPE) from error
        await self._release()
        if self.output is not None:
            await self._pass(ObjectChunk(payload=ObjectPayload(object=self.output)))

    async def _output_result(self) -> None:
        def result(messages: MessageList) -> OutputResult:
            step = self._result(messages)
            return OutputResult(
                text=step.text,
                usage=self._given.usage + self.usage,
                finish_reason=step.finish_reason,
                steps=[*self._given.done, step],
            )

        messages = self._context.messages
        await self._pipeline.ask(OutputResultCase(messages=messages, step=self._given.number, result=result))

    # -- what the step added, as processors left it

    def _added(self, messages: MessageList | None = None) -> list[Message]:
        response = (messages or self._context.messages).response
        return [message for message in response if message.id not in self._before]

    def _calls(self) -> list[ToolPart]:
        return [part for message in self._added() for part in message.tool_parts]

    def _result(self, messages: MessageList | None = None) -> StepResult:
        """The step's result by these messages: the run's, or the copy of a branch."""
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
            model=self._setup.model.id,
        )

    # -- towards the client

    async def _pass(self, chunk: Chunk) -> None:
        """Through the stream hooks to the client and into the message, with what hooks wrote meanwhile."""
        chunk.run_id = self._context.run_id
        passed = self._fed_now(chunk)
        for out in await self._stream.feed(chunk) if passed is None else passed:
            if not self._complete:
                self._assembler.add(out)
            elif isinstance(out, TextDelta):
                self._say(out.payload.text)
            if not self._put(out):
                await self._outlet.room()
        if self._context.writer:
            await self._pass_written()

    def _fed_now(self, chunk: Chunk) -> Sequence[Chunk] | None:
        """What the stream hooks make of a chunk, without awaiting; None where they must be awaited."""
        stream = self._stream
        if stream.idle:
            stream.parts.append(chunk)
            return (chunk,)
        return stream.feed_now(chunk) if stream.is_sync else None

    async def _pass_written(self) -> None:
        """What processors and tools wrote: non-transient data becomes part of the step's message."""
        while self._context.writer:
            for chunk in self._context.writer.drain():
                passed = self._fed_now(chunk)
                for out in await self._stream.feed(chunk) if passed is None else passed:
                    if isinstance(out, DataChunk) and not out.transient:
                        self._keep(out)
                    if not self._put(out):
                        await self._outlet.room()

    def _keep(self, chunk: DataChunk) -> None:
        if not self._complete:
            self._assembler.add(chunk)
        elif added := self._added():
            added[0].parts.append(DataPart(type=chunk.type, data=chunk.data, id=chunk.id))

    def _say(self, text: str) -> None:
        """Text that a stream hook still had when the message was complete, as at ``step-finish``: it belongs to it."""
        if not (added := self._added()):
            added = [Message(role="assistant", parts=[], run_id=self._context.run_id)]
            self._context.messages.add(added[0], "response")
        append_text(added[-1], text)

    def _put(self, chunk: Chunk) -> bool:
        """Send a chunk, or hold it back; False where the reader is far behind: then wait for ``room()``."""
        chunk.run_id = self._context.run_id
        if self._unguarded or self._unjudged or self._held:
            self._held.append(chunk)
            return True
        return self._outlet.put(chunk)

    async def _release(self) -> None:
        """The step was accepted: let the client have what was held back, with the text as it was accepted."""
        if self._unjudged:
            self._held = with_text(self._held, self._result().text)
        self._unjudged = False
        await self._flush()

    async def _flush(self) -> None:
        while self._held and not (self._unguarded or self._unjudged):
            await self._outlet.send(self._held.popleft())

    async def _during(self, work: Coroutine[Any, Any, None]) -> None:
        """Await ``work`` and pass on what is written meanwhile, as it is written."""
        await with_written(work, self._context.writer, self._pass_written)


def _passed(guards: asyncio.Task[None]) -> bool:
    return guards.done() and not guards.cancelled() and guards.exception() is None
