"""The tables of vectors in PostgreSQL, and what is done with them inside one transaction.

Each index has a table of its own, since pgvector wants one dimension per column. It is named by a number: names from
outside are only ever values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import (
    Column,
    Connection,
    Identity,
    Integer,
    MetaData,
    Row,
    Table,
    Text,
    delete,
    event,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import insert

from diarist.database import Schema
from diarist.exceptions import StorageError
from diarist.postgres_database.patience import take_your_time
from diarist.vectors.base import IndexInfo, Metadata, Metric, VectorHit, VectorRecord
from diarist.vectors.checks import Settings, check_rows, check_vector, not_found
from diarist.vectors.filters import Node, partition_in
from diarist.vectors.postgres_filters import where
from diarist.vectors.postgres_index import HNSW, IVFFlat, Kind, check_fits

_MOST_SINGLE = 2_000
"""Dimensions; longer vectors have half precision."""
_OLDEST = (0, 8)

_tables = MetaData()
_Key = Text(collation="C")

indexes = Table(
    "diarist_vector_indexes",
    _tables,
    Column("number", Integer, Identity(always=True), primary_key=True),
    Column("name", _Key, nullable=False, unique=True),
    Column("dimension", Integer, nullable=False),
    Column("metric", Text, nullable=False),
    Column("partition_by", Text),
    Column("type", Text, nullable=False),
)


def _create_extension(target: Table, connection: Connection, **more: object) -> None:
    """In ``public``, where it is not there yet: in the schema of this store it would go with that, and take the
    columns of all others along."""
    public = connection.scalar(text("SELECT 1 FROM pg_namespace WHERE nspname = 'public'"))
    connection.execute(text(f"CREATE EXTENSION IF NOT EXISTS vector{' SCHEMA public' if public else ''}"))


event.listen(indexes, "before_create", _create_extension)

SCHEMA = Schema(name="vectors", version=1, tables=_tables)

_OPERATORS: dict[Metric, tuple[str, str, str]] = {
    "cosine": ("<=>", "cosine", "1 - {distance}"),
    "dot": ("<#>", "ip", "-{distance}"),
    "euclidean": ("<->", "l2", "1 / (1 + {distance})"),
}
"""pgvector's operator, the name of its class, and our score."""


@dataclass(frozen=True, slots=True)
class Index:
    """An index, its table, and where the extension's types and operators are."""

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
        return f"(embedding OPERATOR({self.home}.{operator}) CAST(:vector AS {self.vector_type}))"

    @property
    def score(self) -> str:
        return _OPERATORS[self.settings.metric][2].format(distance=self.distance)

    @property
    def operator_class(self) -> str:
        return f"{self.home}.{self.type}_{_OPERATORS[self.settings.metric][1]}_ops"


def find_index(connection: Connection, name: str) -> Index | None:
    row = connection.execute(select(indexes).where(indexes.c.name == name)).one_or_none()
    if row is None:
        return None
    return Index(row.number, Settings(row.dimension, row.metric, row.partition_by), row.type, _home(connection))


def the_index(connection: Connection, name: str) -> Index:
    """Raises NotFoundError."""
    found = find_index(connection, name)
    if found is None:
        raise not_found(name)
    return found


def create_index(connection: Connection, name: str, settings: Settings, kind: Kind) -> tuple[Settings, list[str]]:
    """The settings that the index has, which may be there already, and how it is searched, as SQL says it."""
    values = {"name": name, "type": "vector" if settings.dimension <= _MOST_SINGLE else "halfvec"}
    made = insert(indexes).values(**values, **settings._asdict()).on_conflict_do_nothing().returning(indexes.c.number)
    if connection.scalar(made) is not None:
        _create_table(connection, the_index(connection, name), kind)
    index = the_index(connection, name)
    return index.settings, [built for _, built in _searches(connection, index)]


def rebuild_index(connection: Connection, name: str, kind: Kind) -> None:
    """The old one serves queries until the new one is there."""
    take_your_time()
    connection.execute(select(indexes).where(indexes.c.name == name).with_for_update())  # one at a time
    index = the_index(connection, name)
    check_fits(kind, index.settings)
    old = _searches(connection, index)
    _create_search(connection, index, kind)
    for found, _ in old:
        connection.execute(text(f"DROP INDEX {found}"))


def _create_search(connection: Connection, index: Index, kind: Kind) -> None:
    if kind is not None:
        options = ", ".join(f"{name} = {value}" for name, value in kind.options.items())
        connection.execute(
            text(
                f"CREATE INDEX ON {index.table} USING {kind.method} (embedding {index.operator_class}) WITH ({options})"
            )
        )


def _searches(connection: Connection, index: Index) -> list[tuple[str, str]]:
    """The approximate indexes of a table: the name of each, quoted, and how it was built."""
    found = connection.execute(
        text(
            "SELECT indexrelid::regclass::text, amname, reloptions FROM pg_index"
            " JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam"
            " WHERE indrelid = CAST(:table AS regclass) AND amname IN ('hnsw', 'ivfflat')"
        ),
        {"table": index.table},
    )
    return [(row[0], f"{row[1]} ({', '.join(sorted(row[2] or ()))})") for row in found]


def list_indexes(connection: Connection) -> list[str]:
    return sorted(connection.scalars(select(indexes.c.name)))


def describe(connection: Connection, name: str) -> IndexInfo | None:
    found = find_index(connection, name)
    if found is None:
        return None
    count = connection.scalar(text(f"SELECT count(*) FROM {found.table}")) or 0
    return IndexInfo(name=name, dimension=found.settings.dimension, metric=found.settings.metric, count=count)


