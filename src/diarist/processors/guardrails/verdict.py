"""What a classifier says about a text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from diarist.messages import Json

FLAGGED = "flagged"
"""The category of a verdict that names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a classifier found.

    Attributes:
        scores: Category to score, from 0 (no) to 1 (certainly). A category that is missing counts as 0.
        reason: Why, in a few words.
        text: The text as it should be, from a classifier that rewrites or translates; None where it does not.
    """

    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    reason: str = ""
    text: str | None = None

    def over(self, threshold: float) -> dict[str, float]:
        """The categories at or above the threshold, the surest first."""
        found = [(name, score) for name, score in self.scores.items() if score >= threshold]
        return dict(sorted(found, key=lambda item: -item[1]))

    def metadata(self, threshold: float) -> dict[str, Json]:
        """As it stands in a tripwire's metadata and in data chunks."""
        return {"categories": list(self.over(threshold)), "scores": dict(self.scores), "reason": self.reason}

    def of(self, categories: Iterable[str]) -> Verdict:
        """What it says of these categories; their case, and how their words are joined, does not count."""
        asked = {_spelling(name): name for name in categories}
        scores: dict[str, float] = {}
        for given, score in self.scores.items():
            name = asked.get(_spelling(given))
            if name is not None:
                scores[name] = max(score, scores.get(name, 0.0))
        return Verdict(scores=scores, reason=self.reason, text=self.text)


CLEAN = Verdict()

VerdictLike: TypeAlias = Verdict | Mapping[str, float | bool] | float | bool | None
"""What a callable may return: a ``Verdict``; category to score or bool; one score or bool for all; None for clean."""


def as_verdict(value: Any) -> Verdict:
    """The verdict that a callable's value stands for. Raises TypeError or ValueError that says what is wrong."""
    match value:
        case Verdict():
            scores = value.scores
        case None:
            return CLEAN
        case bool() | int() | float():
            scores = {FLAGGED: value}
        case Mapping():
            scores = cast(Mapping[str, Any], value)
        case _:
            raise TypeError(f"a classifier returns a Verdict, scores, a number, a bool or None, not {value!r:.100}")
    checked = {str(name): _score(name, score) for name, score in scores.items()}
    if isinstance(value, Verdict):
        return Verdict(scores=checked, reason=value.reason, text=value.text)
    return Verdict(scores=checked)


def _spelling(name: str) -> str:
    return "-".join(name.casefold().replace("_", " ").replace("-", " ").split())


def _score(name: object, value: Any) -> float:
    if not isinstance(value, bool | int | float) or not 0 <= value <= 1:
        raise ValueError(f"the score of {name!r} must be a bool or a number from 0 to 1, not {value!r:.100}")
    return float(value)
