"""Vectors in the memory of this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from diarist.vectors.base import Filter, IndexInfo, Metadata, Metric, VectorHit, VectorRecord, VectorStore
from diarist.vectors.checks import (
    Row,
    Settings,
    check_delete,
    check_query,
    check_rows,
    check_same,
    check_settings,
    check_vector,
    not_found,
)
from diarist.vectors.filters import Node, partition_in
from diarist.vectors.matrix import Matrix, merged


class InMemoryVectorStore(VectorStore):
    """Vectors in memory, with exact search, for tests. Checks arguments like the other stores. Needs numpy."""

    def __init__(self) -> None:
        self._indexes: dict[str, _Index] = {}
        self._lock = threading.Lock()

    async def create_index(
        self, name: str, *, dimension: int, metric: Metric = "cosine", partition_by: str | None = None
    ) -> None:
        settings = check_settings(name, dimension, metric, partition_by)
        with self._lock:
            index = self._indexes.setdefault(name, _Index(settings))
        check_same(name, index.settings, settings)

    async def upsert(
        self,
        index: str,
        ids: Sequence[str],
        vectors: Sequence[Sequence[float]],
        metadata: Sequence[Metadata] | None = None,
    ) -> None:
        with self._lock:
            found = self._index(index)
            for row in check_rows(index, found.settings, ids, vectors, metadata):
                found.put(row)

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
            found = self._index(index)
            wanted = check_vector(index, found.settings, vector)
            return merged((part.search(wanted, top_k, node, threshold) for part in found.asked(node)), top_k)

    async def get(self, index: str, ids: Sequence[str]) -> dict[str, VectorRecord]:
        with self._lock:
            found = self._index(index)
            return {id: found.record(id) for id in ids if id in found.places}

    async def delete(self, index: str, *, ids: Sequence[str] | None = None, filter: Filter | None = None) -> int:
        node = check_delete(ids, filter)
        with self._lock:
            found = self._index(index)
            if node is not None:
                ids = [id for part in found.asked(node) for id in part.matching(node)]
            return sum(found.remove(id) for id in ids or ())

    async def describe(self, name: str) -> IndexInfo | None:
        with self._lock:
            if name not in self._indexes:
                return None
            index = self._indexes[name]
            return IndexInfo(
                name=name, dimension=index.settings.dimension, metric=index.settings.metric, count=len(index.places)
            )

    async def list_indexes(self) -> list[str]:
        with self._lock:
            return sorted(self._indexes)

    async def delete_index(self, name: str) -> bool:
        with self._lock:
            return self._indexes.pop(name, None) is not None

    def _index(self, name: str) -> _Index:
        if name not in self._indexes:
            raise not_found(name)
        return self._indexes[name]


class _Index:
    """An index: one matrix per partition."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.places: dict[str, str] = {}
        self._parts: dict[str, Matrix] = {}

    def put(self, row: Row) -> None:
        if self.places.get(row.id, row.partition) != row.partition:
            self.remove(row.id)
        if row.partition not in self._parts:
            self._parts[row.partition] = Matrix(self.settings.dimension, self.settings.metric)
        self._parts[row.partition].put([row.id], [row.vector.tobytes()], [row.metadata])
        self.places[row.id] = row.partition

    def remove(self, id: str) -> bool:
        partition = self.places.pop(id, None)
        if partition is None:
            return False
        part = self._parts[partition]
        part.remove(id)
        if not len(part):
            del self._parts[partition]
        return True

    def record(self, id: str) -> VectorRecord:
        return self._parts[self.places[id]].record(id)

    def asked(self, node: Node) -> list[Matrix]:
        """Return the partitions that can contain matches of a filter."""
        partition = partition_in(node, self.settings.partition_by)
        if partition is None:
            return list(self._parts.values())
        return [self._parts[partition]] if partition in self._parts else []
