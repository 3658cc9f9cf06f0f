"""``process_output_stream``: every chunk, and what becomes of it in the stream and in the message."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from diarist import DROP, Agent, DataChunk, Memory, Processor, ToolContext
from diarist.chunks import (
    Chunk,
    Finish,
    ModelFinish,
    ModelFinishPayload,
    ReasoningDelta,
    TextDelta,
    TextPayload,
    ToolCallChunk,
    Usage,
)
from diarist.exceptions import ProcessorResultError
from diarist.messages import DataPart
from diarist.models.base import Model, ModelRequest
from diarist.processors import Branch, ProcessInputArgs, ProcessOutputStreamArgs, Sequence
from diarist.storage import SQLiteStorage
from diarist.testing import Reasoning, Reply, ScriptedModel, ToolCall
from tests.agent.kit import collect, run_both, streamed_text, types


def on_text(change: Any, *, id: str = "changes", is_async: bool = False, **attributes: Any) -> Processor[Any]:
    """A processor that returns ``change(args)`` for text deltas and passes everything else on."""

    def hook(self: Any, args: ProcessOutputStreamArgs[Any]) -> Any:
        return change(args) if args.part.type == "text-delta" else args.part

    async def async_hook(self: Any, args: ProcessOutputStreamArgs[Any]) -> Any:
        return hook(self, args)

    attributes |= {"process_output_stream": async_hook if is_async else hook, "id": id}
    return type("Changes", (Processor,), attributes)()


def text(value: str) -> TextDelta:
    return TextDelta(payload=TextPayload(text=value))


async def stream(
    *processors: Processor[Any], model: ScriptedModel | None = None, **more: Any
) -> tuple[Any, list[Chunk]]:
    def make() -> Agent:
        return Agent(model=ScriptedModel(["a", "b", "c"]), output_processors=processors, **more)

    if model is None:
        return await run_both(make)
    agent = Agent(model=model, output_processors=processors, **more)
    async with agent.stream("hi") as run:
        chunks = [chunk async for chunk in run]
        return await run.result(), chunks


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda args: args.part, "abc"),
        (lambda args: text(args.part.payload.text.upper()), "ABC"),
        (lambda args: None if args.part.payload.text == "b" else args.part, "ac"),
        (lambda args: DROP if args.part.payload.text == "b" else args.part, "ac"),
        (lambda args: [args.part, text("-")], "a-b-c-"),
        (lambda args: (text("-"), args.part), "-a-b-c"),
        (lambda args: [], ""),
    ],
)
async def test_the_streamed_answer_is_the_stored_one(change: Any, left: str, is_async: bool) -> None:
    result, chunks = await stream(on_text(change, is_async=is_async))
    assert streamed_text(chunks) == left
    assert result.text == left
    assert "".join(message.text for message in result.messages) == left
    assert {chunk.run_id for chunk in chunks} == {chunks[0].run_id}, "new chunks belong to the run too"


async def test_processors_see_what_those_before_them_left() -> None:
    seen: list[str] = []

    def look(args: Any) -> Any:
        seen.append(args.part.payload.text)
        return args.part

    await Agent(
        model=ScriptedModel(["a", "b"]),
        output_processors=[
            on_text(lambda args: [args.part, args.part], id="double"),
            on_text(lambda args: text(args.part.payload.text.upper()), id="upper"),
            on_text(look, id="look"),
        ],
    ).generate("hi")
    assert seen == ["A", "A", "B", "B"]


async def test_a_dropped_chunk_is_not_shown_to_those_after() -> None:
    seen: list[str] = []

    def look(args: Any) -> Any:
        seen.append(args.part.payload.text)
        return args.part

    result, _ = await stream(on_text(lambda args: DROP, id="drop"), on_text(look, id="look"))
    assert (seen, result.text, result.stopped_by) == ([], "", "answer")


async def test_every_kind_of_chunk_passes() -> None:
    seen: list[str] = []

    class Look(Processor[Any]):
        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            seen.append(args.part.type)
            return args.part

    def work() -> str:
        """Work."""
        return "done"

    model = ScriptedModel([Reasoning("hm"), "x", ToolCall("work")], "y")
    _, chunks = await stream(Look(), model=model, tools=[work])
    assert seen == [chunk.type for chunk in chunks if chunk.type != "start"]
    assert "tool-result" in seen
    assert seen[-1] == "finish"


async def test_a_dropped_tool_call_does_not_run() -> None:
    ran: list[str] = []

    def work() -> str:
        """Work."""
        ran.append("ran")
        return "done"

    class NoTools(Processor[Any]):
        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            return DROP if args.part.type.startswith("tool-call") else args.part

    result, _ = await stream(NoTools(), model=ScriptedModel(["x", ToolCall("work")]), tools=[work])
    assert (ran, result.text, result.messages[0].tool_parts) == ([], "x", [])


async def test_a_rewritten_tool_call_runs_as_rewritten() -> None:
    got: list[str] = []

    def work(path: str) -> str:
        """Work."""
        got.append(path)
        return "done"

    class Jail(Processor[Any]):
        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            if isinstance(args.part, ToolCallChunk):
                args.part.payload.args = {"path": "/jail" + args.part.payload.args["path"]}
            return args.part

    result, _ = await stream(Jail(), model=ScriptedModel(ToolCall("work", {"path": "/etc"}), "ok"), tools=[work])
    assert (got, result.messages[0].tool_parts[0].args) == (["/jail/etc"], {"path": "/jail/etc"})


async def test_stream_parts_are_the_original_chunks_of_the_step() -> None:
    texts: list[list[str]] = []

    def look(args: Any) -> Any:
        texts.append([part.payload.text for part in args.stream_parts if part.type == "text-delta"])
        return text("changed")

    def work() -> str:
        """Work."""
        return "done"

    model = ScriptedModel(["a", "b", ToolCall("work")], "c")
    await stream(on_text(look), model=model, tools=[work])
    assert texts == [["a"], ["a", "b"], ["c"]]


async def test_the_args_are_one_object_per_processor_and_step() -> None:
    args_seen: list[Any] = []
    parts_seen: list[Any] = []

    def look(args: Any) -> Any:
        args_seen.append(args)
        parts_seen.append(args.part)
        return args.part

    await Agent(model=ScriptedModel(["a", "b"]), output_processors=[on_text(look)]).generate("hi")
    assert args_seen[0] is args_seen[1]
    assert parts_seen[0] is not parts_seen[1]


async def test_state_is_shared_with_the_other_hooks() -> None:
    class Counts(Processor[Any]):
        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            if isinstance(args.part, TextDelta):
                args.state["text"] = args.state.get("text", "") + args.part.payload.text
            return args.part

        def process_output_result(self, args: Any) -> None:
            args.messages[-1].metadata["seen"] = args.state["text"]

    result, _ = await stream(Counts())
    assert result.messages[0].metadata == {"seen": "abc"}


# -- data chunks


def data_processor(seen: list[str], *, wants: bool, change: Any = None, id: str = "data") -> Processor[Any]:
    class Look(Processor[Any]):
        process_data_parts = wants

        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            if isinstance(args.part, DataChunk):
                seen.append(args.part.type)
                return change(args.part) if change else args.part
            return args.part

    look = Look()
    look.id = id
    return look


async def write(context: ToolContext[Any]) -> str:
    """Write."""
    context.writer.custom(DataChunk("data-x", 1))
    context.writer.custom(DataChunk("data-y", 2, transient=True))
    return "done"


async def test_data_chunks_reach_only_hooks_that_ask() -> None:
    asking: list[str] = []
    others: list[str] = []
    _, chunks = await stream(
        data_processor(others, wants=False, id="others"),
        data_processor(asking, wants=True),
        model=ScriptedModel(ToolCall("write"), "ok"),
        tools=[write],
    )
    assert (asking, others) == (["data-x", "data-y"], [])
    assert [type for type in types(chunks) if type.startswith("data-")] == ["data-x", "data-y"]


@pytest.mark.parametrize(
    ("change", "streamed", "kept"),
    [
        (lambda part: DROP, [], []),
        (lambda part: DataChunk(part.type, part.data * 10, transient=part.transient), [10, 20], [10]),
    ],
)
async def test_data_chunks_can_be_dropped_and_changed(change: Any, streamed: list[int], kept: list[int]) -> None:
    result, chunks = await stream(
        data_processor([], wants=True, change=change), model=ScriptedModel(ToolCall("write"), "ok"), tools=[write]
    )
    assert [chunk.data for chunk in chunks if isinstance(chunk, DataChunk)] == streamed
    assert [part.data for m in result.messages for part in m.parts if isinstance(part, DataPart)] == kept


async def test_a_data_chunk_made_from_text_is_hidden_from_hooks_without_data_parts() -> None:
    others: list[str] = []
    result, chunks = await stream(
        on_text(lambda args: DataChunk("data-text", args.part.payload.text), id="makes"),
        data_processor(others, wants=False),
    )
    assert others == []
    assert types(chunks).count("data-text") == 3
    assert result.text == ""


# -- the end


async def test_the_finish_chunk_can_be_changed_but_not_lost() -> None:
    class AtTheEnd(Processor[Any]):
        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            return DROP if isinstance(args.part, Finish) else args.part

    _, chunks = await stream(AtTheEnd())
    assert types(chunks)[-1] == "finish"

    class More(Processor[Any]):
        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            if not isinstance(args.part, Finish):
                return args.part
            args.part.payload.messages[-1].metadata["seen"] = True
            return [args.part, DataChunk("data-cost", 1)]

    _, chunks = await stream(More())
    assert types(chunks)[-2:] == ["data-cost", "finish"], "nothing follows finish"
    last = chunks[-1]
    assert isinstance(last, Finish)
    assert last.payload.messages[-1].metadata == {"seen": True}


async def test_blocking_at_the_finish_chunk_blocks_the_run() -> None:
    class Late(Processor[Any]):
        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            if isinstance(args.part, Finish):
                args.abort("too dear")
            return args.part

    result, chunks = await stream(Late())
    assert (result.stopped_by, result.text, result.messages) == ("tripwire", "", [])
    assert "finish" not in types(chunks)


async def test_blocking_in_the_stream_closes_the_model_call() -> None:
    closed: list[str] = []

    class Watched(ScriptedModel):
        async def stream(self, request: Any) -> Any:
            try:
                async for chunk in super().stream(request):
                    yield chunk
            finally:
                closed.append("closed")

    def judge(args: Any) -> Any:
        return args.abort("no") if args.part.payload.text == "b" else args.part

    result, chunks = await stream(on_text(judge), model=Watched(["a", "b", "c"]))
    assert (closed, streamed_text(chunks), result.text) == (["closed"], "a", "")


async def test_no_hook_no_cost() -> None:
    """Without a stream processor, chunks are not even copied."""
    usage = Usage(input_tokens=1)
    result, chunks = await stream(model=ScriptedModel(Reply(text=["x"] * 10, usage=usage)))
    assert (streamed_text(chunks), result.usage) == ("x" * 10, usage)


# -- a forgotten return


async def test_a_processor_that_returned_none_for_every_chunk_is_warned_about_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Forgetful(Processor[Any]):
        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> None:
            args.state["seen"] = True

    class Drops(Processor[Any]):
        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            return DROP

    class Passes(Processor[Any]):
        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            return None if args.part.type == "text-delta" else args.part

    class DropsData(Processor[Any]):
        process_data_parts = True

        def process_input(self, args: ProcessInputArgs[Any]) -> None:
            for number in range(50):
                args.writer.custom(DataChunk("data-number", number))

        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            return None if isinstance(args.part, DataChunk) else args.part

    caplog.set_level(logging.WARNING, logger="diarist")
    for processor in (Passes(), Drops(), DropsData()):
        await collect(Agent(model=ScriptedModel("ok"), processors=[processor]).stream("hi"))
    for processor in (Forgetful(), Forgetful()):
        await collect(Agent(model=ScriptedModel("ok"), output_processors=[processor]).stream("hi"))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert "'forgetful'" in messages[0]
    assert "DROP" in messages[0]


async def test_a_processor_in_a_composition_that_returned_none_is_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Forgets(Processor[Any]):
        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            pass

    caplog.set_level(logging.WARNING, logger="diarist")
    nested = Sequence(Branch((lambda args: True, Sequence(Forgets(), id="inner"))))
    await collect(Agent(model=ScriptedModel("ok"), processors=[nested]).stream("hi"))
    assert ["'forgets'" in record.getMessage() for record in caplog.records] == [True]


async def test_one_that_was_shown_nothing_is_not_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    class Drops(Processor[Any]):
        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            return DROP

    class Later(Processor[Any]):
        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            return args.part

    caplog.set_level(logging.WARNING, logger="diarist")
    await Agent(model=ScriptedModel("ok"), output_processors=[Drops(), Later()]).generate("hi")
    assert caplog.records == []


# -- text that a hook holds back


class Keeps(Processor[Any]):
    """Holds all text back until a chunk of this type comes. ``instead``: sends the text in the place of that chunk."""

    def __init__(self, until: str, *, instead: bool = False) -> None:
        self.until, self.instead = until, instead

    def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
        if isinstance(args.part, TextDelta):
            args.state["text"] = args.state.get("text", "") + args.part.payload.text
            return DROP
        text = args.state.get("text")
        if args.part.type != self.until or not text:
            return args.part
        args.state["text"] = ""
        delta = TextDelta(payload=TextPayload(text=text))
        return delta if self.instead else [delta, args.part]


@pytest.mark.parametrize("instead", [False, True])
@pytest.mark.parametrize("until", ["step-finish", "finish"])
async def test_text_after_the_response_is_an_error_that_names_the_processor(until: str, instead: bool) -> None:
    agent = Agent(model=ScriptedModel(["a", "b"]), processors=[Keeps(until, instead=instead)])
    async with agent.stream("hi") as run:
        chunks = [chunk async for chunk in run]
        with pytest.raises(ProcessorResultError, match=f"'keeps'.*text-delta for {until}.*at text-end"):
            await run.result()
    assert streamed_text(chunks) == ""
    assert types(chunks)[-1] == "error"


async def test_text_that_is_held_until_its_block_ends_is_judged_and_stored(tmp_path: Path) -> None:
    judged: list[str] = []

    class Judges(Processor[Any]):
        def process_output_step(self, args: Any) -> None:
            judged.append(args.text)

    storage = SQLiteStorage(tmp_path / "memory.db")
    shouts = on_text(lambda args: TextDelta(payload=TextPayload(text=args.part.payload.text.upper())))
    agent = Agent(
        model=ScriptedModel(["a", "b"]),
        memory=Memory(storage=storage),
        processors=[Keeps("text-end"), shouts, Judges()],
    )
    async with agent, agent.stream("hi", thread="t") as run:
        chunks = [chunk async for chunk in run]
        result = await run.result()
    assert streamed_text(chunks) == result.text == judged[-1] == "AB"
    assert [row.text for row in await storage.list_messages("t")] == ["hi", "AB"]
    await storage.close()


async def test_a_block_that_the_model_leaves_open_is_ended() -> None:
    class Open(Model):
        provider, name = "own", "open"

        async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
            yield ReasoningDelta(payload=TextPayload(text="hm", id="r"))
            yield TextDelta(payload=TextPayload(text="ab", id="t"))
            yield ModelFinish(payload=ModelFinishPayload(reason="stop", usage=Usage()))

    result, chunks = await stream(Keeps("text-end"), model=Open())
    assert (result.text, streamed_text(chunks)) == ("ab", "ab")
    assert "reasoning-end" in types(chunks)
    assert types(chunks)[-4:] == ["text-delta", "text-end", "step-finish", "finish"]
