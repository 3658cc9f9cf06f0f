"""Reasoning with its signature, and files: from a provider into storage, and back to the provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Memory, Message
from diarist.chunks import FileChunk, FilePayload, ModelFinish, ModelFinishPayload, SourceChunk, SourcePayload, Usage
from diarist.messages import FilePart, ReasoningPart, SourcePart, TextPart
from diarist.models import Model
from diarist.models.base import ModelRequest
from diarist.storage import SQLiteStorage
from diarist.testing import ScriptedModel
from tests.agent.kit import collect
from tests.loopback.anthropic_server import AnthropicServer
from tests.loopback.openai_server import OpenAIServer
from tests.loopback.server import Answer, Call
from tests.models.wires import PNG, PNG_URL, AnthropicWire, ResponsesWire, Wire


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(storage=SQLiteStorage(tmp_path / "memory.db"))


@pytest.fixture(params=["anthropic", "responses"])
def wire(request: pytest.FixtureRequest, anthropic_server: AnthropicServer, openai_server: OpenAIServer) -> Wire:
    return AnthropicWire(anthropic_server) if request.param == "anthropic" else ResponsesWire(openai_server)


def work() -> str:
    """Work."""
    return "done"


def thoughts(messages: list[Message]) -> list[tuple[str, bool]]:
    return [(part.text, bool(part.signature)) for m in messages for part in m.parts if isinstance(part, ReasoningPart)]


async def test_signed_reasoning_goes_back_within_the_run_and_in_the_next(wire: Wire, memory: Memory) -> None:
    wire.server.will(
        Answer(reasoning=["Let me look."], signature="c2ln", calls=[Call(name="work", id="call_1")]),
        Answer(text=["All done."]),
        Answer(text=["As before."]),
    )
    async with Agent(model=wire.model(), tools=[work], memory=memory) as agent:
        result = await agent.generate("go", thread="t")
        assert (result.text, result.steps[0].reasoning) == ("All done.", "Let me look.")
        ((text, signature),) = wire.reasoning(wire.server.requests[-1].body)
        assert (text, signature) == ("Let me look.", "c2ln")
    stored = await Memory(storage=memory.storage).messages.list(thread="t")
    assert thoughts(stored) == [("Let me look.", True)]
    async with Agent(model=wire.model(), tools=[work], memory=memory) as another:
        await another.generate("again", thread="t")
        assert wire.reasoning(wire.server.requests[-1].body) == [("Let me look.", "c2ln")]


async def test_a_file_of_the_user_is_sent_stored_and_sent_again(wire: Wire, memory: Memory) -> None:
    wire.server.will(Answer(text=["A picture."]), Answer(text=["The same."]))
    question = Message(role="user", parts=[TextPart(text="What is it?"), FilePart(media_type="image/png", data=PNG)])
    async with Agent(model=wire.model(), memory=memory) as agent:
        await agent.generate(question, thread="t")
        first = next(sent for sent in wire.sent() if sent.role == "user")
        await agent.generate("And now?", thread="t")
        again = next(sent for sent in wire.sent() if sent.role == "user")
    assert first.images == again.images == [PNG_URL]
    row = (await memory.messages.list(thread="t"))[0]
    assert [part.data for part in row.parts if isinstance(part, FilePart)] == [PNG]


class Draws(Model):
    """A model that answers with a file and a source."""

    provider, name, default_retries = "draws", "pictures", 0

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> Any:
        self.requests.append(request)
        yield FileChunk(payload=FilePayload(media_type="image/png", data=PNG))
        yield SourceChunk(payload=SourcePayload(url="https://example.com", title="Here", id="s1"))
        yield ModelFinish(payload=ModelFinishPayload(reason="stop", usage=Usage()))


async def test_a_step_lists_its_files_and_sources() -> None:
    step = (await Agent(model=Draws()).generate("draw")).steps[0]
    assert [(file.media_type, file.data) for file in step.files] == [("image/png", PNG)]
    assert [(source.url, source.title) for source in step.sources] == [("https://example.com", "Here")]
    step = (await Agent(model=ScriptedModel("Hello.")).generate("hi")).steps[0]
    assert (step.files, step.sources) == ([], [])


async def test_a_file_of_the_model_is_streamed_stored_and_shown_to_the_next(memory: Memory) -> None:
    draws, reads = Draws(), ScriptedModel("Nice.")
    chunks = await collect(Agent(model=draws, memory=memory).stream("draw", thread="t"))
    assert [chunk.type for chunk in chunks if chunk.type in ("file", "source")] == ["file", "source"]
    await Agent(model=reads, memory=memory).generate("what did you draw?", thread="t")
    row = (await memory.messages.list(thread="t"))[1]
    assert [type(part) for part in row.parts] == [FilePart, SourcePart]
    assert row.parts[0].data == PNG  # type: ignore[union-attr]
    shown = reads.requests[-1].prompt.messages[1]
    assert [part.data for part in shown.parts if isinstance(part, FilePart)] == [PNG]
    assert all(not isinstance(part, SourcePart) for part in shown.parts), "sources are for people"
