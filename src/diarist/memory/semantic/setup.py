"""From the options of ``Memory`` to the parts of semantic recall."""

from __future__ import annotations

from typing import Any, Literal, cast

from diarist.exceptions import ConfigError
from diarist.memory.semantic.chunks import CHUNK_LENGTH
from diarist.memory.semantic.config import SemanticRecallConfig
from diarist.memory.semantic.index import SemanticIndex
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
    if config is None and vector is None and embedder is None:
        return None
    if vector is not None and not isinstance(cast(Any, vector), VectorStore):
        raise ConfigError(
            f"vector must be a vector store, such as SQLiteVectorStore('vectors.db'), not {vector!r}; "
            "left out, vectors are kept beside the messages"
        )
    if embedder is None:
        what = "semantic recall" if config is not None else "a vector store"
        raise ConfigError(
            f"{what} needs an embedder: pass embedder='openai/text-embedding-3-small' or another of your provider's,"
            " or 'wordllama', which works offline"
        )
    length = config.chunk_length if config is not None else CHUNK_LENGTH
    store = vector if vector is not None else _default_store(storage)
    return SemanticIndex(storage, store, resolve_embedder(embedder), chunk_length=length)


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
