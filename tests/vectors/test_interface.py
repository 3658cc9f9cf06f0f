"""Every vector store has the methods of the interface."""

from __future__ import annotations

from inspect import signature

import pytest

from diarist.vectors import InMemoryVectorStore, SQLiteVectorStore, VectorStore
from diarist.vectors.postgres import PgVectorStore
from diarist.vectors.qdrant import QdrantVectorStore


@pytest.mark.parametrize("store", [SQLiteVectorStore, InMemoryVectorStore, PgVectorStore, QdrantVectorStore])
def test_each_method_has_the_arguments_of_the_interface(store: type[VectorStore]) -> None:
    for method in VectorStore.__abstractmethods__:
        given, wanted = [list(signature(getattr(each, method)).parameters.values()) for each in (store, VectorStore)]
        assert given[1:] == wanted[1:], method
