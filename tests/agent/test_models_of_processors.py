"""Models that processors ask: their tokens are the run's, and those made from ids are closed with the agent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Self

import pytest

from diarist import Agent, AgentResult, Processor, Usage, tool
from diarist.chunks import Chunk, Finish
from diarist.models import Model
from diarist.models.base import ModelRequest
from diarist.processors import (
    LanguageDetector,
    ModerationProcessor,
    PIIDetector,
    ProcessInputArgs,
    PromptInjectionDetector,
    Sequence,
    StructuredOutput,
    SystemPromptScrubber,
)
from diarist.processors.guardrails.moderation import CATEGORIES
from diarist.processors.guardrails.prompt_injection_detector import DETECTION_TYPES
from diarist.testing import Reply, ScriptedModel, ToolCall
from tests.agent.kit import collect

SPENT = Usage(input_tokens=100, output_tokens=10, cached_tokens=1)
OWN = Usage(input_tokens=7, output_tokens=3)


def replies(value: Any) -> ScriptedModel:
    """A model that always says this JSON, for ``SPENT``."""
    return ScriptedModel(lambda _: Reply(text=json.dumps(value), usage=SPENT))


def fine() -> ScriptedModel:
    return replies({"scores": dict.fromkeys([*CATEGORIES, *DETECTION_TYPES], 0), "reason": ""})


def guards() -> dict[str, tuple[Processor[Any], int]]:
    """Guards by name, and how often each asks its model in a run that says hi and answers ok."""
    return {
        "input and output": (ModerationProcessor(model=fine()), 2),
        "beside the model": (PromptInjectionDetector(model=fine(), run_in_parallel=True), 1),
        "personal data": (PIIDetector(model=replies({"detections": []})), 2),
        "in a composition": (Sequence(ModerationProcessor(model=fine())), 2),
        "an object": (StructuredOutput({"type": "object"}, model=replies({"a": 1})), 1),
        "an object at the second attempt": (
            StructuredOutput(
                {"type": "object"},
                model=ScriptedModel(Reply(text="no", usage=SPENT), Reply(text="{}", usage=SPENT)),
            ),
            2,
        ),
    }


def plus(own: Usage, times: int) -> Usage:
    return sum([SPENT] * times, own)


@pytest.mark.parametrize("name", guards())
@pytest.mark.parametrize("streamed", [False, True])
async def test_result_usage_counts_what_processors_ask(name: str, streamed: bool) -> None:
    guard, times = guards()[name]
    agent = Agent(model=ScriptedModel(Reply(text="ok", usage=OWN)), processors=[guard])
    if streamed:
        last = (await collect(agent.stream("hello there")))[-1]
        assert isinstance(last, Finish)
        assert last.payload.usage == plus(OWN, times)
    else:
        result = await agent.generate("hello there")
        assert result.usage == plus(OWN, times)
        assert result.steps[0].usage == OWN, "a step's usage is that of its own model call"


async def test_a_blocked_run_and_a_cancelled_one_count_too() -> None:
    guard = ModerationProcessor(model=replies({"scores": {"hate": 1.0}, "reason": "x"}), categories=["hate"])
    result = await Agent(model=ScriptedModel("never"), processors=[guard]).generate("hi")
    assert result.tripwire is not None
    assert result.usage == SPENT


async def test_a_processor_of_ones_own_adds_what_it_spent() -> None:
    class Asks(Processor[Any]):
        def process_input(self, args: ProcessInputArgs[Any]) -> None:
            args.add_usage(SPENT)

        def process_output_result(self, args: Any) -> None:
            seen.append(args.result.usage)

    seen: list[Usage] = []
    result = await Agent(model=ScriptedModel(Reply(text="ok", usage=OWN)), processors=[Asks()]).generate("hi")
    assert [result.usage, *seen] == [plus(OWN, 1)] * 2


async def test_an_agent_in_a_tool_counts_for_itself() -> None:
    inner = Agent(model=ScriptedModel(Reply(text="x", usage=OWN)), processors=[ModerationProcessor(model=fine())])
    inside: list[AgentResult[Any]] = []

    @tool
    async def ask() -> str:
        """Ask another agent."""
        inside.append(await inner.generate("hi"))
        return "asked"

    outer = Agent(
        model=ScriptedModel(Reply(tool_calls=ToolCall("ask"), usage=OWN), Reply(text="ok", usage=OWN)),
        tools=[ask],
        processors=[PromptInjectionDetector(model=fine())],
    )
    result = await outer.generate("hi")
    assert inside[0].usage == plus(OWN, 2)
    assert result.usage == plus(OWN + OWN, 2), "the question, and what the tool returned"


# -- closing


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of models that were closed; ids are resolved without a network."""
    names: list[str] = []
    monkeypatch.setenv("OPENAI_API_KEY", "test")

    async def close(self: Model) -> None:
        names.append(self.name)

    monkeypatch.setattr("diarist.models.openai_chat.OpenAIChatModel.close", close)
    monkeypatch.setattr(ScriptedModel, "close", close)
    return names


def made_from(model: Any) -> list[Processor[Any]]:
    return [
        ModerationProcessor(model=model),
        PromptInjectionDetector(model=model),
        PIIDetector(model=model),
        SystemPromptScrubber(model=model),
        LanguageDetector(detector=lambda text: {"en": 1.0}, strategy="translate", model=model),
        StructuredOutput({"type": "object"}, model=model),
    ]


async def test_models_that_processors_made_from_ids_are_closed_with_the_agent(closed: list[str]) -> None:
    *some, last = made_from("openai/gpt-guard")
    async with Agent(model=ScriptedModel(name="own"), processors=[*some, Sequence(last)]):
        assert closed == []
    assert sorted(closed) == ["gpt-guard"] * 6 + ["own"]


async def test_a_model_object_is_its_makers_to_close(closed: list[str]) -> None:
    async with Agent(model=ScriptedModel(name="own"), processors=made_from(ScriptedModel(name="given"))):
        pass
    assert closed == ["own"]


async def test_a_processor_of_ones_own_is_closed_once(closed: list[str]) -> None:
    class Holds(Processor[Any]):
        def process_input(self, args: Any) -> None: ...
        def process_output_step(self, args: Any) -> None: ...

        async def close(self) -> None:
            closed.append("holds")

    holds = Holds()
    async with Agent(model=ScriptedModel(name="own"), input_processors=[holds], output_processors=[holds]):
        pass
    assert sorted(closed) == ["holds", "own"]


class Pieces:
    """The chunks of an answer, in an iterator that is no generator."""

    def __init__(self, chunks: AsyncIterator[Chunk]) -> None:
        self._chunks = chunks

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        return await anext(self._chunks)


class Iterating(ScriptedModel):
    def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        return Pieces(super().stream(request))


async def test_the_stream_of_a_model_may_be_any_iterator() -> None:
    fine = Iterating(json.dumps({"scores": dict.fromkeys(CATEGORIES, 0), "reason": ""}))
    convert = StructuredOutput({"type": "object"}, model=Iterating('{"a": 1}'))
    agent = Agent(
        model=Iterating("ok"), input_processors=[ModerationProcessor(model=fine)], output_processors=[convert]
    )
    result = await agent.generate("hi")
    assert (result.text, result.tripwire) == ("ok", None)
