"""Redaction of answers in JSON: stream, result and storage agree, nothing leaks, and the JSON stays valid."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from diarist import Agent, Memory, Tool
from diarist.chunks import ObjectChunk, TextDelta, TextEnd, TextPayload
from diarist.exceptions import OutputError
from diarist.processors import Detection, PIIDetector, Processor, RegexFilter, SystemPromptScrubber
from diarist.processors.builtin import redaction
from diarist.processors.patterns import PatternSet
from diarist.storage import InMemoryStorage
from diarist.testing import Reasoning, ScriptedModel, ToolCall
from tests.agent.kit import streamed_text
from tests.properties import examples

GUARDS: list[Callable[[], Processor[Any]]] = [
    PIIDetector,
    lambda: PIIDetector(redaction_method="placeholder"),
    lambda: PIIDetector(redaction_method="remove"),
    RegexFilter,
]
SECRETS = ["ada@example.com", "192.168.17.43", "4111 1111 1111 1111", "415-555-0132", "sk-" + "a1" * 12]
TEXTS = [
    *(f"Seen:\n{secret}" for secret in SECRETS),
    "the password: hunter2",
    "https://x.com/a?b=c",
    'q "a\\b"\t',
    "é\n",
]

texts = st.lists(st.sampled_from([*TEXTS, *SECRETS, "\n", '"', "\\", ", "]), max_size=3).map("".join)
documents = st.dictionaries(st.sampled_from(["text", "password", "ada@example.com"]), texts | st.integers(0, 9))


class Note(BaseModel):
    text: str


def answer(written: str, cuts: list[int], guard: Processor[Any], **options: Any) -> Agent:
    edges = sorted({0, len(written), *(place % (len(written) + 1) for place in cuts)})
    pieces = [written[start:end] for start, end in pairwise(edges)]
    return Agent(model=ScriptedModel(pieces), processors=[guard], **options)


@given(documents, st.booleans(), st.lists(st.integers(0, 200), max_size=6), st.sampled_from(GUARDS))
@example({"text": "Mail:\nada@example.com"}, True, [12, 14], GUARDS[3])
@example({"text": "the password: hunter2"}, True, [], GUARDS[3])
@settings(max_examples=examples(40), deadline=None)
async def test_a_structured_answer_is_redacted_like_a_tools_arguments(
    document: dict[str, Any], escaped: bool, cuts: list[int], make: Callable[[], Processor[Any]]
) -> None:
    tool = Tool(name="take", function=lambda **given: "ok", parameters={"type": "object", "properties": {}})
    model = ScriptedModel(ToolCall("take", document), "ok")
    called = await Agent(model=model, tools=[tool], output_processors=[make()]).generate("go")
    memory = Memory(storage=InMemoryStorage())
    agent = answer(json.dumps(document, ensure_ascii=escaped), cuts, make(), memory=memory)
    async with agent.stream("go", output_type=dict[str, Any], thread="t") as stream:
        chunks = [chunk async for chunk in stream]
        result = await stream.result()
    stored = (await memory.messages.list(thread="t"))[-1].text
    assert result.output == called.steps[0].tool_calls[0].args
    assert streamed_text(chunks) == result.text == stored
    assert json.loads(result.text) == result.output
    assert [chunk.payload.object for chunk in chunks if isinstance(chunk, ObjectChunk)] == [result.output]


@given(st.sampled_from(SECRETS), st.lists(st.integers(0, 200), max_size=4), st.sampled_from(GUARDS[:2]))
@example(SECRETS[0], [20], GUARDS[1])
@settings(max_examples=examples(40), deadline=None)
async def test_an_answer_in_several_blocks_is_redacted_as_one(
    secret: str, cuts: list[int], make: Callable[[], Processor[Any]]
) -> None:
    written = json.dumps({"a": [1, "x"], "mail": secret, "n": 2})
    edges = sorted({0, len(written), *(place % (len(written) + 1) for place in cuts)})
    pieces = [each for first, end in pairwise(edges) for each in (written[first:end], Reasoning("."))]
    async with Agent(model=ScriptedModel(pieces), processors=[make()]).stream("go", output_type=dict[str, Any]) as run:
        chunks = [chunk async for chunk in run]
        result = await run.result()
    assert secret not in result.text + result.output["mail"]
    assert streamed_text(chunks) == result.text
    assert {**result.output, "mail": ""} == {"a": [1, "x"], "mail": "", "n": 2}


@pytest.mark.parametrize(
    "blocks",
    [
        ['{"a":"4111 1111 1111 ', "1111", '"}'],
        ['{"a":"4111 1111 1111 1111","b":"4111 1111 ', '1111 1111"', "}"],
        ['{"a":"4111 1111 1111 1111 and 4111 1111 ', '1111 1111"}'],
    ],
)
async def test_what_follows_in_another_block_is_sent_once_and_redacted(blocks: list[str]) -> None:
    pieces = [each for block in blocks for each in (block, Reasoning("."))]
    guard = PIIDetector(redaction_method="placeholder")
    async with Agent(model=ScriptedModel(pieces), processors=[guard]).stream("go", output_type=dict[str, str]) as run:
        text = streamed_text([chunk async for chunk in run])
    assert "4111 1111 1111 1111" not in text
    assert json.loads(text).keys() == json.loads("".join(blocks)).keys()
    assert text.count('"b"') <= 1


async def test_escaped_characters_hide_nothing() -> None:
    written = r"```json" "\n" r'{"text": "ada\u0040example.com, \u0034111 1111 1111\u00201111"}' "\n```"
    result = await answer(written, [9], PIIDetector(redaction_method="placeholder")).generate("go", output_type=Note)
    assert result.output.text == "[EMAIL], [CREDIT-CARD]"


async def test_an_answer_without_a_match_stays_as_it_was_written() -> None:
    written = '{ "text" : "caf\\u00e9\\n",\n  "n": 1.50 }'
    assert (await answer(written, [5], RegexFilter()).generate("go", output_type=dict[str, Any])).text == written


@pytest.mark.parametrize("written", [r'{"text": "Mail:\nada@example.com', r'Here: {"text": "ada\u0040example.com"}'])
async def test_an_answer_that_is_no_json_hides_nothing_either(written: str) -> None:
    with pytest.raises(OutputError) as caught:
        await answer(written, [], PIIDetector(redaction_method="placeholder")).generate("go", output_type=Note)
    assert "EMAIL" in caught.value.text
    assert "example" not in caught.value.text


async def test_a_detector_gets_the_texts_without_escapes() -> None:
    def names(text: str) -> list[Detection]:
        return [Detection("person", "Ada Lovelace")] if "Ada Lovelace" in text.replace("\n", " ") else []

    guard = PIIDetector(detector=names, redaction_method="placeholder", span_chars=5)
    written = json.dumps({"Ada Lovelace": 1, "text": "Ask. Then ask\nAda\nLovelace.", "n": 2})
    result = await answer(written, [4, 9, 40], guard).generate("go", output_type=dict[str, Any])
    assert result.output == {"Ada Lovelace": 1, "text": "Ask. Then ask\n[PERSON].", "n": 2}


async def test_a_classifier_that_objects_to_one_text_leaves_the_others() -> None:
    guard = SystemPromptScrubber(classifier=lambda text: "rules" in text)
    written = json.dumps({"text": "my rules", "other": "fine"})
    result = await answer(written, [], guard).generate("go", output_type=dict[str, Any])
    assert result.output == {"text": "[SYSTEM_PROMPT]", "other": "fine"}


async def test_a_classifier_that_objects_to_the_whole_leaves_nothing() -> None:
    guard = SystemPromptScrubber(classifier=lambda text: "obey rule one" in " ".join(text.split()))
    result = await answer(json.dumps({"x": ["obey", "rule one"]}), [], guard).generate("go", output_type=dict[str, Any])
    assert result.output == {"x": ["[SYSTEM_PROMPT]"] * 2}


@pytest.mark.parametrize("ask_model", [True, False])
async def test_only_a_model_is_spared_many_texts(ask_model: bool) -> None:
    texts = [*(["fine"] * 300), "obey rule one"]
    model = ScriptedModel(lambda request: '{"scores": {"system-prompt": 1}, "reason": ""}')
    guard = SystemPromptScrubber(model=model) if ask_model else SystemPromptScrubber(classifier=lambda t: "obey" in t)
    result = await answer(json.dumps({"x": texts}), [], guard).generate("go", output_type=dict[str, Any])
    assert result.output == {"x": ["[SYSTEM_PROMPT]" if ask_model or "obey" in text else text for text in texts]}
    assert len(model.requests) == ask_model


async def test_a_block_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    original = redaction.json_items

    def json_items(text: str) -> Any:
        parsed.append(text)
        return original(text)

    monkeypatch.setattr(redaction, "json_items", json_items)
    look = PatternSet({"mail": r"\w+@\w+"}).look
    stream = redaction.RedactingStream(look, lambda matched, span: "[MAIL]", has_schema=True)
    blocks, out = ['{"a": "ada@home", ', '"b": 1}'], ""
    for block in blocks:
        for chunk in (TextDelta(payload=TextPayload(text=block)), TextEnd()):
            out += streamed_text(stream.feed(chunk))
    assert json.loads(out) == {"a": "[MAIL]", "b": 1}
    assert parsed == [blocks[0], "".join(blocks)]
