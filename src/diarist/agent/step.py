"""One attempt at one step: hooks, prompt, model call, response, tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from diarist.agent.assembly import MessageAssembler
from diarist.agent.options import PrepareStep
from diarist.agent.outlet import Outlet
from diarist.agent.output import OutputType
from diarist.agent.setup import StepSetup
from diarist.agent.tool_calls import run_tools
from diarist.agent.waiting import stop
from diarist.chunks import (
    Chunk,
    DataChunk,
    IdPayload,
    ModelFinish,
    ModelFinishPayload,
    ObjectChunk,
    ObjectPayload,
    StepFinish,
    StepFinishPayload,
    StepStart,
    StepStartPayload,
    TextDelta,
    TextEnd,
    TextPayload,
    TextStart,
    Usage,
)
from diarist.exceptions import InputError, TripWire
from diarist.messages import DataPart, Message, ReasoningPart, ToolPart, new_id
from diarist.models.base import ModelRequest
from diarist.processors.base import (
    OutputResult,
    ProcessInputStepArgs,
    ProcessLLMRequestArgs,
    ProcessOutputResultArgs,
    ProcessOutputStepArgs,
    StepResult,
)
from diarist.processors.pipeline import PipelineRun
from diarist.prompting import build_prompt
from diarist.run_context import RunContext

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
    """

    number: int
    last: bool
    setup: StepSetup
    prepare_step: PrepareStep | None = None
    output_type: OutputType | None = None
    done: list[StepResult] = field(default_factory=list[StepResult])
    usage: Usage = field(default_factory=Usage)
    feedback: str | None = None


