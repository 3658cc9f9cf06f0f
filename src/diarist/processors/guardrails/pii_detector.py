"""Detect and redact personal data in the input and the output."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias, cast

from anyio import to_thread

from diarist.checks import function, share, text_list
from diarist.exceptions import ConfigError, ModelResponseError
from diarist.messages import Message
from diarist.models.base import Model
from diarist.processors.base import ProcessInputArgs, ProcessorArgs, call_sync_or_async
from diarist.processors.guardrails.classifier import AsksModel, join_texts, load_prompt
from diarist.processors.guardrails.guard import Where
from diarist.processors.guardrails.pii_patterns import DEFAULT_TYPES, DETECTION_TYPES, PIIPatterns
from diarist.processors.guardrails.redacting_guard import RedactingGuard, masked
from diarist.processors.streaming_redaction import Look, Redactor, Span


@dataclass(frozen=True, slots=True)
class Detection:
    """Personal data found by a detector: its type, and the exact text."""

    type: str
    text: str
    score: float = 1.0


Detect: TypeAlias = Callable[[str], "Iterable[Detection] | Awaitable[Iterable[Detection]]"]
"""A detector function: returns the detections in a text."""


@dataclass(kw_only=True, eq=False, repr=False)
class PIIDetector(RedactingGuard):
    """Finds personal data and replaces it, blocks, or warns.

    Patterns find e-mail addresses, phone numbers, card numbers (with check digit), IBANs (with checksum), IP addresses,
    social security numbers, API keys and tokens, credentials in URLs, and optionally dates of birth, also if they are
    split across chunks. A detector or model finds types without a fixed form, such as names and addresses; it gets
    whole sentences.

    Covers texts, reasoning, tool calls and results, data parts, sources and errors, in the stream, the result and the
    storage.

    Args:
        detection_types: Types to find: ``email``, ``phone``, ``credit-card``, ``iban``, ``ip-address``, ``ssn``,
            ``api-key``, ``url-credentials``, ``date-of-birth``. Default: all but the last. With a detector or model,
            you can add other types, such as ``"person"``.
        strategy: ``"redact"`` (default) replaces the data. ``"block"``: the run ends with a tripwire with
            ``categories`` and ``scores`` in its metadata. ``"warn"``: a log line and a ``data-pii`` chunk, once per
            type. ``"filter"``: an input message is removed, a tool result becomes an error, and in the output the data
            is removed.
        redaction_method: ``"mask"`` (default): letters and digits become ``*``. ``"hash"``: the type and a keyed hash;
            with the same salt, equal values have equal hashes. ``"remove"``: no replacement. ``"placeholder"``: the
            type in capitals, such as ``[EMAIL]``.
        preserve_format: Masks keep punctuation and length; False uses eight asterisks. Default True.
        salt: Key of the hash. Default: a random one for each ``PIIDetector``.
        detector: A function of the text that returns ``Detection`` objects, sync or async; ``presidio()`` creates
            one. Give ``detector`` or ``model``, not both.
        model: A model that finds types without a fixed form: an id or a ``Model``.
        threshold: Detections with a lower score are ignored. Default 0.6.
        instructions: Added to the model's task.
        last_message_only: Search only the last message of the input. Default False.
        tools: Default True. False leaves tool calls and results unchanged, for tools that need the real data.
        span_chars: As for ``ModerationProcessor``; used with a detector or model only.
        on_error: ``"fail"`` (default) blocks a text that the detector or model could not judge, ``"continue"`` lets
            it pass with the matches of the patterns.

    Example::

        Agent(model="openai/gpt-5-mini", processors=[PIIDetector(redaction_method="placeholder")])
    """

    data_type = "data-pii"
    edits_in_place = False

    detection_types: Sequence[str] | None = field(default=None, kw_only=False)
    redaction_method: Literal["mask", "hash", "remove", "placeholder"] = "mask"
    preserve_format: bool = True
    salt: str | bytes | None = None
    detector: Detect | None = None
    model: str | Model | None = None
    threshold: float = 0.6
    instructions: str = ""
    last_message_only: bool = False
    strategy: Literal["redact", "block", "warn", "filter"] = "redact"
    span_chars: int | None = 400
    on_error: Literal["fail", "continue"] = "fail"

    def __post_init__(self) -> None:
        name = "PIIDetector"
        if self.detector is not None and self.model is not None:
            raise ConfigError(f"{name}: give model or detector, not both")
        function(name, "detector", self.detector)
        share(name, "threshold", self.threshold)
        given = self.detection_types
        wanted = DEFAULT_TYPES if given is None else text_list(name, "detection_types", given)
        if not wanted:
            raise ConfigError(f"{name}: detection_types is empty; name at least one")
        others = [kind for kind in wanted if kind not in DETECTION_TYPES]
        if others and self.model is None and self.detector is None:
            raise ConfigError(
                f"{name}: no pattern detects {', '.join(others)}; give a detector or model that does, or choose from "
                f"{', '.join(DETECTION_TYPES)}"
            )
        if not isinstance(cast(Any, self.salt), str | bytes | None):
            raise ConfigError(f"{name}: salt must be a text or bytes, not {type(self.salt).__name__}")
        salt = secrets.token_bytes(16) if self.salt is None else self.salt
        self._salt = salt.encode() if isinstance(salt, str) else salt
        self.helper = self.detector
        if self.model is not None:
            self.helper = ModelDetector(self.model, others or PERSONAL, self.instructions)
        super().__post_init__()
        self._patterns = PIIPatterns([kind for kind in wanted if kind in DETECTION_TYPES])

    def matching(self, args: ProcessorArgs[Any]) -> Look:
        return self._patterns.look

    def replaced(self, matched: str, label: str) -> str:
        match self.redaction_method:
            case "mask" if self.preserve_format:
                return masked(matched)
            case "mask":
                return "*" * 8
            case "hash":
                digest = hmac.new(self._salt, matched.encode("utf-8", "surrogatepass"), "sha256").hexdigest()
                return f"[{label}:{digest[:16]}]"
            case "placeholder":
                return f"[{label.upper()}]"
            case _:
                return ""

    async def process_input(self, args: ProcessInputArgs[Any]) -> list[Message] | None:
        """Redact the call's own messages; messages from memory were redacted when they were new."""
        return await self.redact_input(args)

    async def rewrite(self, args: ProcessorArgs[Any], texts: Sequence[str], where: Where) -> list[str]:
        """Redact detections in adjacent texts. The detector gets them joined, as one text."""
        text = "".join(texts)
        found = await self.attempt(self._detected(text), []) if text.strip() else []
        if not found:
            return list(texts)
        scores = {item.type: item.score for item in found}

        def look(text: str, start: int, final: bool) -> tuple[list[Span], int]:
            return [Span(*match.span(), item.type) for item in found for match in _places(item.text, text)], 0

        def replace(matched: str, span: Span) -> str:
            return self.decide(args, matched, span.label, where, scores[span.label])

        return Redactor(look, replace).redact_pieces(texts)

    async def _detected(self, text: str) -> list[Detection]:
        items = list(cast(Iterable[Any], await call_sync_or_async(self.helper, text)))
        if bad := [item for item in items if not isinstance(item, Detection)]:
            raise TypeError(f"a detector returns Detection objects, not {bad[0]!r:.100}")
        sure = [item for item in cast(list[Detection], items) if item.text.strip() and item.score >= self.threshold]
        if lost := sorted({item.type for item in sure if not any(_places(item.text, text))}):
            raise ValueError(f"the detector returned texts that are not in the original; types: {', '.join(lost)}")
        return sure


