"""The tables of vectors in SQLite, and what is done with them inside one transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import orjson
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    Table,
    Text,
    bindparam,
    delete,
    exists,
    func,
    select,
    update,
)
from sqlalchemy import Index as TableIndex
from sqlalchemy.dialects.sqlite import insert

from diarist.database import Schema
from diarist.vectors.base import IndexInfo, Metadata, Value, VectorRecord
from diarist.vectors.checks import Settings, check_rows, not_found
from diarist.vectors.filters import Node, partition_in, predicate

IDS_AT_ONCE = 500

_tables = MetaData()

indexes = Table(
    "diarist_vector_indexes",
    _tables,
    Column("number", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("dimension", Integer, nullable=False),
    Column("metric", Text, nullable=False),
    Column("partition_by", Text),
    sqlite_autoincrement=True,  # a number that was in use never means another index
)
_index_number = ForeignKey(indexes.c.number, ondelete="CASCADE")

# Who has read a partition sees here whether that still holds: rows with a higher ``changed`` than was read are new,
# and where ``erased`` has risen, rows have gone. A partition without vectors has no row here. ``erased`` of one that is
# made anew is above what it was before: the row ``_GONE`` of the index keeps the highest that there was.
partitions = Table(
    "diarist_vector_partitions",
    _tables,
    Column("index_number", Integer, _index_number, primary_key=True),
    Column("partition", Text, primary_key=True),
    Column("changed", BigInteger, nullable=False),
    Column("erased", BigInteger, nullable=False),
)

vectors = Table(
    "diarist_vectors",
    _tables,
    Column("index_number", Integer, ForeignKey(indexes.c.number, ondelete="CASCADE"), primary_key=True),
    Column("id", Text, primary_key=True),
    Column("partition", Text, nullable=False),
    Column("changed", BigInteger, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("vector", LargeBinary, nullable=False),  # 32-bit numbers in the machine's order
    TableIndex("diarist_vectors_by_partition", "index_number", "partition", "changed"),
)

_GONE = "\0"
"""No name of a partition: those have no NUL."""

SCHEMA = Schema(name="vectors", version=1, tables=_tables)


class Index(NamedTuple):
    """An index, and the number by which its rows know it."""

    number: int
    settings: Settings


class State(NamedTuple):
    """How far a partition has been changed."""

    changed: int
    erased: int


_FIND = select(indexes).where(indexes.c.name == bindparam("wanted"))
_of_index = vectors.c.index_number == bindparam("index")
_some = vectors.c.id.in_(bindparam("ids", expanding=True))
_GET = select(vectors.c.id, vectors.c.vector, vectors.c.metadata).where(_of_index, _some)
_WHERE = select(vectors.c.id, vectors.c.partition).where(_of_index, _some)
_DELETE = delete(vectors).where(_of_index, _some)
_ALL = select(vectors.c.id, vectors.c.metadata).where(_of_index)
_ALL_IN_PARTITION = _ALL.where(vectors.c.partition == bindparam("partition"))
_given = insert(vectors)
_UPSERT = _given.on_conflict_do_update(
    index_elements=["index_number", "id"],
    set_={name: _given.excluded[name] for name in ("partition", "changed", "vector", "metadata")},
)
_of_partition = (partitions.c.index_number == bindparam("index")) & (partitions.c.partition == bindparam("part"))
_STATE = select(partitions.c.changed, partitions.c.erased).where(_of_partition)
_CHANGE = (
    insert(partitions)
    .values(index_number=bindparam("index"), partition=bindparam("part"), changed=1, erased=bindparam("erased"))
    .on_conflict_do_update(index_elements=["index_number", "partition"], set_={"changed": partitions.c.changed + 1})
    .returning(partitions.c.changed)
)
_ERASE = update(partitions).where(_of_partition).values(erased=partitions.c.erased + 1)
_IS_LEFT = select(exists().where(_of_index, vectors.c.partition == bindparam("part")))
_DROP = delete(partitions).where(_of_partition).returning(partitions.c.erased)
_dropped = insert(partitions).values(
    index_number=bindparam("index"), partition=_GONE, changed=0, erased=bindparam("erased")
)
_REMEMBER = _dropped.on_conflict_do_update(
    index_elements=["index_number", "partition"],
    set_={"erased": func.max(partitions.c.erased, _dropped.excluded.erased)},
)
_CHANGED_SINCE = select(vectors.c.id, vectors.c.vector, vectors.c.metadata).where(
    _of_index, vectors.c.partition == bindparam("part"), vectors.c.changed > bindparam("since")
)


def find_index(connection: Connection, name: str) -> Index | None:
    row = connection.execute(_FIND, {"wanted": name}).one_or_none()
    return None if row is None else Index(row.number, Settings(row.dimension, row.metric, row.partition_by))


def the_index(connection: Connection, name: str) -> Index:
    """Raises NotFoundError."""
    found = find_index(connection, name)
    if found is None:
        raise not_found(name)
    return found


def create_index(connection: Connection, name: str, settings: Settings) -> Settings:
    """The settings that the index has, which may be there already."""
    connection.execute(insert(indexes).values(name=name, **settings._asdict()).on_conflict_do_nothing())
    return the_index(connection, name).settings


def list_indexes(connection: Connection) -> list[str]:
    return sorted(connection.scalars(select(indexes.c.name)))


def describe(connection: Connection, name: str) -> IndexInfo | None:
    found = find_index(connection, name)
    if found is None:
        return None
    count = connection.scalar(select(func.count()).select_from(vectors).where(_of_index), {"index": found.number})
    return IndexInfo(name=name, dimension=found.settings.dimension, metric=found.settings.metric, count=count or 0)


def delete_index(connection: Connection, name: str) -> bool:
    return connection.execute(delete(indexes).where(indexes.c.name == name)).rowcount > 0


def upsert(
    connection: Connection,
    name: str,
    ids: Sequence[str],
    given: Sequence[Sequence[float]],
    metadata: Sequence[Metadata] | None,
) -> None:
    index = the_index(connection, name)
    rows = check_rows(name, index.settings, ids, given, metadata)
    before = dict(_places(connection, index, [row.id for row in rows]))
    erased = state_of(connection, index, _GONE).erased
    changed = {
        part: connection.scalar(_CHANGE, {"index": index.number, "part": part, "erased": erased})
        for part in dict.fromkeys(row.partition for row in rows)
    }
    if rows:
        connection.execute(
            _UPSERT,
            [
                {
                    "index_number": index.number,
                    "id": row.id,
                    "partition": row.partition,
                    "changed": changed[row.partition],
                    "vector": row.vector.tobytes(),
                    "metadata": orjson.dumps(row.metadata).decode(),
                }
                for row in rows
            ],
        )
    _erase(connection, index, {before[row.id] for row in rows if before.get(row.id, row.partition) != row.partition})


def get(connection: Connection, name: str, ids: Sequence[str]) -> dict[str, VectorRecord]:
    index = the_index(connection, name)
    found: dict[str, VectorRecord] = {}
    for some in _batches(ids):
        for row in connection.execute(_GET, {"index": index.number, "ids": some}):
            numbers = list(memoryview(row.vector).cast("f"))
            found[row.id] = VectorRecord(id=row.id, vector=numbers, metadata=read_metadata(row.metadata))
    return found


def delete_vectors(connection: Connection, name: str, ids: Sequence[str], node: Node | None) -> int:
    """Those with these ids, or those that pass the filter."""
    index = the_index(connection, name)
    if node is not None:
        ids = _matching(connection, index, node)
    places = dict(_places(connection, index, ids))
    for some in _batches(list(places)):
        connection.execute(_DELETE, {"index": index.number, "ids": some})
    _erase(connection, index, set(places.values()))
    return len(places)


def state_of(connection: Connection, index: Index, partition: str) -> State:
    """Zeros where it has no vectors."""
    row = connection.execute(_STATE, {"index": index.number, "part": partition}).one_or_none()
    return State(0, 0) if row is None else State(*row)


def changed_since(connection: Connection, index: Index, partition: str, since: int) -> Sequence[Row[str, bytes, str]]:
    """Id, vector and metadata."""
    return connection.execute(_CHANGED_SINCE, {"index": index.number, "part": partition, "since": since}).all()


def partitions_of(connection: Connection, index: Index) -> list[str]:
    found = select(partitions.c.partition).where(
        partitions.c.index_number == index.number, partitions.c.partition != _GONE
    )
    return list(connection.scalars(found))


def read_metadata(text: str) -> dict[str, Value]:
    return orjson.loads(text)


def _matching(connection: Connection, index: Index, node: Node) -> list[str]:
    partition = partition_in(node, index.settings.partition_by)
    if partition is None:
        rows = connection.execute(_ALL, {"index": index.number})
    else:
        rows = connection.execute(_ALL_IN_PARTITION, {"index": index.number, "partition": partition})
    test = predicate(node)
    return [row.id for row in rows if test(read_metadata(row.metadata))]


def _places(connection: Connection, index: Index, ids: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Of those that are there, in which partition they are."""
    for some in _batches(ids):
        yield from ((row.id, row.partition) for row in connection.execute(_WHERE, {"index": index.number, "ids": some}))


def _erase(connection: Connection, index: Index, parts: Collection[str]) -> None:
    """Vectors have gone from these partitions, perhaps all of them."""
    for part in parts:
        place = {"index": index.number, "part": part}
        if connection.scalar(_IS_LEFT, place):
            connection.execute(_ERASE, place)
        else:
            erased = connection.scalar(_DROP, place) or 0
            connection.execute(_REMEMBER, {"index": index.number, "erased": erased + 1})


def _batches(ids: Sequence[str]) -> Iterable[list[str]]:
    return (list(ids[start : start + IDS_AT_ONCE]) for start in range(0, len(ids), IDS_AT_ONCE))
