"""The contract of a vector store. ``diarist.testing.VectorStoreConformance`` checks every clause."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

Metric = Literal["cosine", "dot", "euclidean"]
"""What ``score`` means; a higher one is always nearer. ``cosine``: -1 to 1; ``dot``: the inner product;
``euclidean``: 1 / (1 + distance), above 0 and at most 1."""

Value = str | int | float | bool
Metadata = Mapping[str, Value]
Filter = Mapping[str, Any]
"""Conditions on metadata, all of which must hold: see ``diarist.vectors.filters``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexInfo:
    """An index: how long its vectors are, how they are compared, and how many there are."""

    name: str
    dimension: int
    metric: Metric
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorRecord:
    """A stored vector. With ``cosine`` it may come back at length 1; numbers are rounded to 32 bits or less."""

    id: str
    vector: list[float]
    metadata: dict[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorHit:
    """A vector that a query found; ``score`` as the index's metric has it."""

    id: str
    score: float
    metadata: dict[str, Value]


class VectorStore(ABC):
    """Named indexes of vectors, each with an id and metadata. Safe to share between tasks and event loops.

    - Names, ids, metadata keys and values are data, whatever they hold; they must be valid Unicode without NUL,
      and a name at most 120 bytes long.
    - Metadata is flat: strings, finite numbers and booleans.
    - What a call has returned, the next call of anybody sees. A call that fails may have done a part of its work;
      repeating it does the rest.
    - It opens itself at first use; ``close`` or ``async with`` releases what it holds, and the next use opens again.

    Every method but ``create_index``, ``list_indexes``, ``describe`` and ``delete_index`` raises NotFoundError where
    there is no such index; every method may raise StorageError, with the driver's own error as its cause.
    """

    @abstractmethod
    async def create_index(
        self, name: str, *, dimension: int, metric: Metric = "cosine", partition_by: str | None = None
    ) -> None:
        """Make an index; does nothing where it is there with the same dimension and metric.

        Args:
            dimension: Numbers in each vector.
            partition_by: A metadata key with a string that every vector must have, such as the user's id. Queries
                and deletions whose filter asks for one value of it look at those vectors alone.

        Raises:
            ConfigError: It is there with another dimension or metric; or this store cannot have such an index.
            InputError: A name or number that cannot be.
        """

    @abstractmethod
    async def upsert(
        self,
        index: str,
        ids: Sequence[str],
        vectors: Sequence[Sequence[float]],
        metadata: Sequence[Metadata] | None = None,
    ) -> None:
        """Store vectors; one whose id is there is replaced, with its metadata. Of an id given twice the last counts.

        Raises:
            InputError: Not as many vectors or metadata as ids; a vector of another dimension, with numbers that are
                not finite, or, with ``cosine``, of nothing but zeros; metadata that cannot be. Nothing is stored.
        """

    @abstractmethod
    async def query(
        self,
        index: str,
        vector: Sequence[float],
        *,
        top_k: int = 10,
        filter: Filter | None = None,
        threshold: float | None = None,
    ) -> list[VectorHit]:
        """The nearest vectors that pass the filter, nearest first, at most ``top_k``.

        An approximate index may miss some of them. ``threshold``: the least score.

        Raises InputError for a vector as in ``upsert``, ``top_k`` below 1, or a filter that cannot be read.
        """

    @abstractmethod
    async def get(self, index: str, ids: Sequence[str]) -> dict[str, VectorRecord]:
        """Those of the vectors that are there, by id."""

    @abstractmethod
    async def delete(self, index: str, *, ids: Sequence[str] | None = None, filter: Filter | None = None) -> int:
        """Remove vectors by id, or those that pass the filter; returns how many there were.

        Raises InputError unless exactly one of the two is given; and for an empty filter.
        """

    @abstractmethod
    async def describe(self, name: str) -> IndexInfo | None:
        """The index; None if there is none."""

    @abstractmethod
    async def list_indexes(self) -> list[str]:
        """The names of all indexes of this store, sorted."""

    @abstractmethod
    async def delete_index(self, name: str) -> bool:
        """Remove an index with its vectors. False if there was none."""

    async def close(self) -> None:  # noqa: B027 - many have nothing to release
        """Release what it holds open."""

    @property
    def location(self) -> str:
        """Where the data lies, for people: a path, a URL without password, or ``memory``."""
        return "memory"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
