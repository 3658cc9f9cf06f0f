"""Vectors in a PostgreSQL database with the extension pgvector.

Each index has a table of its own, since pgvector requires one dimension per column. The table's name is a number: names
from callers are only used as values.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import orjson

from diarist.checks import whole
from diarist.databases.base import Connection, OnDatabase, Schema, reads, writes
from diarist.databases.postgres import PostgresDatabase
from diarist.exceptions import ConfigError, NotFoundError, StorageError
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
from diarist.vectors.filters import AllOf, AnyOf, Compare, Node, Not, partition_in

__all__ = ["HNSW", "IVFFlat", "PgVectorStore"]

logger = logging.getLogger("diarist")

_MOST_SINGLE = 2_000
"""Maximum dimension for single precision; longer vectors are stored with half precision."""
_OLDEST = (0, 8)

# --- kinds of approximate search ---------------------------------------------------------------------------

MOST_DIMENSIONS = 16_000
MOST_INDEXED = 4_000
"""Maximum dimension of an approximate index, at half precision."""


@dataclass(frozen=True, kw_only=True)
class HNSW:
    """An HNSW index, a graph of near vectors: quick and precise, slower to build. The limits are pgvector's.

    Attributes:
        m: Neighbours of each vector, 2 to 100.
        ef_construction: Candidates while building, from twice ``m`` to 1,000.
        ef_search: Candidates of a query, 1 to 1,000. Higher values find more of the nearest vectors and take longer.
            pgvector's own default is 40; with 100, about 99 of 100 of the nearest are found.
    """

    method: ClassVar[str] = "hnsw"
    """PostgreSQL's name of the index method."""
    m: int = 16
    ef_construction: int = 64
    ef_search: int = 100

    def __post_init__(self) -> None:
        whole("HNSW", "m", self.m, least=2, most=100)
        whole("HNSW", "ef_construction", self.ef_construction, least=max(4, 2 * self.m), most=1000)
        whole("HNSW", "ef_search", self.ef_search, least=1, most=1000)

    @property
    def options(self) -> dict[str, int]:
        """Options for building the index."""
        return {"m": self.m, "ef_construction": self.ef_construction}


@dataclass(frozen=True, kw_only=True)
class IVFFlat:
    """An IVFFlat index, lists of near vectors: quick to build, less precise. See ``PgVectorStore.rebuild_index``.

    Attributes:
        lists: Number of lists, 1 to 32,768: rows / 1,000, or the square root of rows beyond a million.
        probes: Number of lists that a query searches, at most ``lists``.
    """

    method: ClassVar[str] = "ivfflat"
    lists: int = 100
    probes: int = 10

    def __post_init__(self) -> None:
        whole("IVFFlat", "lists", self.lists, least=1, most=32_768)
        whole("IVFFlat", "probes", self.probes, least=1, most=32_768)

    @property
    def options(self) -> dict[str, int]:
        """Options for building the index."""
        return {"lists": self.lists}


Kind = HNSW | IVFFlat | None
"""Kind of search of an index; None is exact search."""


def as_built(kind: HNSW | IVFFlat) -> str:
    """Return the method and options of an index, such as ``hnsw (ef_construction=64, m=16)``."""
    return f"{kind.method} ({', '.join(sorted(f'{name}={value}' for name, value in kind.options.items()))})"


def check_fits(kind: Kind, settings: Settings) -> None:
    """Raise ConfigError if pgvector does not support such an index."""
    dimension = settings.dimension
    if dimension > MOST_DIMENSIONS or (kind is not None and dimension > MOST_INDEXED):
        raise ConfigError(
            f"pgvector takes up to {MOST_INDEXED:,} dimensions with HNSW or IVFFlat and"
            f" {MOST_DIMENSIONS:,} with index=None, not {dimension:,}; many embedders can return fewer"
        )
    if isinstance(kind, IVFFlat) and dimension == 1 and settings.metric != "euclidean":
        raise ConfigError(f"IVFFlat with the metric {settings.metric} needs 2 dimensions or more: use HNSW() or None")


# --- tables ------------------------------------------------------------------------------------------------


async def _create(connection: Connection) -> None:
    """Create the extension (in ``public``), if it is missing, and the table of indexes.

    If the extension were in this store's schema, dropping the schema would also drop vector columns of other schemas.
    """
    public = await connection.value("SELECT 1 FROM pg_namespace WHERE nspname = 'public'")
    await connection.execute(f"CREATE EXTENSION IF NOT EXISTS vector{' SCHEMA public' if public else ''}")
    await connection.execute(
        """CREATE TABLE diarist_vector_indexes (
            number INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name {key} NOT NULL UNIQUE,
            dimension INTEGER NOT NULL, metric TEXT NOT NULL, partition_by TEXT, type TEXT NOT NULL
        )"""
    )


