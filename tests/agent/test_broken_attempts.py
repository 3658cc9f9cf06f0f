"""What a processor holds back of an attempt that breaks off is discarded: it reaches nothing and is not judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from diarist import DROP, Agent, CancelSignal, DataChunk, ModelEntry, Processor
from diarist.chunks import Chunk, StepStart, TextDelta
from diarist.exceptions import ModelConnectionError
from diarist.models import resolve
from diarist.processors import (
    BatchParts,
    LanguageDetector,
    ModerationProcessor,
    PIIDetector,
    ProcessOutputStreamArgs,
    RegexFilter,
    StreamErrorRetry,
    SystemPromptScrubber,
)
from diarist.testing import Reply, ScriptedModel
from tests.agent.kit import collect, streamed_text
from tests.loopback.openai_server import OpenAIServer
from tests.loopback.server import Answer

CARD = ["my card: 4111 1111 ", "1111 111"]
"""A sixteenth digit would make it one."""

SECRET = "the launch code of the silver rocket is seven zero nine alpha"
BEGUN = ["I say: the launch code of ", "the silver rocket is seven"]

HOLDING: list[tuple[Callable[[], Processor[Any]], list[str]]] = [
    (lambda: RegexFilter(("pii",)), CARD),
    (lambda: RegexFilter((), patterns={"card": r"4(?: ?\d){15}"}, strategy="block"), CARD),
    (PIIDetector, CARD),
    (lambda: PIIDetector(detector=lambda text: []), CARD),
    (lambda: SystemPromptScrubber(secrets=[SECRET], min_words=10), BEGUN),
    (lambda: SystemPromptScrubber(secrets=[SECRET], min_words=10, classifier=lambda text: False), BEGUN),
    (lambda: ModerationProcessor(classifier=lambda text: False), CARD),
    (lambda: LanguageDetector(detector=lambda text: "en"), CARD),
    (lambda: BatchParts(5), CARD),
]
IDS = ["regex", "regex-block", "pii", "pii-detector", "scrubber", "scrubber-class", "moderation", "language", "batch"]


def cut(pieces: list[str]) -> Reply:
    return Reply(text=pieces, error_after=ModelConnectionError("cut"))


@pytest.mark.parametrize(("make", "pieces"), HOLDING, ids=IDS)
async def test_held_text_of_a_failed_attempt_does_not_reach_the_client(
    make: Callable[[], Processor[Any]], pieces: list[str]
) -> None:
    chunks = await collect(Agent(model=ScriptedModel(cut(pieces)), output_processors=[make()]).stream("hi"))
    assert chunks[-1].type == "error"
    assert pieces[1] not in streamed_text(chunks)


@pytest.mark.parametrize(("make", "pieces"), HOLDING, ids=IDS)
async def test_held_text_of_a_failed_attempt_is_not_in_the_next_attempt(
    make: Callable[[], Processor[Any]], pieces: list[str]
) -> None:
    agent = Agent(model=ScriptedModel(cut(pieces), ["All ", "well."]), output_processors=[make(), StreamErrorRetry()])
    async with agent.stream("hi") as stream:
        chunks = [chunk async for chunk in stream]
        result = await stream.result()
    assert result.text == "All well."
    second = max(place for place, chunk in enumerate(chunks) if isinstance(chunk, StepStart))
    assert streamed_text(chunks[second:]) == "All well."
    assert pieces[1] not in streamed_text(chunks)
    assert not any(isinstance(chunk, TextDelta) for chunk in after_retry(chunks)), "nothing is said between attempts"


def after_retry(chunks: list[Chunk]) -> list[Chunk]:
    """What came between the end of the first attempt and the beginning of the second."""
    starts = [place for place, chunk in enumerate(chunks) if isinstance(chunk, StepStart)]
    ends = [place for place, chunk in enumerate(chunks) if chunk.type == "step-finish"]
    return chunks[ends[0] : starts[1]]


@pytest.mark.parametrize("kind", ["moderation", "language", "pii", "scrubber"])
async def test_held_text_of_a_failed_attempt_is_not_judged(kind: str) -> None:
    judged: list[str] = []

    def judge(text: str) -> Any:
        judged.append(text)
        return "en" if kind == "language" else [] if kind == "pii" else False

    guards: dict[str, Callable[[], Processor[Any]]] = {
        "moderation": lambda: ModerationProcessor(classifier=judge),
        "language": lambda: LanguageDetector(detector=judge),
        "pii": lambda: PIIDetector(detector=judge),
        "scrubber": lambda: SystemPromptScrubber(classifier=judge),
    }
    model = ScriptedModel(cut(["A broken fragment"]), "A whole answer.")
    agent = Agent(model=model, output_processors=[guards[kind](), StreamErrorRetry()])
    assert (await agent.generate("hi")).text == "A whole answer."
    assert judged == ["A whole answer."]


@pytest.mark.parametrize("then", ["cut", "eof", "error"])
@pytest.mark.parametrize("spoken", ["chat", "responses"])
async def test_a_server_that_is_gone_in_the_middle(openai_server: OpenAIServer, spoken: str, then: Any) -> None:
    openai_server.will(Answer(text=CARD, then=then))
    provider = "openai" if spoken == "chat" else "openai-responses"
    model = ModelEntry(model=resolve(f"{provider}/m", base_url=openai_server.base_url, api_key="k"), max_retries=0)
    async with Agent(model=[model], output_processors=[RegexFilter(("pii",))]) as agent:
        chunks = await collect(agent.stream("hi"))
    assert chunks[-1].type == "error"
    assert streamed_text(chunks) == "my card: "


class LastWord(Processor[Any]):
    """Holds a text back until the next chunk comes, as an application's own processor may."""

    process_data_parts = True

    def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
        held = args.state.pop("held", None)
        if isinstance(args.part, TextDelta):
            args.state["held"] = args.part
            return held or DROP
        return [held, args.part] if held else args.part


