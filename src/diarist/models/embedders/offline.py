"""An embedder whose weights come with a package: no key, no network."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from diarist.exceptions import ConfigError
from diarist.models.embedders.base import Embedder, Purpose


class WordLlamaEmbedder(Embedder):
    """WordLlama: a vector per word piece (256 numbers, cut out of a large model), averaged.

    Quick (about 10,000 short texts a second) and small (16 MB). It knows words that mean the same, not their order:
    "the dog bites the man" and "the man bites the dog" are one to it. Best for English. Needs the extra ``offline``.
    """

    name = "wordllama/l2_supercat_256"
    dimension = 256
    max_batch = 256

    def __init__(self) -> None:
        """Raises ConfigError where the package is missing."""
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
                self._model = _load()
            # A text without a single known piece is refused by its division.
            known = [index for index, text in enumerate(texts) if text.strip()]
            found = self._model.embed([texts[index] for index in known], norm=True) if known else np.empty((0, 0))
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        if known:
            vectors[known] = found
        return np.nan_to_num(vectors).tolist()


def _load() -> Any:
    import wordllama  # pyright: ignore[reportMissingTypeStubs]

    folder = Path(wordllama.__file__).parent  # it looks for weights in a cache of its own first, and would download
    return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
