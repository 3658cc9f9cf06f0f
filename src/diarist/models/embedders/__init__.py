"""Embedders: texts in, vectors out, by an id such as ``"openai/text-embedding-3-small"`` or offline.

Importing this loads no provider library; the first call of an embedder does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diarist.models.embedders.base import Embedder, Purpose, embed_texts
from diarist.models.embedders.library import LibraryEmbedder
from diarist.models.embedders.resolve import resolve_embedder

if TYPE_CHECKING:
    from diarist.models.embedders.offline import WordLlamaEmbedder

__all__ = ["Embedder", "LibraryEmbedder", "Purpose", "WordLlamaEmbedder", "embed_texts", "resolve_embedder"]


def __getattr__(name: str) -> Any:
    if name == "WordLlamaEmbedder":
        from diarist.models.embedders.offline import WordLlamaEmbedder

        return WordLlamaEmbedder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
