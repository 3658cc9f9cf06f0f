"""Short words for the tests of a vector store."""

from __future__ import annotations

from typing import Any

from diarist.vectors import Metadata, VectorStore

EAST, NORTH, WEST, SOUTH = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]
NORTH_EAST = [1.0, 1.0, 0.0]

STRANGE = [
    "Ärger – 東京 👍",
    "'; DROP TABLE diarist_vectors; --",
    '"quoted" \\ and \\" more',
    "%_*?[]{}$.:/",
    " leading and trailing ",
    "line\nbreak\ttab",
    "a" * 200,
]
"""Texts that are data, whatever they look like."""


async def filled(store: VectorStore, rows: dict[str, Metadata], index: str = "i") -> None:
    """An index with a vector for each of the rows, the first nearest to EAST, and so on."""
    await store.create_index(index, dimension=3)
    vectors = [[1.0, 0.1 * number, 0.0] for number in range(len(rows))]
    await store.upsert(index, list(rows), vectors, list(rows.values()))


async def found(store: VectorStore, filter: dict[str, Any] | None = None, index: str = "i", **more: Any) -> list[str]:
    """The ids of what a query finds, nearest to EAST first."""
    return [hit.id for hit in await store.query(index, EAST, filter=filter, **more)]
