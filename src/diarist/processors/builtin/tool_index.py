"""Finding tools by words: BM25 over names and descriptions.

The ranking function of Robertson and Zaragoza ("The Probabilistic Relevance Framework: BM25 and Beyond", 2009)
with its usual parameters. A library of a few thousand tools is ranked in about a millisecond, so that no search
package is needed, nor the arrays that such packages come with.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from diarist.tools import Tool

_K1, _B = 1.5, 0.75
_EXACT, _PART = 10.0, 2.0
"""What a query is worth that is a tool's name, and one that stands in it (or the name in the query)."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")


@dataclass(frozen=True, slots=True)
class Hit:
    tool: Tool
    score: float


class ToolIndex:
    """Tools, ranked by how well they fit a query."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = list(tools)
        # The name counts twice: it is the shortest description.
        self._words = [Counter([*words(t.name), *words(t.name), *words(t.description)]) for t in self._tools]
        self._lengths = [counted.total() for counted in self._words]
        self._mean = sum(self._lengths) / max(1, len(self._lengths))
        self._containing = Counter(word for counted in self._words for word in counted)

    def search(self, query: str, *, top_k: int, min_score: float) -> list[Hit]:
        """The best first, at most ``top_k``, none below ``min_score``; ties in the order of the tools."""
        terms = set(words(query))
        hits = [Hit(tool, self._bm25(i, terms) + _name_bonus(tool.name, query)) for i, tool in enumerate(self._tools)]
        good = [hit for hit in hits if hit.score >= min_score and hit.score > 0]
        return sorted(good, key=lambda hit: -hit.score)[:top_k]

    def _bm25(self, index: int, terms: set[str]) -> float:
        found, length = self._words[index], self._lengths[index] / (self._mean or 1)
        score = 0.0
        for term in terms & found.keys():
            having = self._containing[term]
            rarity = math.log(1 + (len(self._tools) - having + 0.5) / (having + 0.5))
            score += rarity * found[term] * (_K1 + 1) / (found[term] + _K1 * (1 - _B + _B * length))
        return score


def words(text: str) -> list[str]:
    """The words of a name or a sentence, ``camelCase`` and ``snake_case`` taken apart, without a plural s."""
    found = [word.lower() for word in _WORD.findall(text)]
    return [word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word for word in found]


def _name_bonus(name: str, query: str) -> float:
    ours, asked = "".join(words(name)), "".join(words(query))
    if not asked:
        return 0.0
    if ours == asked:
        return _EXACT
    return _PART if len(asked) > 2 and (asked in ours or ours in asked) else 0.0
