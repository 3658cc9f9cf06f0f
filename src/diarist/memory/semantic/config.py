"""Configuration of semantic recall."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import get_args

from diarist.checks import number, one_of, seconds, whole
from diarist.exceptions import ConfigError, InputError
from diarist.memory.message_filter import MessageRange, before_and_after
from diarist.storage.records import Scope
from diarist.vectors import Filter, Metric
from diarist.vectors.filters import AllOf, AnyOf, Compare, Node, Not, parse_filter

CHUNK_LENGTH = 1_500
"""Characters; about 400 tokens of English. Embedding models with the shortest input take 512 tokens."""
_KEYS = ("role", "thread_id", "created_at")


@dataclass(frozen=True, kw_only=True)
class SemanticRecallConfig:
    """Options of semantic recall.

    Attributes:
        top_k: Maximum number of messages found; their neighbours are shown in addition.
        message_range: Neighbours to show with each message: a number before and after it, or a pair (before, after).
        scope: ``resource`` searches all threads of the user, ``thread`` only the current one.
        metric: Distance between vectors: see ``diarist.vectors.Metric``. Each metric has its own index, so all messages
            are embedded again after a change of metric.
        threshold: Minimum nearness by ``metric``: for ``cosine`` from -1 to 1. None: no minimum. Typical values differ
            by embedder.
        filter: Condition on the messages to search; keys are ``role``, ``thread_id``, ``created_at`` (seconds since
            1970) and ``metadata.<key>`` for the metadata of messages. See ``diarist.vectors.filters``.
        max_tokens: Maximum tokens to show.
        timeout: Time limit in seconds for embedding the question and searching; then the turn continues without recall.
        chunk_length: Maximum characters of text per vector; longer messages get several. A new length applies to new
            messages only.
    """

    top_k: int = 4
    message_range: MessageRange = 1
    scope: Scope = "resource"
    metric: Metric = "cosine"
    threshold: float | None = None
    filter: Filter | None = field(default=None, hash=False)
    max_tokens: int = 1_500
    timeout: float = 10.0
    chunk_length: int = CHUNK_LENGTH

    def __post_init__(self) -> None:
        whole("SemanticRecallConfig", "top_k", self.top_k, least=1, most=100)
        one_of("SemanticRecallConfig", "scope", self.scope, get_args(Scope))
        one_of("SemanticRecallConfig", "metric", self.metric, get_args(Metric))
        if self.threshold is not None:
            least, most = nearness(self.metric)
            number("SemanticRecallConfig", "threshold", self.threshold, least=least, most=most)
        whole("SemanticRecallConfig", "max_tokens", self.max_tokens, least=50)
        seconds("SemanticRecallConfig", "timeout", self.timeout)
        whole("SemanticRecallConfig", "chunk_length", self.chunk_length, least=100, most=100_000)
        try:
            before_and_after(self.message_range)
        except InputError as error:
            raise ConfigError(f"SemanticRecallConfig: {error}") from error
        try:
            node = parse_filter(self.filter)
        except InputError as error:
            raise ConfigError(f"filter of semantic recall: {error}") from error
        if unknown := sorted(key for key in _keys(node) if key not in _KEYS and not key.startswith("metadata.")):
            raise ConfigError(
                f"filter of semantic recall: unknown key {unknown[0]!r}; keys are {', '.join(_KEYS)} and metadata.<key>"
            )


def nearness(metric: Metric) -> tuple[float, float]:
    """Return the minimum and maximum nearness by a metric."""
    return {"cosine": (-1.0, 1.0), "dot": (-math.inf, math.inf), "euclidean": (0.0, 1.0)}[metric]


def _keys(node: Node) -> set[str]:
    match node:
        case Compare():
            return {node.key}
        case Not(inner):
            return _keys(inner)
        case AllOf(nodes) | AnyOf(nodes):
            return set[str]().union(*map(_keys, nodes))
