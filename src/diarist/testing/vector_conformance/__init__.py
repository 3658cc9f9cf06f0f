"""The tests that every vector store must pass. They need pytest and anyio's plugin of it.

A back end's test file has a subclass of ``VectorStoreConformance`` with a fixture ``store`` that gives a fresh, empty
store; where several objects can share the same data, also a fixture ``second_store``.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in ("filters", "indexes", "queries", "rows")))

from diarist.testing.vector_conformance.filters import FilterConformance  # noqa: E402 - the line above comes first
from diarist.testing.vector_conformance.indexes import IndexConformance  # noqa: E402
from diarist.testing.vector_conformance.queries import QueryConformance  # noqa: E402
from diarist.testing.vector_conformance.rows import RowConformance  # noqa: E402
from diarist.vectors import VectorStore  # noqa: E402

__all__ = ["VectorStoreConformance"]


@pytest.mark.anyio
class VectorStoreConformance(IndexConformance, RowConformance, QueryConformance, FilterConformance):
    """All of the contract of ``VectorStore``. Subclass it and define the fixture ``store``."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def second_store(self, store: VectorStore) -> VectorStore:
        """Another object on the same data; the same one where the back end has no other."""
        return store
