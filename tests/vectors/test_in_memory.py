"""The vector store in memory keeps the contract."""

from __future__ import annotations

import pytest

from diarist.testing import VectorStoreConformance
from diarist.vectors import InMemoryVectorStore, VectorStore


class TestInMemoryVectors(VectorStoreConformance):
    @pytest.fixture
    def store(self) -> VectorStore:
        return InMemoryVectorStore()
