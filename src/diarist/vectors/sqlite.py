"""Vectors in an SQLite file, the one of the messages or another."""

from __future__ import annotations

import os
from collections.abc import Sequence

from diarist.sqlite_database import SQLiteDatabase
from diarist.vectors import sqlite_tables as tables
from diarist.vectors.base import Filter, IndexInfo, Metadata, Metric, VectorHit, VectorRecord, VectorStore
from diarist.vectors.checks import check_delete, check_query, check_same, check_settings
from diarist.vectors.sqlite_cache import Cache


class SQLiteVectorStore(VectorStore):
    """Vectors in a file that any number of processes on one machine may share. Exact search. Needs numpy.

    The vectors that a query looks at are read from the file once and stay in memory, as far as ``cache_bytes``
    allows; later queries read what has changed since. With ``partition_by`` that is one partition.

    Args:
        path: The file; it may be that of ``SQLiteStorage``. Created when it is missing, its folder must exist.
        busy_timeout: Seconds to wait while another process writes, before StorageError.
        cache_bytes: Of vectors to keep in memory, of all indexes together; those asked for last are kept in any case.

    Raises ConfigError for ``":memory:"``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = "memory.db",
        *,
        busy_timeout: float = 30.0,
        cache_bytes: int = 512 * 1024 * 1024,
    ) -> None:
        self._database = SQLiteDatabase(path, tables.SCHEMA, busy_timeout=busy_timeout)
        self._cache = Cache(cache_bytes)

    @property
    def location(self) -> str:
        return self._database.location

    async def create_index(
        self, name: str, *, dimension: int, metric: Metric = "cosine", partition_by: str | None = None
    ) -> None:
        settings = check_settings(name, dimension, metric, partition_by)
        check_same(name, await self._database.write(tables.create_index, name, settings), settings)

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
        return await self._database.read(self._cache.query, index, vector, top_k, node, threshold)

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
        self._cache.clear()
