"""Vectors in Qdrant: a server, or its local mode in this process."""

from __future__ import annotations

import asyncio
import os
import threading
from base64 import b32decode, b32encode
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast
from uuid import UUID, uuid5

try:
    from qdrant_client import QdrantClient
    from qdrant_client import models as q
    from qdrant_client.http.exceptions import ApiException, UnexpectedResponse
except ImportError as error:
    raise ImportError("Qdrant needs an extra of diarist: pip install 'diarist[qdrant]'") from error

from diarist.checks import whole
from diarist.exceptions import ConfigError, StorageError
from diarist.vectors.base import Filter, IndexInfo, Metadata, Metric, Value, VectorHit, VectorRecord, VectorStore
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
from diarist.vectors.filters import AllOf, AnyOf, Compare, Node, Not, is_number

T = TypeVar("T")

_SPACE = UUID("0d1a7157-0000-4000-8000-000000000000")
_PREFIX = "diarist-"
_BATCH = 256
_DISTANCES: dict[Metric, q.Distance] = {
    "cosine": q.Distance.COSINE,
    "dot": q.Distance.DOT,
    "euclidean": q.Distance.EUCLID,
}
_METRICS: dict[q.Distance, Metric] = {distance: metric for metric, distance in _DISTANCES.items()}


class QdrantVectorStore(VectorStore):
    """Vectors in Qdrant, version 1.16 or newer. An index is a collection with a name that starts with ``diarist-``.

    Args:
        location: ``https://host:6333`` of a server; a folder, for Qdrant's local mode; or ``:memory:``, for tests. The
            local mode allows one process at a time, searches exactly, and is meant for up to some 10,000 vectors.
        api_key: API key, if the server requires one.
        timeout: Seconds to wait for the server's answer, before StorageError.

    Raises ConfigError for another kind of location. Needs the extra ``qdrant``.
    """

    def __init__(self, location: str | os.PathLike[str], *, api_key: str | None = None, timeout: int = 30) -> None:
        if not location or not isinstance(cast(object, location), str | os.PathLike):
            raise ConfigError(f"location must be a URL, a folder or ':memory:', not {location!r}")
        self._address = os.fspath(location)
        self._api_key = api_key
        whole("", "timeout", timeout, least=1)
        self._timeout = timeout
        self._remote = "://" in self._address
        self._client: QdrantClient | None = None
        # Qdrant's asynchronous client is bound to one event loop, and its local mode allows one thread at a time.
        self._threads = ThreadPoolExecutor(8 if self._remote else 1, thread_name_prefix="diarist-qdrant")
        self._lock = threading.Lock()

    @property
    def location(self) -> str:
        return self._address

    async def create_index(
        self, name: str, *, dimension: int, metric: Metric = "cosine", partition_by: str | None = None
    ) -> None:
        settings = check_settings(name, dimension, metric, partition_by)

        def create(client: QdrantClient) -> Settings:
            found = _settings(client, name)
            if found is None:
                try:
                    self._create(client, name, settings)
                except (ValueError, UnexpectedResponse):
                    if _settings(client, name) is None:  # otherwise another process has created it
                        raise
            return _settings(client, name) or settings

        check_same(name, await self._run("create an index", create), settings)

    async def upsert(
        self,
        index: str,
        ids: Sequence[str],
        vectors: Sequence[Sequence[float]],
        metadata: Sequence[Metadata] | None = None,
    ) -> None:
        def upsert(client: QdrantClient) -> None:
            rows = check_rows(index, _the_settings(client, index), ids, vectors, metadata)
            points = [
                q.PointStruct(
                    id=_point(row.id),
                    vector=list(row.vector),
                    payload={
                        "id": row.id,
                        "metadata": row.metadata,
                        **{_key(key): value for key, value in row.metadata.items()},
                    },
                )
                for row in rows
            ]
            for start in range(0, len(points), _BATCH):
                client.upsert(_collection(index), points[start : start + _BATCH], wait=True)

        await self._run("upsert", upsert)

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

        def query(client: QdrantClient) -> list[VectorHit]:
            settings = _the_settings(client, index)
            wanted = list(check_vector(index, settings, vector))
            found = client.query_points(
                _collection(index), query=wanted, limit=top_k, query_filter=_condition(node), with_payload=True
            )
            hits: list[VectorHit] = []
            for point in found.points:
                score = 1 / (1 + point.score) if settings.metric == "euclidean" else point.score
                if threshold is None or score >= threshold:
                    payload = point.payload or {}
                    hits.append(VectorHit(id=payload["id"], score=score, metadata=payload["metadata"]))
            return hits

        return await self._run("query", query)

    async def get(self, index: str, ids: Sequence[str]) -> dict[str, VectorRecord]:
        def get(client: QdrantClient) -> dict[str, VectorRecord]:
            _the_settings(client, index)
            points = [_point(id) for id in ids]
            found = client.retrieve(_collection(index), points, with_payload=True, with_vectors=True) if points else []
            records: dict[str, VectorRecord] = {}
            for point in found:
                payload, vector = point.payload or {}, cast(list[float], point.vector)
                id = payload["id"]
                records[id] = VectorRecord(id=id, vector=list(vector), metadata=payload["metadata"])
            return records

        return await self._run("get", get)

    async def delete(self, index: str, *, ids: Sequence[str] | None = None, filter: Filter | None = None) -> int:
        node = check_delete(ids, filter)

        def delete(client: QdrantClient) -> int:
            _the_settings(client, index)
            named: list[Any] = [_point(id) for id in ids or ()]
            wanted = _condition(node) if node is not None else q.Filter(must=[q.HasIdCondition(has_id=named)])
            count = client.count(_collection(index), count_filter=wanted, exact=True).count
            if count:
                client.delete(_collection(index), q.FilterSelector(filter=wanted), wait=True)
            return count

        return await self._run("delete", delete)

    async def describe(self, name: str) -> IndexInfo | None:
        def describe(client: QdrantClient) -> IndexInfo | None:
            if (found := _settings(client, name)) is None:
                return None
            count = client.count(_collection(name), exact=True).count
            return IndexInfo(name=name, dimension=found.dimension, metric=found.metric, count=count)

        return await self._run("describe", describe)

    async def list_indexes(self) -> list[str]:
        def names(client: QdrantClient) -> list[str]:
            found = [each.name for each in client.get_collections().collections]
            coded = [name.removeprefix(_PREFIX).upper() for name in found if name.startswith(_PREFIX)]
            return sorted(b32decode(name + "=" * (-len(name) % 8)).decode() for name in coded)

        return await self._run("list indexes", names)

    async def delete_index(self, name: str) -> bool:
        def delete(client: QdrantClient) -> bool:
            return _settings(client, name) is not None and bool(client.delete_collection(_collection(name)))

        return await self._run("delete an index", delete)

    async def purge(self) -> tuple[str, ...]:
        return (f"{self.location}: Qdrant keeps deleted vectors in its segments until it optimizes them",)

    async def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            await asyncio.get_running_loop().run_in_executor(self._threads, client.close)

    def _create(self, client: QdrantClient, name: str, settings: Settings) -> None:
        client.create_collection(
            _collection(name),
            vectors_config=q.VectorParams(size=settings.dimension, distance=_DISTANCES[settings.metric]),
            metadata={"partition_by": settings.partition_by},
        )
        if self._remote and settings.partition_by is not None:
            schema = q.KeywordIndexParams(type=q.KeywordIndexType.KEYWORD, is_tenant=True)
            client.create_payload_index(_collection(name), _key(settings.partition_by), schema)

    async def _run(self, doing: str, work: Callable[[QdrantClient], T]) -> T:
        def run() -> T:
            try:
                return work(self._opened())
            except (ApiException, OSError, RuntimeError, ValueError) as error:
                raise StorageError(f"cannot {doing} in {self._address}: {error}") from error

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    def _opened(self) -> QdrantClient:
        with self._lock:
            if self._client is None:
                if self._remote:
                    self._client = QdrantClient(
                        url=self._address, api_key=self._api_key, timeout=self._timeout, check_compatibility=False
                    )
                elif self._address == ":memory:":
                    self._client = QdrantClient(":memory:")
                else:
                    self._client = QdrantClient(path=self._address)
            return self._client