async def test_an_own_processor_cannot_carry_it_over() -> None:
    agent = Agent(model=ScriptedModel(cut(["One ", "two "]), "Three."), processors=[LastWord(), StreamErrorRetry()])
    async with agent.stream("hi") as stream:
        chunks = [chunk async for chunk in stream]
        result = await stream.result()
    assert (result.text, streamed_text(chunks)) == ("Three.", "One Three.")


async def test_an_own_processor_cannot_let_it_go_with_a_note() -> None:
    class Note(Processor[Any]):
        def process_api_error(self, args: Any) -> Any:
            args.writer.custom(DataChunk("data-note", "the connection was lost"))
            return {"retry": True}

    agent = Agent(model=ScriptedModel(cut(["One ", "two "]), "Three."), processors=[LastWord(), Note()])
    async with agent.stream("hi") as stream:
        chunks = [chunk async for chunk in stream]
        result = await stream.result()
    assert [chunk.data for chunk in chunks if isinstance(chunk, DataChunk)] == ["the connection was lost"]
    assert (result.text, streamed_text(chunks)) == ("Three.", "One Three.")


@pytest.mark.parametrize(("make", "pieces"), HOLDING, ids=IDS)
@pytest.mark.parametrize("hook", ["process_api_error", "process_output_stream"])
async def test_later_writes_do_not_wait_for_held_text(
    hook: str, make: Callable[[], Processor[Any]], pieces: list[str]
) -> None:
    """A note about the failure reaches the client, though text is held."""

    def act(self: Any, args: Any) -> Any:
        if hook == "process_api_error":
            args.writer.custom(DataChunk("data-note"))
            return None
        if isinstance(args.part, TextDelta) and args.part.payload.text == "!":
            args.writer.custom(DataChunk("data-note"))
            args.abort("enough")
        return args.part

    note = type("Note", (Processor,), {hook: act})()
    last = ["!"] if hook == "process_output_stream" else []
    agent = Agent(model=ScriptedModel(cut([*pieces, *last])), processors=[note, make()])
    chunks = await collect(agent.stream("hi"))
    assert "data-note" in [chunk.type for chunk in chunks]
    assert pieces[1] not in streamed_text(chunks)


@pytest.mark.parametrize(("make", "pieces"), HOLDING, ids=IDS)
async def test_a_cancelled_run_discards_held_text(make: Callable[[], Processor[Any]], pieces: list[str]) -> None:
    cancel = CancelSignal()

    class Stops(Processor[Any]):
        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            if isinstance(args.part, TextDelta) and args.part.payload.text == "never said":
                cancel.cancel()
                return DROP
            return args.part

    agent = Agent(model=ScriptedModel([*pieces, *["never said"] * 3]), output_processors=[Stops(), make()])
    chunks = await collect(agent.stream("hi", cancel=cancel))
    assert chunks[-1].type == "abort"
    assert pieces[1] not in streamed_text(chunks)
