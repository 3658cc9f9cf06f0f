"""Embedders: vectors of texts, from a provider by an id such as ``"openai/text-embedding-3-small"``, or offline.

Provider libraries and weights are loaded at the first call of an embedder.
"""

from __future__ import annotations

import asyncio
import math
import threading
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from diarist.checks import positive, whole
from diarist.exceptions import ConfigError, ModelResponseError, ModelTimeoutError
from diarist.models import providers

if TYPE_CHECKING:
    from pydantic_ai.embeddings import EmbeddingModel
    from pydantic_ai.providers import Provider

__all__ = ["Embedder", "LibraryEmbedder", "Purpose", "WordLlamaEmbedder", "embed_texts", "resolve_embedder"]

Purpose = Literal["document", "query"]
"""A stored text or a search query. Some models embed the two differently."""


class Embedder(ABC):
    """Turns texts into vectors. Texts with similar meanings have similar vectors.

    Attributes:
        name: Name of the model, such as ``openai/text-embedding-3-small``. Vectors are compared only if their
            embedders have the same name.
        dimension: Length of the vectors.
        max_batch: Maximum number of texts in one call.
    """

    name: str
    dimension: int
    max_batch: int = 96

    @abstractmethod
    async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> list[list[float]]:
        """Return a vector for each of at most ``max_batch`` texts, in order; zeros for a text without content.

        Raises ModelError.
        """

    async def close(self) -> None:  # noqa: B027 - many have nothing to release
        """Release connections; the next call opens new ones."""


async def embed_texts(embedder: Embedder, texts: Sequence[str], *, purpose: Purpose = "document") -> list[list[float]]:
    """Return a vector of 32-bit numbers for each text, embedding any number of texts in batches.

    Raises:
        ConfigError: The vectors do not have the embedder's ``dimension``.
        ModelError: A call failed, or returned a wrong number of vectors or numbers that are not finite.
    """
    vectors: list[list[float]] = []
    for start in range(0, len(texts), embedder.max_batch):
        batch = texts[start : start + embedder.max_batch]
        found = await embedder.embed(batch, purpose=purpose)
        if len(found) != len(batch):
            raise ModelResponseError(f"{embedder.name} returned {len(found)} vectors for {len(batch)} texts")
        vectors.extend(found)  # an array of numpy would be added as numbers
    wrong = next((len(vector) for vector in vectors if len(vector) != embedder.dimension), None)
    if wrong is not None:
        raise ConfigError(
            f"{embedder.name} returns vectors of length {wrong}, not {embedder.dimension}: pass dimension={wrong}"
        )
    singles = [array("f", vector) for vector in vectors]
    if not all(math.isfinite(sum(single)) for single in singles):
        raise ModelResponseError(f"{embedder.name} returned a vector with numbers that are not finite")
    return [single.tolist() for single in singles]


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
"""Dimensions from the providers' pages."""


