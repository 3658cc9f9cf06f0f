"""How semantic recall looks, and what it shows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from diarist.exceptions import ConfigError, InputError
from diarist.memory.options import check_number, check_seconds, check_whole
from diarist.memory.semantic.chunks import CHUNK_LENGTH
from diarist.storage.records import Scope
from diarist.vectors import Filter, Metric
from diarist.vectors.filters import AllOf, AnyOf, Compare, Node, Not, parse_filter

_MOST = 100
_KEYS = ("role", "thread_id", "created_at")


@dataclass(frozen=True, kw_only=True)
class SemanticRecallConfig:
    """Options of semantic recall.

    Attributes:
        top_k: Messages to show at most, those that were found; their neighbours come on top.
        message_range: Neighbours to show with each: so many before and after it, or a pair (before, after).
        scope: ``resource`` looks through all threads of the user, ``thread`` through the present one.
        metric: How near two vectors are: see ``diarist.vectors.Metric``. Each metric has an index of its own, made
            anew from all messages.
        threshold: The least nearness, by ``metric``: for ``cosine`` from -1 to 1. None: however far. What is near
            differs by embedder.
        filter: Which messages to look through; keys are ``role``, ``thread_id``, ``created_at`` (seconds since 1970)
            and ``metadata.<key>`` for the metadata of messages. See ``diarist.vectors.filters``.
        max_tokens: The most tokens to show.
        timeout: Seconds that embedding the question and looking may take; the turn then goes on without.
        chunk_length: Characters of text in one vector; longer messages get several. Another length makes new
            vectors for new messages only.
    """

    top_k: int = 4
    message_range: int | tuple[int, int] = 1
    scope: Scope = "resource"
    metric: Metric = "cosine"
    threshold: float | None = None
    filter: Filter | None = field(default=None, hash=False)
    max_tokens: int = 1_500
    timeout: float = 10.0
    chunk_length: int = CHUNK_LENGTH

    def __post_init__(self) -> None:
        check_whole("top_k", self.top_k, 1, _MOST)
        for number in self.before_and_after:
            check_whole("message_range", number, 0, _MOST)
        if self.scope not in ("thread", "resource"):
            raise ConfigError(f"scope is 'thread' or 'resource', not {self.scope!r}")
        if self.metric not in get_args(Metric):
            raise ConfigError(f"metric is {', '.join(map(repr, get_args(Metric)))}, not {self.metric!r}")
        if self.threshold is not None:
            check_number("threshold", self.threshold, *nearness(self.metric))
        check_whole("max_tokens", self.max_tokens, 50)
        check_seconds("timeout", self.timeout)
        check_whole("chunk_length", self.chunk_length, 100, 100_000)
        try:
            node = parse_filter(self.filter)
        except InputError as error:
            raise ConfigError(f"filter of semantic recall: {error}") from error
        if unknown := sorted(key for key in _keys(node) if key not in _KEYS and not key.startswith("metadata.")):
            raise ConfigError(
                f"filter of semantic recall: no message has {unknown[0]!r}; "
                f"keys are {', '.join(_KEYS)} and metadata.<key>"
            )

    @property
    def before_and_after(self) -> tuple[int, int]:
        """How many neighbours are shown before and after a message that was found."""
        value: Any = self.message_range
        pair = (value, value) if isinstance(value, int) else value
        if not isinstance(pair, tuple) or len(cast(tuple[Any, ...], pair)) != 2:
            raise ConfigError(f"message_range is a number, or a pair (before, after), not {value!r}")
        return cast(tuple[int, int], pair)


def nearness(metric: Metric) -> tuple[float, float]:
    """The least and the greatest nearness by a metric."""
    return {"cosine": (-1.0, 1.0), "dot": (-math.inf, math.inf), "euclidean": (0.0, 1.0)}[metric]


def _keys(node: Node) -> set[str]:
    match node:
        case Compare():
            return {node.key}
        case Not(inner):
            return _keys(inner)
        case AllOf(nodes) | AnyOf(nodes):
            return set[str]().union(*map(_keys, nodes))
