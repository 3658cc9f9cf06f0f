"""One attempt at one step: hooks, prompt, model call, response, tools."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from diarist.agent.accepted import Said, accepted_chunks
from diarist.agent.assembly import MessageAssembler, append
from diarist.agent.model_call import ModelCall, make_request
from diarist.agent.outlet import Outlet
from diarist.agent.output import OutputType
from diarist.agent.step_input import OUTPUT_TYPE, StepInput, ask_input_step
from diarist.agent.tool_calls import ToolCalls, WaitsFor
from diarist.agent.waiting import with_written
from diarist.chunks import (
    Chunk,
    DataChunk,
    FileChunk,
    ModelFinishPayload,
    ObjectChunk,
    ObjectPayload,
    ReasoningDelta,
    SourceChunk,
    StepFinish,
    StepFinishPayload,
    StepStart,
    StepStartPayload,
    TextDelta,
    ToolApprovalChunk,
    ToolCallPayload,
    Usage,
)
from diarist.concurrency import stop
from diarist.exceptions import InputError, TripWire
from diarist.message_list import MessageList
from diarist.messages import DataPart, Message, Part, ReasoningPart, ToolPart
from diarist.processors.base import OutputResult, StepResult
from diarist.processors.cases import InputStepCase, OutputResultCase, OutputStepCase
from diarist.processors.model_cases import RequestCase
from diarist.processors.pipeline import PipelineRun
from diarist.run_context import RunContext
from diarist.tracing import span


class StepAttempt:
    """One attempt at a step. ``run()`` does it and returns the step's result.

    Attributes:
        usage: Tokens of this attempt's model call.
        output: The answer's value, by the schema that the step asked for; None without one.
        ended: The model called no tools: the run is over.
        stopped: ``stop_when`` held after this step.
        waiting: Tool calls that wait for approval or for the client, by id; they end the run.
    """

    def __init__(self, given: StepInput, context: RunContext[Any], pipeline: PipelineRun, outlet: Outlet) -> None:
        self._given = given
        self._setup = replace(given.setup, tools=dict(given.setup.tools))
        self._context = context
        self._pipeline = pipeline
        self._outlet = outlet
        self._stream = pipeline.open_stream()
        self._assembler = MessageAssembler(context.run_id)
        for chunk in given.written:
            self._assembler.add(chunk)
        self._before = {message.id for message in context.messages.response}
        self._message: Message | None = None
        self._complete = False
        self._finish = ModelFinishPayload(reason="error", usage=Usage())
        self._answered_by = ""
        self._unguarded = given.guards is not None and not _passed(given.guards)
        self._unjudged = False
        self._held: deque[Chunk] = deque()
        self.output: Any = None
        self.ended = False
        self.stopped = False
        self._calls: ToolCalls | None = None
        self.waiting: dict[str, WaitsFor] = {}

    @property
    def usage(self) -> Usage:
        return self._finish.usage

    @property
    def repeatable(self) -> bool:
        """No tool has begun to do what cannot be undone."""
        return self._calls is None or not self._calls.started

    @property
    def answered(self) -> bool:
        """The model has answered, to its end."""
        return self._complete

    @property
    def pending(self) -> list[ToolPart]:
        """The calls that wait."""
        return [part for part in self._tool_parts() if part.call_id in self.waiting]

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
                if isinstance(error, Exception):
                    await self._pass_written()
                raise
            self._stream.close()
            return result

    def cut_short(self) -> StepResult | None:
        """The step of a run that was cancelled, as far as it came: calls without an end are errors. None before its
        tools had begun."""
        if self._calls is None:
            return None
        self._calls.cut_short()
        return self._result()

    async def _run(self) -> StepResult:
        await self._answer()
        await self._tools()
        result = self._result()
        self.stopped = not self.ended and self._given.stops([*self._given.done, result])
        if self._concludes:
            await self._conclude()
            result = self._result()
        finish = StepFinishPayload(step_number=self._given.number, reason=result.finish_reason, usage=self.usage)
        await self._last_words(StepFinish(payload=finish))
        return self._result()

    @property
    def _concludes(self) -> bool:
        """No step follows this one."""
        return self.ended or self.stopped or self._given.last

    # -- phases

    async def _answer(self) -> None:
        """Have the model answer, and its answer judged."""
        await self._guarded(self._ask_model())
        if self._pipeline.has(OutputStepCase.hook):
            await self._during(self._output_step())

    async def _ask_model(self) -> None:
        self._unjudged = self._pipeline.hold_output
        if self._given.prepare_step is not None or self._pipeline.has(InputStepCase.hook):
            await self._during(self._input_step())
        messages, setup = self._context.messages, self._setup
        setup.check_names(self._given.setup.tools)
        request = make_request(messages, setup, self._given.feedback)
        case = RequestCase(messages=messages, step=self._given.number, request=request, model=setup.model)
        if self._pipeline.has(case.hook):
            await self._during(self._pipeline.ask(case))
        start = StepStartPayload(step_number=self._given.number, model=setup.model.id)
        await self._pass(StepStart(payload=start))
        call = ModelCall(case, self._pipeline)
        try:
            await call.run(self._pass, self._during)
        finally:
            self._finish = call.finish
        self._complete, self._answered_by = True, setup.model.id
        self._message = self._assembler.message()
        if self._message is not None:
            self._context.messages.add(self._message, "response")

    async def _input_step(self) -> None:
        given, messages = self._given, self._context.messages
        await ask_input_step(
            self._pipeline, messages, self._setup, given.prepare_step, steps=given.done, number=given.number
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
        pending = [part for part in self._tool_parts() if part.state == "call" and not part.provider_executed]
        self.ended = not pending
        if not pending:
            return
        calls = ToolCalls(pending, self._setup.offered, self._context, self._pipeline, self._assembler.args_errors)
        await self._during(calls.consider())
        await self._release(running=[call.call_id for call in pending])
        self.waiting = calls.waiting()
        self._calls = calls
        await self._during(calls.run(but=self.waiting))
        for call in pending:
            if self.waiting.get(call.call_id) == "approval":
                payload = ToolCallPayload(tool_call_id=call.call_id, tool_name=call.name, args=call.args)
                await self._pass(ToolApprovalChunk(payload=payload))
        self.ended = bool(self.waiting)

    async def _conclude(self) -> None:
        """The end of the run's last step."""
        await self._accept()
        await self._release()
        if self.output is not None:
            await self._pass(ObjectChunk(payload=ObjectPayload(object=self.output)))

    async def _accept(self) -> None:
        """``process_output_result``, then the typed answer of what it left."""
        if self._pipeline.has(OutputResultCase.hook):
            await self._during(self._output_result())
        wanted = OutputType.judging(self._setup.structured_output, self._given.output_type)
        if wanted is not None and self.ended and not self.waiting:
            try:
                self.output = wanted.parse(self._result().text)
            except InputError as error:
                raise TripWire(str(error), retry=True, processor_id=OUTPUT_TYPE, hook=OUTPUT_TYPE) from error

    async def _last_words(self, finish: StepFinish) -> None:
        """The step's last chunk, behind the text that stream hooks still had."""
        said, self._unjudged = Said.by(self._parts()), not self._stream.idle
        await self._pass(finish)
        await self._judge_more(said)

    async def say_late(self, chunks: Sequence[Chunk]) -> StepResult:
        """Send what stream hooks made of the run's end; text in it belongs to this step, whose result is returned.

        Raises TripWire where a processor does not accept it.
        """
        said, self._unjudged = Said.by(self._parts()), True
        for chunk in chunks:
            self._take(chunk)
            self._put(chunk)
        await self._judge_more(said)
        return self._result()

    async def _judge_more(self, said: Said) -> None:
        """Have the answer judged anew where it says more than ``said``, before the rest goes out."""
        if Said.by(self._parts()) != said:
            if self._pipeline.has(OutputStepCase.hook):
                await self._during(self._output_step())
            if self._concludes:
                await self._accept()
        await self._release(said)

    async def _output_result(self) -> None:
        def result(messages: MessageList) -> OutputResult:
            step = self._result(messages)
            return OutputResult(
                text=step.text,
                usage=self._given.usage + self.usage + self._context.usage,
                finish_reason=step.finish_reason,
                steps=[*self._given.done, step],
            )

        messages = self._context.messages
        await self._pipeline.ask(OutputResultCase(messages=messages, step=self._given.number, result=result))

    # -- what the step added, as processors left it

    def _added(self, messages: MessageList | None = None) -> list[Message]:
        response = (messages or self._context.messages).response
        return [message for message in response if message.id not in self._before]

    def _parts(self) -> list[Part]:
        return [part for message in self._added() for part in message.parts]

    def _tool_parts(self) -> list[ToolPart]:
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
            model=self._answered_by,
        )

    # -- towards the client

    async def _pass(self, chunk: Chunk) -> None:
        """Through the stream hooks to the client and into the message, with what hooks wrote meanwhile."""
        chunk.run_id = self._context.run_id
        passed = self._fed_now(chunk)
        for out in await self._stream.feed(chunk) if passed is None else passed:
            if not self._complete:  # nearly always
                self._assembler.add(out)
            else:
                self._take(out)
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
                    self._take(out)
                    if not self._put(out):
                        await self._outlet.room()

    def _take(self, chunk: Chunk) -> None:
        """Into the step's message. What stream hooks still had when it was complete, as at ``step-finish``, belongs to
        it; but a call that comes so late is none, and of tools' results the message has its own."""
        match chunk:
            case _ if not self._complete:
                self._assembler.add(chunk)
            case DataChunk() if not chunk.transient:
                if added := self._added():
                    added[0].parts.append(DataPart(type=chunk.type, data=chunk.data, id=chunk.id))
                else:
                    chunk.transient = True  # there is nothing to keep it with
            case TextDelta() | ReasoningDelta() | SourceChunk() | FileChunk():
                self._say(chunk)
            case _:
                pass

    def _say(self, chunk: Chunk) -> None:
        added = self._added()
        if not added or added[-1].role != "assistant":
            added = [Message(role="assistant", parts=[], run_id=self._context.run_id)]
            self._context.messages.add(added[0], "response")
        append(added[-1], chunk)

    def _put(self, chunk: Chunk) -> bool:
        """Send a chunk, or hold it back; False where the reader is far behind: then wait for ``room()``."""
        chunk.run_id = self._context.run_id
        if self._unguarded or self._unjudged or self._held:
            self._held.append(chunk)
            return True
        return self._outlet.put(chunk)

    async def _release(self, said: Said | None = None, running: Collection[str] = ()) -> None:
        """The step was accepted: let the client have what was held back, as it was accepted. ``said`` has gone out
        before, and what was changed of it can only be left out; the calls in ``running`` get their result later."""
        if self._unjudged:
            parts = self._parts()
            self._held = accepted_chunks(self._held, parts if said is None else said.beyond(parts), running)
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
