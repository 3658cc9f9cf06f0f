"""``Agent.stream``: the chunks, and the result after them."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from typing import Any, ClassVar, Literal, get_args, get_type_hints

import orjson
import pytest

from diarist import DROP, Agent, AgentStream, DataChunk, Memory, Processor, ToolContext
from diarist.chunks import (
    Chunk,
    ErrorChunk,
    Finish,
    ModelFinish,
    ModelFinishPayload,
    ReasoningDelta,
    TextDelta,
    TextEnd,
    TextPayload,
    ToolResultChunk,
    Usage,
)
from diarist.exceptions import DiaristError, ModelConnectionError
from diarist.messages import DataPart
from diarist.models.base import Model, ModelRequest
from diarist.processors import ProcessOutputStreamArgs
from diarist.storage import InMemoryStorage
from diarist.testing import Reasoning, Reply, ScriptedModel, ToolCall
from tests.agent.kit import RecordingMemory, collect, streamed_text, types


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_the_chunks_of_a_run_in_order() -> None:
    model = ScriptedModel([Reasoning("hm"), "Look", "ing", ToolCall("add", {"a": 1, "b": 2})], "Three")
    chunks = await collect(Agent(model=model, tools=[add]).stream("1+2?"))
    assert types(chunks) == [
        "start",
        "step-start",
        *("reasoning-start", "reasoning-delta", "reasoning-end"),
        *("text-start", "text-delta", "text-delta", "text-end"),
        *("tool-call-input-streaming-start", "tool-call-delta", "tool-call"),
        "tool-result",
        "step-finish",
        "step-start",
        *("text-start", "text-delta", "text-end"),
        "step-finish",
        "finish",
    ]


async def test_every_chunk_has_a_wire_form_in_camel_case() -> None:
    model = ScriptedModel(ToolCall("add", {"a": 1, "b": 2}), "Three")
    chunks = await collect(Agent(model=model, tools=[add]).stream("1+2?"))
    for chunk in chunks:
        wire = orjson.loads(orjson.dumps(chunk.to_dict()))
        assert wire["type"] == chunk.type
        assert wire["from"] == "AGENT"
        assert wire["runId"] == chunks[0].run_id
    assert next(c for c in chunks if isinstance(c, ToolResultChunk)).to_dict()["payload"] == {
        "toolCallId": "call_1",
        "toolName": "add",
        "args": {"a": 1, "b": 2},
        "result": 3,
        "providerExecuted": False,
        "providerData": None,
    }


async def test_text_alone() -> None:
    stream = Agent(model=ScriptedModel(["Hel", "lo!"])).stream("hi")
    assert [piece async for piece in stream.text()] == ["Hel", "lo!"]


async def test_text_raises_the_error_of_the_run_at_its_end() -> None:
    error = ModelConnectionError("cut")
    agent = Agent(model=ScriptedModel(Reply(text=["Once ", "up"], error_after=error)))
    texts = agent.stream("Hi").text()
    assert [await anext(texts), await anext(texts)] == ["Once ", "up"]
    with pytest.raises(ModelConnectionError, match="cut"):
        await anext(texts)


async def test_a_stream_shows_its_state() -> None:
    stream = Agent(model=ScriptedModel("Hi")).stream("go")
    assert repr(stream) == f"AgentStream(run_id={stream.run_id!r}, not started)"
    await anext(stream)
    assert repr(stream).endswith(", running)")
    await stream.result()
    assert repr(stream).endswith(", ended)")


async def test_the_result_without_reading_a_chunk() -> None:
    stream = Agent(model=ScriptedModel(["Hel", "lo!"])).stream("hi")
    assert (await stream.result()).text == "Hello!"
    assert (await stream.result()).text == "Hello!", "as often as one likes"


async def test_the_result_after_an_early_break_is_the_whole_run() -> None:
    async with Agent(model=ScriptedModel(["Hel", "lo!"])).stream("hi") as stream:
        async for chunk in stream:
            if chunk.type == "text-delta":
                break
        result = await stream.result()
    assert (result.text, result.stopped_by) == ("Hello!", "answer")


async def test_more_chunks_than_the_run_may_be_ahead() -> None:
    pieces = [str(i) for i in range(1000)]
    async with Agent(model=ScriptedModel(pieces)).stream("hi") as stream:  # pyright: ignore[reportArgumentType]
        first = await anext(stream)
        for _ in range(500):
            await asyncio.sleep(0)  # the run goes ahead as far as it may
        rest = [chunk async for chunk in stream]
    assert first.type == "start"
    assert streamed_text(rest) == "".join(pieces)


async def test_a_slow_reader_holds_the_model_back() -> None:
    model = ScriptedModel([str(i) for i in range(1000)])  # pyright: ignore[reportArgumentType]
    given = 0

    class Count(Processor[Any]):
        def process_output_stream(self, args: Any) -> Any:
            nonlocal given
            given += 1
            return args.part

    async with Agent(model=model, output_processors=[Count()]).stream("hi") as stream:
        await anext(stream)
        for _ in range(3000):
            await asyncio.sleep(0)
        assert given < 200


@pytest.mark.parametrize("before", range(34, 42))
async def test_a_guard_that_passes_while_the_reader_is_far_behind_lets_the_stream_go_on(before: int) -> None:
    """Chunks held for the guard and chunks that the model sends during the guard's call all wait for the reader."""
    passed, caught_up = asyncio.Event(), asyncio.Event()

    class Guard(Processor[Any]):
        run_in_parallel = True

        async def process_input(self, args: Any) -> None:
            await passed.wait()

    class Paced(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
            number = 0
            async for chunk in super().stream(request):
                number += 1
                if number == 100:
                    passed.set()
                    await caught_up.wait()
                yield chunk

    pieces = [f"{i} " for i in range(400)]
    agent = Agent(model=Paced(pieces), input_processors=[Guard()])  # pyright: ignore[reportArgumentType]
    text, read = "", 0
    async with agent.stream("hi") as stream, asyncio.timeout(60):
        async for chunk in stream:
            text += streamed_text([chunk])
            read += 1
            if read == before:  # at one of these the last of what was held has just gone out, and waits for room
                caught_up.set()
            for _ in range(20):
                await asyncio.sleep(0)
    assert text == "".join(pieces)


async def test_a_models_error_ends_the_stream_with_an_error_chunk() -> None:
    model = ScriptedModel(Reply(text="half", error_after=ModelConnectionError("the line was cut")))
    memory = RecordingMemory()
    async with Agent(model=model, memory=memory).stream("hi", thread="t") as stream:
        chunks = [chunk async for chunk in stream]
        last = chunks[-1]
        assert isinstance(last, ErrorChunk)
        assert (last.payload.kind, last.payload.error) == ("ModelConnectionError", "the line was cut")
        assert last.run_id == chunks[0].run_id
        with pytest.raises(ModelConnectionError):
            await stream.result()
    assert memory.outcomes == ["interrupted"]


async def test_finish_is_sent_after_the_commit() -> None:
    memory = RecordingMemory()
    async with Agent(model=ScriptedModel("ok"), memory=memory).stream("hi", thread="t") as stream:
        async for chunk in stream:
            assert bool(memory.outcomes) == (chunk.type == "finish")
    assert memory.outcomes == ["committed"]


async def test_the_finish_chunk_carries_the_final_messages() -> None:
    chunks = await collect(Agent(model=ScriptedModel("ok")).stream("hi"))
    finish = chunks[-1]
    assert isinstance(finish, Finish)
    assert [message.text for message in finish.payload.messages] == ["ok"]
    assert (finish.payload.reason, finish.payload.stopped_by) == ("stop", "answer")


# -- data chunks


async def test_tools_send_chunks_of_their_own_while_they_run() -> None:
    seen = asyncio.Event()

    async def work(context: ToolContext[Any]) -> str:
        """Work and tell."""
        context.writer.custom(DataChunk("data-progress", {"percent": 50}))
        context.writer.custom(DataChunk("data-note", "gone", transient=True))
        await seen.wait()  # only when the client has seen it does the tool go on
        return "done"

    async with Agent(model=ScriptedModel(ToolCall("work"), "ok"), tools=[work]).stream("hi") as stream:
        chunks: list[Any] = []
        async for chunk in stream:
            chunks.append(chunk)
            if chunk.type == "data-note":
                seen.set()
        result = await stream.result()
    assert types(chunks).index("data-progress") < types(chunks).index("tool-result")
    assert [p for m in result.messages for p in m.parts if isinstance(p, DataPart)] == [
        DataPart(type="data-progress", data={"percent": 50})
    ]


async def test_what_a_sync_tool_sends_arrives_while_it_runs() -> None:
    seen = threading.Event()

    def work(context: ToolContext[Any]) -> str:
        """Work until the client has seen the chunk."""
        context.writer.custom(DataChunk("data-progress", 50))
        seen.wait(30)
        return "done"

    async with Agent(model=ScriptedModel(ToolCall("work"), "ok"), tools=[work]).stream("hi") as stream:
        async for chunk in stream:
            if chunk.type == "data-progress":
                seen.set()
        assert (await stream.result()).text == "ok"


async def test_no_chunk_of_many_threads_is_lost() -> None:
    def work(context: ToolContext[Any]) -> str:
        """Work and tell."""
        for i in range(100):
            context.writer.custom(DataChunk("data-i", i))
        return "done"

    model = ScriptedModel([ToolCall("work")] * 4, "ok")
    chunks = await collect(Agent(model=model, tools=[work]).stream("hi"))
    numbers = [chunk.data for chunk in chunks if isinstance(chunk, DataChunk)]
    assert sorted(numbers) == sorted([*range(100)] * 4), "none is lost"


@pytest.mark.parametrize(
    "hook",
    ["process_input", "process_input_step", "process_llm_request", "process_output_step", "process_output_result"],
)
async def test_every_hook_can_write(hook: str) -> None:
    def write(self: Any, args: Any) -> None:
        args.writer.custom(DataChunk("data-here", hook))

    processor = type("Writing", (Processor,), {hook: write})()
    agent = Agent(model=ScriptedModel("ok"), input_processors=[processor], output_processors=[processor])
    async with agent.stream("hi") as stream:
        chunks = [chunk async for chunk in stream]
        result = await stream.result()
    assert [chunk.data for chunk in chunks if isinstance(chunk, DataChunk)] == [hook]
    assert [p.data for m in result.messages for p in m.parts if isinstance(p, DataPart)] == [hook]
    assert result.text == "ok"
    assert types(chunks)[-1] == "finish"


async def test_a_stream_hook_can_write_at_any_chunk_the_last_included() -> None:
    class Note(Processor[Any]):
        def process_output_stream(self, args: Any) -> Any:
            if args.part.type in ("step-start", "text-end", "finish"):
                args.writer.custom(DataChunk("data-after", args.part.type, transient=True))
            return args.part

    chunks = await collect(Agent(model=ScriptedModel("ok"), output_processors=[Note()]).stream("hi"))
    assert [c.data for c in chunks if isinstance(c, DataChunk)] == ["step-start", "text-end", "finish"]
    assert types(chunks)[-1] == "finish"
    assert {chunk.run_id for chunk in chunks} == {chunks[0].run_id}


async def test_data_parts_never_reach_a_model() -> None:
    async def work(context: ToolContext[Any]) -> str:
        """Work."""
        context.writer.custom(DataChunk("data-secret", "SECRET"))
        return "done"

    model = ScriptedModel(ToolCall("work"), "ok")
    await Agent(model=model, tools=[work]).generate("hi")
    assert "SECRET" not in model.requests[1].text


# -- leaving early


async def test_leaving_early_cancels_and_waits_for_the_end() -> None:
    memory = RecordingMemory()
    closed: list[str] = []

    async def hang() -> str:
        """Hang."""
        try:
            await asyncio.Event().wait()
        finally:
            closed.append("tool")
        return "never"

    agent = Agent(model=ScriptedModel(["Wait.", ToolCall("hang")]), tools=[hang], memory=memory)
    before = asyncio.all_tasks()
    async with agent.stream("hi", thread="t") as stream:
        async for chunk in stream:
            if chunk.type == "tool-call":
                break
        for _ in range(20):
            await asyncio.sleep(0)  # let the tool start
    assert closed == ["tool"]
    assert memory.outcomes == ["interrupted"]
    assert asyncio.all_tasks() == before
    result = await stream.result()
    assert (result.stopped_by, [m.text for m in result.messages]) == ("cancelled", ["Wait."])
    assert [(call.state, call.result) for call in result.steps[0].tool_calls] == [("error", "cancelled")]


async def test_a_stream_that_was_never_read_never_ran() -> None:
    model = ScriptedModel("ok")
    async with Agent(model=model).stream("hi") as stream:
        pass
    assert (await stream.result()).stopped_by == "cancelled"
    assert types([chunk async for chunk in stream]) == []
    assert model.requests == []


async def test_closed_in_the_moment_in_which_it_is_first_read() -> None:
    stream = Agent(model=ScriptedModel("never")).stream("hi")
    async with asyncio.timeout(60):
        chunks, _ = await asyncio.gather(collect(stream), stream.close())
        assert types(chunks) == ["abort"]
        assert (await stream.result()).stopped_by == "cancelled"


async def test_a_tool_can_close_the_stream_of_its_own_run() -> None:
    async def leave() -> None:
        """Leave."""
        await stream.close()
        await asyncio.Event().wait()

    memory = RecordingMemory()
    agent = Agent(model=ScriptedModel(ToolCall("leave"), "never"), tools=[leave], memory=memory)
    stream = agent.stream("hi", thread="t")
    async with asyncio.timeout(60):
        assert types([chunk async for chunk in stream])[-1] == "abort"
        assert (await stream.result()).stopped_by == "cancelled"
    assert memory.outcomes == ["interrupted"]


async def test_an_agent_inside_a_run_can_close_the_outer_stream() -> None:
    async def leave() -> None:
        """Leave."""
        await stream.close()

    async def ask() -> str:
        """Ask another agent."""
        inner = Agent(model=ScriptedModel(ToolCall("leave"), "never"), tools=[leave]).stream("hi")
        return (await inner.result()).text

    stream = Agent(model=ScriptedModel(ToolCall("ask"), "never"), tools=[ask]).stream("hi")
    async with asyncio.timeout(60):
        assert (await stream.result()).stopped_by == "cancelled"


@pytest.mark.parametrize("callback", ["on_step_finish", "on_finish"])
async def test_a_callback_can_close_the_stream_of_its_own_run(callback: Any) -> None:
    def leave(_: Any) -> Any:
        return stream.close()

    agent = Agent(model=ScriptedModel(ToolCall("add", {"a": 1, "b": 2}), "Three"), tools=[add])
    stream = agent.stream("hi", **{callback: leave})
    async with asyncio.timeout(60):
        result = await stream.result()
    assert (result.stopped_by, len(result.steps)) == (("answer", 2) if callback == "on_finish" else ("cancelled", 1))


async def test_an_abandoned_stream_leaves_no_task_running() -> None:
    memory = RecordingMemory()
    ended = asyncio.Event()

    class Told(Processor[Any]):
        def process_input(self, args: Any) -> None:
            async def end(outcome: str) -> None:
                ended.set()

            args.context.on_end(end)

    agent = Agent(model=ScriptedModel(["x"] * 1000), memory=memory, input_processors=[Told()])  # pyright: ignore[reportArgumentType]
    before = asyncio.all_tasks()
    stream: AgentStream[Any] | None = agent.stream("hi", thread="t")
    async for chunk in stream:
        if chunk.type == "text-delta":
            break
    del stream
    gc.collect()
    await ended.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    assert memory.outcomes == ["interrupted"]
    assert asyncio.all_tasks() == before


async def test_cancelling_the_reader_cancels_the_run() -> None:
    memory = RecordingMemory()
    started = asyncio.Event()

    async def answer(request: ModelRequest) -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    agent = Agent(model=ScriptedModel(answer), memory=memory)
    before = asyncio.all_tasks()
    reader = asyncio.create_task(collect(agent.stream("hi", thread="t")))
    await started.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert memory.outcomes == ["interrupted"]
    assert asyncio.all_tasks() == before


async def test_two_readers_of_one_stream_are_refused_rather_than_left_waiting() -> None:
    async def answer(request: ModelRequest) -> str:
        await asyncio.sleep(0)
        return "ok"

    stream = Agent(model=ScriptedModel(answer)).stream("hi")
    outcomes = await asyncio.gather(collect(stream), stream.result(), return_exceptions=True)
    assert any(isinstance(outcome, DiaristError) and "another task" in str(outcome) for outcome in outcomes)


class Buffered(Processor[Any]):
    """Releases the text when its block ends."""

    def create_state(self) -> list[Chunk]:
        return []

    def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
        if isinstance(args.part, TextDelta):
            args.state.append(args.part)
            return DROP
        if not isinstance(args.part, TextEnd):
            return args.part
        held = [*args.state, args.part]
        args.state.clear()
        return held


async def test_text_that_a_hook_releases_at_the_end_of_its_block_is_in_the_result_and_stored() -> None:
    memory = Memory(storage=InMemoryStorage())
    agent = Agent(model=ScriptedModel(["hello", " there"]), memory=memory, processors=[Buffered()])
    async with agent.stream("hi", thread="t") as stream:
        text = "".join([part async for part in stream.text()])
        result = await stream.result()
    assert text == result.text == result.messages[-1].text == "hello there"
    assert [message.text for message in await memory.messages.list(thread="t")] == ["hi", "hello there"]


def test_the_type_of_a_chunk_tells_a_type_checker_what_its_payload_is() -> None:
    """Each class has its one literal; a data chunk, whose type is open, has its data for a payload."""
    for chunk in get_args(Chunk):
        if chunk is not DataChunk:
            assert get_type_hints(chunk)["type"] == ClassVar[Literal[chunk.type]]
    assert DataChunk("data-x", {"n": 1}).payload == {"n": 1}
    assert "payload" not in DataChunk("data-x", {"n": 1}).to_dict()


class Terse(Model):
    """A model that yields pieces of text and thinking alone, as the page about models shows it."""

    provider, name = "test", "terse"

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        yield ReasoningDelta(payload=TextPayload(text="hm"))
        yield TextDelta(payload=TextPayload(text="Hel"))
        yield TextDelta(payload=TextPayload(text="lo"))
        yield ModelFinish(payload=ModelFinishPayload(reason="stop", usage=Usage()))


async def test_every_block_of_text_begins_and_ends() -> None:
    assert types(await collect(Agent(model=Terse()).stream("hi"))) == [
        *("start", "step-start", "reasoning-start", "reasoning-delta", "reasoning-end"),
        *("text-start", "text-delta", "text-delta", "text-end", "step-finish", "finish"),
    ]