def _collection(name: str) -> str:
    """Return the collection's name: the index's name, encoded so that Qdrant and every file system accept it."""
    return _PREFIX + b32encode(name.encode()).decode().rstrip("=").lower()


def _point(id: str) -> str:
    """Return the UUID for an id, since Qdrant's ids are numbers or UUIDs."""
    return str(uuid5(_SPACE, id))


def _settings(client: QdrantClient, name: str) -> Settings | None:
    try:
        config = client.get_collection(_collection(name)).config
    except ValueError:  # raised by the local mode
        return None
    except UnexpectedResponse as error:
        if error.status_code == 404:
            return None
        raise
    params = config.params.vectors
    assert isinstance(params, q.VectorParams)
    return Settings(params.size, _METRICS[params.distance], (config.metadata or {}).get("partition_by"))


def _the_settings(client: QdrantClient, name: str) -> Settings:
    found = _settings(client, name)
    if found is None:
        raise not_found(name)
    return found


# --- filters -----------------------------------------------------------------------------------------------

# Qdrant reads a key with dots as a path. So metadata is stored twice: unchanged, and under encoded keys for filters.
_NOTHING = q.HasIdCondition(has_id=[])


def _key(key: str) -> str:
    """Return the payload key of a metadata key."""
    return f"key_{key.encode().hex()}"


def _condition(node: Node) -> q.Filter:
    match node:
        case AllOf(nodes):
            return q.Filter(must=[_condition(inner) for inner in nodes])
        case AnyOf(nodes):
            return q.Filter(should=[_condition(inner) for inner in nodes] or [_NOTHING])
        case Not(inner):
            return q.Filter(must_not=[_condition(inner)])
        case Compare():
            key = _key(node.key)
            match node.operator:
                case "$eq":
                    return q.Filter(must=[_equals(key, node.value)])
                case "$in":
                    return q.Filter(should=[_equals(key, value) for value in node.value] or [_NOTHING])
                case "$exists":
                    missing = q.IsEmptyCondition(is_empty=q.PayloadField(key=key))
                    return q.Filter(must_not=[missing]) if node.value else q.Filter(must=[missing])
                case ordered:
                    return q.Filter(must=[q.FieldCondition(key=key, range=q.Range(**{ordered[1:]: node.value}))])


def _equals(key: str, value: Value) -> q.FieldCondition:
    if is_number(value):
        number = float(value)
        return q.FieldCondition(key=key, range=q.Range(gte=number, lte=number))
    assert isinstance(value, str | bool)
    return q.FieldCondition(key=key, match=q.MatchValue(value=value))
