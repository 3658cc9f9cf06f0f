"""From the options of ``Memory`` to the parts of semantic recall."""

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


def semantic_config(value: bool | SemanticRecallConfig) -> SemanticRecallConfig | None:
    """The configuration of semantic recall; None where it is off. Raises ConfigError."""
    if value is True:
        return SemanticRecallConfig()
    if value is False:
        return None
    if not isinstance(cast(Any, value), SemanticRecallConfig):
        raise ConfigError(f"semantic_recall is True, False or a SemanticRecallConfig, not {value!r}")
    return value


def semantic_index(
    storage: Storage, config: SemanticRecallConfig | None, vector: Vector, embedder: str | Embedder | None
) -> SemanticIndex | None:
    """The index of messages; None where nothing asks for one. Raises ConfigError for options that contradict."""
    if vector is False:
        if config is not None:
            raise ConfigError("semantic recall needs a vector store: leave out vector=False, or semantic_recall")
        if embedder is not None:
            raise ConfigError("embedder has no effect with vector=False")
        return None
    if vector is not None and not isinstance(cast(Any, vector), VectorStore):
        raise ConfigError(
            f"vector must be a vector store, such as SQLiteVectorStore('vectors.db'), not {vector!r}; "
            "left out, vectors are kept beside the messages"
        )
    if embedder is None:
        if config is None:  # a store alone is for removing what others have put there
            return None
        raise ConfigError(
            "semantic recall needs an embedder: pass embedder='openai/text-embedding-3-small' or another of your"
            " provider's, or 'wordllama', which works offline"
        )
    options = config or SemanticRecallConfig()
    store = vector if vector is not None else _default_store(storage)
    return SemanticIndex(
        storage, store, resolve_embedder(embedder), chunk_length=options.chunk_length, metric=options.metric
    )


def vectors_beside(storage: Storage, vector: Vector, index: SemanticIndex | None) -> VectorsBeside:
    """Where vectors of the storage's messages may be that this memory or another has made."""
    if vector is False:
        return VectorsBeside(None)
    store = vector if vector is not None else index.vectors if index is not None else None
    if store is not None:
        return VectorsBeside(lambda: store)
    return VectorsBeside(lambda: _same_database(storage), lambda: _has_vectors(storage))


async def _has_vectors(storage: Storage) -> bool:
    """Whether somebody keeps vectors in the database of the messages; nothing is made by asking."""
    from diarist.storage import InMemoryStorage

    if isinstance(storage, InMemoryStorage):
        return False
    from diarist.storage.sql.storage import SQLStorage

    return isinstance(storage, SQLStorage) and await storage.has_tables("vectors")


def _same_database(storage: Storage) -> VectorStore:
    """The store of the vectors in the database of the messages."""
    from diarist.storage import SQLiteStorage

    if isinstance(storage, SQLiteStorage):
        return _default_store(storage)
    try:
        from diarist.storage.postgres import PostgresStorage
        from diarist.vectors.postgres import PgVectorStore
    except ImportError as error:  # then it is another kind of storage
        raise _unreachable(storage) from error
    if not isinstance(storage, PostgresStorage):
        raise _unreachable(storage)
    return PgVectorStore(storage.url, schema=storage.schema)


def _unreachable(storage: Storage) -> ConfigError:
    return ConfigError(
        f"{storage.location} has vectors, too: say with vector= how to reach them, or vector=False to leave them"
    )


def _default_store(storage: Storage) -> VectorStore:
    """A store beside the messages."""
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
        f"with {type(storage).__name__}, say where vectors are kept: vector=PgVectorStore(...) or another"
    )
