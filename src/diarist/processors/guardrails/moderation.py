"""Moderate texts by categories such as hate, harassment and violence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from diarist.checks import share, text_list
from diarist.exceptions import ConfigError
from diarist.models.base import Model
from diarist.processors.guardrails.classifier import (
    FLAGGED,
    Classify,
    Verdict,
    load_prompt,
    make_classifier,
    verdict_of,
)
from diarist.processors.guardrails.guard import Finding, StreamGuard

CATEGORIES: Mapping[str, str] = {
    "hate": "contempt for people because of origin, religion, sex, orientation, disability or the like",
    "hate/threatening": "such contempt together with a threat",
    "harassment": "words meant to hurt or humiliate a person",
    "harassment/threatening": "such words together with a threat",
    "self-harm": "self-harm or suicide shown as good or normal",
    "self-harm/intent": "a person says they harm themselves or intend to",
    "self-harm/instructions": "how to harm oneself",
    "sexual": "sexual content meant to arouse",
    "sexual/minors": "sexual content with anybody under 18",
    "violence": "violence urged, threatened or glorified",
    "violence/graphic": "injury or death in drastic detail",
}
"""The default categories, named as in OpenAI's moderation endpoint."""


@dataclass(kw_only=True, eq=False, repr=False)
class ModerationProcessor(StreamGuard):
    """Judges input and output by categories such as hate, harassment and violence.

    Each new input message is judged. Output text is held and judged span by span.

    Args:
        model: A model that judges texts: an id or a ``Model``. Give either ``model`` or ``classifier``.
        classifier: A function of the text that returns a mapping from category to score (0 to 1), a bool, or a
            ``Verdict``.
        categories: Names, or a mapping from name to description. Default: for a model, the eleven of ``CATEGORIES``;
            for a function, all categories that it returns.
        threshold: Lowest score that is flagged. Default 0.5.
        strategy: ``"block"`` (default): the run ends with a tripwire with ``categories`` and ``scores`` in
            its metadata. ``"warn"``: a log line and a ``data-moderation`` chunk. ``"filter"``: the message is
            removed from the input, the span from the output.
        instructions: Added to the model's task.
        last_message_only: Judge only the last message of the input. Default False.
        span_chars: Minimum length of a span of output that is judged, in characters; a span ends with a sentence.
            Default 400. None judges each block of text as a whole, and holds it until then.
        chunk_window: Number of accepted spans that are judged again with the next span, as context. Default 0.
        include_reasoning: Judge the model's reasoning too. Default True.
        on_error: ``"fail"`` (default) blocks a text that could not be judged, ``"continue"`` lets it pass.
        run_in_parallel: Judge the input during the first model call, with ``block`` and ``warn``. Default False.

    Example::

        Agent(model="openai/gpt-5-mini", processors=[ModerationProcessor(model="openai/gpt-5-nano")])
    """

    data_type = "data-moderation"
    edits_in_place = False

    model: str | Model | None = field(default=None, kw_only=False)
    classifier: Classify | None = None
    categories: Sequence[str] | Mapping[str, str] | None = None
    threshold: float = 0.5
    strategy: Literal["block", "warn", "filter"] = "block"
    instructions: str = ""
    chunk_window: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        name = "ModerationProcessor"
        share(name, "threshold", self.threshold)
        described = describe(name, self.categories, CATEGORIES)
        self.helper = make_classifier(
            name,
            self.model,
            self.classifier,
            categories=described,
            task=load_prompt("moderation"),
            instructions=self.instructions,
        )
        if self.helper is None:
            raise ConfigError(f"{name}: give model (an id or a Model) or classifier (a function)")
        self._only = None if self.categories is None else {*described, FLAGGED}

    async def examine(self, text: str) -> Finding | None:
        """Return the categories over the threshold, if any."""
        verdict = await verdict_of(self.helper, text)
        if self._only is not None:
            verdict = verdict.of(self._only)
        return flagged("the text was flagged", verdict, self.threshold)


def flagged(reason: str, verdict: Verdict, threshold: float) -> Finding | None:
    """Return the finding for a verdict; None if no category reaches the threshold."""
    over = verdict.over(threshold)
    if not over:
        return None
    named = ", ".join(f"{name} ({score:.2f})" for name, score in over.items())
    return Finding(reason=f"{reason}: {named}", metadata=verdict.metadata(threshold), text=verdict.text)


def describe(
    owner: str,
    categories: Sequence[str] | Mapping[str, str] | None,
    known: Mapping[str, str],
    *,
    option: str = "categories",
) -> dict[str, str]:
    """Return an option's categories as a mapping from name to description. Raises ConfigError if there are none."""
    if categories is None:
        return dict(known)
    names = text_list(owner, option, categories, wanted="a list of texts, or a mapping of names to descriptions")
    if not names:
        raise ConfigError(f"{owner}: {option} is empty; name at least one")
    if not isinstance(categories, Mapping):
        return {name: known.get(name, "") for name in names}
    text_list(owner, f"the descriptions in {option}", categories.values())
    return dict(categories)
