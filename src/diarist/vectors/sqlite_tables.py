"""The tables of vectors in SQLite and libSQL. Needs no numpy, so every installation can migrate them."""

from __future__ import annotations

from diarist.databases.base import Connection, Schema

# diarist_vector_indexes: AUTOINCREMENT, so that the number of a deleted index is never used again.
# diarist_vector_partitions: tells readers if their cached copy of a partition is valid. A vector is new if its
# ``changed`` is above the copy's. ``erased`` is a random number; if it differs, vectors were deleted. A partition
# without vectors has no row.
# diarist_vectors.vector: 32-bit numbers in the machine's byte order.
_TABLES = (
    """CREATE TABLE diarist_vector_indexes (
        number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, dimension INTEGER NOT NULL,
        metric TEXT NOT NULL, partition_by TEXT
    )""",
    """CREATE TABLE diarist_vector_partitions (
        index_number INTEGER NOT NULL REFERENCES diarist_vector_indexes (number) ON DELETE CASCADE,
        partition TEXT NOT NULL, changed BIGINT NOT NULL, erased BIGINT NOT NULL, PRIMARY KEY (index_number, partition)
    )""",
    """CREATE TABLE diarist_vectors (
        index_number INTEGER NOT NULL REFERENCES diarist_vector_indexes (number) ON DELETE CASCADE,
        id TEXT NOT NULL, partition TEXT NOT NULL, changed BIGINT NOT NULL, metadata TEXT NOT NULL,
        vector BLOB NOT NULL, PRIMARY KEY (index_number, id)
    )""",
    "CREATE INDEX diarist_vectors_by_partition ON diarist_vectors (index_number, partition, changed)",
)


async def _create(connection: Connection) -> None:
    for statement in _TABLES:
        await connection.execute(statement)


SCHEMA = Schema(name="vectors", version=1, create=_create)
