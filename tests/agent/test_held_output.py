"""``hold_output``: what the client gets of a step is what was accepted of it, whatever the model said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from diarist import Agent, Model, Processor
from diarist.chunks import (
    Chunk,
    DataChunk,
    FileChunk,
    FilePayload,
    ModelFinish,
    ModelFinishPayload,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningEndPayload,
    ReasoningStart,
    SourceChunk,
    SourcePayload,
    Start,
    TextDelta,
    TextPayload,
    ToolCallChunk,
    ToolCallPayload,
    ToolResultChunk,
    ToolResultPayload,
    Usage,
)
from diarist.messages import DataPart, FilePart, ReasoningPart, SourcePart, TextPart, ToolPart
from diarist.models.base import ModelRequest
from diarist.processors import RegexFilter
from diarist.testing import Reply, ScriptedModel, ToolCall
from tests.agent.kit import collect, streamed_text, types

SECRET = "SECRET"


class Says(Model):
    """A model that yields these chunks, call by call."""

    provider = "says"
    name = "chunks"

    def __init__(self, *answers: list[Chunk]) -> None:
        self._answers = list(answers)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        for chunk in self._answers.pop(0):
            yield chunk
        yield ModelFinish(payload=ModelFinishPayload(reason="stop", usage=Usage()))


class Accepts(Processor[Any]):
    """Leaves of the answer what ``edit`` returns for each part, in the hook it is made for."""

    hold_output = True

    def __init__(self, edit: Any, hook: str = "process_output_step") -> None:
        self.edit, self.hook = edit, hook

    def handles(self, hook: str) -> bool:
        return hook == self.hook

    def _edit(self, args: Any) -> None:
        for message in args.messages:
            if message.role == "assistant":
                message.parts = [left for part in message.parts if (left := self.edit(part)) is not None]

    process_output_step = _edit
    process_output_result = _edit


def clean(part: Any) -> Any:
    """No secret, and no thoughts."""
    match part:
        case ReasoningPart() | FilePart():
            return None
        case TextPart():
            part.text = part.text.replace(SECRET, "***")
        case ToolPart():
            part.args = {name: value.replace(SECRET, "***") for name, value in part.args.items()}
            part.result = part.result and part.result.replace(SECRET, "***")
        case SourcePart():
            part.url = part.url.replace(SECRET, "***")
        case DataPart():
            part.data = "***"
        case _:
            pass
    return part


def echo(text: str) -> str:
    """Say it again."""
    return text


def same(part: Any) -> Any:
    return part


def payloads(chunks: list[Chunk], *kinds: str) -> list[Any]:
    return [chunk.payload for chunk in chunks if not isinstance(chunk, Start) and chunk.type in kinds]


def everything() -> list[Chunk]:
    call: dict[str, Any] = {
        "tool_call_id": "ws",
        "tool_name": "web_search",
        "args": {"q": SECRET},
        "provider_executed": True,
    }
    return [
        ReasoningStart(),
        ReasoningDelta(payload=TextPayload(text=f"thinking {SECRET}")),
        ReasoningEnd(payload=ReasoningEndPayload(signature=SECRET, provider="says")),
        ToolCallChunk(payload=ToolCallPayload(**call)),
        ToolResultChunk(payload=ToolResultPayload(**call, result=f"found {SECRET}")),
        TextDelta(payload=TextPayload(text=f"It is {SECRET}.")),
        SourceChunk(payload=SourcePayload(url=f"https://x.org/{SECRET}")),
        FileChunk(payload=FilePayload(media_type="text/plain", url=f"https://x.org/{SECRET}")),
        DataChunk("data-note", SECRET),
    ]


@pytest.mark.parametrize("hook", ["process_output_step", "process_output_result"])
async def test_nothing_that_was_taken_out_reaches_the_client(hook: str) -> None:
    chunks = await collect(Agent(model=Says(everything()), processors=[Accepts(clean, hook)]).stream("hi"))
    assert SECRET not in str(chunks)
    assert types(chunks) == [
        *("start", "step-start", "tool-call", "tool-result", "text-start", "text-delta", "text-end"),
        *("source", "data-note", "step-finish", "finish"),
    ]
    assert [chunk.run_id for chunk in chunks] == [chunks[0].run_id] * len(chunks)


async def test_arguments_reach_the_client_as_they_were_accepted() -> None:
    model = ScriptedModel(Reply(text=f"a {SECRET}", tool_calls=[ToolCall("echo", {"text": SECRET})]), "done")
    chunks = await collect(Agent(model=model, tools=[echo], processors=[Accepts(clean)]).stream("hi"))
    assert SECRET not in str(chunks)
    assert streamed_text(chunks) == "a ***done"
    assert payloads(chunks, "tool-call-delta") == []
    assert [shown.args for shown in payloads(chunks, "tool-call", "tool-result")] == [{"text": "***"}] * 2


async def test_arguments_that_process_tool_call_changed_are_seen_changed() -> None:
    class Hides(Processor[Any]):
        hold_output = True

        def process_tool_call(self, args: Any) -> Any:
            return {"args": {"text": "***"}}

    model = ScriptedModel(ToolCall("echo", {"text": SECRET}), "done")
    assert SECRET not in str(await collect(Agent(model=model, tools=[echo], processors=[Hides()]).stream("hi")))


async def test_a_call_that_was_removed_is_not_announced() -> None:
    def no_calls(part: Any) -> Any:
        return TextPart(text="no tools") if isinstance(part, ToolPart) else part

    agent = Agent(model=ScriptedModel(ToolCall("echo", {"text": "x"})), tools=[echo], processors=[Accepts(no_calls)])
    chunks = await collect(agent.stream("hi"))
    assert types(chunks)[1:-2] == ["step-start", "text-start", "text-delta", "text-end"]


async def test_a_call_that_was_answered_by_the_processor_has_its_result() -> None:
    def answer(part: Any) -> Any:
        if isinstance(part, ToolPart):
            part.state, part.result = "result", "known"
        return part

    model = ScriptedModel(ToolCall("echo", {"text": "x"}), "done")
    chunks = await collect(Agent(model=model, tools=[echo], processors=[Accepts(answer)]).stream("hi"))
    assert [shown.result for shown in payloads(chunks, "tool-result")] == ["known"]


async def test_unreadable_arguments_are_not_shown() -> None:
    call = ToolCallPayload(tool_call_id="a", tool_name="echo", args={}, args_error=f"no JSON: {SECRET}")
    model = Says([ToolCallChunk(payload=call)], [TextDelta(payload=TextPayload(text="ok"))])
    chunks = await collect(Agent(model=model, tools=[echo], processors=[Accepts(same)]).stream("hi"))
    (shown,) = payloads(chunks, "tool-call")
    assert (shown.args, shown.args_error) == ({}, None)


async def test_unchanged_content_arrives_as_the_model_sent_it() -> None:
    model = ScriptedModel(Reply(text="one two three", reasoning="hm"))
    held = await collect(Agent(model=model, processors=[Accepts(same)]).stream("hi"))
    model = ScriptedModel(Reply(text="one two three", reasoning="hm"))
    free = await collect(Agent(model=model).stream("hi"))
    assert list(dict.fromkeys(types(held))) == list(dict.fromkeys(types(free)))
    assert streamed_text(held) == streamed_text(free)


async def test_transient_data_keeps_its_place_and_data_without_an_answer_still_comes() -> None:
    class Tells(Accepts):
        def process_output_step(self, args: Any) -> Any:
            args.writer.custom(DataChunk("data-removed", 1))
            args.writer.custom(DataChunk("data-progress", 2, transient=True))
            return []

    def nothing(part: Any) -> Any:
        return None if isinstance(part, TextPart) else part

    class Removes(Processor[Any]):
        def process_output_step(self, args: Any) -> Any:
            args.message_list.remove([message.id for message in args.messages if message.role == "assistant"])

    agent = Agent(model=ScriptedModel(SECRET), processors=[Removes(), Tells(nothing)])
    chunks = await collect(agent.stream("hi"))
    assert SECRET not in str(chunks)
    assert types(chunks)[1:-2] == ["step-start", "data-removed", "data-progress"]


async def test_data_of_the_steps_beginning_comes_once() -> None:
    class Begins(Processor[Any]):
        def process_input_step(self, args: Any) -> None:
            args.writer.custom(DataChunk("data-begin", 1))

    agent = Agent(model=ScriptedModel(f"a {SECRET}"), processors=[Begins(), Accepts(clean)])
    chunks = await collect(agent.stream("hi"))
    assert types(chunks).count("data-begin") == 1
    assert streamed_text(chunks) == "a ***"


# -- chunks that a stream hook let go after the model had ended


async def test_a_call_is_run_though_text_before_it_was_still_being_judged() -> None:
    call = ToolCallChunk(payload=ToolCallPayload(tool_call_id="a", tool_name="echo", args={"text": "x"}))
    model = Says(
        [TextDelta(payload=TextPayload(text="write to ada")), call], [TextDelta(payload=TextPayload(text="ok"))]
    )
    result = await Agent(model=model, tools=[echo], processors=[RegexFilter()]).generate("hi")
    assert [part.result for step in result.steps for part in step.tool_calls] == ["x"]
    assert [step.text for step in result.steps] == ["write to ada", "ok"]


@pytest.mark.parametrize("hold", [False, True])
async def test_what_came_late_is_part_of_the_message_and_judged(hold: bool) -> None:
    class Judges(Accepts):
        hold_output = hold

    model = Says(
        [
            ReasoningDelta(payload=TextPayload(text=f"{SECRET} mail ada")),
            TextDelta(payload=TextPayload(text="write to ada")),
            SourceChunk(payload=SourcePayload(url=f"https://x.org/{SECRET}")),
        ]
    )
    agent = Agent(model=model, output_processors=[RegexFilter(("pii",)), Judges(clean)])
    async with agent.stream("hi") as stream:
        chunks = [chunk async for chunk in stream]
        result = await stream.result()
    kinds = [part.type for part in result.messages[-1].parts]
    assert kinds == ["text", "source"]
    assert SECRET not in str([message.to_dict() for message in result.messages])
    if hold:
        assert SECRET not in str(chunks)


async def test_data_written_before_the_step_arrives_once() -> None:
    class Begins(Processor[Any]):
        def process_input(self, args: Any) -> None:
            args.writer.custom(DataChunk("data-begun", 1))

    held = await collect(Agent(model=ScriptedModel("ok"), processors=[Begins(), Accepts(same)]).stream("hi"))
    assert types(held) == [
        *("start", "data-begun", "step-start"),
        *("text-start", "text-delta", "text-end", "step-finish", "finish"),
    ]
