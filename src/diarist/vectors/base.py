"""The vector store interface. ``diarist.testing.VectorStoreConformance`` tests an implementation against it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

Metric = Literal["cosine", "dot", "euclidean"]
"""The meaning of ``score``; a higher score is always nearer. ``cosine``: -1 to 1; ``dot``: the inner product;
``euclidean``: 1 / (1 + distance), above 0 and at most 1."""

Value = str | int | float | bool
Metadata = Mapping[str, Value]
Filter = Mapping[str, Any]
"""Conditions on metadata, all of which must hold: see ``diarist.vectors.filters``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexInfo:
    """Description of an index: its dimension, its metric, and its number of vectors."""

    name: str
    dimension: int
    metric: Metric
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorRecord:
    """A stored vector. With ``cosine`` it may be normalized to length 1; numbers are rounded to 32 bits or less."""

    id: str
    vector: list[float]
    metadata: dict[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorHit:
    """A query result; ``score`` is computed with the index's metric."""

    id: str
    score: float
    metadata: dict[str, Value]


class VectorStore(ABC):
    """Named indexes of vectors, each with an id and metadata. Safe to share between tasks and event loops.

    - Names, ids, metadata keys and values may contain any valid Unicode except NUL. A name has at most 120 bytes.
    - Metadata is flat: strings, finite numbers and booleans.
    - Changes of a completed call are visible to every later call, in any process. A failed call may have done a part of
      its work; to do the rest, repeat the call.
    - A store opens at first use. ``close`` or ``async with`` releases its resources, and the next use opens it again.

    If there is no such index, every method except ``create_index``, ``list_indexes``, ``describe`` and ``delete_index``
    raises NotFoundError. Every method may raise StorageError, with the driver's own error as its cause.
    """

    @abstractmethod
    async def create_index(
        self, name: str, *, dimension: int, metric: Metric = "cosine", partition_by: str | None = None
    ) -> None:
        """Create an index. Does nothing if it exists with the same dimension and metric.

        Args:
            dimension: Length of each vector.
            partition_by: A metadata key for which every vector must have a string, such as the user's id. Queries and
                deletions with a filter on one value of it read only the vectors with that value.

        Raises:
            ConfigError: The index exists with another dimension or metric, or this store does not support it.
            InputError: The name or a number is invalid.
        """

    @abstractmethod
    async def upsert(
        self,
        index: str,
        ids: Sequence[str],
        vectors: Sequence[Sequence[float]],
        metadata: Sequence[Metadata] | None = None,
    ) -> None:
        """Store vectors with their metadata. A vector replaces a stored one with the same id.

        If an id is given twice, the last vector is stored.

        Raises:
            InputError: The numbers of ids, vectors and metadata differ; a vector has another dimension, is not finite,
                or, with ``cosine``, is all zeros; or metadata is invalid. Nothing is stored.
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
        """Return at most ``top_k`` nearest vectors that match the filter, nearest first.

        An approximate index may miss some of these vectors. ``threshold`` is the minimum score.

        Raises InputError for an invalid vector (see ``upsert``), ``top_k`` below 1, or an invalid filter.
        """

    @abstractmethod
    async def get(self, index: str, ids: Sequence[str]) -> dict[str, VectorRecord]:
        """Return the stored vectors among ``ids``, by id."""

    @abstractmethod
    async def delete(self, index: str, *, ids: Sequence[str] | None = None, filter: Filter | None = None) -> int:
        """Delete vectors by id, or all that match the filter. Returns the number of deleted vectors.

        Raises InputError unless exactly one of ``ids`` and ``filter`` is given, and for an empty filter.
        """

    @abstractmethod
    async def describe(self, name: str) -> IndexInfo | None:
        """Return the description of an index; None if it does not exist."""

    @abstractmethod
    async def list_indexes(self) -> list[str]:
        """Return the names of all indexes of this store, sorted."""

    @abstractmethod
    async def delete_index(self, name: str) -> bool:
        """Delete an index with its vectors. Returns False if there was none."""

    async def purge(self) -> tuple[str, ...]:
        """Remove deleted vectors from files as well, as ``Storage.purge`` does. Called after data was forgotten.

        Returns:
            Places where deleted vectors may remain, with the reasons, to show to users. Empty if there are none.
        """
        return ()

    async def close(self) -> None:  # noqa: B027 - many have nothing to release
        """Release connections and files."""

    @property
    def location(self) -> str:
        """Location of the data, to show to users: a path, a URL without password, or ``memory``."""
        return "memory"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
