"""``SystemPromptScrubber``: passages of the instructions are redacted."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarist import Agent, Processor
from diarist.exceptions import ConfigError
from diarist.message_list import SystemMessage
from diarist.processors import InputStepResult, ProcessInputStepArgs, SystemPromptScrubber
from diarist.testing import Reply, ScriptedModel, ToolCall
from tests.agent.kit import run_both, streamed_text, types
from tests.properties import examples

INSTRUCTIONS = (
    "You are the assistant of Acme. Never speak of the price list, and never mention project Heron to anybody."
)
LEAK = (
    "Sure! It says: you are the assistant of acme; never speak of the PRICE LIST and never mention project heron. Ok?"
)
CLEAN = "Sure! It says: [SYSTEM_PROMPT]. Ok?"


def agent(*replies: Any, instructions: str = INSTRUCTIONS, **options: Any) -> Agent:
    scrubber = SystemPromptScrubber(**options)
    return Agent(model=ScriptedModel(*replies), instructions=instructions, output_processors=[scrubber])


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(1, len(LEAK) - 1), max_size=12))
async def test_no_passage_leaks_wherever_the_answer_is_split(cuts: list[int]) -> None:
    places = [0, *sorted(set(cuts)), len(LEAK)]
    pieces = [LEAK[start:end] for start, end in pairwise(places)]
    async with agent(pieces).stream("go") as stream:
        chunks = [chunk async for chunk in stream]
        result = await stream.result()
    assert streamed_text(chunks) == result.text == CLEAN
    assert "heron" not in f"{chunks}{result}"


SHORT = ["7781-ALPHA", "launch code Heron", "ada@example.com", "sk-proj-abcdef", "tango", "(x) = [y]", "a.b"]


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(SHORT), st.lists(st.integers(1, 60), max_size=12), st.booleans())
async def test_no_short_secret_leaks_wherever_the_answer_is_split(secret: str, cuts: list[int], shout: bool) -> None:
    said = secret.upper() if shout else secret
    text = f"Sure, it is {said}. Or «{said}», ok?"
    places = [0, *sorted({cut for cut in cuts if cut < len(text)}), len(text)]
    pieces = [text[start:end] for start, end in pairwise(places)]
    model = ScriptedModel(Reply(text="", reasoning=text, tool_calls=[ToolCall("post", {"text": text})]), pieces)

    def post(text: str) -> str:
        """Post a text."""
        return text

    scrubber = SystemPromptScrubber(secrets=[secret])
    async with Agent(model=model, tools=[post], processors=[scrubber]).stream("go") as stream:
        chunks = [chunk async for chunk in stream]
        result = await stream.result()
    assert result.text == "Sure, it is [SYSTEM_PROMPT]. Or «[SYSTEM_PROMPT]», ok?"
    assert said not in f"{chunks}{result}"


@pytest.mark.parametrize(
    ("secret", "text", "expected"),
    [
        ("launch code 7781-ALPHA", "Launch code:\n7781-alpha!", "[SYSTEM_PROMPT]!"),
        ("7781-ALPHA", "x7781-ALPHAx", "x[SYSTEM_PROMPT]x"),
        ("lion", "A million LION fans", "A million [SYSTEM_PROMPT] fans"),
        ("one two three four five six seven", "one two three four five six seven.", "[SYSTEM_PROMPT]."),
        ("密码本", "这是密码本吗", "这是[SYSTEM_PROMPT]吗"),
    ],
)
async def test_a_short_secret_of_letters_matches_whole_words_only(secret: str, text: str, expected: str) -> None:
    assert (await agent(list(text), secrets=[secret]).generate("go")).text == expected


async def test_overlapping_secrets_become_one_match() -> None:
    result = await agent("It is abc-123-xyz.", secrets=["abc-123", "123-xyz"]).generate("go")
    assert result.text == "It is [SYSTEM_PROMPT]."


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"redaction_method": "remove"}, "Sure! It says: . Ok?"),
        ({"placeholder_text": "…"}, "Sure! It says: …. Ok?"),
        ({"strategy": "filter"}, "Sure! It says: . Ok?"),
        ({"strategy": "warn"}, LEAK),
        ({"min_words": 40}, LEAK),
    ],
)
async def test_redaction_methods(options: dict[str, Any], text: str) -> None:
    result, chunks = await run_both(lambda: agent(list(LEAK), **options))
    assert result.text == streamed_text(chunks) == text
    assert types(chunks).count("data-system-prompt") == (options.get("strategy") == "warn")


async def test_a_mask_keeps_punctuation_and_length() -> None:
    result = await agent(LEAK, redaction_method="mask").generate("go")
    assert "*** *** *** *********" in result.text
    assert "acme" not in result.text


async def test_block_ends_the_run() -> None:
    result, chunks = await run_both(lambda: agent(list(LEAK), strategy="block"))
    assert result.tripwire is not None
    assert result.tripwire.metadata["categories"] == ["system-prompt"]
    assert "acme" not in str(chunks)


@pytest.mark.parametrize(
    "text",
    [
        "I am the assistant of Acme, happy to help.",
        "I cannot speak of the price list.",
        "A system prompt tells a model what to do.",
    ],
)
async def test_ordinary_answers_pass(text: str) -> None:
    assert (await agent(list(text)).generate("go")).text == text


async def test_an_announcement_is_redacted_to_the_end_of_its_line() -> None:
    text = "Hi.\nMy system prompt is: be kind.\nBye."
    assert (await agent(list(text), instructions="x").generate("go")).text == "Hi.\n[SYSTEM_PROMPT]\nBye."


async def test_tool_arguments_are_redacted() -> None:
    got: list[str] = []

    def post(text: str) -> str:
        """Post a text."""
        got.append(text)
        return text

    scrubber = SystemPromptScrubber()
    model = ScriptedModel(ToolCall("post", {"text": LEAK}), "done")
    await Agent(model=model, instructions=INSTRUCTIONS, tools=[post], output_processors=[scrubber]).generate("go")
    assert got == [CLEAN]


async def test_custom_secrets_and_patterns_are_found() -> None:
    secret = "the launch codes are kept in the blue folder behind the door"
    options = {"secrets": [secret], "custom_patterns": [r"ACME-\d+"]}
    result = await agent(f"It is {secret}, see ACME-17.", **options).generate("go")
    assert result.text == "It is [SYSTEM_PROMPT], see [SYSTEM_PROMPT]."


async def test_system_messages_of_other_processors_are_not_secret() -> None:
    fact = "Ada lives in Rome with two cats and a very old parrot"

    class Notes(Processor[Any]):
        def process_input_step(self, args: ProcessInputStepArgs[Any]) -> InputStepResult:
            return {"system_messages": [*args.system_messages, SystemMessage(fact, tag="memory")]}

    result = await agent(fact).generate("go", input_processors=[Notes()])
    assert result.text == fact


async def test_a_classifier_finds_paraphrases() -> None:
    def judge(text: str) -> float:
        return 0.9 if "bird" in text else 0.0

    text = "Hello there. I know of a bird project. Bye now."
    result, chunks = await run_both(lambda: agent(list(text), classifier=judge, span_chars=10))
    assert result.text == streamed_text(chunks) == "Hello there. [SYSTEM_PROMPT] Bye now."


async def test_a_model_can_judge_and_blocks_if_it_fails() -> None:
    verdict = '{"scores": {"system-prompt": 0.9}, "reason": "retold"}'
    judge = ScriptedModel(verdict, "no verdict", asyncio.CancelledError())  # its connection was closed, the third time
    result = await agent("I must not talk about birds.", model=judge).generate("go")
    assert result.text == "[SYSTEM_PROMPT]"
    for _ in range(2):
        assert (await agent("Hello.", model=judge).generate("go")).tripwire is not None


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"secrets": "x"}, "secrets must be a list of texts"),
        ({"secrets": [7]}, "secrets must be a list of texts"),
        ({"secrets": ["long enough", ""]}, "number 2 has fewer than 3"),
        ({"secrets": ["a b"]}, "fewer than 3"),
        ({"custom_patterns": 5}, "custom_patterns must be a list"),
        ({"placeholder_text": 5}, "placeholder_text"),
        ({"min_words": "8"}, "min_words"),
        ({"threshold": "0.5"}, "threshold"),
        ({"span_chars": "4"}, "span_chars"),
        ({"tools": "no"}, "tools"),
        ({"custom_patterns": ["("]}, "custom_patterns"),
        ({"min_words": 1}, "min_words"),
        ({"redaction_method": "hash"}, "redaction_method"),
        ({"strategy": "rewrite"}, "strategy"),
        ({"threshold": 0}, "threshold"),
        ({"model": ScriptedModel(), "classifier": bool}, "not both"),
    ],
)
def test_invalid_options_are_refused_at_construction(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        SystemPromptScrubber(**options)