SCHEMA = Schema(name="vectors", version=1, create=_create)


# --- transactions ------------------------------------------------------------------------------------------

_OPERATORS: dict[Metric, tuple[str, str, str]] = {
    "cosine": ("<=>", "cosine", "1 - {distance}"),
    "dot": ("<#>", "ip", "-{distance}"),
    "euclidean": ("<->", "l2", "1 / (1 + {distance})"),
}
"""pgvector's operator, the name of its class, and our score."""


@dataclass(frozen=True, slots=True)
class _Index:
    """An index, its table, and the schema of the extension's types and operators."""

    number: int
    settings: Settings
    type: str
    home: str

    @property
    def table(self) -> str:
        return f"diarist_vectors_{self.number}"

    @property
    def vector_type(self) -> str:
        return f"{self.home}.{self.type}({self.settings.dimension})"

    @property
    def distance(self) -> str:
        operator = _OPERATORS[self.settings.metric][0]
        return f"(embedding OPERATOR({self.home}.{operator}) CAST(CAST(:vector AS text) AS {self.vector_type}))"

    @property
    def score(self) -> str:
        return _OPERATORS[self.settings.metric][2].format(distance=self.distance)

    @property
    def operator_class(self) -> str:
        return f"{self.home}.{self.type}_{_OPERATORS[self.settings.metric][1]}_ops"


async def _find_index(connection: Connection, name: str) -> _Index:
    """Return the index. Raises NotFoundError."""
    row = await connection.first(
        "SELECT number, dimension, metric, partition_by, type, quote_ident(nspname), extversion"
        " FROM diarist_vector_indexes LEFT JOIN (pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace)"
        " ON extname = 'vector' WHERE name = :name",
        name=name,
    )
    if row is None:
        raise not_found(name)
    number, dimension, metric, partition_by, type, home, version = row
    if home is None:
        raise StorageError("the extension vector was removed from the database: run CREATE EXTENSION vector")
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise StorageError(f"pgvector has version {version}, but 0.8 is needed: run ALTER EXTENSION vector UPDATE")
    return _Index(number, Settings(dimension, metric, partition_by), type, home)


async def _create_search(connection: Connection, index: _Index, kind: Kind) -> None:
    if kind is not None:
        options = ", ".join(f"{name} = {value}" for name, value in kind.options.items())
        await connection.execute(
            f"CREATE INDEX ON {index.table} USING {kind.method} (embedding {index.operator_class}) WITH ({options})"
        )


async def _searches(connection: Connection, index: _Index) -> list[tuple[str, str]]:
    """Return the approximate indexes of a table: the quoted name of each, and its method and options."""
    found = await connection.fetch(
        "SELECT indexrelid::regclass::text, amname, reloptions FROM pg_index"
        " JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam"
        " WHERE indrelid = CAST(CAST(:table AS text) AS regclass) AND amname IN ('hnsw', 'ivfflat')",
        table=index.table,
    )
    return [(name, f"{method} ({', '.join(sorted(options or ()))})") for name, method, options in found]


def _conditions(index: _Index, node: Node, values: dict[str, Any]) -> str:
    """Return conditions for WHERE. Adds their parameters to ``values``."""
    conditions = _where(node, values)
    partition = partition_in(node, index.settings.partition_by)
    if partition is None:
        return conditions
    values["part"] = partition
    return f"partition = CAST(:part AS text) AND {conditions}"


def _as_text(numbers: Sequence[float]) -> str:
    return f"[{','.join(map(repr, numbers))}]"


async def _upsert(
    connection: Connection,
    index: str,
    ids: Sequence[str],
    vectors: Sequence[Sequence[float]],
    metadata: Sequence[Metadata] | None = None,
) -> None:
    found = await _find_index(connection, index)
    rows = [
        {
            "id": row.id,
            "part": row.partition,
            "metadata": orjson.dumps(row.metadata).decode(),
            "vector": _as_text(row.vector),
        }
        for row in check_rows(index, found.settings, ids, vectors, metadata)
    ]
    rows.sort(key=lambda row: row["id"])  # all transactions lock rows in the same order
    await connection.execute_many(
        f"INSERT INTO {found.table} (id, partition, metadata, embedding) VALUES (:id, :part,"
        f" CAST(CAST(:metadata AS text) AS jsonb), CAST(CAST(:vector AS text) AS {found.vector_type}))"
        " ON CONFLICT (id) DO UPDATE SET partition = excluded.partition, metadata = excluded.metadata,"
        " embedding = excluded.embedding",
        rows,
    )