class StepAttempt:
    """One attempt at a step. ``run()`` does it and returns the step's result.

    Attributes:
        usage: Tokens of this attempt's model call.
        output: The typed answer, with ``output_type``.
        ended: The model called no tools: the run is over.
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
        self._holding = False
        self._held: list[Chunk] = []
        self.output: Any = None
        self.ended = False
        self.tools_started = False

    @property
    def usage(self) -> Usage:
        return self._finish.usage

    @property
    def text(self) -> str:
        """What the model said so far in this attempt; where a stream hook broke it off, as it came."""
        if self._message is not None:
            return self._message.text
        return "".join(chunk.payload.text for chunk in self._stream.parts if isinstance(chunk, TextDelta))

    async def run(self) -> StepResult:
        """Raises TripWire where a processor blocks or asks for another attempt."""
        await self._during(self._input_step())
        request = self._request()
        response = await self._llm_request(request)
        self._holding = self._pipeline.hold_output
        start = StepStartPayload(step_number=self._given.number, model=self._setup.model.id)
        await self._pass(StepStart(payload=start))
        await self._model_call(self._setup.model.stream(request) if response is None else _replay(response))
        await self._during(self._output_step())
        calls = [part for part in self._calls() if part.state == "call" and not part.provider_executed]
        self.ended = not calls
        if calls:
            await self._release()
            tools = self._setup.offered
            self.tools_started = True
            await self._during(run_tools(calls, tools, self._context, self._assembler.args_errors))
        if self.ended or self._given.last:
            await self._conclude()
        result = self._result()
        finish = StepFinishPayload(step_number=self._given.number, reason=result.finish_reason, usage=self.usage)
        await self._pass(StepFinish(payload=finish))
        return result

    # -- phases

    async def _input_step(self) -> None:
        context, setup = self._context, self._setup
        await self._pipeline.process_input_step(
            lambda base: ProcessInputStepArgs(
                **base,
                messages=context.messages.messages,
                system_messages=context.messages.system,
                step_number=self._given.number,
                steps=list(self._given.done),
                model=setup.model,
                tools=dict(setup.tools),
                tool_choice=setup.tool_choice,
                active_tools=None if setup.active_tools is None else list(setup.active_tools),
                model_settings=setup.model_settings,
                provider_options={name: dict(values) for name, values in setup.provider_options.items()},
                structured_output=setup.structured_output,
            ),
            setup.merge,
            self._given.prepare_step,
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

    async def _llm_request(self, request: ModelRequest) -> Sequence[Chunk] | str | None:
        return await self._pipeline.process_llm_request(
            lambda base: ProcessLLMRequestArgs(
                **base,
                prompt=request.prompt,
                request=request,
                model=self._setup.model,
                step_number=self._given.number,
            ),
            lambda prompt: setattr(request, "prompt", prompt),
        )

    async def _model_call(self, source: AsyncIterator[Chunk]) -> None:
        try:
            async for chunk in source:
                if isinstance(chunk, ModelFinish):
                    self._finish = chunk.payload
                else:
                    await self._pass(chunk)
        finally:
            if isinstance(source, AsyncGenerator):
                await source.aclose()
        self._complete = True
        self._message = self._assembler.message()
        if self._message is not None:
            self._context.messages.add(self._message, "response")

    async def _output_step(self) -> None:
        messages = self._context.messages
        await self._pipeline.process_output_step(
            lambda base: ProcessOutputStepArgs(
                **base,
                messages=messages.messages,
                system_messages=messages.system,
                step_number=self._given.number,
                steps=[*self._given.done, self._result()],
                text="".join(message.text for message in self._added()),
                tool_calls=self._calls(),
                finish_reason=self._finish.reason,
                usage=self._finish.usage,
            )
        )

    async def _conclude(self) -> None:
        """The end of the run's last step: the typed answer, then ``process_output_result``."""
        if self._given.output_type is not None and self.ended:
            try:
                self.output = self._given.output_type.parse(self._result().text)
            except InputError as error:
                raise TripWire(str(error), retry=True, processor_id=OUTPUT_TYPE, hook=OUTPUT_TYPE) from error
        await self._during(self._output_result())
        await self._release()
        if self.output is not None:
            await self._pass(ObjectChunk(payload=ObjectPayload(object=self.output)))

    async def _output_result(self) -> None:
        step = self._result()
        result = OutputResult(
            text=step.text,
            usage=self._given.usage + self.usage,
            finish_reason=step.finish_reason,
            steps=[*self._given.done, step],
        )
        await self._pipeline.process_output_result(
            lambda base: ProcessOutputResultArgs(**base, messages=self._context.messages.response, result=result)
        )

    # -- what the step added, as processors left it

    def _added(self) -> list[Message]:
        return [message for message in self._context.messages.response if message.id not in self._before]

    def _calls(self) -> list[ToolPart]:
        return [part for message in self._added() for part in message.tool_parts]

    def _result(self) -> StepResult:
        added = self._added()
        thoughts = [part.text for m in added for part in m.parts if isinstance(part, ReasoningPart)]
        return StepResult(
            step_number=self._given.number,
            text="".join(message.text for message in added),
            reasoning="".join(thoughts),
            tool_calls=self._calls(),
            finish_reason=self._finish.reason,
            usage=self._finish.usage,
            messages=added,
            model=self._setup.model.id,
        )

    # -- towards the client

    async def _pass(self, chunk: Chunk) -> None:
        """Through the stream hooks to the client and into the message, with what hooks wrote meanwhile."""
        chunk.run_id = self._context.run_id
        passed = (chunk,) if self._stream.idle else await self._stream.feed(chunk)
        for out in passed:
            if not self._complete:
                self._assembler.add(out)
            await self._send(out)
        if self._context.writer:
            await self._pass_written()

    async def _pass_written(self) -> None:
        """What processors and tools wrote: non-transient data becomes part of the step's message."""
        while self._context.writer:
            for chunk in self._context.writer.drain():
                for out in await self._stream.feed(chunk):
                    if isinstance(out, DataChunk) and not out.transient:
                        self._keep(out)
                    await self._send(out)

    def _keep(self, chunk: DataChunk) -> None:
        if not self._complete:
            self._assembler.add(chunk)
        elif added := self._added():
            added[0].parts.append(DataPart(type=chunk.type, data=chunk.data, id=chunk.id))

    async def _send(self, chunk: Chunk) -> None:
        chunk.run_id = self._context.run_id
        if self._holding:
            self._held.append(chunk)
        else:
            await self._outlet.send(chunk)

    async def _release(self) -> None:
        """Let the client have what was held back."""
        held, self._held, self._holding = self._held, [], False
        for chunk in held:
            await self._outlet.send(chunk)

    async def _during(self, work: Coroutine[Any, Any, None]) -> None:
        """Await ``work`` and pass on what is written meanwhile, as it is written."""
        writer = self._context.writer
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                arrival = asyncio.ensure_future(writer.arrived())
                try:
                    await asyncio.wait({task, arrival}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    arrival.cancel()
                await self._pass_written()
            await task
            await self._pass_written()
        finally:
            await stop(task)


async def _replay(response: Sequence[Chunk] | str) -> AsyncIterator[Chunk]:
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