def delete_index(connection: Connection, name: str) -> bool:
    number = connection.scalar(delete(indexes).where(indexes.c.name == name).returning(indexes.c.number))
    if number is not None:
        connection.execute(text(f"DROP TABLE diarist_vectors_{number}"))
    return number is not None


def upsert(
    connection: Connection,
    name: str,
    ids: Sequence[str],
    given: Sequence[Sequence[float]],
    metadata: Sequence[Metadata] | None,
) -> None:
    index = the_index(connection, name)
    rows = [
        {
            "id": row.id,
            "part": row.partition,
            "metadata": orjson.dumps(row.metadata).decode(),
            "vector": _as_text(row.vector),
        }
        for row in check_rows(name, index.settings, ids, given, metadata)
    ]
    rows.sort(key=lambda row: row["id"])  # everybody locks in the same order
    if rows:
        connection.execute(
            text(
                f"INSERT INTO {index.table} (id, partition, metadata, embedding)"
                f" VALUES (:id, :part, CAST(:metadata AS jsonb), CAST(:vector AS {index.vector_type}))"
                " ON CONFLICT (id) DO UPDATE SET partition = excluded.partition, metadata = excluded.metadata,"
                " embedding = excluded.embedding"
            ),
            rows,
        )


def query(
    connection: Connection,
    name: str,
    vector: Sequence[float],
    top_k: int,
    node: Node,
    kind: Kind,
) -> list[VectorHit]:
    index = the_index(connection, name)
    values: dict[str, Any] = {"vector": _as_text(check_vector(name, index.settings, vector)), "most": top_k}
    _prepare_search(connection, kind, top_k)
    found = connection.execute(
        text(
            f"SELECT id, CAST({index.score} AS float8), metadata::text FROM {index.table}"
            f" WHERE {_conditions(index, node, values)} ORDER BY {index.distance} LIMIT :most"
        ),
        values,
    )
    hits = [VectorHit(id=row[0], score=row[1], metadata=orjson.loads(row[2])) for row in found]
    return sorted(hits, key=lambda hit: -hit.score)


def get(connection: Connection, name: str, ids: Sequence[str]) -> dict[str, VectorRecord]:
    index = the_index(connection, name)
    found = connection.execute(
        text(f"SELECT id, embedding::text, metadata::text FROM {index.table} WHERE id = ANY(CAST(:ids AS text[]))"),
        {"ids": list(ids)},
    )
    return {row[0]: _record(row) for row in found}


def delete_vectors(connection: Connection, name: str, ids: Sequence[str], node: Node | None) -> int:
    """Those with these ids, or those that pass the filter."""
    index = the_index(connection, name)
    values: dict[str, Any] = {}
    if node is None:
        values["ids"] = list(ids)
        condition = "id = ANY(CAST(:ids AS text[]))"
    else:
        condition = _conditions(index, node, values)
    return connection.execute(text(f"DELETE FROM {index.table} WHERE {condition}"), values).rowcount


def _create_table(connection: Connection, index: Index, kind: Kind) -> None:
    connection.execute(
        text(
            f'CREATE TABLE {index.table} (id text COLLATE "C" PRIMARY KEY, partition text COLLATE "C" NOT NULL,'
            f" metadata jsonb NOT NULL, embedding {index.vector_type} NOT NULL)"
        )
    )
    connection.execute(text(f"CREATE INDEX ON {index.table} (partition)"))
    _create_search(connection, index, kind)


def _prepare_search(connection: Connection, kind: Kind, top_k: int) -> None:
    """What holds for this transaction. A filter that few vectors pass makes the search go on until enough do."""
    match kind:
        case HNSW():
            wanted = min(1000, max(kind.ef_search, top_k))
            connection.execute(text(f"SET LOCAL hnsw.ef_search = {wanted}"))
            connection.execute(text("SET LOCAL hnsw.iterative_scan = strict_order"))
        case IVFFlat():
            connection.execute(text(f"SET LOCAL ivfflat.probes = {kind.probes}"))
            connection.execute(text("SET LOCAL ivfflat.iterative_scan = relaxed_order"))
        case None:
            # An index that another object made is left aside: this one promises the nearest.
            connection.execute(text("SET LOCAL enable_indexscan = off"))


def _conditions(index: Index, node: Node, values: dict[str, Any]) -> str:
    """Conditions for WHERE; what they compare with is added to ``values``."""
    conditions = where(node, values)
    partition = partition_in(node, index.settings.partition_by)
    if partition is None:
        return conditions
    values["part"] = partition
    return f"partition = CAST(:part AS text) AND {conditions}"


def _home(connection: Connection) -> str:
    """The schema of the extension, quoted. Raises StorageError for one that is missing or too old."""
    row = connection.execute(
        text(
            "SELECT quote_ident(nspname), extversion FROM pg_extension"
            " JOIN pg_namespace ON pg_namespace.oid = extnamespace WHERE extname = 'vector'"
        )
    ).one_or_none()
    if row is None:
        raise StorageError("the database has lost its extension: run CREATE EXTENSION vector")
    if tuple(int(number) for number in row[1].split(".")[:2]) < _OLDEST:
        raise StorageError(f"pgvector is {row[1]}, and 0.8 is needed: run ALTER EXTENSION vector UPDATE")
    return row[0]


def _as_text(numbers: Sequence[float]) -> str:
    return f"[{','.join(map(repr, numbers))}]"


def _record(row: Row[Any]) -> VectorRecord:
    id, vector, metadata = tuple(row)
    return VectorRecord(id=id, vector=orjson.loads(vector), metadata=orjson.loads(metadata))
