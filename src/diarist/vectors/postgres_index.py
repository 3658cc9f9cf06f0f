"""The two kinds of approximate search that pgvector has, with its own options and limits."""

from __future__ import annotations

from dataclasses import dataclass

from diarist.exceptions import ConfigError


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
    def using(self) -> str:
        """The end of CREATE INDEX: the method, an operator class to fill in, and options."""
        return f"hnsw (embedding {{ops}}) WITH (m = {self.m}, ef_construction = {self.ef_construction})"


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
    def using(self) -> str:
        """As of ``HNSW``."""
        return f"ivfflat (embedding {{ops}}) WITH (lists = {self.lists})"


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{name} must be from {least} to {most}, not {value!r}")
