"""Embedding models of pydantic-ai as embedders of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from diarist.exceptions import ConfigError
from diarist.models.embedders.base import Embedder, Purpose

if TYPE_CHECKING:
    from pydantic_ai.embeddings import EmbeddingModel
    from pydantic_ai.providers import Provider

DIMENSIONS = {
    "openai/text-embedding-3-small": 1536,
    "openai/text-embedding-3-large": 3072,
    "openai/text-embedding-ada-002": 1536,
    "google/gemini-embedding-001": 3072,
    "cohere/embed-v4.0": 1536,
    "cohere/embed-english-v3.0": 1024,
    "cohere/embed-multilingual-v3.0": 1024,
    "mistral/mistral-embed": 1024,
    "ollama/nomic-embed-text": 768,
    "ollama/mxbai-embed-large": 1024,
}
"""As the providers' pages say. Of other models the caller says it."""


class LibraryEmbedder(Embedder):
    """An embedding model of a provider, through pydantic-ai, which is loaded at the first call.

    Usable from several event loops; each has a client of its own. The provider's client repeats calls that failed
    for a moment.
    """

    def __init__(
        self, provider: str, model: str, *, dimension: int | None, base_url: str | None, api_key: str | None
    ) -> None:
        self.name = f"{provider}/{model}"
        known = DIMENSIONS.get(self.name)
        if dimension is None and known is None:
            raise ConfigError(f"how long are the vectors of {self.name}? pass dimension=, as its provider's page says")
        self.dimension = dimension or known or 0
        # Only a model of which we know that it can be asked for another length is asked.
        self._asked = dimension if known is not None and dimension != known else None
        self._provider, self._model = provider, model
        self._options = {"api_key": api_key, "base_url": base_url}
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, _Client] = WeakKeyDictionary()

    async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> list[list[float]]:
        from pydantic_ai.embeddings import EmbeddingSettings

        from diarist.models.errors import typed_errors

        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = self._build()
        settings = EmbeddingSettings() if self._asked is None else EmbeddingSettings(dimensions=self._asked)
        with typed_errors(self._provider):
            result = await self._clients[loop].model.embed(list(texts), input_type=purpose, settings=settings)
        return [list(vector) for vector in result.embeddings]

    async def close(self) -> None:
        """Close this event loop's connections."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        for provider in client.providers if client is not None else ():
            async with provider:  # leaving it is the library's way to close a client
                pass

    def _build(self) -> _Client:
        from pydantic_ai.embeddings import infer_embedding_model
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.providers import infer_provider_class

        given = {name: value for name, value in self._options.items() if value is not None}
        made: list[Provider[Any]] = []

        def provider(kind: str) -> Provider[Any]:
            made.append(infer_provider_class(kind)(**given))
            return made[-1]

        try:
            return _Client(infer_embedding_model(f"{self._provider}:{self._model}", provider_factory=provider), made)
        except TypeError as error:
            raise ConfigError(f"{self._provider!r} does not take {' and '.join(given)}") from error
        except (UserError, ImportError) as error:
            raise ConfigError(f"cannot use {self.name}: {error}") from error


class _Client:
    def __init__(self, model: EmbeddingModel, providers: list[Provider[Any]]) -> None:
        self.model = model
        self.providers = providers