def _places(piece: str, text: str) -> Iterator[re.Match[str]]:
    """Find a piece in a text; if necessary, ignore case and white space."""
    if piece in text:
        return re.finditer(re.escape(piece), text)
    return re.finditer(r"\s+".join(map(re.escape, piece.split())), text, re.IGNORECASE)


PERSONAL = ("person", "address", "date-of-birth", "identity-number")
"""Types without a fixed form, for which a model is asked by default."""


class ModelDetector(AsksModel):
    """Asks a model for detections: ``await detector(text)``."""

    def __init__(self, model: str | Model | Any, types: Sequence[str], instructions: str = "") -> None:
        super().__init__(model)
        listed = "\n".join(f"- {name}" for name in types)
        self._task = join_texts(load_prompt("pii"), f"Types:\n{listed}", load_prompt("quoted_text"), instructions)
        self._types = {name.casefold(): name for name in types}

    async def __call__(self, text: str) -> list[Detection]:
        """Return the detections. Raises ModelError if the call failed, or the answer has no list of detections."""
        answer = await self.ask(self._task, text)
        listed = answer.get("detections")
        if not isinstance(listed, list):
            raise ModelResponseError(f"{self.model.id} returned no list of detections: {answer!s:.200}")
        found: list[Detection] = []
        for entry in cast(list[Any], listed):
            match entry:
                case {"type": str(name), "text": str(value)} if name.casefold() in self._types:
                    found.append(Detection(self._types[name.casefold()], value))
                case {"type": str(name), "text": str()} if name.casefold() in DETECTION_TYPES:
                    pass  # patterns find these types
                case _:
                    raise ModelResponseError(
                        f"{self.model.id} returned a detection without a text, or of a type that was not requested"
                    )
        return found


def presidio(*, entities: Sequence[str] | None = None, language: str = "en", analyzer: Any | None = None) -> Detect:
    """Return a detector that uses Microsoft Presidio (the extra ``diarist[pii]``), in a worker thread.

    Types are Presidio's entities in lower case: ``PHONE_NUMBER`` becomes ``phone-number``.

    Args:
        entities: Entities to find, by Presidio's names. Default: all that the analyzer knows.
        language: Language of the texts. Default ``"en"``.
        analyzer: An ``AnalyzerEngine``. Default: Presidio's default engine, created for the first text. It downloads
            the spaCy model ``en_core_web_lg`` if the model is missing.

    Example::

        PIIDetector(detector=presidio(entities=["PERSON", "LOCATION"]))
    """
    if analyzer is None and find_spec("presidio_analyzer") is None:
        raise ConfigError("presidio() needs a package: pip install 'diarist[pii]', or pass analyzer=")
    engine = cache(lambda: analyzer or import_module("presidio_analyzer").AnalyzerEngine())
    wanted = None if entities is None else list(entities)

    def analyze(text: str) -> list[Detection]:
        found: list[Any] = engine().analyze(text=text, entities=wanted, language=language)
        return [
            Detection(str(item.entity_type).lower().replace("_", "-"), text[item.start : item.end], float(item.score))
            for item in found
        ]

    async def detect(text: str) -> list[Detection]:
        return await to_thread.run_sync(analyze, text)

    return detect
