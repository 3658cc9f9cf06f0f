"""Checks the options of ``Memory`` for semantic recall, and creates its index and vector store."""

from __future__ import annotations

from typing import Any, Literal, cast

from diarist.exceptions import ConfigError
from diarist.memory.semantic.config import SemanticRecallConfig
from diarist.memory.semantic.index import SemanticIndex
from diarist.memory.semantic.removal import VectorsBeside
from diarist.models.embedders import Embedder, resolve_embedder
from diarist.storage.base import Storage
from diarist.vectors import VectorStore

Vector = VectorStore | Literal[False] | None


def semantic_index(
    storage: Storage, config: SemanticRecallConfig | None, vector: Vector, embedder: str | Embedder | None
) -> SemanticIndex | None:
    """Return the index of messages; None if no option needs one. Raises ConfigError for contradicting options."""
    if vector is False:
        if config is not None:
            raise ConfigError("semantic recall needs a vector store: leave out vector=False, or semantic_recall")
        if embedder is not None:
            raise ConfigError("embedder has no effect with vector=False")
        return None
    if vector is not None and not isinstance(cast(Any, vector), VectorStore):
        raise ConfigError(
            f"vector must be a vector store, such as SQLiteVectorStore('vectors.db'), not {vector!r}; "
            "without it, vectors are stored next to the messages"
        )
    if embedder is None:
        if config is None:  # a vector store alone serves to remove vectors of other memories
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


def vectors_beside(storage: Storage, vector: Vector, index: SemanticIndex | None) -> VectorsBeside:
    """Return access to the vectors that this memory or another one made of the storage's messages."""
    if vector is False:
        return VectorsBeside(None)
    store = vector if vector is not None else index.vectors if index is not None else None
    if store is not None:
        return VectorsBeside(lambda: store)
    return VectorsBeside(lambda: _same_database(storage), lambda: _has_vectors(storage))


async def _has_vectors(storage: Storage) -> bool:
    """Return True if the database of the messages has vectors, without creating tables."""
    from diarist.storage import InMemoryStorage

    if isinstance(storage, InMemoryStorage):
        return False
    from diarist.storage.sql.storage import SQLStorage

    return isinstance(storage, SQLStorage) and await storage.has_tables("vectors")


def _same_database(storage: Storage) -> VectorStore:
    """Return the vector store in the database of the messages."""
    from diarist.storage import SQLiteStorage

    if isinstance(storage, SQLiteStorage):
        return _default_store(storage)
    try:
        from diarist.storage.postgres import PostgresStorage
        from diarist.vectors.postgres import PgVectorStore
    except ImportError as error:  # so the storage is not a PostgresStorage
        raise _unreachable(storage) from error
    if not isinstance(storage, PostgresStorage):
        raise _unreachable(storage)
    return PgVectorStore(storage.url, schema=storage.schema)


def _unreachable(storage: Storage) -> ConfigError:
    return ConfigError(
        f"{storage.location} has vectors, too: pass vector= with their store, or vector=False to leave them"
    )


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
