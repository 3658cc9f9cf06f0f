"""Provider data of a part (citations, item ids, signatures) does not reveal redacted text."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

import pytest

from diarist import Agent, Memory, Model, Processor
from diarist.chunks import (
    Chunk,
    IdPayload,
    ModelFinish,
    ModelFinishPayload,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningEndPayload,
    ReasoningStart,
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
from diarist.messages import Message, ReasoningPart, TextPart, ToolPart
from diarist.models.base import ModelRequest
from diarist.processors import (
    Detection,
    LanguageDetector,
    ModerationProcessor,
    PIIDetector,
    RegexFilter,
    SystemPromptScrubber,
)
from diarist.storage import InMemoryStorage

SECRET = "ada@example.com"
OPAQUE = "Q2l0ZSB/" * 20
DATA = {"provider": "google", "id": "item-1", "details": {"citations": [{"segment": {"text": f"write to {SECRET}"}}]}}

REDACTORS: dict[str, Callable[[], Processor[Any]]] = {
    "patterns": RegexFilter,
    "personal data": PIIDetector,
    "personal data by a detector": lambda: PIIDetector(
        ["iban"], detector=lambda text: [Detection("mail", SECRET)] if SECRET in text else []
    ),
    "secrets": lambda: SystemPromptScrubber(secrets=[SECRET]),
}


class Says(Model):
    provider = "google"
    name = "chunks"

    def __init__(self, *chunks: Chunk) -> None:
        self._chunks = chunks

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        for chunk in self._chunks:
            yield chunk
        yield ModelFinish(payload=ModelFinishPayload(reason="stop", usage=Usage()))


def text(*pieces: str, data: Any = None) -> list[Chunk]:
    deltas = [TextDelta(payload=TextPayload(text=piece)) for piece in pieces]
    return [TextStart(), *deltas, TextEnd(payload=IdPayload(provider_data=data))]


def reasoning(*pieces: str, **end: Any) -> list[Chunk]:
    deltas = [ReasoningDelta(payload=TextPayload(text=piece)) for piece in pieces]
    return [ReasoningStart(), *deltas, ReasoningEnd(payload=ReasoningEndPayload(**end))]


async def everything(guard: Processor[Any], *chunks: Chunk) -> tuple[list[Any], str]:
    """Return the parts of the answer, and everything that the run sends or stores."""
    memory = Memory(storage=InMemoryStorage())
    async with Agent(model=Says(*chunks), memory=memory, processors=[guard]) as agent:
        async with agent.stream("go", thread="t") as stream:
            seen = [chunk.to_dict() async for chunk in stream]
            result = await stream.result()
        rows = [message.to_dict() for message in await memory.messages.list(thread="t")]
    return list(result.messages[-1].parts), f"{json.dumps([seen, rows], default=str)} {result!r}"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (kind, said)
        for kind in REDACTORS
        for said in ("It is known.", f"write to {SECRET}")
        if SECRET in said or kind != "personal data by a detector"  # it gets texts, not provider data
    ],
)
async def test_citations_do_not_repeat_redacted_text(kind: str, said: str) -> None:
    (part,), seen = await everything(REDACTORS[kind](), *text(said[:12], said[12:], data=DATA))
    assert SECRET not in seen
    assert {"provider": "google", "id": "item-1"}.items() <= part.provider_data.items()


@pytest.mark.parametrize("kind", REDACTORS)
async def test_citations_of_a_changed_text_are_removed(kind: str) -> None:
    data = {"provider": "google", "citations": [SECRET[:9], SECRET[9:]]}
    (part,), seen = await everything(REDACTORS[kind](), *text(f"write to {SECRET}", data=data))
    assert SECRET[9:] not in seen
    assert part.provider_data == {"provider": "google"}


@pytest.mark.parametrize("kind", ["patterns", "personal data", "secrets"])
async def test_provider_tool_calls_are_redacted_with_their_data(kind: str) -> None:
    call: dict[str, Any] = {"tool_call_id": "a", "tool_name": "search", "args": {}, "provider_executed": True}
    _, seen = await everything(
        REDACTORS[kind](),
        ToolCallChunk(payload=ToolCallPayload(**call, provider_data=DATA)),
        ToolResultChunk(payload=ToolResultPayload(**call, result="ok", provider_data=DATA)),
        *text("done"),
    )
    assert SECRET not in seen


@pytest.mark.parametrize("kind", ["patterns", "personal data", "secrets"])
async def test_reasoning_with_redacted_data_loses_its_signature(kind: str) -> None:
    data = {"provider": "google", "raw": SECRET}
    chunks = reasoning("hm", signature="s", provider="google", provider_data=data)
    parts, seen = await everything(REDACTORS[kind](), *chunks, *text("done"))
    assert SECRET not in seen
    assert (parts[0].text, parts[0].signature, parts[0].provider_data) == ("hm", None, None)


@pytest.mark.parametrize("kind", REDACTORS)
async def test_parts_without_a_match_are_unchanged(kind: str) -> None:
    data = {"provider": "google", "id": "i", "details": {"thought_signature": OPAQUE, "n": [1, 2.5, None, True]}}
    thinking = reasoning("hm", signature=OPAQUE, provider="google", provider_data=data)
    parts, _ = await everything(REDACTORS[kind](), *thinking, *text("It is known.", data=data))
    assert parts == [
        ReasoningPart(text="hm", signature=OPAQUE, provider="google", provider_data=data),
        TextPart(text="It is known.", provider_data=data),
    ]


async def test_a_signature_is_not_searched() -> None:
    signature = f"{'A' * 40}/DE12ABCD1234ABCD1234/{'A' * 40}"
    data = {"provider": "google", "details": {"thought_signature": signature, "note": "DE12ABCD1234ABCD1234"}}
    (part,), _ = await everything(RegexFilter(("pii",)), *text("ok", data=data))
    assert part.provider_data["details"] == {"thought_signature": signature, "note": "[IBAN]"}


@pytest.mark.parametrize(
    "guard",
    [
        ModerationProcessor(classifier=lambda text: SECRET in text, strategy="filter"),
        LanguageDetector(["de"], detector=lambda text: "en", strategy="translate", translator=lambda text, to: "Text."),
    ],
)
async def test_a_replaced_text_is_not_quoted(guard: Processor[Any]) -> None:
    chunks = [*text(f"Please write to {SECRET}.", "  I said so.", data=DATA), *text("Bye, bye now.")]
    _, seen = await everything(guard, *chunks)
    assert SECRET not in seen


@pytest.mark.parametrize("kind", REDACTORS)
async def test_messages_are_redacted_with_their_data(kind: str) -> None:
    class Adds(Processor[Any]):
        def process_output_result(self, args: Any) -> list[Message]:
            call = ToolPart(call_id="a", name="x", args={}, state="result", result="r", provider_data=DATA)
            thinking = ReasoningPart(text="hm", signature="s", provider_data=DATA)
            parts = [thinking, TextPart(text="clean", provider_data=DATA), call]
            return [*args.messages, Message(role="assistant", parts=parts)]

    agent = Agent(model=Says(*text("ok")), output_processors=[Adds(), REDACTORS[kind]()])
    result = await agent.generate("go")
    assert (SECRET in repr(asdict(result))) == (kind == "personal data by a detector")


@pytest.mark.parametrize("kind", [kind for kind in REDACTORS if kind != "secrets"])  # that looks at answers alone
async def test_input_is_redacted_with_its_data(kind: str) -> None:
    seen: list[str] = []

    class Watches(Says):
        async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
            seen.append(repr(request.prompt))
            async for chunk in super().stream(request):
                yield chunk

    agent = Agent(model=Watches(*text("ok")), input_processors=[REDACTORS[kind]()])
    await agent.generate([Message(role="user", parts=[TextPart(text=f"I am {SECRET}", provider_data=DATA)])])
    assert SECRET not in seen[0]
