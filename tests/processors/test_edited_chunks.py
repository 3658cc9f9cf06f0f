"""A stream hook may edit its chunk in place: what the model sent is kept as it was sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from copy import deepcopy
from typing import Any

import pytest

from diarist import Agent, DataChunk, Memory, Processor, tool
from diarist.chunks import (
    Chunk,
    Finish,
    IdPayload,
    ModelFinish,
    ModelFinishPayload,
    SourceChunk,
    SourcePayload,
    TextDelta,
    TextEnd,
    TextPayload,
    TextStart,
    ToolCallChunk,
    ToolCallPayload,
    ToolResultChunk,
    ToolResultPayload,
    Usage,
)
from diarist.models.base import Model, ModelRequest
from diarist.processors import (
    Branch,
    InMemoryCache,
    Parallel,
    ProcessLLMResponseArgs,
    ProcessOutputStreamArgs,
    RegexFilter,
    ResponseCache,
    Sequence,
    StorageCache,
)
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel, ToolCall
from diarist.tools import Tool
from tests.agent.kit import collect, streamed_text

PLACES: list[Any] = [
    lambda part: part,
    lambda part: Sequence(part, id="place"),
    lambda part: Branch((lambda args: True, part), id="place"),
    lambda part: Parallel(part, merge=lambda outcomes: outcomes[0], id="place"),
]


class Shouts(Processor[Any]):
    def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
        if isinstance(args.part, TextDelta):
            args.part.payload.text += "!"
        return args.part


class ShoutsLater(Processor[Any]):
    async def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
        if isinstance(args.part, TextDelta):
            args.part.payload.text += "!"
        return args.part


class Witness(Processor[Any]):
    """Notes what it is told that the model sent."""

    def __init__(self) -> None:
        self.response: list[Chunk] = []
        self.parts: list[Chunk] = []

    def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
        if not isinstance(args.part, Finish):
            self.parts = args.stream_parts
        return args.part

    def process_llm_response(self, args: ProcessLLMResponseArgs[Any]) -> None:
        self.response = deepcopy(args.response)


@pytest.mark.parametrize("shouts", [Shouts, ShoutsLater])
@pytest.mark.parametrize("place", PLACES)
async def test_what_the_model_sent_stays_as_it_was(shouts: type[Processor[Any]], place: Any) -> None:
    witness = Witness()
    agent = Agent(model=ScriptedModel(["ans", "wer"]), processors=[place(shouts()), witness])
    chunks = await collect(agent.stream("hi"))
    assert streamed_text(chunks) == "ans!wer!"
    assert streamed_text(witness.response) == "answer"
    step = await agent_parts(place(shouts()))
    assert streamed_text(step) == "answer"


async def agent_parts(shouts: Processor[Any]) -> list[Chunk]:
    """``stream_parts`` as they stand when the answer's text has ended."""
    kept: list[Chunk] = []

    class Keeps(Processor[Any]):
        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            if isinstance(args.part, TextEnd):
                kept.extend(deepcopy(args.stream_parts))
            return args.part

    await Agent(model=ScriptedModel(["ans", "wer"]), processors=[shouts, Keeps()]).generate("hi")
    return kept


@pytest.mark.parametrize("store", [InMemoryCache, lambda: StorageCache(InMemoryStorage())])
@pytest.mark.parametrize("shouts", [Shouts, ShoutsLater])
async def test_a_cached_answer_is_edited_once(store: Any, shouts: type[Processor[Any]]) -> None:
    agent = Agent(model=ScriptedModel("answer"), processors=[shouts(), ResponseCache(store())])
    assert [(await agent.generate("hi")).text for _ in range(3)] == ["answer!"] * 3


async def test_each_hook_sees_what_those_before_it_left() -> None:
    class ShoutsAgain(Shouts):
        pass

    agent = Agent(model=ScriptedModel(["a", "b"]), processors=[Shouts(), ShoutsLater(), Sequence(ShoutsAgain())])
    assert (await agent.generate("hi")).text == "a!!!b!!!"


class Sends(Model):
    """Sends these chunks, each time the same objects."""

    provider, name, default_retries = "sends", "sends", 0

    def __init__(self, *chunks: Chunk) -> None:
        self.chunks = chunks

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        for chunk in self.chunks:
            yield chunk
        yield ModelFinish(payload=ModelFinishPayload(reason="stop", usage=Usage()))


ARGS = {"to": ["ada"], "more": {"cc": "bob"}}
CALL: dict[str, Any] = {"tool_call_id": "1", "tool_name": "mail", "provider_executed": True}
SENT: list[Chunk] = [
    TextStart(payload=IdPayload(id="1")),
    TextDelta(payload=TextPayload(text="x", id="1")),
    TextEnd(payload=IdPayload(id="1", provider_data={"id": "i", "cited": [{"url": "u"}]})),
    ToolCallChunk(payload=ToolCallPayload(**CALL, args=deepcopy(ARGS), provider_data={"n": [1]})),
    ToolResultChunk(payload=ToolResultPayload(**CALL, args=deepcopy(ARGS), result={"rows": [{"name": "ada"}]})),
    SourceChunk(payload=SourcePayload(url="u", title="t", id="1")),
]


