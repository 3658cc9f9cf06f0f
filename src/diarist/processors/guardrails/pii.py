"""Personal data in what goes in and what comes out."""

from __future__ import annotations

import hmac
import inspect
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from diarist.concurrency import contained
from diarist.exceptions import ConfigError, ModelResponseError, TripWire
from diarist.messages import Message, TextPart
from diarist.models.base import Model, ModelSettings
from diarist.processors.base import ProcessInputArgs, ProcessorArgs
from diarist.processors.builtin.options import flags, function, one_of, share, text_list, texts
from diarist.processors.builtin.redacting_messages import redacted_message
from diarist.processors.guardrails.asking import AsksModel, ask, close_model, parse_object, quoted
from diarist.processors.guardrails.guard import OnError, Where, with_texts
from diarist.processors.guardrails.pii_detectors import DEFAULT_TYPES, DETECTION_TYPES, PIIPatterns
from diarist.processors.guardrails.prompts import load_prompt
from diarist.processors.guardrails.redacting_guard import RedactingGuard, RedactStrategy
from diarist.processors.streaming_redaction import Look, MakeSkim, Redactor, Span

RedactionMethod = Literal["mask", "hash", "remove", "placeholder"]


@dataclass(frozen=True, slots=True)
class Detection:
    """Personal data that a detector found: its type, and the text itself as it stands there."""

    type: str
    text: str
    score: float = 1.0


Detect: TypeAlias = Callable[[str], "Iterable[Detection] | Awaitable[Iterable[Detection]]"]
"""A detector of one's own: the detections in a text."""


class PIIDetector(RedactingGuard):
    """Finds personal data and replaces it, blocks, or warns.

    What has a form of its own is found without a model and wherever the answer is cut into pieces: e-mail
    addresses, phone numbers, card numbers (with their check digit), IBANs (with their checksum), IP addresses,
    social security numbers, API keys and tokens, credentials in URLs, and dates of birth if asked for. A detector
    or model adds what has none, such as names and addresses; it is shown whole sentences.

    Texts, reasoning, tool arguments and results, data parts and sources are looked at, in the stream, in the
    result and in what is stored.

    Args:
        detection_types: Which types of form to look for: ``email``, ``phone``, ``credit-card``, ``iban``,
            ``ip-address``, ``ssn``, ``api-key``, ``url-credentials``, ``date-of-birth``. Default: all but the
            last. With a model, further names such as ``"person"`` are its business.
        strategy: ``"redact"`` (default). ``"block"``: the run ends with a tripwire whose metadata has
            ``categories`` and ``scores``. ``"warn"``: a log line and a ``data-pii`` chunk, once per type.
            ``"filter"``: an input message is removed, a tool's result becomes an error, and in the output the
            data alone is left out.
        redaction_method: ``"mask"`` (default): letters and digits become ``*``. ``"hash"``: type and a keyed hash,
            the same for the same value as long as the salt is. ``"remove"``: nothing. ``"placeholder"``:
            ``[EMAIL]``.
        preserve_format: A mask keeps punctuation and length; False: always eight asterisks. Default True.
        salt: Key of the hash. Default: a random one for each detector object.
        detector: A function of the text that returns ``Detection`` objects, sync or async; ``presidio()`` makes
            one. Or:
        model: Finds the types that have no form: an id or a ``Model``.
        threshold: Detections with a lower score are ignored. Default 0.6.
        instructions: Added to the model's task.
        last_message_only: Look only at the last message of the input. Default False.
        tools: Default True. False leaves tool calls and results alone, where a tool needs the real data.
        span_chars: As for ``ModerationProcessor``; used with a detector or model only.
        on_error: ``"fail"`` (default): a text that the detector or model could not judge blocks. ``"continue"``:
            it passes with what the patterns found.

    Raises:
        ConfigError: An option out of its range, or a type that nobody here detects.

    Example::

        Agent(model="openai/gpt-5-mini", processors=[PIIDetector(redaction_method="placeholder")])
    """

    data_type = "data-pii"
    edits_in_place = False

    def __init__(
        self,
        detection_types: Sequence[str] | None = None,
        *,
        strategy: RedactStrategy = "redact",
        redaction_method: RedactionMethod = "mask",
        preserve_format: bool = True,
        salt: str | bytes | None = None,
        detector: Detect | None = None,
        model: str | Model | None = None,
        threshold: float = 0.6,
        instructions: str = "",
        last_message_only: bool = False,
        tools: bool = True,
        span_chars: int | None = 400,
        on_error: OnError = "fail",
    ) -> None:
        if detector is not None and model is not None:
            raise ConfigError("PIIDetector: give model or detector, not both")
        function("PIIDetector", "detector", detector)
        texts("PIIDetector", instructions=instructions)
        flags("PIIDetector", preserve_format=preserve_format, last_message_only=last_message_only)
        super().__init__(
            strategy=strategy,
            on_error=on_error,
            tools=tools,
            span_chars=span_chars,
            rewrite=self._take_out if detector is not None or model is not None else None,
        )
        one_of("PIIDetector", "redaction_method", redaction_method, ("mask", "hash", "remove", "placeholder"))
        share("PIIDetector", "threshold", threshold)
        by_form, others = _split(detection_types, model is not None or detector is not None)
        self.redaction_method = redaction_method
        self.preserve_format = preserve_format
        self.threshold = threshold
        self.last_message_only = last_message_only
        self._salt = _salt(salt)
        self._patterns = PIIPatterns(by_form)
        self._detect = detector if model is None else ModelDetector(model, others or PERSONAL, instructions)

    async def close(self) -> None:
        await close_model(self._detect)

    def matching(self, args: ProcessorArgs[Any]) -> Look:
        return self._patterns.look

    def skimming(self, args: ProcessorArgs[Any]) -> MakeSkim:
        return self._patterns.skim

    def replacement(self, matched: str, label: str) -> str:
        match self.redaction_method:
            case "mask" if self.preserve_format:
                return "".join("*" if char.isalnum() else char for char in matched)
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
        """Look at the call's own messages; what memory brought was looked at when it came."""
        judged = [message for message in args.messages if args.message_list.source_of(message.id) == "input"]
        if self.last_message_only:
            judged = judged[-1:]
        changed: dict[str, Message | None] = {}
        for message in judged:
            cleaned = await self._cleaned(args, message)
            if cleaned is not message:
                changed[message.id] = None if self.strategy == "filter" else cleaned
        if not changed:
            return None
        kept = [changed.get(message.id, message) for message in args.messages]
        remaining = [message for message in kept if message is not None]
        if not any(args.message_list.source_of(message.id) == "input" for message in remaining):
            found = sorted(args.state.found)
            args.abort(f"nothing of the input is left: it contains {', '.join(found)}", metadata={"categories": found})
        return remaining

    async def _cleaned(self, args: ProcessInputArgs[Any], message: Message) -> Message:
        if self._detect is not None:
            texts = [part.text for part in message.parts if isinstance(part, TextPart)]
            rewritten = [await self._take_out(args, text, "input") for text in texts]
            if rewritten != texts:
                message = with_texts(message, rewritten)
        return redacted_message(message, self.stream(args, "input"), tools=self.tools)

    async def _take_out(self, args: ProcessorArgs[Any], text: str, where: Where) -> str:
        """The text without what the detector or model found in it."""
        try:
            found = await contained(self._detected(text)) if text.strip() else []
        except TripWire:
            raise
        except Exception as error:
            self.failed(error)
            return text
        scores = {item.type: item.score for item in found}

        def look(text: str, start: int, final: bool) -> tuple[list[Span], int]:
            return [Span(*match.span(), item.type) for item in found for match in _places(item.text, text)], 0

        def replace(matched: str, span: Span) -> str:
            return self.decide(args, matched, span.label, where, scores[span.label])

        return Redactor(look, replace).redact(text)

    async def _detected(self, text: str) -> list[Detection]:
        assert self._detect is not None
        value: Any = self._detect(text)
        items = list(cast(Iterable[Any], await value if inspect.isawaitable(value) else value))
        if bad := [item for item in items if not isinstance(item, Detection)]:
            raise TypeError(f"a detector returns Detection objects, not {bad[0]!r:.100}")
        sure = [item for item in cast(list[Detection], items) if item.text.strip() and item.score >= self.threshold]
        if lost := sorted({item.type for item in sure if not any(_places(item.text, text))}):
            raise ValueError(f"the detector names a text that does not stand there: {', '.join(lost)}")
        return sure