async def _get(connection: Connection, index: str, ids: Sequence[str]) -> dict[str, VectorRecord]:
    found = await _find_index(connection, index)
    rows = await connection.fetch(
        f"SELECT id, embedding::text, metadata::text FROM {found.table} WHERE id {{any ids}}", ids=list(ids)
    )
    return {
        id: VectorRecord(id=id, vector=orjson.loads(vector), metadata=orjson.loads(metadata))
        for id, vector, metadata in rows
    }


async def _delete(
    connection: Connection, index: str, *, ids: Sequence[str] | None = None, filter: Filter | None = None
) -> int:
    node = check_delete(ids, filter)
    found = await _find_index(connection, index)
    values: dict[str, Any] = {} if node is not None else {"ids": list(ids or ())}
    condition = "id {any ids}" if node is None else _conditions(found, node, values)
    return await connection.execute(f"DELETE FROM {found.table} WHERE {condition}", **values)


async def _describe(connection: Connection, name: str) -> IndexInfo | None:
    try:
        found = await _find_index(connection, name)
    except NotFoundError:
        return None
    count = await connection.value(f"SELECT count(*) FROM {found.table}")
    return IndexInfo(name=name, dimension=found.settings.dimension, metric=found.settings.metric, count=count)


async def _list_indexes(connection: Connection) -> list[str]:
    return sorted(row[0] for row in await connection.fetch("SELECT name FROM diarist_vector_indexes"))


async def _delete_index(connection: Connection, name: str) -> bool:
    number = await connection.value("DELETE FROM diarist_vector_indexes WHERE name = :name RETURNING number", name=name)
    if number is not None:
        await connection.execute(f"DROP TABLE diarist_vectors_{number}")
    return number is not None


# --- filters -----------------------------------------------------------------------------------------------

_SIGNS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}


def _where(node: Node, values: dict[str, Any]) -> str:
    """Return a condition on the column ``metadata``, never null. Adds its parameters to ``values``."""
    match node:
        case AllOf(nodes):
            return " AND ".join(f"({_where(inner, values)})" for inner in nodes) or "true"
        case AnyOf(nodes):
            return " OR ".join(f"({_where(inner, values)})" for inner in nodes) or "false"
        case Not(inner):
            return f"NOT ({_where(inner, values)})"
        case Compare():
            found = f"metadata -> CAST({_named(node.key, values)} AS text)"
            match node.operator:
                case "$exists":
                    return f"({found}) IS {'NOT ' if node.value else ''}NULL"
                case "$eq" | "$in":
                    several = node.value if node.operator == "$in" else [node.value]
                    tests = [f"coalesce({found} = {_json(each, values)}, false)" for each in several]
                    return " OR ".join(tests) or "false"
                case ordered:
                    # JSON booleans sort above all numbers, so check the type.
                    compared = f"{found} {_SIGNS[ordered]} {_json(node.value, values)}"
                    return f"coalesce(jsonb_typeof({found}) = 'number' AND {compared}, false)"


def _json(value: object, values: dict[str, Any]) -> str:
    return f"CAST(CAST({_named(orjson.dumps(value).decode(), values)} AS text) AS jsonb)"


def _named(value: str, values: dict[str, Any]) -> str:
    name = f"value_{len(values)}"
    values[name] = value
    return f":{name}"


# --- the store ---------------------------------------------------------------------------------------------


class _Transactions(OnDatabase):
    """The methods of a store that are one transaction each."""

    upsert = writes(_upsert)
    get = reads(_get)
    delete = writes(_delete)
    describe = reads(_describe)
    list_indexes = reads(_list_indexes)
    delete_index = writes(_delete_index)