def spoil(value: Any) -> Any:
    """Change everything in a value, in place where that can be."""
    if isinstance(value, dict):
        for key in value:
            value[key] = spoil(value[key])
    elif isinstance(value, list):
        value[:] = [*map(spoil, value), "more"]
    elif isinstance(value, str):
        return f"{value}-spoilt"
    return value


class Spoils(Processor[Any]):
    def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
        part = args.part
        if part.type not in ("start", "step-start", "step-finish", "finish"):
            for name in part.payload.__dataclass_fields__:
                setattr(part.payload, name, spoil(getattr(part.payload, name)))
        return part


async def test_every_kind_of_chunk_is_the_hooks_own() -> None:
    """As deep as it goes; the model's own objects too."""
    witness, model = Witness(), Sends(*deepcopy(SENT))
    await Agent(model=model, processors=[Spoils(), witness]).generate("hi")
    for kept in (witness.response[:-1], list(model.chunks), witness.parts[1 : 1 + len(SENT)]):
        assert [(chunk.type, chunk.payload) for chunk in kept] == [(chunk.type, chunk.payload) for chunk in SENT]


async def test_a_result_that_a_hook_edits_is_the_clients_alone() -> None:
    """Of a tool's result the message has its own."""

    @tool
    def look() -> dict[str, Any]:
        """Look."""
        return {"rows": ["ada"]}

    class Hides(Processor[Any]):
        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            if isinstance(args.part, ToolResultChunk):
                args.part.payload.result["rows"].clear()
            return args.part

    model = ScriptedModel(ToolCall("look"), "done")
    async with Agent(model=model, tools=[look], processors=[Hides()]).stream("hi") as stream:
        chunks = [chunk async for chunk in stream]
        result = await stream.result()
    assert [chunk.payload.result for chunk in chunks if isinstance(chunk, ToolResultChunk)] == [{"rows": []}]
    assert result.steps[0].tool_calls[0].result == {"rows": ["ada"]}


async def test_a_data_chunk_that_a_hook_edits_is_not_the_writers() -> None:
    data = {"rows": ["ada"]}

    class Writes(Processor[Any]):
        def process_output_step(self, args: Any) -> None:
            args.writer.custom(DataChunk("data-x", data))

    class Edits(Processor[Any]):
        process_data_parts = True

        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            if isinstance(args.part, DataChunk):
                args.part.data["rows"].append("bob")
            return args.part

    chunks = await collect(Agent(model=ScriptedModel("x"), processors=[Writes(), Edits()]).stream("hi"))
    assert [chunk.data for chunk in chunks if isinstance(chunk, DataChunk)] == [{"rows": ["ada", "bob"]}]
    assert data == {"rows": ["ada"]}


async def test_a_tool_that_changes_its_arguments_changes_no_chunk() -> None:
    """A client that reads slowly sees what the model asked for."""

    @tool
    def add(items: list[str]) -> str:
        """Add."""
        return "done"

    class Adds(Processor[Any]):
        def process_tool_call(self, args: Any) -> None:
            args.call.args["items"].append("bob")

    model = ScriptedModel(ToolCall("add", {"items": ["ada"]}), "done")
    chunks = await collect(Agent(model=model, tools=[add], processors=[Adds()]).stream("hi"))
    assert [chunk.payload.args for chunk in chunks if isinstance(chunk, ToolCallChunk)] == [{"items": ["ada"]}]


async def test_no_copies_where_no_hook_edits_in_place() -> None:
    """``edits_in_place = False`` says so, as the built-in processors do."""
    seen: list[tuple[Chunk, Chunk]] = []

    class Looks(Processor[Any]):
        edits_in_place = False

        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            seen.append((args.part, args.stream_parts[-1]))
            return args.part

    await Agent(model=ScriptedModel("x"), processors=[Looks(), RegexFilter()]).generate("hi")
    assert seen
    assert all(part is original for part, original in seen)


async def test_a_finish_that_a_hook_edits_is_the_clients_alone() -> None:
    class Hides(Processor[Any]):
        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            if isinstance(args.part, Finish):
                for call in args.part.payload.messages[0].tool_parts:
                    call.result = "(hidden)"
            return args.part

    def look() -> str:
        """Look."""
        return "ada"

    memory = Memory(storage=InMemoryStorage())
    agent = Agent(model=ScriptedModel(ToolCall("look"), "done"), tools=[look], processors=[Hides()], memory=memory)
    async with agent.stream("hi", thread="t") as stream:
        [finish] = [chunk async for chunk in stream if isinstance(chunk, Finish)]
        result = await stream.result()
    stored = await memory.messages.list(thread="t")
    assert [message.tool_parts[0].result for message in (result.messages[0], stored[1])] == ["ada", "ada"]
    assert finish.payload.messages[0].tool_parts[0].result == "(hidden)"
    assert [message.seq for message in finish.payload.messages] == [message.seq for message in stored[1:]]


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_client_can_continue_from_the_finish_chunk_of_a_run_that_waits(guarded: bool) -> None:
    ask = Tool(name="ask", parameters={"properties": {}})
    agent = Agent(model=ScriptedModel(ToolCall("ask"), "done"), tools=[ask], processors=[Shouts()] if guarded else [])
    async with agent.stream("hi") as stream:
        [finish] = [chunk async for chunk in stream if isinstance(chunk, Finish)]
        result = await stream.result()
    assert [message.metadata for message in finish.payload.messages] == [
        message.metadata for message in result.messages
    ]
