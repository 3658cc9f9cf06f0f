"""Vectors in a PostgreSQL database, by its extension pgvector."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from diarist.postgres_database import PostgresDatabase
from diarist.vectors import postgres_tables as tables
from diarist.vectors.base import Filter, IndexInfo, Metadata, Metric, VectorHit, VectorRecord, VectorStore
from diarist.vectors.checks import check_delete, check_query, check_same, check_settings
from diarist.vectors.postgres_index import HNSW, IVFFlat, Kind, as_built, check_fits, check_kind

__all__ = ["HNSW", "IVFFlat", "PgVectorStore"]

logger = logging.getLogger("diarist")


class PgVectorStore(VectorStore):
    """Vectors in a PostgreSQL database that any number of processes and machines may share.

    The server needs the extension ``vector`` (pgvector), version 0.8 or newer; where the database has none, it is
    created in the schema ``public`` at first use, which takes the right to do so.

    Args:
        url, schema, pool_size, busy_timeout, statement_timeout: As for ``PostgresStorage``; the database may be the
            same. Building an index has no limit.
        index: How an index made by this object is searched: approximately, by ``HNSW()`` or ``IVFFlat()``; or
            exactly, None. An index that is there keeps its own kind, with a warning, until ``rebuild_index``;
            ``ef_search`` and ``probes`` are of the query.

    Raises ConfigError for another kind of URL, and another ``index``. Needs the extra ``postgres``.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str | None = None,
        index: HNSW | IVFFlat | None = HNSW(),  # noqa: B008 - it cannot be changed
        pool_size: int = 10,
        busy_timeout: float = 30.0,
        statement_timeout: float = 30.0,
    ) -> None:
        check_kind(index)
        self._database = PostgresDatabase(
            url,
            tables.SCHEMA,
            schema=schema,
            pool_size=pool_size,
            busy_timeout=busy_timeout,
            statement_timeout=statement_timeout,
        )
        self._kind: Kind = index

    @property
    def location(self) -> str:
        return self._database.location

    async def create_index(
        self, name: str, *, dimension: int, metric: Metric = "cosine", partition_by: str | None = None
    ) -> None:
        settings = check_settings(name, dimension, metric, partition_by)
        check_fits(self._kind, settings)
        found, searches = await self._database.write(tables.create_index, name, settings, self._kind)
        check_same(name, found, settings)
        if self._kind is not None and searches != [as_built(self._kind)]:
            logger.warning(
                "index %r of %s is searched by %s, and not by %s: rebuild_index(%r) changes that",
                name,
                self.location,
                ", ".join(searches) or "looking through all of it",
                as_built(self._kind),
                name,
            )

    async def rebuild_index(self, name: str) -> None:
        """Build the search tree anew, from the vectors that are there now. Writers wait meanwhile.

        It becomes what ``index`` of this store says, whatever it was before: another kind, other options, or none.
        ``IVFFlat`` finds little until this was done once with some thousand vectors, since it takes its lists from
        those it is built with; and again when they have become many more. Others do not need it.

        Raises NotFoundError, StorageError; ConfigError where pgvector cannot have such an index.
        """
        await self._database.write(tables.rebuild_index, name, self._kind)

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
