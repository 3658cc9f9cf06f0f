"""Vectors in a PostgreSQL database, by its extension pgvector."""

from __future__ import annotations

from collections.abc import Sequence

from diarist.exceptions import ConfigError
from diarist.postgres_database import PostgresDatabase
from diarist.vectors import postgres_tables as tables
from diarist.vectors.base import Filter, IndexInfo, Metadata, Metric, VectorHit, VectorRecord, VectorStore
from diarist.vectors.checks import check_delete, check_query, check_same, check_settings
from diarist.vectors.postgres_index import HNSW, IVFFlat

__all__ = ["HNSW", "IVFFlat", "PgVectorStore"]


class PgVectorStore(VectorStore):
    """Vectors in a PostgreSQL database that any number of processes and machines may share.

    The server needs the extension ``vector`` (pgvector), version 0.8 or newer; it is created in the database at first
    use, which takes the right to do so.

    Args:
        url, schema, pool_size, busy_timeout: As for ``PostgresStorage``; the database may be the same.
        index: How an index made by this object is searched: approximately, by ``HNSW()`` or ``IVFFlat()``; or
            exactly, None. An index that is there keeps its own kind; ``ef_search`` and ``probes`` are of the query.

    Raises ConfigError for another kind of URL. Needs the extra ``postgres``.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str | None = None,
        index: HNSW | IVFFlat | None = HNSW(),  # noqa: B008 - it cannot be changed
        pool_size: int = 10,
        busy_timeout: float = 30.0,
    ) -> None:
        self._database = PostgresDatabase(
            url, tables.SCHEMA, schema=schema, pool_size=pool_size, busy_timeout=busy_timeout
        )
        self._kind = index

    @property
    def location(self) -> str:
        return self._database.location

    async def create_index(
        self, name: str, *, dimension: int, metric: Metric = "cosine", partition_by: str | None = None
    ) -> None:
        settings = check_settings(name, dimension, metric, partition_by)
        if dimension > tables.MOST_DIMENSIONS or (self._kind is not None and dimension > tables.MOST_INDEXED):
            raise ConfigError(
                f"pgvector takes up to {tables.MOST_INDEXED:,} dimensions with HNSW or IVFFlat and"
                f" {tables.MOST_DIMENSIONS:,} with index=None, not {dimension:,}; many embedders can give fewer"
            )
        check_same(name, await self._database.write(tables.create_index, name, settings, self._kind), settings)

    async def rebuild_index(self, name: str) -> None:
        """Build the search tree anew, from the vectors that are there now. Writers wait meanwhile.

        ``IVFFlat`` finds little until this was done once with some thousand vectors, since it takes its lists from
        those it is built with; and again when they have become many more. Others do not need it.

        Raises NotFoundError, StorageError.
        """
        await self._database.write(tables.rebuild_index, name)

    async def upsert(
        self,
        index: str,
        ids: Sequence[str],
        vectors: Sequence[Sequence[float]],
        metadata: Sequence[Metadata] | None = None,
    ) -> None:
        await self._database.write(tables.upsert, index, ids, vectors, metadata)

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
        hits = await self._database.read(tables.query, index, vector, top_k, node, self._kind)
        return [hit for hit in hits if threshold is None or hit.score >= threshold]

    async def get(self, index: str, ids: Sequence[str]) -> dict[str, VectorRecord]:
        return await self._database.read(tables.get, index, list(ids))

    async def delete(self, index: str, *, ids: Sequence[str] | None = None, filter: Filter | None = None) -> int:
        node = check_delete(ids, filter)
        return await self._database.write(tables.delete_vectors, index, list(ids or ()), node)

    async def describe(self, name: str) -> IndexInfo | None:
        return await self._database.read(tables.describe, name)

    async def list_indexes(self) -> list[str]:
        return await self._database.read(tables.list_indexes)

    async def delete_index(self, name: str) -> bool:
        return await self._database.write(tables.delete_index, name)

    async def close(self) -> None:
        await self._database.close()
