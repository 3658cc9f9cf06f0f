"""Vectors in SQLite: in a file, which may also contain the messages, or in memory."""

from __future__ import annotations

import os
import secrets
import sys
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from diarist.byte_cache import ByteCache
from diarist.checks import whole
from diarist.databases.base import Connection, Database, OnDatabase, Row, reads, writes
from diarist.databases.sqlite import MemoryDatabase, SQLiteDatabase
from diarist.exceptions import NotFoundError
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
from diarist.vectors.filters import Node, is_plain, partition_in, predicate
from diarist.vectors.matrix import Matrix, merged
from diarist.vectors.sqlite_tables import SCHEMA

CACHE_BYTES = 512 * 1024 * 1024


# --- transactions ------------------------------------------------------------------------------------------


class _Index(NamedTuple):
    """An index, and its number in the tables."""

    number: int
    settings: Settings


async def _find_index(connection: Connection, name: str) -> _Index:
    """Return the index. Raises NotFoundError."""
    row = await connection.first(
        "SELECT number, dimension, metric, partition_by FROM diarist_vector_indexes WHERE name = :name", name=name
    )
    if row is None:
        raise not_found(name)
    return _Index(row[0], Settings(*row[1:]))


async def _create_index(
    connection: Connection, name: str, *, dimension: int, metric: Metric = "cosine", partition_by: str | None = None
) -> None:
    settings = check_settings(name, dimension, metric, partition_by)
    await connection.execute(
        "INSERT INTO diarist_vector_indexes (name, dimension, metric, partition_by)"
        " VALUES (:name, :dimension, :metric, :partition_by) ON CONFLICT DO NOTHING",
        name=name,
        **settings._asdict(),
    )
    check_same(name, (await _find_index(connection, name)).settings, settings)


async def _upsert(
    connection: Connection,
    index: str,
    ids: Sequence[str],
    vectors: Sequence[Sequence[float]],
    metadata: Sequence[Metadata] | None = None,
) -> None:
    found = await _find_index(connection, index)
    rows = check_rows(index, found.settings, ids, vectors, metadata)
    before = await _places(connection, found, [row.id for row in rows])
    changed: dict[str, int] = {}
    for part in dict.fromkeys(row.partition for row in rows):
        changed[part] = await connection.value(
            "INSERT INTO diarist_vector_partitions (index_number, partition, changed, erased)"
            " VALUES (:number, :part, 1, :erased)"
            " ON CONFLICT (index_number, partition) DO UPDATE SET changed = changed + 1 RETURNING changed",
            number=found.number,
            part=part,
            erased=secrets.randbits(62),
        )
    await connection.execute_many(
        "INSERT INTO diarist_vectors (index_number, id, partition, changed, metadata, vector)"
        " VALUES (:number, :id, :part, :changed, :metadata, :vector) ON CONFLICT (index_number, id) DO UPDATE"
        " SET partition = excluded.partition, changed = excluded.changed, metadata = excluded.metadata,"
        " vector = excluded.vector",
        [
            {
                "number": found.number,
                "id": row.id,
                "part": row.partition,
                "changed": changed[row.partition],
                "metadata": orjson.dumps(row.metadata).decode(),
                "vector": row.vector.tobytes(),
            }
            for row in rows
        ],
    )
    moved = {before[row.id] for row in rows if before.get(row.id, row.partition) != row.partition}
    await _erase(connection, found, moved)


async def _get(connection: Connection, index: str, ids: Sequence[str]) -> dict[str, VectorRecord]:
    found = await _find_index(connection, index)
    rows = await connection.fetch(
        "SELECT id, vector, metadata FROM diarist_vectors WHERE index_number = :number AND id {any ids}",
        number=found.number,
        ids=[id for id in ids if is_plain(id)],
    )
    return {
        id: VectorRecord(id=id, vector=list(memoryview(vector).cast("f")), metadata=orjson.loads(metadata))
        for id, vector, metadata in rows
    }


async def _delete(
    connection: Connection, index: str, *, ids: Sequence[str] | None = None, filter: Filter | None = None
) -> int:
    node = check_delete(ids, filter)
    found = await _find_index(connection, index)
    named = [id for id in ids or () if is_plain(id)] if node is None else await _matching(connection, found, node)
    places = await _places(connection, found, named)
    await connection.execute(
        "DELETE FROM diarist_vectors WHERE index_number = :number AND id {any ids}",
        number=found.number,
        ids=list(places),
    )
    await _erase(connection, found, set(places.values()))
    return len(places)


async def _describe(connection: Connection, name: str) -> IndexInfo | None:
    try:
        found = await _find_index(connection, name)
    except NotFoundError:
        return None
    count = await connection.value(
        "SELECT count(*) FROM diarist_vectors WHERE index_number = :number", number=found.number
    )
    return IndexInfo(name=name, dimension=found.settings.dimension, metric=found.settings.metric, count=count)


async def _list_indexes(connection: Connection) -> list[str]:
    return sorted(row[0] for row in await connection.fetch("SELECT name FROM diarist_vector_indexes"))


async def _delete_index(connection: Connection, name: str) -> bool:
    return await connection.execute("DELETE FROM diarist_vector_indexes WHERE name = :name", name=name) > 0


async def _matching(connection: Connection, index: _Index, node: Node) -> list[str]:
    query = "SELECT id, metadata FROM diarist_vectors WHERE index_number = :number"
    partition = partition_in(node, index.settings.partition_by)
    if partition is not None:
        query += " AND partition = :part"
    test = predicate(node)
    rows = await connection.fetch(query, number=index.number, part=partition)
    return [id for id, metadata in rows if test(orjson.loads(metadata))]


