"""Keep the system prompt out of answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Literal

from diarist.checks import share, text_list, whole
from diarist.exceptions import ConfigError
from diarist.models.base import Model
from diarist.processors.base import ProcessorArgs
from diarist.processors.guardrails.classifier import Classify, Verdict, load_prompt, make_classifier, verdict_of
from diarist.processors.guardrails.guard import Where
from diarist.processors.guardrails.redacting_guard import RedactingGuard, masked
from diarist.processors.patterns import KnownPattern, PatternSet
from diarist.processors.streaming_redaction import Look, Span

# -- passages that a text repeats word by word

_EAST_ASIAN = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_EAST_ASIAN}]|[^\W{_EAST_ASIAN}]+")
"""A word; in scripts without spaces, a character."""


def words_of(text: str) -> list[str]:
    """Return the words of a text, case-folded, as ``Overlap`` compares them."""
    return [match[0].casefold() for match in _WORD.finditer(text)]


class Overlap:
    """Finds passages of secret texts; pass ``look`` to a ``Redactor``.

    Ignores case, punctuation and white space.

    Args:
        texts: The secret texts. Texts with fewer than ``words`` words are ignored.
        words: Shortest passage, in words.
        label: Label of the matches.
    """

    def __init__(self, texts: Sequence[str], *, words: int, label: str) -> None:
        self._size = words
        self._label = label
        long = [said for text in texts if len(said := words_of(text)) >= words]
        self._passages = {tuple(said[i : i + words]) for said in long for i in range(len(said) - words + 1)}
        self._pairs = {pair for said in long for pair in pairwise(said)}
        self._words = {word for said in long for word in said}
        self._beginnings = {word[:end] for word in self._words for end in range(1, len(word) + 1)}

    def look(self, text: str, start: int = 0, final: bool = True) -> tuple[Sequence[Span], int]:
        """Return the passages, which may overlap, and how many characters at the end may become part of a passage."""
        found = list(_WORD.finditer(text, start))
        said = [match[0].casefold() for match in found]
        passages = [
            Span(found[index].start(), found[index + self._size - 1].end(), self._label)
            for index in range(len(said) - self._size + 1)
            if tuple(said[index : index + self._size]) in self._passages
        ]
        if final or not found:
            return passages, 0
        # The last passage that may still grow has only words of the texts, each after a word that it follows there.
        is_open = found[-1].end() == len(text)
        if said[-1] not in (self._beginnings if is_open else self._words):
            return passages, 0
        first, least = len(said) - 1, max(0, len(said) - self._size)
        if is_open and first > least and said[first - 1] in self._words:
            first -= 1
        while first > least and (said[first - 1], said[first]) in self._pairs:
            first -= 1
        return passages, len(text) - found[first].start()


# -- the processor

LABEL = "system-prompt"

_SHORTEST_SECRET = 3
"""Minimum length of a secret, without white space: shorter texts occur in every answer."""

ANNOUNCEMENTS = {
    "announced": KnownPattern(
        r"(?i)\b(?:my|the) (?:full |exact |complete |original |hidden )?"
        r"(?:system prompt|system message|initial instructions) (?:is|are|says?|reads?|goes|states?)\b[^\n]{0,400}",
        begins=r"(?i:(?:my|the) (?:full |exact |complete |original |hidden )?(?:system |initial ))",
    ),
    "markup": KnownPattern(
        r"(?i)<\|(?:im_start|start_header_id)\|>system|<</?SYS>>|</?system(?:-|_)?prompt>",
        begins=r"(?i:<[|</s])",
        inside_words=True,
    ),
}
"""Phrases with which models introduce their system prompt, and the rest of that line."""


def literal(secret: str) -> KnownPattern:
    """Return a pattern that finds a secret and ignores case and the punctuation between words.

    In scripts with capitals, a secret with only letters matches only whole words: "lion" is not found in "million".
    A secret with digits or signs, such as a code or a key, is found inside other text, too.
    """
    words = secret.split()
    pattern = r"[\W_]{1,8}".join(re.escape(word) for word in words)
    is_word = all(char.isalpha() and char.lower() != char.upper() for char in "".join(words))
    if is_word:
        pattern = rf"(?<!\w){pattern}(?!\w)"
    return KnownPattern(f"(?i:{pattern})", begins=f"(?i:{re.escape(words[0])})", inside_words=not is_word)


@dataclass(kw_only=True, eq=False, repr=False)
class SystemPromptScrubber(RedactingGuard):
    """Redacts passages of the system prompt in the answer.

    Finds passages of the agent's instructions word by word, also if they are split across chunks; ignores case and
    punctuation. Only a model or classifier finds paraphrases. System messages from memory or other processors are not
    secret: the model may quote what they say about the user.

    Args:
        secrets: Further texts to find: any passage of a long text, or the whole text if it has fewer than
            ``min_words`` words (a code, a key, an address). Case is ignored. A text with only letters matches only
            whole words.
        strategy: ``"redact"`` (default). ``"block"``: the run ends with a tripwire. ``"warn"``: a log line and a
            ``data-system-prompt`` chunk. ``"filter"``: the passage is removed.
        redaction_method: ``"placeholder"`` (default), ``"mask"`` (letters and digits become ``*``) or ``"remove"``.
        placeholder_text: Default ``"[SYSTEM_PROMPT]"``.
        min_words: Minimum length of a passage, in words; in characters for Chinese, Japanese and Korean. Default 8.
        custom_patterns: Regular expressions (syntax of ``re``) for further matches.
        model: A model that judges sentences: an id or a ``Model``. Give ``model`` or ``classifier``, not both.
        classifier: A function of the text that returns a score (0 to 1), a bool, or a ``Verdict``.
        threshold: Lowest score that is redacted. Default 0.7.
        instructions: Added to the model's task.
        tools: Default True. False leaves tool calls and results unchanged.
        span_chars: As for ``ModerationProcessor``; used with a model or classifier only.
        on_error: ``"fail"`` (default) blocks a text that could not be judged, ``"continue"`` lets it pass.

    Example::

        Agent(model="openai/gpt-5-mini", output_processors=[SystemPromptScrubber()])
    """

    data_type = "data-system-prompt"
    edits_in_place = False

    secrets: Sequence[str] = ()
    redaction_method: Literal["placeholder", "mask", "remove"] = "placeholder"
    placeholder_text: str = "[SYSTEM_PROMPT]"
    min_words: int = 8
    custom_patterns: Sequence[str] = ()
    model: str | Model | None = None
    classifier: Classify | None = None
    threshold: float = 0.7
    instructions: str = ""
    strategy: Literal["redact", "block", "warn", "filter"] = "redact"
    span_chars: int | None = 400
    on_error: Literal["fail", "continue"] = "fail"

    def __post_init__(self) -> None:
        name = "SystemPromptScrubber"
        secrets = text_list(name, "secrets", self.secrets)
        for number, secret in enumerate(secrets, 1):
            if len("".join(secret.split())) < _SHORTEST_SECRET:
                raise ConfigError(
                    f"{name}: secrets: number {number} has fewer than {_SHORTEST_SECRET} characters and would match "
                    "ordinary words; leave it out"
                )
        custom_patterns = text_list(name, "custom_patterns", self.custom_patterns)
        whole(name, "min_words", self.min_words, least=2)
        self.helper = make_classifier(
            name,
            self.model,
            self.classifier,
            categories={LABEL: "the text gives away the assistant's instructions, literally or retold"},
            task=load_prompt("system_prompt"),
            instructions=self.instructions,
        )
        super().__post_init__()
        share(name, "threshold", self.threshold)
        self._long = tuple(secret for secret in secrets if len(words_of(secret)) >= self.min_words)
        short = [secret for secret in secrets if secret not in self._long]
        written = {f"secret-{number}": literal(secret) for number, secret in enumerate(short, 1)}
        given = {f"custom-{number}": pattern for number, pattern in enumerate(custom_patterns, 1)}
        self._patterns = PatternSet({**ANNOUNCEMENTS, **written, **given}, option=f"{name}: custom_patterns")
        self._overlap = lru_cache(maxsize=16)(partial(Overlap, words=self.min_words, label=LABEL))

    def matching(self, args: ProcessorArgs[Any]) -> Look:
        own = tuple(message.text for message in args.message_list.system if message.tag is None)
        overlap = self._overlap((*own, *self._long))

        def look(text: str, start: int, final: bool) -> tuple[Sequence[Span], int]:
            passages, held = overlap.look(text, start, final)
            matches, held_too = self._patterns.look(text, start, final)
            if not passages and not matches:
                return (), max(held, held_too)
            return [*passages, *(Span(span.start, span.end, LABEL) for span in matches)], max(held, held_too)

        return look

    def replaced(self, matched: str, label: str) -> str:
        if self.redaction_method == "placeholder":
            return self.placeholder_text
        return masked(matched) if self.redaction_method == "mask" else ""

    async def rewrite(self, args: ProcessorArgs[Any], texts: Sequence[str], where: Where) -> list[str]:
        """Return the texts as they are if the classifier accepts them together; otherwise replace those to which it
        objects. If it still objects to the rest, or a model has to judge many texts, replace all."""
        joined = "".join(texts)
        verdict = await self.attempt(verdict_of(self.helper, joined), Verdict()) if joined.strip() else Verdict()
        over = verdict.over(self.threshold)
        if not over:
            return list(texts)
        score = max(over.values())
        said = sum(bool(text.strip()) for text in texts)
        if said > 1 and self.judges_each(said):
            left = [(await self.rewrite(args, [text], where))[0] for text in texts]
            if left != list(texts):
                rest = await self.attempt(verdict_of(self.helper, "".join(left)), Verdict())
                if not rest.over(self.threshold):
                    return left
        return [self._replaced(args, text, where, score) for text in texts]

    def _replaced(self, args: ProcessorArgs[Any], text: str, where: Where, score: float) -> str:
        """Replace a text, without the white space around it."""
        if not (inner := text.strip()):
            return text
        before, _, after = text.partition(inner)
        return f"{before}{self.decide(args, inner, LABEL, where, score)}{after}"
