"""Chunks that hooks write reach the client: from every hook, at once, and before the end of the run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from diarist import Agent, DataChunk, Processor, ToolContext, tool
from diarist.chunks import Chunk, Finish, TextDelta, TextPayload
from diarist.exceptions import BadRequestError, InputError
from diarist.messages import DataPart
from diarist.processors import Branch, RegexFilter
from diarist.testing import ScriptedModel, ToolCall
from tests.agent.kit import collect, types
from tests.processors.test_compositions import HOOKS, agent


def writes(hook: str, then: Any, **attributes: Any) -> Processor[Any]:
    """Writes in one hook, and does ``then(args)``."""

    def method(self: Any, args: Any) -> Any:
        if hook == "process_output_stream" and args.part.type != "text-delta":
            return args.part
        args.writer.custom(DataChunk("data-w", args.state.setdefault("n", 1)))
        return then(args)

    return type("Writes", (Processor,), {hook: method, "id": "writes", **attributes})()


def blocks(args: Any) -> None:
    args.abort("no")


def sends_back(args: Any) -> None:
    args.abort("no", retry=True)


def fails(args: Any) -> None:
    raise ValueError("broken")


@pytest.mark.parametrize("hook", list(HOOKS))
@pytest.mark.parametrize(("then", "last"), [(blocks, "tripwire"), (sends_back, "tripwire"), (fails, "error")])
async def test_it_comes_before_what_ends_the_run(hook: str, then: Any, last: str) -> None:
    chunks = await collect(agent(writes(hook, then), hook=hook).stream("hi"))
    if (hook, then) == ("process_tool_result", sends_back):
        last = "error"  # the tool has run
    assert types(chunks)[-1] == last
    assert types(chunks)[-2] == "data-w"
    assert all(chunk.run_id == chunks[0].run_id for chunk in chunks)


async def test_it_comes_before_what_ends_the_run_at_its_last_chunk() -> None:
    class AtTheEnd(Processor[Any]):
        def process_output_stream(self, args: Any) -> Any:
            if isinstance(args.part, Finish):
                args.writer.custom(DataChunk("data-w"))
                args.abort("no")
            return args.part

    chunks = await collect(Agent(model=ScriptedModel("said"), processors=[AtTheEnd()]).stream("hi"))
    assert types(chunks)[-2:] == ["data-w", "tripwire"]


async def test_an_unrepaired_error_follows_it() -> None:
    broken = Agent(
        model=ScriptedModel(BadRequestError("down")), processors=[writes("process_api_error", lambda a: None)]
    )
    assert types(await collect(broken.stream("hi")))[-2:] == ["data-w", "error"]


async def test_before_a_retry_is_waited_for() -> None:
    """The chunk is there while the run still waits: the wait is long, and is broken off."""
    retry = writes("process_api_error", lambda args: {"retry": True, "delay": 3600})
    async with Agent(model=ScriptedModel(BadRequestError("down"), "said"), processors=[retry]).stream("hi") as stream:
        async for chunk in stream:
            if chunk.type == "data-w":
                return
    pytest.fail("the chunk never came")


@pytest.mark.parametrize("hook", [hook for hook in HOOKS if hook not in ("process_output_stream",)])
async def test_while_the_hook_still_works(hook: str) -> None:
    """The hook goes on only when the client has its chunk."""
    seen = asyncio.Event()

    async def method(self: Any, args: Any) -> Any:
        args.writer.custom(DataChunk("data-w", transient=True))
        await seen.wait()
        return {"retry": True} if hook == "process_api_error" else None

    waits = type("Waits", (Processor,), {hook: method})()
    async with agent(waits, hook=hook).stream("hi") as stream:
        async for chunk in stream:
            if chunk.type == "data-w":
                seen.set()
        assert (await stream.result()).text == "said"


EVERY_CHUNK = [
    "step-start",
    *("text-start", "text-delta", "text-end"),
    *("tool-call-input-streaming-start", "tool-call-delta", "tool-call", "tool-result", "tool-error"),
    *("step-finish", "finish"),
]


def talkative() -> Agent:
    """Every kind of chunk comes in its run."""

    def look() -> str:
        """Look."""
        return "seen"

    return Agent(model=ScriptedModel(["a", ToolCall("look"), ToolCall("none")], ["b", "c"]), tools=[look])


@pytest.mark.parametrize("place", [lambda part: part, lambda part: Branch((lambda args: True, part))])
@pytest.mark.parametrize("kind", EVERY_CHUNK)
async def test_while_a_stream_hook_still_works(kind: str, place: Any) -> None:
    """The hook goes on only when the client has its chunk, which comes before the one that the hook holds."""
    seen = asyncio.Event()

    class Waits(Processor[Any]):
        async def process_output_stream(self, args: Any) -> Any:
            if args.part.type == kind and not args.state:
                args.state["asked"] = True
                args.writer.custom(DataChunk("data-w", transient=True))
                await seen.wait()
            return args.part

    types: list[str] = []
    async with talkative().stream("hi", output_processors=[place(Waits())]) as stream:
        async for chunk in stream:
            types.append(chunk.type)
            if chunk.type == "data-w":
                assert kind not in types
                seen.set()
        assert (await stream.result()).text == "bc"
    assert kind in types


async def test_while_one_of_several_stream_hooks_works() -> None:
    """Hooks beside it see the data chunk then, and their own order stays."""
    seen = asyncio.Event()
    looked: list[str] = []

    class Waits(Processor[Any]):
        async def process_output_stream(self, args: Any) -> Any:
            if args.part.type == "text-delta":
                args.writer.custom(DataChunk("data-w", {"to": "ada@example.com"}))
                await seen.wait()
            return args.part

    class Looks(Processor[Any]):
        process_data_parts = True

        async def process_output_stream(self, args: Any) -> Any:
            looked.append(args.part.type)
            part = args.part
            await asyncio.sleep(0)
            assert args.part is part, "one chunk at a time"
            return part

    class Before(Looks):
        pass

    agent = Agent(model=ScriptedModel("said"), processors=[Before(), RegexFilter(), Waits(), Looks()])
    async with agent.stream("hi") as stream:
        chunks: list[Chunk] = []
        async for chunk in stream:
            chunks.append(chunk)
            if isinstance(chunk, DataChunk):
                seen.set()
    assert types(chunks)[2:] == ["text-start", "data-w", "text-delta", "text-end", "step-finish", "finish"]
    assert [chunk.data for chunk in chunks if isinstance(chunk, DataChunk)] == [{"to": "[EMAIL]"}]
    assert looked.count("data-w") == 2


async def test_a_hook_that_looks_at_data_is_asked_about_its_own_when_it_is_done() -> None:
    """One chunk at a time: its own is at the hook only then."""
    at_work: list[str] = []

    class Both(Processor[Any]):
        process_data_parts = True

        async def process_output_stream(self, args: Any) -> Any:
            assert at_work == []
            at_work.append(args.part.type)
            if args.part.type == "text-delta":
                args.writer.custom(DataChunk("data-w"))
            for _ in range(5):
                await asyncio.sleep(0)
            at_work.clear()
            return args.part

    chunks = await collect(Agent(model=ScriptedModel(["a", "b"]), processors=[Both()]).stream("hi"))
    assert types(chunks).count("data-w") == 2


@pytest.mark.parametrize("is_async", [False, True])
async def test_it_comes_before_the_chunk_that_the_hook_was_shown(is_async: bool) -> None:
    class Note(Processor[Any]):
        def process_output_stream(self, args: Any) -> Any:
            if args.part.type == "text-delta":
                args.writer.custom(DataChunk("data-w", args.part.payload.text))
            return args.part

    class NoteLater(Note):
        async def process_output_stream(self, args: Any) -> Any:
            return Note.process_output_stream(self, args)

    agent = Agent(model=ScriptedModel(["a", "b"]), processors=[NoteLater() if is_async else Note()])
    async with agent.stream("hi") as stream:
        chunks = [chunk async for chunk in stream]
        result = await stream.result()
    kinds = ["data-w", "text-delta", "data-w", "text-delta"]
    assert [kind for kind in types(chunks) if kind in kinds] == kinds
    assert result.text == "ab"
    assert [part.data for part in result.messages[0].parts if isinstance(part, DataPart)] == ["a", "b"]


@pytest.mark.parametrize("kind", ["step-start", "tool-result", "step-finish", "finish"])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
async def test_it_comes_once(kind: str, held: bool, is_async: bool) -> None:
    """Also what is kept, and written at an end where text may still follow."""

    class Note(Processor[Any]):
        hold_output = held

        def process_output_stream(self, args: Any) -> Any:
            if args.part.type == kind and not args.state:
                args.state["asked"] = True
                args.writer.custom(DataChunk("data-w"))
            return args.part

    class NoteLater(Note):
        hold_output = held

        async def process_output_stream(self, args: Any) -> Any:
            return Note.process_output_stream(self, args)

    stream = talkative().stream("hi", output_processors=[NoteLater() if is_async else Note()])
    async with stream:
        chunks = [chunk async for chunk in stream]
        result = await stream.result()
    assert types(chunks).count("data-w") == 1
    kept = [part.type for message in result.messages for part in message.parts]
    assert kept.count("data-w") == (0 if kind == "finish" else 1)


async def test_of_one_writer_they_stay_in_order() -> None:
    """Though a hook waits amid them, and the reader is slow."""

    class Slow(Processor[Any]):
        process_data_parts = True

        async def process_output_stream(self, args: Any) -> Any:
            for _ in range(3):
                await asyncio.sleep(0)
            return args.part

    class Later(Slow):
        process_data_parts = False

    async def count(context: ToolContext) -> str:
        """Count."""
        for number in range(200):
            context.run.writer.custom(DataChunk("data-n", number, transient=True))
            if number % 7 == 0:
                await asyncio.sleep(0)
        return "done"

    calls = [ToolCall("count"), ToolCall("count")]
    model = ScriptedModel([calls[0]], "end")
    agent = Agent(model=model, tools=[count], processors=[Slow(), Later()])
    chunks = await collect(agent.stream("hi"))
    assert [chunk.data for chunk in chunks if isinstance(chunk, DataChunk)] == list(range(200))


async def test_a_cancelled_run_leaves_no_task_of_it() -> None:
    begun = asyncio.Event()

    class Hangs(Processor[Any]):
        async def process_output_stream(self, args: Any) -> Any:
            if args.part.type == "text-delta":
                begun.set()
                await asyncio.Event().wait()
            return args.part

    before = asyncio.all_tasks()
    task = asyncio.create_task(Agent(model=ScriptedModel("said"), processors=[Hangs()]).generate("hi"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ({"type": "data-x", "data": 1}, "DataChunk('data-...', {'type': 'data-x', 'data': 1})"),
        ({"page": 1}, "DataChunk('data-...', {'page': 1})"),
        ("half way", "DataChunk('data-...', 'half way')"),
        (TextDelta(payload=TextPayload(text="x")), "not TextDelta"),
    ],
)
@pytest.mark.parametrize("where", ["hook", "tool"])
async def test_something_else_is_refused_with_the_remedy(written: Any, says: str, where: str) -> None:
    class Writes(Processor[Any]):
        def process_input(self, args: Any) -> None:
            if where == "hook":
                args.writer.custom(written)

    def write(context: ToolContext) -> str:
        """Write."""
        context.run.writer.custom(written)
        return "done"

    agent = Agent(model=ScriptedModel(ToolCall("write"), "end"), tools=[write], processors=[Writes()])
    if where == "hook":
        with pytest.raises(InputError, match=r"writer\.custom takes a DataChunk") as raised:
            await agent.generate("hi")
        assert says in str(raised.value)
    else:
        (call,) = (await agent.generate("hi")).steps[0].tool_calls
        assert (call.state, says in str(call.result)) == ("error", True)


@pytest.mark.parametrize("kind", [5, None, "progress"])
def test_a_type_that_is_none_is_refused_by_name(kind: Any) -> None:
    with pytest.raises(InputError, match="starts with 'data-'"):
        DataChunk(kind)


@pytest.mark.parametrize("hook", ["process_input", "process_llm_request", "process_llm_response", "process_api_error"])
async def test_it_is_stored_with_the_answer(hook: str) -> None:
    """Once, also where the attempt after it is sent back."""

    class Again(Processor[Any]):
        def process_output_step(self, args: Any) -> None:
            if args.retry_count == 0:
                args.abort("again", retry=True)

    note = writes(hook, lambda args: {"retry": True} if hook == "process_api_error" else None)
    model = ScriptedModel(*([BadRequestError("down")] if hook == "process_api_error" else []), "bad", "good", "end")
    both = Agent(model=model, processors=[note, Again()], max_processor_retries=1)
    chunks = await collect(both.stream("hi"))
    message = next(chunk for chunk in chunks if isinstance(chunk, Finish)).payload.messages[-1]
    assert [part.type for part in message.parts].count("data-w") == 1
    assert message.text == "good"


async def test_it_passes_the_stream_hooks() -> None:
    class Hides(Processor[Any]):
        process_data_parts = True

        def process_output_stream(self, args: Any) -> Any:
            return None if args.part.type == "data-w" else args.part

    blocked = writes("process_input", lambda args: args.abort("no"))
    chunks = await collect(Agent(model=ScriptedModel("x"), processors=[blocked, Hides()]).stream("hi"))
    assert types(chunks) == ["start", "tripwire"]


async def test_it_is_held_until_the_guards_beside_the_model_have_passed() -> None:
    class Guard(Processor[Any]):
        run_in_parallel = True

        def process_input(self, args: Any) -> None:
            args.abort("no")

    note = writes("process_input", lambda args: None)
    chunks = await collect(Agent(model=ScriptedModel("x"), processors=[note, Guard()]).stream("hi"))
    assert types(chunks) == ["start", "tripwire"]


async def test_a_resumed_run_stores_it_with_the_answer() -> None:
    async def send(to: str) -> str:
        """Send."""
        return f"sent to {to}"

    note = writes("process_input", lambda args: None)
    mailer = Agent(
        model=ScriptedModel(ToolCall("send", {"to": "Ada"}), "done"),
        tools=[tool(needs_approval=True)(send)],
        processors=[note],
    )
    first = await mailer.generate("hi")
    second = await mailer.resume({first.pending[0].call_id: True}, of=first, input="go on")
    kinds = [(message.role, [part.type for part in message.parts]) for message in second.messages]
    assert kinds == [("tool", ["tool"]), ("assistant", ["data-w", "text"])]


async def test_data_is_sent_and_stored_as_the_json_of_the_moment() -> None:
    @tool
    def fetch(context: ToolContext) -> str:
        """Fetch."""
        progress = DataChunk("data-w", {"page": 0, "read": {7}, "raw": b"\xff"})
        for page in (1, 2):
            progress.data["page"] = page
            context.writer.custom(progress)
        return "ok"

    agent = Agent(model=ScriptedModel(ToolCall("fetch"), "Done."), tools=[fetch])
    async with agent.stream("hi") as stream:
        sent = [chunk.data for chunk in [chunk async for chunk in stream] if isinstance(chunk, DataChunk)]
        result = await stream.result()
    stored = [part.data for message in result.messages for part in message.parts if isinstance(part, DataPart)]
    assert sent == stored == [{"page": page, "read": [7], "raw": "_w=="} for page in (1, 2)]