class LibraryEmbedder(Embedder):
    """An embedding model that is called through pydantic-ai, which is loaded at the first call.

    It may be used from several event loops; each has its own client. The client retries transient failures.
    """

    def __init__(
        self,
        provider: str,
        model: str,
        *,
        dimension: int | None,
        base_url: str | None,
        api_key: str | None,
        timeout: float,
    ) -> None:
        self.name = f"{provider}/{model}"
        known = DIMENSIONS.get(self.name)
        if dimension is None and known is None:
            raise ConfigError(f"the vector length of {self.name} is unknown: pass dimension= (see the provider's page)")
        self.dimension = dimension or known or 0
        # Request another dimension only from known models.
        self._requested_dimension = dimension if known is not None and dimension != known else None
        self._provider, self._model = provider, model
        self._options = {"api_key": api_key, "base_url": base_url}
        self._timeout = timeout
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[EmbeddingModel, list[Provider[Any]]]] = (
            WeakKeyDictionary()
        )

    async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> list[list[float]]:
        from pydantic_ai.embeddings import EmbeddingSettings

        from diarist.models.pydantic_ai.errors import typed_errors

        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = self._build()
        model, _ = self._clients[loop]
        settings = EmbeddingSettings()
        if self._requested_dimension is not None:
            settings["dimensions"] = self._requested_dimension
        try:
            with typed_errors(self._provider):
                async with asyncio.timeout(self._timeout):
                    result = await model.embed(list(texts), input_type=purpose, settings=settings)
        except TimeoutError as error:
            raise ModelTimeoutError(
                f"{self.name} took longer than timeout ({self._timeout:g} s)", provider=self._provider
            ) from error
        return [list(vector) for vector in result.embeddings]

    async def close(self) -> None:
        """Close this event loop's connections."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        for provider in client[1] if client else ():
            async with provider:  # leaving the context closes the client
                pass

    def _build(self) -> tuple[EmbeddingModel, list[Provider[Any]]]:
        from pydantic_ai.embeddings import infer_embedding_model
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.providers import infer_provider_class

        given = {name: value for name, value in self._options.items() if value is not None}
        made: list[Provider[Any]] = []

        def provider(kind: str) -> Provider[Any]:
            made.append(infer_provider_class(kind)(**given))
            return made[-1]

        try:
            return infer_embedding_model(f"{self._provider}:{self._model}", provider_factory=provider), made
        except TypeError as error:
            raise providers.not_taken(self._provider, given) from error
        except (UserError, ImportError) as error:
            raise ConfigError(f"cannot use {self.name}: {error}") from error


class WordLlamaEmbedder(Embedder):
    """WordLlama: the average of one vector per word piece (256 numbers from a large model), without key or network.

    It embeds about 10,000 short texts a second and takes 16 MB. It ignores the order of words: "the dog bites the man"
    and "the man bites the dog" have the same vector. Best for English. Needs the extra ``offline``.
    """

    name = "wordllama/l2_supercat_256"
    dimension = 256
    max_batch = 256

    def __init__(self) -> None:
        """Raises ConfigError if the package is missing."""
        if find_spec("wordllama") is None:
            raise ConfigError("the offline embedder needs an extra: pip install 'diarist[offline]'")
        self._model: Any = None
        self._lock = threading.Lock()

    async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> list[list[float]]:
        return await asyncio.to_thread(self._embed, list(texts))

    def _embed(self, texts: list[str]) -> list[list[float]]:
        import numpy as np

        with self._lock:
            if self._model is None:
                import wordllama  # pyright: ignore[reportMissingTypeStubs]

                folder = Path(wordllama.__file__).parent  # by default, it would use its own cache and download
                self._model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
            # WordLlama fails for a text without any known word piece.
            known = [index for index, text in enumerate(texts) if text.strip()]
            found = self._model.embed([texts[index] for index in known], norm=True) if known else np.empty((0, 0))
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        if known:
            vectors[known] = found
        return np.nan_to_num(vectors).tolist()


OFFLINE = "wordllama"


def resolve_embedder(
    embedder: str | Embedder,
    *,
    dimension: int | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
    timeout: float = 120.0,
) -> Embedder:
    """Return an embedder.

    Args:
        embedder: An id ``provider/model``; ``"wordllama"``, which works offline; or an ``Embedder``, returned as it
            is.
        dimension: Length of the vectors; required for models that diarist does not know. From a known model, vectors
            of this length are requested.
        base_url, api_key: As for ``resolve``.
        timeout: Seconds that one call of a provider may take in all, including the client's own retries, before
            ``ModelTimeoutError``.

    Raises:
        ConfigError: The provider is unknown; its key, package or dimension is missing; an object is not a complete
            ``Embedder`` or has another dimension. Nothing is sent.
    """
    given: Any = WordLlamaEmbedder() if embedder == OFFLINE else embedder
    if isinstance(given, Embedder):
        _check_object(given, dimension)
        return given
    if not isinstance(given, str):
        raise ConfigError(
            f"embedder must be an id such as 'openai/text-embedding-3-small' or {OFFLINE!r}, or an object whose class "
            f"inherits from Embedder, not {given!r}"
        )
    if "/" not in given:
        raise ConfigError(
            f"embedder {given!r}: write provider/model, such as 'openai/text-embedding-3-small', or {OFFLINE!r}, "
            "which works offline"
        )
    if dimension is not None:
        whole("", "dimension", dimension, least=1)
    positive("", "timeout", timeout)
    provider, model = providers.split_id(given)
    base_url = base_url or providers.server_url(provider)
    api_key = providers.key(provider, api_key)
    resolver = "diarist.models.embedders.resolve_embedder"
    providers.check_available(provider, api_key=api_key, base_url=base_url, resolver=resolver)
    return LibraryEmbedder(provider, model, dimension=dimension, base_url=base_url, api_key=api_key, timeout=timeout)


def _check_object(embedder: Embedder, wanted: int | None) -> None:
    """Raise ConfigError for an embedder without a name or sizes, or with another dimension than ``wanted``."""
    kind = type(embedder).__name__
    name: Any = getattr(embedder, "name", None)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{kind} needs a name, which identifies its vectors: name = '...'")
    for option in ("dimension", "max_batch"):
        whole(kind, option, getattr(embedder, option, None), least=1)
    if wanted not in (None, embedder.dimension):
        raise ConfigError(
            f"{embedder.name} only returns vectors of length {embedder.dimension}: leave out dimension={wanted!r}"
        )