class PgVectorStore(_Transactions, VectorStore):
    """Vectors in a PostgreSQL database, which any number of processes and machines may share.

    The server needs the extension ``vector`` (pgvector), version 0.8 or newer. If the database does not have it, it is
    created in the schema ``public`` at first use, which requires the privilege to do so.

    Args:
        url, schema, pool_size, busy_timeout, statement_timeout: As for ``PostgresStorage``; the database may be the
            same. Building an index has no limit.
        index: Kind of search for new indexes: approximate with ``HNSW()`` or ``IVFFlat()``, or exact with None. An
            existing index keeps its kind until ``rebuild_index``, and a warning is logged; ``ef_search`` and ``probes``
            apply to queries at once.

    Raises ConfigError for other kinds of URL, or an invalid ``index``. Needs the extra ``postgres``.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str | None = None,
        index: HNSW | IVFFlat | None = HNSW(),
        pool_size: int = 10,
        busy_timeout: float = 30.0,
        statement_timeout: float = 30.0,
    ) -> None:
        if index is not None and not isinstance(cast(Any, index), HNSW | IVFFlat):
            raise ConfigError(f"index must be HNSW(...), IVFFlat(...) or None, not {index!r}")
        database = PostgresDatabase(
            url,
            SCHEMA,
            schema=schema,
            pool_size=pool_size,
            busy_timeout=busy_timeout,
            statement_timeout=statement_timeout,
        )
        super().__init__(database)
        self._kind: Kind = index

    async def create_index(
        self, name: str, *, dimension: int, metric: Metric = "cosine", partition_by: str | None = None
    ) -> None:
        settings = check_settings(name, dimension, metric, partition_by)
        check_fits(self._kind, settings)

        async def create(connection: Connection) -> tuple[Settings, list[str]]:
            made = await connection.execute(
                "INSERT INTO diarist_vector_indexes (name, dimension, metric, partition_by, type)"
                " VALUES (:name, :dimension, :metric, :partition_by, :type) ON CONFLICT DO NOTHING",
                name=name,
                type="vector" if dimension <= _MOST_SINGLE else "halfvec",
                **settings._asdict(),
            )
            index = await _find_index(connection, name)
            if made:
                await connection.execute(
                    f'CREATE TABLE {index.table} (id text COLLATE "C" PRIMARY KEY, partition text COLLATE "C" NOT NULL,'
                    f" metadata jsonb NOT NULL, embedding {index.vector_type} NOT NULL)"
                )
                await connection.execute(f"CREATE INDEX ON {index.table} (partition)")
                await _create_search(connection, index, self._kind)
            return index.settings, [built for _, built in await _searches(connection, index)]

        found, searches = await self.database.write(create)
        check_same(name, found, settings)
        if self._kind is not None and searches != [as_built(self._kind)]:
            logger.warning(
                "index %r of %s is searched by %s, not by %s: rebuild_index(%r) changes that",
                name,
                self.location,
                ", ".join(searches) or "looking through all of it",
                as_built(self._kind),
                name,
            )

    async def rebuild_index(self, name: str) -> None:
        """Rebuild the approximate index from the stored vectors, as the store's ``index`` says. Blocks writers.

        Use it to change the kind or the options of an index, or to remove the index. ``IVFFlat`` computes its lists
        when it is built, so it finds little until it is rebuilt with some thousand vectors; rebuild it again after
        strong growth. Other kinds need no regular rebuilding.

        Raises NotFoundError, StorageError; ConfigError if pgvector does not support such an index.
        """

        async def rebuild(connection: Connection) -> None:
            connection.lift_time_limit()
            await connection.first(  # one rebuild at a time
                "SELECT number FROM diarist_vector_indexes WHERE name = :name FOR UPDATE", name=name
            )
            index = await _find_index(connection, name)
            check_fits(self._kind, index.settings)
            old = await _searches(connection, index)  # the old ones serve queries until the new one is ready
            await _create_search(connection, index, self._kind)
            for found, _ in old:
                await connection.execute(f"DROP INDEX {found}")

        await self.database.write(rebuild)

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

        async def query(connection: Connection) -> list[VectorHit]:
            found = await _find_index(connection, index)
            values: dict[str, Any] = {"vector": _as_text(check_vector(index, found.settings, vector)), "most": top_k}
            # These settings apply to this transaction. With a selective filter, the search continues until enough
            # vectors match.
            match self._kind:
                case HNSW(ef_search=candidates):
                    await connection.execute(f"SET LOCAL hnsw.ef_search = {min(1000, max(candidates, top_k))}")
                    await connection.execute("SET LOCAL hnsw.iterative_scan = strict_order")
                case IVFFlat(probes=probes):
                    await connection.execute(f"SET LOCAL ivfflat.probes = {probes}")
                    await connection.execute("SET LOCAL ivfflat.iterative_scan = relaxed_order")
                case None:
                    # Ignore an approximate index that another object created: this store's search is exact.
                    await connection.execute("SET LOCAL enable_indexscan = off")
            rows = await connection.fetch(
                f"SELECT id, CAST({found.score} AS float8), metadata::text FROM {found.table}"
                f" WHERE {_conditions(found, node, values)} ORDER BY {found.distance} LIMIT :most",
                **values,
            )
            hits = [VectorHit(id=id, score=score, metadata=orjson.loads(metadata)) for id, score, metadata in rows]
            return sorted(hits, key=lambda hit: -hit.score)

        hits = await self.database.read(query)
        return [hit for hit in hits if threshold is None or hit.score >= threshold]
