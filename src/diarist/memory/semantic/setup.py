"""Checks the options of ``Memory`` for semantic recall, and creates its index and vector store."""

from __future__ import annotations

from typing import Any, Literal, cast

from diarist.exceptions import ConfigError
from diarist.memory.semantic.config import SemanticRecallConfig
from diarist.memory.semantic.index import SemanticIndex
from diarist.models.embedders import Embedder, resolve_embedder
from diarist.storage.base import Storage
from diarist.vectors import VectorStore

VectorOption = VectorStore | Literal[False] | None


def semantic_index(
    storage: Storage, config: SemanticRecallConfig | None, vector: VectorOption, embedder: str | Embedder | None
) -> SemanticIndex | None:
    """Return the index of messages; None if no option needs one. Raises ConfigError for contradicting options."""
    if vector is False:
        if config is not None:
            raise ConfigError("semantic recall needs a vector store: leave out vector=False, or semantic_recall")
        if embedder is not None:
            raise ConfigError("embedder has no effect with vector=False")
        return None
    if not isinstance(cast(Any, vector), VectorStore | None):
        raise ConfigError(
            f"vector must be a vector store, such as SQLiteVectorStore('vectors.db'), not {vector!r}; "
            "without it, vectors are stored next to the messages"
        )
    if embedder is None:
        if config is None:  # without an embedder, the store is only used to delete vectors that another Memory wrote
            return None
        raise ConfigError(
            "semantic recall needs an embedder: pass embedder='openai/text-embedding-3-small' or another of your"
            " provider, or 'wordllama', which works offline"
        )
    options = config or SemanticRecallConfig()
    store = vector if vector is not None else _default_store(storage)
    return SemanticIndex(
        storage, store, resolve_embedder(embedder), chunk_length=options.chunk_length, metric=options.metric
    )


async def find_vectors(storage: Storage, vector: VectorOption, index: SemanticIndex | None) -> VectorStore | None:
    """Return the store that may have vectors of the storage's messages, written by this ``Memory`` or another one; None
    if there is no such store.

    Raises StorageError. Raises ConfigError if the database has vectors, but their store cannot be opened.
    """
    if vector is False:
        return None
    if vector is not None:
        return vector
    if index is not None:
        return index.vectors
    from diarist.storage import SQLiteStorage
    from diarist.storage.sql.storage import SQLStorage

    if not isinstance(storage, SQLStorage) or not await storage.has_tables("vectors"):
        return None
    if isinstance(storage, SQLiteStorage):
        return _default_store(storage)
    unreachable = ConfigError(
        f"{storage.location} also has vectors of messages: pass their store as vector=, or vector=False to keep them"
    )
    try:
        from diarist.storage.postgres import PostgresStorage
        from diarist.vectors.postgres import PgVectorStore
    except ImportError as error:  # so the storage is not a PostgresStorage
        raise unreachable from error
    if not isinstance(storage, PostgresStorage):
        raise unreachable
    return PgVectorStore(storage.url, schema=storage.schema)


def _default_store(storage: Storage) -> VectorStore:
    """Return a vector store next to the messages: in the same file, or in memory."""
    from diarist.storage import InMemoryStorage, SQLiteStorage

    try:
        if isinstance(storage, SQLiteStorage):
            from diarist.vectors import SQLiteVectorStore

            return SQLiteVectorStore(storage.location)
        if isinstance(storage, InMemoryStorage):
            from diarist.vectors import InMemoryVectorStore

            return InMemoryVectorStore()
    except ImportError as error:
        raise ConfigError("vectors in SQLite or in memory need an extra: pip install 'diarist[vectors]'") from error
    raise ConfigError(
        f"{type(storage).__name__} has no default vector store: pass vector=PgVectorStore(...) or another one"
    )
