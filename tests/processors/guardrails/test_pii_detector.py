"""``PIIDetector``: no personal data is sent or stored, wherever the answer is split."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarist import Agent, DataChunk, Memory, Message
from diarist.exceptions import ConfigError
from diarist.messages import ToolPart
from diarist.processors import Detection, PIIDetector, presidio
from diarist.storage import SQLiteStorage
from diarist.testing import Reasoning, ScriptedModel, ToolCall
from diarist.tools import ToolContext
from tests.agent.kit import collect, run_both, streamed_text, types
from tests.properties import examples

SECRETS = ["ada@example.com", "4111 1111 1111 1111", "DE89 3704 0044 0532 0130 00", "+49 30 1234567"]
TEXT = "Write to ada@example.com, pay with 4111 1111 1111 1111 or DE89 3704 0044 0532 0130 00, call +49 30 1234567."
REDACTED = "Write to [EMAIL], pay with [CREDIT-CARD] or [IBAN], call [PHONE]."


def guard(*types: str, **options: Any) -> PIIDetector:
    return PIIDetector(list(types) or None, **{"redaction_method": "placeholder", **options})


def leaks(value: object) -> list[str]:
    text = str(value)
    return [secret for secret in SECRETS if secret in text]


# --- output ---------------------------------------------------------------------------------------------------


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(1, len(TEXT) - 1), max_size=12), st.booleans())
async def test_no_value_leaks_wherever_the_answer_is_split(cuts: list[int], thinking: bool) -> None:
    places = [0, *sorted(set(cuts)), len(TEXT)]
    pieces = [TEXT[start:end] for start, end in pairwise(places)]
    answer: list[Any] = [Reasoning(TEXT, signature="sig"), *pieces] if thinking else pieces
    agent = Agent(model=ScriptedModel(answer), output_processors=[guard()])
    async with agent.stream("go") as stream:
        chunks = [chunk async for chunk in stream]
        result = await stream.result()
    assert leaks(chunks) == leaks(result) == []
    assert streamed_text(chunks) == result.text == REDACTED


@pytest.mark.parametrize(
    ("options", "login"),
    [
        ({}, "[URL-CREDENTIALS]@"),
        ({"redaction_method": "mask"}, "***:******@"),
        ({"redaction_method": "mask", "preserve_format": False}, "********@"),
        ({"redaction_method": "remove"}, "@"),
        ({"strategy": "filter"}, "@"),
        ({"redaction_method": "hash"}, "[url-credentials:"),
    ],
)
async def test_a_login_in_an_address_is_redacted_once_and_its_host_stays(options: dict[str, Any], login: str) -> None:
    model = ScriptedModel("See https://ada:s3cret@example.com/a, please.")
    async with Agent(model=model, output_processors=[guard(**options)]).stream("go") as stream:
        text = "".join([text async for text in stream.text()])
        result = await stream.result()
    assert text.startswith(f"See https://{login}")
    assert text.endswith("@example.com/a, please.")
    assert result.text == text


async def test_tools_data_parts_results_and_storage_are_redacted(tmp_path: Path) -> None:
    async def save(address: str, context: ToolContext[Any]) -> dict[str, str]:
        """Save an address."""
        context.run.writer.custom(DataChunk("data-saved", {"address": SECRETS[0]}))
        return {"card": SECRETS[1], "said": address}

    storage = SQLiteStorage(tmp_path / "memory.db")
    model = ScriptedModel(["Saving. ", ToolCall("save", {"address": SECRETS[0], "list": [SECRETS[2]]})], TEXT)
    async with Agent(model=model, tools=[save], memory=Memory(storage=storage), processors=[guard()]) as agent:
        stream = agent.stream(f"My card is {SECRETS[1]}", thread="t")
        async with stream:
            chunks = [chunk async for chunk in stream]
            result = await stream.result()
    rows = await storage.list_messages("t")
    assert len(rows) >= 3
    assert leaks([chunk.to_dict() for chunk in chunks]) == []
    assert leaks(result) == leaks([row.to_dict() for row in rows]) == []
    assert leaks([request.text for request in model.requests]) == []
    await storage.close()


async def test_tools_false_leaves_tool_calls_unchanged() -> None:
    got: list[str] = []

    def mail(to: str) -> str:
        """Send a mail."""
        got.append(to)
        return "sent"

    model = ScriptedModel(ToolCall("mail", {"to": SECRETS[0]}), f"Sent to {SECRETS[0]}.")
    result = await Agent(model=model, tools=[mail], processors=[guard(tools=False)]).generate("go")
    assert got == [SECRETS[0]]
    assert result.text == "Sent to [EMAIL]."


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"redaction_method": "mask"}, "To ***@*******.***!"),
        ({"redaction_method": "mask", "preserve_format": False}, "To ********!"),
        ({"redaction_method": "remove"}, "To !"),
        ({"redaction_method": "placeholder"}, "To [EMAIL]!"),
    ],
)
async def test_redaction_methods(options: dict[str, Any], expected: str) -> None:
    agent = Agent(model=ScriptedModel(list("To ada@example.com!")), output_processors=[guard(**options)])
    assert (await agent.generate("go")).text == expected


async def test_equal_values_and_salts_give_equal_hashes() -> None:
    async def hashed(detector: PIIDetector, text: str) -> str:
        return (await Agent(model=ScriptedModel(text), output_processors=[detector]).generate("go")).text

    one, salted, other = (guard(redaction_method="hash", salt=salt) for salt in (None, "s", b"s"))
    first = await hashed(one, "a@b.example")
    assert first == await hashed(one, "a@b.example")
    assert first != await hashed(one, "c@b.example")
    assert first != await hashed(salted, "a@b.example")
    assert await hashed(salted, "a@b.example") == await hashed(other, "a@b.example")
    assert "a@b.example" not in first


async def test_block_names_the_type_and_not_the_value() -> None:
    def make() -> Agent:
        return Agent(model=ScriptedModel(list(TEXT)), output_processors=[guard(strategy="block")])

    result, chunks = await run_both(make)
    assert result.tripwire is not None
    assert result.tripwire.metadata == {"categories": ["email"], "scores": {"email": 1.0}}
    assert leaks(chunks) == leaks(result) == []


async def test_warn_reports_each_type_once(caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(model=ScriptedModel(list(TEXT + TEXT)), output_processors=[guard(strategy="warn")])
    with caplog.at_level(logging.WARNING, "diarist"):
        chunks = await collect(agent.stream("go"))
    assert streamed_text(chunks) == TEXT + TEXT
    assert types(chunks).count("data-pii") == 4
    assert leaks(caplog.text) == []


async def test_changed_reasoning_loses_its_signature() -> None:
    model = ScriptedModel([Reasoning("mail ada@example.com", signature="sig"), "ok"])
    result = await Agent(model=model, output_processors=[guard()]).generate("go")
    reasoning = result.messages[0].parts[0]
    assert reasoning.type == "reasoning"
    assert getattr(reasoning, "signature", "") is None


# --- input ----------------------------------------------------------------------------------------------------


async def test_the_input_is_redacted_before_the_model_and_the_storage_see_it() -> None:
    model = ScriptedModel("ok")
    call = ToolPart(call_id="c", name="t", args={"to": SECRETS[0]}, state="result", result=[SECRETS[1]])
    given = [Message(role="assistant", parts=[call]), Message.user(TEXT)]
    await Agent(model=model, input_processors=[guard()]).generate(given)
    assert leaks(model.requests[0].text) == []
    assert model.requests[0].prompt.messages[-1].text == REDACTED
    assert leaks(given) != []  # the caller's own objects stay as they were


def name(text: str) -> list[Detection]:
    return [Detection("person", "Ada", 0.9)]


@pytest.mark.parametrize("options", [{"tools": False}, {"detector": name}])
async def test_a_late_result_is_redacted_because_the_model_gets_it_in_the_users_role(options: dict[str, Any]) -> None:
    model = ScriptedModel("ok")
    late = {"role": "tool", "tool_call_id": "x", "content": "Ada: ada@example.com"}
    await Agent(model=model, input_processors=[guard(**options)]).generate(late)
    assert leaks(model.requests[0].text) == []
    assert ("Ada" in model.requests[0].text) == ("detector" not in options)


async def test_filter_removes_messages_from_the_input_and_data_from_the_output() -> None:
    model = ScriptedModel("Write to ada@example.com!")
    agent = Agent(model=model, processors=[guard(strategy="filter")])
    result = await agent.generate([Message.user(TEXT), Message.user("Hello")])
    assert [message.text for message in model.requests[0].prompt] == ["Hello"]
    assert result.text == "Write to !"
    blocked = await agent.generate(TEXT)
    assert blocked.tripwire is not None
    assert "email" in blocked.tripwire.reason


async def test_last_message_only() -> None:
    model = ScriptedModel("ok")
    agent = Agent(model=model, input_processors=[guard(last_message_only=True)])
    await agent.generate([Message.user(TEXT), Message.user(TEXT)])
    assert [message.text for message in model.requests[0].prompt] == [TEXT, REDACTED]


async def test_only_the_given_types_are_found() -> None:
    text = "Born on 10 December 1815, ada@example.com"
    agent = Agent(model=ScriptedModel(text, text), output_processors=[guard("date-of-birth")])
    assert (await agent.generate("go")).text == "Born on [DATE-OF-BIRTH], ada@example.com"
    assert (await agent.generate("go", output_processors=[guard()])).text == "Born on 10 December 1815, [EMAIL]"


# --- detectors and models -------------------------------------------------------------------------------------


def names(text: str) -> list[Detection]:
    return [Detection("person", name, 0.9) for name in ("Ada Lovelace", "Rome") if name in text] + [
        Detection("person", "the", 0.1)
    ]


async def test_a_detector_adds_types_without_a_form() -> None:
    def make() -> Agent:
        pieces = list("It is Ada Lovelace, ada@example.com. She was not in the house. Ada Lovelace was in Rome.")
        return Agent(model=ScriptedModel(pieces), output_processors=[guard(detector=names, span_chars=10)])

    result, chunks = await run_both(make)
    expected = "It is [PERSON], [EMAIL]. She was not in the house. [PERSON] was in [PERSON]."
    assert result.text == streamed_text(chunks) == expected


async def test_a_detector_sees_input_and_tool_results_too() -> None:
    def look() -> str:
        """Look."""
        return "Ada Lovelace"

    async def detect(text: str) -> list[Detection]:
        return names(text)

    model = ScriptedModel(ToolCall("look"), "ok")
    await Agent(model=model, tools=[look], processors=[guard(detector=detect)]).generate("I am Ada Lovelace.")
    assert "Ada Lovelace" not in model.requests[1].text
    assert model.requests[1].text.count("[PERSON]") == 2


async def test_a_model_is_asked_for_names() -> None:
    judge = ScriptedModel(
        '{"detections": [{"type": "Person", "text": "ada"}, {"type": "email", "text": "a@b"}, '
        '{"type": "person", "text": "Bob\\nSmith"}]}'
    )
    model = ScriptedModel("ok")
    await Agent(model=model, input_processors=[guard("email", "person", model=judge)]).generate(
        "Ada, a@b.example, Bob Smith"
    )
    assert model.requests[0].prompt.messages[0].text == "[PERSON], [EMAIL], [PERSON]"


@pytest.mark.parametrize(
    "detections",
    [
        '[{"type": "planet", "text": "Mars"}]',
        "[3]",
        '[{"type": "person"}]',
        '[{"type": "person", "text": "Somebody Else"}]',
        "{}",
        "null",
    ],
)
async def test_a_model_with_invalid_detections_counts_as_failed(detections: str) -> None:
    def run(**options: Any) -> Any:
        judge = guard("person", model=ScriptedModel(f'{{"detections": {detections}}}'), **options)
        return Agent(model=ScriptedModel("ok"), input_processors=[judge]).generate("Ada of Mars")

    result = await run()
    assert result.tripwire is not None
    assert "could not be judged" in result.tripwire.reason
    assert (await run(on_error="continue")).text == "ok"


def _cut_off(text: str) -> None:
    raise asyncio.CancelledError  # for example, its client waits for a closed connection


@pytest.mark.parametrize("broken", [lambda text: 1 / 0, _cut_off, lambda text: ["Ada"], lambda text: None])
async def test_a_failed_detector_blocks_unless_on_error_is_continue(broken: Any) -> None:
    result = await Agent(model=ScriptedModel(TEXT), output_processors=[guard(detector=broken)]).generate("go")
    assert result.tripwire is not None
    assert "could not be judged" in result.tripwire.reason
    passing = guard(detector=broken, on_error="continue")
    assert (await Agent(model=ScriptedModel(TEXT), output_processors=[passing]).generate("go")).text == REDACTED


async def test_presidio_is_a_detector() -> None:
    class Engine:
        def analyze(self, *, text: str, entities: list[str] | None, language: str) -> list[Any]:
            assert (entities, language) == (["PERSON"], "de")
            place = text.find("Ada")
            return [SimpleNamespace(entity_type="PERSON", start=place, end=place + 3, score=0.85)]

    detector = presidio(entities=["PERSON"], language="de", analyzer=Engine())
    agent = Agent(model=ScriptedModel("Hallo Ada!"), output_processors=[guard(detector=detector)])
    assert (await agent.generate("go")).text == "Hallo [PERSON]!"


def test_without_presidio_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diarist.processors.guardrails.pii_detector.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"diarist\[pii\]"):
        presidio()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"detection_types": ["person"]}, "no pattern detects person"),
        ({"detection_types": "email"}, "detection_types must be a list of texts"),
        ({"detection_types": [1]}, "detection_types must be a list of texts"),
        ({"detection_types": []}, "detection_types is empty"),
        ({"detector": 5}, "detector must be a function"),
        ({"salt": 5}, "salt"),
        ({"preserve_format": "no"}, "preserve_format"),
        ({"last_message_only": 1}, "last_message_only"),
        ({"instructions": 5}, "instructions"),
        ({"threshold": "0.5"}, "threshold"),
        ({"span_chars": 4.5}, "span_chars"),
        ({"strategy": "rewrite"}, "strategy"),
        ({"redaction_method": "blur"}, "redaction_method"),
        ({"threshold": 0}, "threshold"),
        ({"on_error": "pass"}, "on_error"),
        ({"detector": names, "model": ScriptedModel()}, "not both"),
    ],
)
def test_invalid_options_are_refused_at_construction(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        PIIDetector(**options)
