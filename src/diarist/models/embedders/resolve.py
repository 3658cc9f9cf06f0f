"""From an id such as ``"openai/text-embedding-3-small"`` to an embedder."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from diarist.exceptions import ConfigError
from diarist.models import providers
from diarist.models.embedders.base import Embedder
from diarist.models.embedders.library import LibraryEmbedder

OFFLINE = "wordllama"


def resolve_embedder(
    embedder: str | Embedder,
    *,
    dimension: int | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
) -> Embedder:
    """An embedder to call.

    Args:
        embedder: An id ``provider/model``; ``"wordllama"``, which works offline; or an ``Embedder``, returned as it
            is.
        dimension: How long the vectors are. Needed for models that diarist does not know; a known model is asked for
            vectors of this length.
        base_url, api_key: As for models.

    Raises:
        ConfigError: The id names no known provider, or lacks its key, its package or its dimension; an object is no
            complete ``Embedder``, or gives vectors of another dimension. Nothing is sent.
    """
    if isinstance(embedder, Embedder):
        return _sized(_checked(embedder), dimension)
    if embedder == OFFLINE:
        from diarist.models.embedders.offline import WordLlamaEmbedder

        return _sized(WordLlamaEmbedder(), dimension)
    _check_id(embedder)
    if dimension is not None and dimension < 1:
        raise ConfigError(f"dimension must be positive, not {dimension!r}")
    provider, model = providers.split_id(embedder)
    base_url = base_url or providers.server_url(provider)
    providers.check(provider, api_key=api_key, base_url=base_url)
    return LibraryEmbedder(provider, model, dimension=dimension, base_url=base_url, api_key=api_key)


def _check_id(value: Any) -> None:
    if isinstance(value, type):
        raise ConfigError(f"embedder must be an object, not the class itself: {value.__name__}(...)")
    if not isinstance(value, str):
        raise ConfigError(
            f"embedder must be an id such as 'openai/text-embedding-3-small' or {OFFLINE!r}, or an object whose class "
            f"inherits from Embedder, not {type(value).__name__}"
        )
    if "/" not in value:
        close = f"; did you mean {OFFLINE!r}?" if get_close_matches(value.lower(), [OFFLINE]) else ""
        raise ConfigError(
            f"embedder {value!r}: write provider/model, such as 'openai/text-embedding-3-small', or {OFFLINE!r}, "
            f"which works offline{close}"
        )


def _checked(embedder: Embedder) -> Embedder:
    kind = type(embedder).__name__
    name: Any = getattr(embedder, "name", None)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{kind} needs a name, a text that tells its vectors from those of others: name = '...'")
    for option in ("dimension", "max_batch"):
        number: Any = getattr(embedder, option, None)
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ConfigError(f"{option} of {kind} must be a whole number from 1 on, not {number!r}")
    return embedder


def _sized(embedder: Embedder, dimension: int | None) -> Embedder:
    if dimension not in (None, embedder.dimension):
        raise ConfigError(
            f"{embedder.name} gives vectors of {embedder.dimension} numbers and of no other length: "
            f"leave out dimension={dimension!r}"
        )
    return embedder
