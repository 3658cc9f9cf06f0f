"""How semantic recall looks, and what it shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from diarist.exceptions import ConfigError, InputError
from diarist.memory.semantic.chunks import CHUNK_LENGTH
from diarist.storage.records import Scope
from diarist.vectors import Filter
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
        threshold: The least nearness, from -1 to 1 (the cosine of the two vectors). None: however far. What is near
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
    threshold: float | None = None
    filter: Filter | None = field(default=None, hash=False)
    max_tokens: int = 1_500
    timeout: float = 10.0
    chunk_length: int = CHUNK_LENGTH

    def __post_init__(self) -> None:
        _between("top_k", self.top_k, 1, _MOST)
        for number in self.before_and_after:
            _between("message_range", number, 0, _MOST)
        if self.scope not in ("thread", "resource"):
            raise ConfigError(f"scope is 'thread' or 'resource', not {self.scope!r}")
        if self.threshold is not None:
            _between("threshold", self.threshold, -1, 1)
        if self.max_tokens < 50:
            raise ConfigError(f"max_tokens must be at least 50, not {self.max_tokens!r}")
        if not self.timeout > 0:
            raise ConfigError(f"timeout must be a positive number of seconds, not {self.timeout!r}")
        _between("chunk_length", self.chunk_length, 100, 100_000)
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


def _keys(node: Node) -> set[str]:
    match node:
        case Compare():
            return {node.key}
        case Not(inner):
            return _keys(inner)
        case AllOf(nodes) | AnyOf(nodes):
            return set[str]().union(*map(_keys, nodes))


def _between(name: str, value: Any, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(f"{name} must be from {least} to {most}, not {value!r}")
