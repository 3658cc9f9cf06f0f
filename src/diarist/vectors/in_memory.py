"""Vectors in the memory of this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from diarist.vectors.base import Filter, IndexInfo, Metadata, Metric, VectorHit, VectorRecord, VectorStore
from diarist.vectors.checks import (
    Settings,
    check_delete,
    check_query,
    check_rows,
    check_same,
    check_settings,
    check_vector,
    not_found,
)
from diarist.vectors.matrix import Matrix


class InMemoryVectorStore(VectorStore):
    """Vectors in memory, with exact search, for tests. Checks arguments like the other stores. Needs numpy."""

    def __init__(self) -> None:
        self._indexes: dict[str, tuple[Settings, Matrix]] = {}
        self._lock = threading.Lock()

    async def create_index(
        self, name: str, *, dimension: int, metric: Metric = "cosine", partition_by: str | None = None
    ) -> None:
        settings = check_settings(name, dimension, metric, partition_by)
        with self._lock:
            known, _ = self._indexes.setdefault(name, (settings, Matrix(dimension, metric)))
        check_same(name, known, settings)

    async def upsert(
        self,
        index: str,
        ids: Sequence[str],
        vectors: Sequence[Sequence[float]],
        metadata: Sequence[Metadata] | None = None,
    ) -> None:
        with self._lock:
            settings, matrix = self._index(index)
            rows = check_rows(index, settings, ids, vectors, metadata)
            matrix.put([row.id for row in rows], [row.vector.tobytes() for row in rows], [row.metadata for row in rows])

    async def query(
        self,
        index: str,
        vector: Sequence[float],
        *,
        top_k: int = 10,
        filter: Filter | None = None,
        threshold: float | None = None,
    ) -> list[VectorHit]:
        node = check_query(top_k, filter)
        with self._lock:
            settings, matrix = self._index(index)
            return matrix.search(check_vector(index, settings, vector), top_k, node, threshold)

    async def get(self, index: str, ids: Sequence[str]) -> dict[str, VectorRecord]:
        with self._lock:
            _, matrix = self._index(index)
            return {id: matrix.record(id) for id in ids if id in matrix}

    async def delete(self, index: str, *, ids: Sequence[str] | None = None, filter: Filter | None = None) -> int:
        node = check_delete(ids, filter)
        with self._lock:
            _, matrix = self._index(index)
            named = {id for id in ids or () if id in matrix} if node is None else matrix.matching(node)
            for id in named:
                matrix.remove(id)
            return len(named)

    async def describe(self, name: str) -> IndexInfo | None:
        with self._lock:
            if name not in self._indexes:
                return None
            settings, matrix = self._indexes[name]
            return IndexInfo(name=name, dimension=settings.dimension, metric=settings.metric, count=len(matrix))

    async def list_indexes(self) -> list[str]:
        with self._lock:
            return sorted(self._indexes)

    async def delete_index(self, name: str) -> bool:
        with self._lock:
            return self._indexes.pop(name, None) is not None

    def _index(self, name: str) -> tuple[Settings, Matrix]:
        if name not in self._indexes:
            raise not_found(name)
        return self._indexes[name]
