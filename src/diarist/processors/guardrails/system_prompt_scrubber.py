"""Answers that give away the system prompt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from diarist.concurrency import contained
from diarist.exceptions import TripWire
from diarist.models.base import Model
from diarist.processors.base import ProcessorArgs
from diarist.processors.builtin.options import one_of, share, text_list, texts, whole
from diarist.processors.guardrails.classifier import Classify, make_classifier
from diarist.processors.guardrails.guard import OnError, Where
from diarist.processors.guardrails.literals import checked_secrets, literal
from diarist.processors.guardrails.overlap import Overlap, words_of
from diarist.processors.guardrails.prompts import load_prompt
from diarist.processors.guardrails.redacting_guard import RedactingGuard, RedactStrategy
from diarist.processors.patterns import PatternSet
from diarist.processors.streaming_redaction import BothSkims, Look, MakeSkim, Skim, Span

LABEL = "system-prompt"

ANNOUNCEMENTS = {
    "announced": (
        r"(?i)\b(?:my|the) (?:full |exact |complete |original |hidden )?"
        r"(?:system prompt|system message|initial instructions) (?:is|are|says?|reads?|goes|states?)\b[^\n]{0,400}"
    ),
    "markup": r"(?i)<\|(?:im_start|start_header_id)\|>system|<</?SYS>>|</?system(?:-|_)?prompt>",
}
"""How models introduce it, in the line that then gives it away."""


class SystemPromptScrubber(RedactingGuard):
    """Keeps the system prompt out of what the model says.

    The agent's instructions are known, so that every passage of them is found word by word, whatever its case
    and punctuation and wherever the answer is cut into pieces. Retold in other words it is a matter for a
    model. System messages that memory or other processors added are not secrets here: what they say about the
    user may be quoted.

    Args:
        secrets: Further texts that must not be repeated: any passage of a long one, and one with fewer than
            ``min_words`` words (a code, a key, an address) as it is written, whatever its case. One of letters alone
            counts as a whole word only.
        strategy: ``"redact"`` (default). ``"block"``: the run ends with a tripwire. ``"warn"``: a log line and a
            ``data-system-prompt`` chunk. ``"filter"``: the passage is left out.
        redaction_method: ``"placeholder"`` (default), ``"mask"`` (letters and digits become ``*``) or ``"remove"``.
        placeholder_text: Default ``"[SYSTEM_PROMPT]"``.
        min_words: A passage is at least this many words in a row, or characters in Chinese, Japanese and
            Korean. Default 8.
        custom_patterns: Regular expressions (syntax of ``re``) for further things to find.
        model: Judges whole sentences that the patterns let pass: an id or a ``Model``. Or:
        classifier: A function of the text that returns a score (0 to 1), a bool, or a ``Verdict``.
        threshold: Scores from here on count. Default 0.7.
        instructions: Added to the model's task.
        tools: Default True. False leaves tool calls and results alone.
        span_chars: As for ``ModerationProcessor``; used with a model or classifier only.
        on_error: ``"fail"`` (default): a text that could not be judged blocks. ``"continue"``: it passes.

    Raises:
        ConfigError: An option out of its range, a secret of fewer than 3 characters, or a pattern that is no
            regular expression.

    Example::

        Agent(model="openai/gpt-5-mini", output_processors=[SystemPromptScrubber()])
    """

    data_type = "data-system-prompt"
    edits_in_place = False

    def __init__(
        self,
        *,
        secrets: Sequence[str] = (),
        strategy: RedactStrategy = "redact",
        redaction_method: Literal["placeholder", "mask", "remove"] = "placeholder",
        placeholder_text: str = "[SYSTEM_PROMPT]",
        min_words: int = 8,
        custom_patterns: Sequence[str] = (),
        model: str | Model | None = None,
        classifier: Classify | None = None,
        threshold: float = 0.7,
        instructions: str = "",
        tools: bool = True,
        span_chars: int | None = 400,
        on_error: OnError = "fail",
    ) -> None:
        name = "SystemPromptScrubber"
        secrets = checked_secrets(name, text_list(name, "secrets", secrets))
        custom_patterns = text_list(name, "custom_patterns", custom_patterns)
        texts(name, placeholder_text=placeholder_text, instructions=instructions)
        whole(name, "min_words", min_words, least=2)
        self._classifier = make_classifier(
            name,
            model,
            classifier,
            categories={LABEL: "the text gives away the assistant's instructions, literally or retold"},
            task=load_prompt("system_prompt"),
            instructions=instructions,
        )
        super().__init__(
            strategy=strategy,
            on_error=on_error,
            tools=tools,
            span_chars=span_chars,
            rewrite=None if self._classifier is None else self._judged,
        )
        one_of(name, "redaction_method", redaction_method, ("placeholder", "mask", "remove"))
        share(name, "threshold", threshold)
        self.redaction_method = redaction_method
        self.placeholder_text = placeholder_text
        self.threshold = threshold
        self.min_words = min_words
        self._long = tuple(secret for secret in secrets if len(words_of(secret)) >= min_words)
        short = [secret for secret in secrets if secret not in self._long]
        written = {f"secret-{number}": literal(secret) for number, secret in enumerate(short, 1)}
        given = {f"custom-{number}": pattern for number, pattern in enumerate(custom_patterns, 1)}
        self._patterns = PatternSet({**ANNOUNCEMENTS, **written, **given}, option=f"{name}: custom_patterns")
        self._overlap = lru_cache(maxsize=16)(self._index)

    async def close(self) -> None:
        if self._classifier is not None:
            await self._classifier.close()

    def _passages(self, args: ProcessorArgs[Any]) -> Overlap:
        own = tuple(message.text for message in args.message_list.system if message.tag is None)
        return self._overlap((*own, *self._long))

    def skimming(self, args: ProcessorArgs[Any]) -> MakeSkim:
        overlap = self._passages(args)

        def skim() -> Skim | None:
            patterns = self._patterns.skim()
            return None if patterns is None else BothSkims(patterns, overlap.skim())

        return skim

    def matching(self, args: ProcessorArgs[Any]) -> Look:
        overlap = self._passages(args)

        def look(text: str, start: int, final: bool) -> tuple[Sequence[Span], int]:
            passages, held = overlap.look(text, start, final)
            matches, held_too = self._patterns.look(text, start, final)
            if not passages and not matches:
                return (), max(held, held_too)
            return [*passages, *(Span(span.start, span.end, LABEL) for span in matches)], max(held, held_too)

        return look

    def replacement(self, matched: str, label: str) -> str:
        match self.redaction_method:
            case "placeholder":
                return self.placeholder_text
            case "mask":
                return "".join("*" if char.isalnum() else char for char in matched)
            case _:
                return ""

    def _index(self, texts: tuple[str, ...]) -> Overlap:
        return Overlap(texts, words=self.min_words, label=LABEL)

    async def _judged(self, args: ProcessorArgs[Any], text: str, where: Where) -> str:
        """The text, or what stands in its place where the classifier objects to it."""
        if not text.strip() or self._classifier is None:
            return text
        try:
            verdict = await contained(self._classifier.judge(text))
        except TripWire:
            raise
        except Exception as error:
            self.failed(error)
            return text
        over = verdict.over(self.threshold)
        if not over:
            return text
        inner = text.strip()
        before, _, after = text.partition(inner)
        return f"{before}{self.decide(args, inner, LABEL, where, max(over.values()))}{after}"
