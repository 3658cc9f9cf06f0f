"""The two kinds of approximate search that pgvector has, with its own options and limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from diarist.exceptions import ConfigError
from diarist.vectors.checks import Settings

MOST_DIMENSIONS = 16_000
MOST_INDEXED = 4_000
"""Of half precision."""


@dataclass(frozen=True, kw_only=True)
class HNSW:
    """A graph of near vectors: quick and precise, slower to build. Numbers and limits are pgvector's.

    Attributes:
        m: Neighbours of a vector, 2 to 100.
        ef_construction: Candidates while building, at least twice ``m``, to 1,000.
        ef_search: Candidates of a query, 1 to 1,000; higher finds more of the nearest, and takes longer. pgvector's own
            default is 40; with 100, about 99 of 100 of the nearest are found.
    """

    m: int = 16
    ef_construction: int = 64
    ef_search: int = 100

    def __post_init__(self) -> None:
        _check("m", self.m, 2, 100)
        _check("ef_construction", self.ef_construction, max(4, 2 * self.m), 1000)
        _check("ef_search", self.ef_search, 1, 1000)

    @property
    def method(self) -> str:
        """PostgreSQL's name of it."""
        return "hnsw"

    @property
    def options(self) -> dict[str, int]:
        """What it is built with."""
        return {"m": self.m, "ef_construction": self.ef_construction}


@dataclass(frozen=True, kw_only=True)
class IVFFlat:
    """Lists of near vectors: quick to build, less precise. See ``PgVectorStore.rebuild_index``.

    Attributes:
        lists: Into how many lists the vectors go, 1 to 32,768: rows / 1,000, or their square root beyond a million.
        probes: How many lists a query looks through; those there are at most.
    """

    lists: int = 100
    probes: int = 10

    def __post_init__(self) -> None:
        _check("lists", self.lists, 1, 32_768)
        _check("probes", self.probes, 1, 32_768)

    @property
    def method(self) -> str:
        """As of ``HNSW``."""
        return "ivfflat"

    @property
    def options(self) -> dict[str, int]:
        """As of ``HNSW``."""
        return {"lists": self.lists}


Kind = HNSW | IVFFlat | None
"""How an index is searched; None: exactly."""


def as_built(kind: HNSW | IVFFlat) -> str:
    """How an index of this kind is built, as ``hnsw (ef_construction=64, m=16)``."""
    return f"{kind.method} ({', '.join(sorted(f'{name}={value}' for name, value in kind.options.items()))})"


def check_kind(kind: Any) -> None:
    """Raises ConfigError."""
    if kind is not None and not isinstance(kind, HNSW | IVFFlat):
        raise ConfigError(f"index must be HNSW(...), IVFFlat(...) or None, not {kind!r}")


def check_fits(kind: Kind, settings: Settings) -> None:
    """Raises ConfigError where pgvector cannot have such an index."""
    dimension = settings.dimension
    if dimension > MOST_DIMENSIONS or (kind is not None and dimension > MOST_INDEXED):
        raise ConfigError(
            f"pgvector takes up to {MOST_INDEXED:,} dimensions with HNSW or IVFFlat and"
            f" {MOST_DIMENSIONS:,} with index=None, not {dimension:,}; many embedders can give fewer"
        )
    if isinstance(kind, IVFFlat) and dimension == 1 and settings.metric != "euclidean":
        raise ConfigError(f"IVFFlat with the metric {settings.metric} needs 2 dimensions or more: use HNSW() or None")


def _check(name: str, value: Any, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ConfigError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
