"""What a model or its provider makes up beside the text, names, ids and errors, passes the redactors as well."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import pytest

from diarist import Agent, AgentResult, Memory, Message, Processor, tool
from diarist.chunks import (
    Chunk,
    ErrorChunk,
    FileChunk,
    FilePayload,
    ModelFinish,
    ModelFinishPayload,
    SourceChunk,
    SourcePayload,
    TextDelta,
    ToolCallChunk,
    ToolCallPayload,
    ToolInputDelta,
    ToolInputDeltaPayload,
    ToolInputStart,
    ToolInputStartPayload,
    ToolResultChunk,
    ToolResultPayload,
    Usage,
)
from diarist.exceptions import BadRequestError, ModelConnectionError
from diarist.messages import FilePart, TextPart, ToolPart
from diarist.models.base import Model, ModelRequest
from diarist.processors import (
    BatchParts,
    ModerationProcessor,
    Parallel,
    PIIDetector,
    RegexFilter,
    Sequence,
    SystemPromptScrubber,
)
from diarist.storage import SQLiteStorage
from diarist.testing import Reply, ScriptedModel, ToolCall
from tests.agent.kit import collect, types

MAIL = "ada@example.com"
CARD = "4111111111111111"
SECRET = "tango-7"

Make = Callable[[], Processor[Any]]
REDACTORS: list[tuple[Make, str]] = [
    (RegexFilter, MAIL),
    (lambda: RegexFilter((), patterns=[r"\d{16}"]), CARD),
    (PIIDetector, MAIL),
    (lambda: PIIDetector(redaction_method="remove"), MAIL),
    (lambda: PIIDetector(detector=lambda text: []), MAIL),
    (lambda: SystemPromptScrubber(secrets=[SECRET]), SECRET),
    (lambda: SystemPromptScrubber(secrets=[SECRET], classifier=lambda text: False), SECRET),
]
IDS = ["regex", "regex-own", "pii", "pii-remove", "pii-detector", "scrubber", "scrubber-classifier"]
each = pytest.mark.parametrize(("make", "secret"), REDACTORS, ids=IDS)


def written(chunks: list[Chunk]) -> str:
    return "\n".join(orjson.dumps(chunk.to_dict()).decode() for chunk in chunks)


async def run(agent: Agent, input: Any = "hi", **options: Any) -> tuple[list[Chunk], AgentResult[Any]]:
    async with agent.stream(input, **options) as stream:
        chunks = [chunk async for chunk in stream]
        return chunks, await stream.result()


def in_files(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


async def stored(storage: SQLiteStorage, thread: str) -> list[Message]:
    return await storage.list_messages(thread)


@each
async def test_a_made_up_tool_and_its_id(make: Make, secret: str, tmp_path: Path) -> None:
    """Nothing of them in the stream, the result, the next prompt or the database, and the call stays one."""
    path = tmp_path / "memory.db"
    memory = Memory(storage=SQLiteStorage(path))
    model = ScriptedModel(
        [ToolCall(f"send_{secret}", {"a": 1}, id=f"call_{secret}"), ToolCall("x", id=secret)], "sorry"
    )
    async with Agent(model=model, memory=memory, processors=[make()]) as agent:
        chunks, result = await run(agent, thread="t")
        rows = await stored(memory.storage, "t")
    assert secret not in written(chunks)
    assert secret not in str(asdict(result))
    assert secret not in model.requests[1].text
    assert secret not in str([row.to_dict() for row in rows])
    assert secret.encode() not in in_files(tmp_path)
    calls = [part for message in rows for part in message.tool_parts]
    assert [call.state for call in calls] == ["error", "error"]
    assert len({call.call_id for call in calls}) == 2
    for call in calls:
        assert call.name.replace("_", "").replace("-", "").isalnum(), "a name that providers take back"
        own = [chunk for chunk in chunks if getattr(chunk_of(chunk), "tool_call_id", "") == call.call_id]
        assert types(own) == ["tool-call-input-streaming-start", "tool-call", "tool-error"]


def chunk_of(chunk: Chunk) -> Any:
    return getattr(chunk, "payload", None)


async def test_a_tool_that_there_is_keeps_its_name() -> None:
    """Though a pattern has something against it."""

    @tool
    def lookup_order() -> str:
        """Look up."""
        return "lookup_order has found it"

    model = ScriptedModel(ToolCall("lookup_order"), "I used lookup_order.")
    agent = Agent(
        model=model,
        tools=[lookup_order],
        processors=[SystemPromptScrubber(secrets=["lookup_order"], strategy="filter")],
    )
    result = await agent.generate("hi")
    assert [call.name for call in result.steps[0].tool_calls] == ["lookup_order"]
    assert result.text == "I used ."


async def test_a_tool_that_a_processor_adds_keeps_its_name() -> None:
    @tool
    def lookup_order() -> str:
        """Look up."""
        return "found"

    class Adds(Processor[Any]):
        def process_input_step(self, args: Any) -> Any:
            return {"tools": [lookup_order]}

    agent = Agent(
        model=ScriptedModel(ToolCall("lookup_order"), "done"),
        processors=[Adds(), SystemPromptScrubber(secrets=["lookup_order"])],
    )
    result = await agent.generate("hi")
    assert [(call.name, call.result) for call in result.steps[0].tool_calls] == [("lookup_order", "found")]


async def test_a_call_that_waits_is_answered_by_the_id_that_was_given_out() -> None:
    @tool(needs_approval=True)
    def send() -> str:
        """Send."""
        return "sent"

    agent = Agent(
        model=ScriptedModel(ToolCall("send", id=MAIL), "done"), tools=[send], output_processors=[RegexFilter()]
    )
    first = await agent.generate("hi")
    (call,) = first.pending
    assert MAIL not in call.call_id
    second = await agent.resume({call.call_id: True}, of=first)
    assert second.text == "done"


async def test_a_history_of_the_client_stays_together() -> None:
    history = [
        Message.user("send it"),
        Message(role="assistant", parts=[ToolPart(call_id=MAIL, name=f"to {MAIL}", args={})]),
        Message(role="tool", parts=[ToolPart(call_id=MAIL, name=f"to {MAIL}", args={}, state="result", result="ok")]),
        Message.user("and now?"),
    ]
    model = ScriptedModel("done")
    await Agent(model=model, input_processors=[RegexFilter()]).generate(history)
    assert MAIL not in str(model.requests[0])
    assert [message.role for message in model.requests[0].prompt] == ["user", "assistant", "tool", "user"]


async def test_tools_false_leaves_calls_alone() -> None:
    model = ScriptedModel(ToolCall(f"send_{MAIL}", id=f"call_{MAIL}"), "sorry")
    result = await Agent(model=model, output_processors=[RegexFilter(tools=False)]).generate("hi")
    (call,) = result.steps[0].tool_calls
    assert (call.name, call.call_id) == (f"send_{MAIL}", f"call_{MAIL}")


async def test_a_name_can_block() -> None:
    model = ScriptedModel(ToolCall(f"send_{MAIL}"))
    result = await Agent(model=model, output_processors=[RegexFilter(strategy="block")]).generate("hi")
    assert result.tripwire is not None
    assert MAIL not in str(asdict(result))


class Everything(Model):
    """Names the secret wherever a chunk has room for it."""

    provider, name, default_retries = "all", "all", 0

    def __init__(self, secret: str) -> None:
        self.secret = secret

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        s = self.secret
        yield FileChunk(payload=FilePayload(media_type="image/png", url=f"https://x.example/{s}"))
        yield SourceChunk(payload=SourcePayload(url=f"https://x.example/{s}", title=s, id=s))
        yield ToolInputStart(payload=ToolInputStartPayload(tool_call_id=f"p_{s}", tool_name=f"web_{s}"))
        yield ToolInputDelta(payload=ToolInputDeltaPayload(tool_call_id=f"p_{s}", args_text_delta="{"))
        yield ToolInputDelta(payload=ToolInputDeltaPayload(tool_call_id=f"p_{s}", args_text_delta="}"))
        data = {"provider": "all", "id": s, "note": {s: s}}
        call = ToolCallPayload(
            tool_call_id=f"p_{s}", tool_name=f"web_{s}", args={}, provider_executed=True, provider_data=data
        )
        yield ToolCallChunk(payload=call)
        result = ToolResultPayload(
            tool_call_id=f"p_{s}", tool_name=f"web_{s}", args={}, result={s: [s]}, provider_executed=True
        )
        yield ToolResultChunk(payload=result)
        yield ToolInputStart(payload=ToolInputStartPayload(tool_call_id=f"never_{s}", tool_name=f"never_{s}"))
        yield ToolInputDelta(payload=ToolInputDeltaPayload(tool_call_id=f"never_{s}", args_text_delta="{}"))
        yield ModelFinish(payload=ModelFinishPayload(reason="stop", usage=Usage(), response_id=s, model=s))


@each
async def test_wherever_a_chunk_has_room_for_it(make: Make, secret: str) -> None:
    chunks, result = await run(Agent(model=Everything(secret), output_processors=[make()]))
    assert secret not in written(chunks)
    assert secret not in str(asdict(result))
    (call,) = result.steps[0].tool_calls
    assert (call.state, call.provider_executed) == ("result", True)


async def test_a_name_of_a_file_in_the_input() -> None:
    model = ScriptedModel("ok")
    file = FilePart(media_type="application/pdf", url="https://files.example/1", name=f"CV of {MAIL} .pdf")
    said = Message(role="user", parts=[TextPart(text="Read it"), file])
    await Agent(model=model, input_processors=[RegexFilter()]).generate(said)
    sent = model.requests[0].prompt.messages[0].parts[1]
    assert isinstance(sent, FilePart)
    assert (sent.name, sent.url) == ("CV of [EMAIL] .pdf", "https://files.example/1")


# -- errors


@each
async def test_an_error_of_the_provider(make: Make, secret: str) -> None:
    model = ScriptedModel(BadRequestError(f"cannot read {secret}, try again"))
    chunks = await collect(Agent(model=model, output_processors=[make()]).stream("hi"))
    assert isinstance(last := chunks[-1], ErrorChunk)
    assert secret not in written(chunks)
    assert last.payload.kind == "BadRequestError"
    assert last.payload.error.startswith("cannot read ")
    assert last.payload.error.endswith(", try again")


@each
async def test_an_error_in_the_middle_of_held_text(make: Make, secret: str) -> None:
    model = ScriptedModel(Reply(text=["It is ", secret[:-1]], error_after=ModelConnectionError(f"lost at {secret}")))
    chunks = await collect(Agent(model=model, output_processors=[make()]).stream("hi"))
    assert types(chunks)[-1] == "error"
    assert secret[:-1] not in written(chunks)


@pytest.mark.parametrize("compose", [Sequence, lambda part: Parallel(part, merge=lambda outcomes: outcomes[0])])
async def test_an_error_passes_compositions(compose: Any) -> None:
    model = ScriptedModel(BadRequestError(f"cannot read {MAIL}"))
    chunks = await collect(Agent(model=model, output_processors=[compose(RegexFilter())]).stream("hi"))
    assert isinstance(last := chunks[-1], ErrorChunk)
    assert last.payload.error == "cannot read [EMAIL]"


async def test_an_error_that_a_filter_blocks_is_told_without_its_text() -> None:
    model = ScriptedModel(BadRequestError(f"cannot read {MAIL}"))
    agent = Agent(model=model, output_processors=[RegexFilter(strategy="block")])
    async with agent.stream("hi") as stream:
        chunks = [chunk async for chunk in stream]
        with pytest.raises(BadRequestError, match="cannot read"):
            await stream.result()
    assert isinstance(last := chunks[-1], ErrorChunk)
    assert (last.payload.kind, MAIL in last.payload.error) == ("BadRequestError", False)
    assert "regex-filter" in last.payload.error


@pytest.mark.parametrize("does", ["raise", "drop", "say more"])
async def test_a_hook_has_no_way_to_lose_the_last_chunk(does: str) -> None:
    class Odd(Processor[Any]):
        def process_output_stream(self, args: Any) -> Any:
            if not isinstance(args.part, ErrorChunk):
                return args.part
            if does == "raise":
                raise ValueError(f"what is {args.part.payload.error}?")
            return None if does == "drop" else [args.part, TextDelta(payload=args.part.payload), args.part]

    agent = Agent(model=ScriptedModel(BadRequestError(f"cannot read {MAIL}")), output_processors=[Odd()])
    async with agent.stream("hi") as stream:
        chunks = [chunk async for chunk in stream]
        with pytest.raises(BadRequestError):
            await stream.result()
    assert types(chunks) == ["start", "step-start", "error"]
    assert isinstance(last := chunks[-1], ErrorChunk)
    assert last.payload.kind == "BadRequestError"
    assert (MAIL in last.payload.error) == (does == "say more")
    assert last.run_id == chunks[0].run_id


async def test_a_hook_may_say_it_in_other_words() -> None:
    class Kind(Processor[Any]):
        async def process_output_stream(self, args: Any) -> Any:
            if isinstance(args.part, ErrorChunk):
                args.part.payload.error = "Please try again."
            return args.part

    model = ScriptedModel(BadRequestError("internal"))
    chunks = await collect(Agent(model=model, output_processors=[Kind()]).stream("hi"))
    assert isinstance(last := chunks[-1], ErrorChunk)
    assert last.payload.error == "Please try again."


async def test_a_fragment_is_not_judged_for_an_error() -> None:
    judged: list[str] = []

    def judge(text: str) -> bool:
        judged.append(text)
        return False

    model = ScriptedModel(Reply(text=["A frag", "ment"], error_after=ModelConnectionError("cut")))
    guards = [BatchParts(9), ModerationProcessor(classifier=judge)]
    chunks = await collect(Agent(model=model, output_processors=guards).stream("hi"))
    assert types(chunks) == ["start", "step-start", "text-start", "error"]
    assert judged == []


async def test_what_a_broken_classifier_says_does_not_reach_the_client() -> None:
    """Its provider's words go to the log."""

    def judge(text: str) -> bool:
        raise ModelConnectionError(f"no answer about {MAIL}")

    agent = Agent(model=ScriptedModel("fine"), processors=[ModerationProcessor(classifier=judge), RegexFilter()])
    chunks, result = await run(agent)
    assert result.tripwire is not None
    assert MAIL not in written(chunks)
    assert MAIL not in str(asdict(result))
    assert "ModelConnectionError" in result.tripwire.reason
