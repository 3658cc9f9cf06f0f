"""Vector stores: nearest-neighbour search over vectors with metadata.

The abstract ``VectorStore``, and stores in memory and in an SQLite file. ``PgVectorStore`` is in
``diarist.vectors.postgres`` and ``QdrantVectorStore`` in ``diarist.vectors.qdrant``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diarist.vectors.base import Filter, IndexInfo, Metadata, Metric, VectorHit, VectorRecord, VectorStore

if TYPE_CHECKING:
    from diarist.vectors.sqlite import InMemoryVectorStore, SQLiteVectorStore

__all__ = [
    "Filter",
    "InMemoryVectorStore",
    "IndexInfo",
    "Metadata",
    "Metric",
    "SQLiteVectorStore",
    "VectorHit",
    "VectorRecord",
    "VectorStore",
]

if not TYPE_CHECKING:  # type checkers would otherwise accept any name

    def __getattr__(name: str) -> Any:
        """Import a store at first use, since numpy imports slowly."""
        if name in ("InMemoryVectorStore", "SQLiteVectorStore"):
            try:
                from diarist.vectors import sqlite
            except ModuleNotFoundError as error:
                raise ImportError(f"{name} needs an extra of diarist: pip install 'diarist[vectors]'") from error
            return getattr(sqlite, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """Return the public names, without loading them."""
        return sorted(__all__)