def _places(piece: str, text: str) -> Iterator[re.Match[str]]:
    """Where a piece stands in a text, if need be in another case or with other white space."""
    if piece in text:
        return re.finditer(re.escape(piece), text)
    return re.finditer(r"\s+".join(map(re.escape, piece.split())), text, re.IGNORECASE)


PERSONAL = ("person", "address", "date-of-birth", "identity-number")
"""What a model is asked for by default: data that has no form of its own."""


class ModelDetector(AsksModel):
    """A detector that asks a model; ``await detector(text)``."""

    def __init__(self, model: str | Model | Any, types: Sequence[str], instructions: str = "") -> None:
        super().__init__(model)
        listed = "\n".join(f"- {name}" for name in types)
        parts = (load_prompt("pii"), f"Types:\n{listed}", load_prompt("quoted_text"), instructions.strip())
        self._task = "\n\n".join(part for part in parts if part)
        self._types = {name.casefold(): name for name in types}

    async def __call__(self, text: str) -> list[Detection]:
        """Raises ModelError: the call failed, or the answer is no list of detections."""
        answer = await ask(self.model, self._task, f"<text>\n{quoted(text)}\n</text>", ModelSettings(temperature=0.0))
        listed = parse_object(answer, self.model).get("detections")
        if not isinstance(listed, list):
            raise ModelResponseError(f"{self.model.id} gave no list of detections: {answer:.200}")
        found: list[Detection] = []
        for entry in cast(list[Any], listed):
            match entry:
                case {"type": str(name), "text": str(value)} if name.casefold() in self._types:
                    found.append(Detection(self._types[name.casefold()], value))
                case {"type": str(name), "text": str()} if name.casefold() in DETECTION_TYPES:
                    pass  # what has a form is not asked of the model
                case _:
                    raise ModelResponseError(f"a detection of {self.model.id} has no text, or no type asked for")
        return found


def _salt(salt: str | bytes | Any | None) -> bytes:
    if salt is None:
        return secrets.token_bytes(16)
    if not isinstance(salt, str | bytes):
        raise ConfigError(f"PIIDetector: salt must be a text or bytes, not {type(salt).__name__}")
    return salt.encode() if isinstance(salt, str) else salt


def _split(types: Sequence[str] | None, asks: bool) -> tuple[list[str], list[str]]:
    """The types that have a form, and the others. Raises ConfigError for others where nobody is asked."""
    wanted = DEFAULT_TYPES if types is None else text_list("PIIDetector", "detection_types", types)
    if not wanted:
        raise ConfigError("PIIDetector: detection_types is empty; name at least one")
    others = [name for name in wanted if name not in DETECTION_TYPES]
    if others and not asks:
        raise ConfigError(
            f"PIIDetector: no pattern detects {', '.join(others)}; give a detector or model that does, or choose from "
            f"{', '.join(DETECTION_TYPES)}"
        )
    return [name for name in wanted if name in DETECTION_TYPES], others