async def _places(connection: Connection, index: _Index, ids: Sequence[str]) -> dict[str, str]:
    """Return the partition of each stored vector among ``ids``."""
    rows = await connection.fetch(
        "SELECT id, partition FROM diarist_vectors WHERE index_number = :number AND id {any ids}",
        number=index.number,
        ids=list(ids),
    )
    return {id: partition for id, partition in rows}


_OF_PARTITION = "WHERE index_number = :number AND partition = :part"


async def _erase(connection: Connection, index: _Index, parts: Collection[str]) -> None:
    """Record that some or all vectors of these partitions were deleted."""
    for part in parts:
        place = {"number": index.number, "part": part}
        if await connection.value(f"SELECT 1 FROM diarist_vectors {_OF_PARTITION} LIMIT 1", **place):
            await connection.execute(
                f"UPDATE diarist_vector_partitions SET erased = :erased {_OF_PARTITION}",
                **place,
                erased=secrets.randbits(62),
            )
        else:
            await connection.execute(f"DELETE FROM diarist_vector_partitions {_OF_PARTITION}", **place)


# --- stores ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Part:
    """A copy of a partition, with the partition's ``changed`` and ``erased``."""

    matrix: Matrix
    changed: int
    erased: int


class _Transactions(OnDatabase):
    """The methods of a store that are one transaction each."""

    create_index = writes(_create_index)
    upsert = writes(_upsert)
    get = reads(_get)
    delete = writes(_delete)
    describe = reads(_describe)
    list_indexes = reads(_list_indexes)
    delete_index = writes(_delete_index)


class _SQLiteVectors(_Transactions, VectorStore):
    """Vectors in SQLite's tables, with exact search.

    The last queried partitions are cached in memory. Each query updates its copies inside its transaction. One query
    runs at a time: each takes some milliseconds in numpy, which uses all processors by itself.
    """

    def __init__(self, database: Database, cache_bytes: int) -> None:
        super().__init__(database)
        self._parts: ByteCache[tuple[int, str], _Part] = ByteCache(cache_bytes, largest=sys.maxsize)
        self._lock = threading.Lock()

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
        return await self.database.read(self._query, index, vector, top_k, node, threshold)

    async def _query(
        self,
        connection: Connection,
        name: str,
        vector: Sequence[float],
        top_k: int,
        node: Node,
        threshold: float | None,
    ) -> list[VectorHit]:
        index = await _find_index(connection, name)
        wanted = check_vector(name, index.settings, vector)
        asked = partition_in(node, index.settings.partition_by)
        if asked is not None:
            parts = [asked]
        else:
            rows = await connection.fetch(
                "SELECT partition FROM diarist_vector_partitions WHERE index_number = :number", number=index.number
            )
            parts = [row[0] for row in rows]
        with self._lock:  # no other coroutine runs in this thread: see Database
            found = [
                (await self._part(connection, index, part)).search(wanted, top_k, node, threshold) for part in parts
            ]
            return merged(found, top_k)

    async def _part(self, connection: Connection, index: _Index, partition: str) -> Matrix:
        key, values = (index.number, partition), {"number": index.number, "part": partition}
        state = await connection.first(
            f"SELECT changed, erased FROM diarist_vector_partitions {_OF_PARTITION}", **values
        )
        changed, erased = (0, 0) if state is None else state
        part = self._parts.get(key)
        if part is None or part.erased != erased:
            part = _Part(Matrix(index.settings.dimension, index.settings.metric), 0, erased)
        # If another query's transaction began later, keep its copy, since it is newer.
        if part.changed < changed:
            rows: Sequence[Row] = await connection.fetch(
                f"SELECT id, vector, metadata FROM diarist_vectors {_OF_PARTITION} AND changed > :since",
                **values,
                since=part.changed,
            )
            part.matrix.put([row[0] for row in rows], [row[1] for row in rows], [orjson.loads(row[2]) for row in rows])
            part.changed = changed
        self._parts.put(key, part, part.matrix.size)
        return part.matrix

    async def close(self) -> None:
        await super().close()
        self._parts.clear()


class SQLiteVectorStore(_SQLiteVectors):
    """Vectors in a file, which any number of processes on one machine may share. Exact search. Needs numpy.

    A query reads its vectors from the file once and caches them, up to ``cache_bytes``; later queries read only
    changes. With ``partition_by``, a query for one value of that key reads one partition.

    Args:
        path: The file; ``SQLiteStorage`` may use the same file. Created if it is missing, but its folder must exist.
        busy_timeout: Seconds to wait while another process writes, before StorageError.
        cache_bytes: Memory for cached vectors of all indexes together, 512 MiB by default. The vectors of the last
            query are always cached.

    Raises ConfigError for ``":memory:"`` and URLs.
    """

    def __init__(
        self, path: str | os.PathLike[str] = "memory.db", *, busy_timeout: float = 30.0, cache_bytes: int = CACHE_BYTES
    ) -> None:
        whole("", "cache_bytes", cache_bytes, least=0)
        super().__init__(SQLiteDatabase(path, SCHEMA, busy_timeout=busy_timeout), cache_bytes)


class InMemoryVectorStore(_SQLiteVectors):
    """Vectors in this process's memory, with exact search, for tests. ``close`` does not delete them. Needs numpy."""

    def __init__(self) -> None:
        super().__init__(MemoryDatabase(SCHEMA), CACHE_BYTES)
