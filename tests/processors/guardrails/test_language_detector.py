"""``LanguageDetector``: detects unexpected languages, and warns, blocks or translates."""

from __future__ import annotations

from typing import Any

import pytest

from diarist import Agent
from diarist.exceptions import ConfigError
from diarist.processors import LanguageDetector
from diarist.testing import ScriptedModel
from tests.agent.kit import run_both, streamed_text, types

GERMAN = "Wie wird das Wetter morgen in Rom?"


def by_word(text: str) -> dict[str, float]:
    return {"de": 0.95, "en": 0.05} if any(word in text for word in ("Wie", "morgen", "Das")) else {"en": 0.9}


def translate(text: str, target: str) -> str:
    return f"{target}: {text.strip().upper()}"


async def test_the_built_in_detector_works_offline() -> None:
    agent = Agent(model=ScriptedModel("ok", "ok"), input_processors=[LanguageDetector(["en", "fr"], strategy="block")])
    result = await agent.generate(GERMAN)
    assert result.tripwire is not None
    assert result.tripwire.metadata["language"] == "de"
    assert result.tripwire.metadata["targets"] == ["en", "fr"]
    assert (await agent.generate("What will the weather be like\nin Rome tomorrow?")).text == "ok"
    assert (await agent.generate("Quel temps fera-t-il demain à Rome ?")).text == "ok"


async def test_warn_is_the_default() -> None:
    def make() -> Agent:
        return Agent(model=ScriptedModel("ok"), input_processors=[LanguageDetector("en", detector=by_word)])

    result, chunks = await run_both(make, GERMAN)
    assert result.text == "ok"
    assert types(chunks).count("data-language") == 1


async def test_an_input_is_translated_and_keeps_its_original() -> None:
    model = ScriptedModel("ok")
    detector = LanguageDetector("en-GB", detector=by_word, strategy="translate", translator=translate)
    seen: list[dict[str, Any]] = []
    agent = Agent(model=model, input_processors=[detector])
    await agent.generate(GERMAN, prepare_step=lambda args: seen.append(args.messages[0].metadata))
    assert model.requests[0].prompt.messages[0].text == f"en-GB: {GERMAN.upper()}"
    assert seen == [{"language-detector": {"language": "de", "original": GERMAN}}]


async def test_an_answer_is_translated_span_by_span() -> None:
    def make() -> Agent:
        model = ScriptedModel(list("Das ist ein Satz. This is a sentence. Das ist noch einer."))
        detector = LanguageDetector(
            detector=by_word, strategy="translate", translator=lambda text, target: "Translated.", span_chars=10
        )
        return Agent(model=model, output_processors=[detector])

    result, chunks = await run_both(make)
    assert result.text == streamed_text(chunks) == "Translated. This is a sentence. Translated."


async def test_a_model_translates() -> None:
    translator = ScriptedModel('{"translation": "What is the weather?"}')
    model = ScriptedModel("ok")
    detector = LanguageDetector("en", detector=by_word, strategy="translate", model=translator)
    await Agent(model=model, input_processors=[detector]).generate(GERMAN)
    assert model.requests[0].prompt.messages[0].text == "What is the weather?"
    assert GERMAN in translator.requests[0].prompt.messages[1].text


@pytest.mark.parametrize("answer", ["Sure!", '{"translation": 3}', '{"translation": ""}'])
async def test_a_failed_translation_blocks(answer: str) -> None:
    detector = LanguageDetector("en", detector=by_word, strategy="translate", model=ScriptedModel(answer))
    result = await Agent(model=ScriptedModel(), input_processors=[detector]).generate(GERMAN)
    assert result.tripwire is not None


@pytest.mark.parametrize(
    ("found", "passes"),
    [("de", False), ("EN-us", True), ({"de": 0.6, "en": 0.4}, True), (None, True), ("", True), ({}, True)],
)
async def test_a_detector_may_return_a_code_or_scores(found: Any, passes: bool) -> None:
    detector = LanguageDetector("en", detector=lambda text: found, strategy="block")
    result = await Agent(model=ScriptedModel("ok"), input_processors=[detector]).generate("some longer text")
    assert (result.tripwire is None) == passes


async def test_short_texts_pass() -> None:
    detector = LanguageDetector("en", detector=lambda text: "de", strategy="block")
    assert (await Agent(model=ScriptedModel("ok"), input_processors=[detector]).generate("ja klar")).text == "ok"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"targets": []}, "targets is empty"),
        ({"targets": ["English!"]}, "not a language code"),
        ({"strategy": "translate"}, "needs either"),
        ({"strategy": "translate", "model": ScriptedModel(), "translator": translate}, "needs either"),
        ({"translator": translate}, "for strategy 'translate'"),
        ({"targets": 5}, "targets must be a text or a list of texts"),
        ({"targets": [5]}, "targets must be a text or a list of texts"),
        ({"detector": 5}, "detector must be a function"),
        ({"strategy": "translate", "translator": 5}, "translator must be a function"),
        ({"min_text_length": "10"}, "min_text_length"),
        ({"threshold": None}, "threshold"),
        ({"threshold": -1}, "threshold"),
        ({"strategy": "filter"}, "strategy"),
    ],
)
def test_invalid_options_are_refused_at_construction(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        LanguageDetector(**{"detector": by_word, **options})


def test_without_a_detector_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diarist.processors.guardrails.language_detector.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"diarist\[language\]"):
        LanguageDetector("en")
